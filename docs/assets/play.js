// The playground in a frame: as high as its own page, in the scheme of this one.
{
  const played = [...document.querySelectorAll("iframe.play")];
  const tell = (frame) => {
    const scheme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
    frame.contentWindow.postMessage({ scheme }, "*");
  };
  for (const frame of played) {
    frame.addEventListener("load", () => tell(frame));
    tell(frame);
  }
  addEventListener("message", ({ source, data }) => {
    const frame = played.find((one) => one.contentWindow === source);
    if (!frame || !(data?.height > 0)) return;
    frame.style.height = `${data.height + frame.offsetHeight - frame.clientHeight}px`;
  });
  const change = new MutationObserver(() => played.forEach(tell));
  change.observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
}
