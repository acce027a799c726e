// In a frame of another page: it is told the scheme of that page, and tells how high it is itself.
// Pages of a disk have no common origin: both sides know each other by their windows.
function embed() {
  if (window.parent === window) return;
  const root = document.documentElement;
  root.classList.add("framed");
  $("whole").hidden = false;
  const tell = () => window.parent.postMessage({ height: Math.ceil(root.getBoundingClientRect().height) }, "*");
  window.addEventListener("message", event => {
    if (event.source !== window.parent || !["light", "dark"].includes(event.data?.scheme)) return;
    root.dataset.scheme = event.data.scheme;
    paint();
    tell();
  });
  new ResizeObserver(tell).observe(root);
  // Nothing is played before there is anybody to see it.
  page.waiting = true;
  new IntersectionObserver(([first], own) => {
    page.waiting = !first.isIntersecting;
    if (!page.waiting) own.disconnect();
  }).observe($("picture"));
}
