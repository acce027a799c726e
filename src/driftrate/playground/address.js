// The address: what is seen, in words that restore it.
const REST = 400;                                // milliseconds between two addresses at least

function address(withStep) {
  const words = [];
  if (page.path !== "jumps") words.push(`path=${page.path}`);
  for (const [name, one] of Object.entries(SLIDERS)) {
    if (page.raw[name] !== one.start) words.push(`${name}=${Number(one.value(page.raw[name]).toPrecision(3))}`);
  }
  if (page.seed !== 1) words.push(`seed=${page.seed}`);
  if (page.off.size) words.push(`off=${[...page.off].join(",")}`);
  if (page.path === "yours" && page.drawn.length) words.push(`drawn=${packed(page.drawn)}`);
  if (withStep) words.push(`step=${Math.floor(page.step)}`);
  return words.join("&");
}

function remember() {
  for (const one of document.querySelectorAll("#tries a")) {
    one.setAttribute("aria-current", one.hash.slice(1) === address(false));
  }
  // Some browsers refuse more than a hundred addresses in half a minute: a drag waits its turn.
  clearTimeout(page.due);
  const wait = page.written + REST - performance.now();
  if (wait > 0) page.due = setTimeout(write, wait); else write();
}

function write() {
  const text = address(!page.playing);
  if (location.hash.slice(1) === text) return;
  history.replaceState(null, "", text ? `#${text}` : location.pathname);
  page.written = performance.now();
  $("whole").href = location.href;
}

// Browsers keep their clipboard from pages of a file, but not a selection.
function copy() {
  const text = document.createElement("textarea");
  text.value = `${location.href.split("#")[0]}#${address(true)}`;
  text.readOnly = true;
  text.style.cssText = "position: fixed; opacity: 0";
  document.body.append(text);
  text.select();
  $("copy").textContent = document.execCommand("copy") ? "copied" : "not copied";
  text.remove();
  $("copy").focus();
  setTimeout(() => { $("copy").textContent = "copy link"; }, 1500);
}

function restore() {
  const told = new URLSearchParams(location.hash.slice(1));
  page.path = told.get("path") in PATHS ? told.get("path") : "jumps";
  for (const [name, one] of Object.entries(SLIDERS)) {
    const wanted = told.has(name) ? Number(told.get(name)) : NaN;
    page.raw[name] = one.start;
    if (Number.isNaN(wanted)) continue;
    // The place of the slider whose value is nearest.
    let near = Infinity;
    for (let raw = one.low; raw <= one.high; raw++) {
      const far = Math.abs(one.value(raw) - wanted);
      if (far < near) { near = far; page.raw[name] = raw; }
    }
  }
  page.seed = Math.min(Math.max(Math.floor(Number(told.get("seed"))) || 1, 1), 1e6);
  page.off = new Set((told.get("off") || "").split(",").filter(name => NAMES.includes(name)));
  page.drawn = unpacked(told.get("drawn"));
  page.step = Math.min(Math.max(Math.floor(Number(told.get("step"))) || 0, 0), STEPS - 1);
  if (still && !told.has("step") && page.path !== "yours") page.step = STEPS - 1;
  page.playing = !still && !told.has("step");
}
