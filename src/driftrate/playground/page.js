// The page: settings in the address, a run behind them, pictures of it.
const LEARNERS = {
  measured: ["MeasuredRate", "told nothing: measures signal and noise"],
  hedged: ["HedgedSGD", "told nothing: ten rates, mixed by loss"],
  pursuit: ["Pursuit", "told nothing: an optimizer for networks"],
  linear: ["Algorithm 1", "told the truth: shifts, noise, dimension"],
  constant: ["Constant", "told its rate, by you", "rate"],
  inverse: ["1/t", "told the best first rate"],
  adam: ["Adam", "told its rate, by you", "adam"],
};
const NAMES = Object.keys(LEARNERS);
const SLIDERS = {
  speed: { low: -10, high: 7, value: raw => 10 ** (raw / 10), start: 0 },
  noise: { low: 0, high: 40, value: raw => raw / 10, start: 15, say: v => `\u03c3 = ${number(v)}` },
  batch: { low: 1, high: 8, value: raw => 2 ** raw, start: 4, say: v => `${v} rows` },
  dim: { low: 0, high: 3, value: raw => DIMENSIONS[raw], start: 0, say: String },
  rate: { low: -50, high: 6, value: raw => 10 ** (raw / 20), start: -20, say: number },
  adam: { low: -60, high: 0, value: raw => 10 ** (raw / 20), start: -26, say: number },
};
const DIMENSIONS = Object.keys(SCALES).map(Number);
const TRIES = [
  ["jumps", ""],
  ["slow drift", "path=drift&speed=0.316"],
  ["fast drift", "path=drift&speed=3.16"],
  ["rest", "path=rest"],
  ["spiral", "path=spiral"],
  ["runaway", "path=runaway"],
  ["very noisy", "noise=4&batch=2"],
  ["too high a rate", "rate=1.26"],
  ["32 weights", "dim=32"],
  ["move it yourself", "path=yours"],
];
const PACE = 60, BUDGET = 4;                     // steps a second; milliseconds of computing a frame
const STORIES = {
  rest: "Nothing moves, so a rate should fall as 1/t: here 1/t is right.",
  jumps: "After a jump a good rate leaps up, then falls as 1/t again. A constant one is too low for jumps and too "
    + "high for rest; 1/t has forgotten how to move.",
  drift: "A random walk: the best rate is a constant, set by speed, noise and batch. Algorithm 1 guards against "
    + "the worst, and so its rate is higher.",
  spiral: "The paper\u2019s spiral is fast outside and slow in the middle: the best rate falls, and rises again.",
  runaway: "The target runs straight away from each learner: the worst that it can do at its speed, and what "
    + "Algorithm 1 is made for.",
  yours: "Let the target rest, jump and drift by your hand, and see who follows. The address keeps your path.",
};
const LEARNING = [                               // from the top, whose words come first
  { value: 5, say: "5" }, { value: 2, say: "2" }, { value: 1, say: "1", strong: true, words: "overshoots above" },
  { value: .5, say: "0.5", words: "halves the error" }, { value: .1, say: "0.1" }, { value: 0, say: "0" },
];
const $ = id => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

const page = {
  raw: {}, path: "jumps", seed: 1, off: new Set(), drawn: [], step: 0, playing: false,
  history: new History(NAMES), colours: {}, stale: true, frames: 0, first: null, hot: null, pointer: null,
  written: -REST, due: 0, waiting: false,
};

function settings() {
  const values = Object.entries(SLIDERS).map(([name, one]) => [name, one.value(page.raw[name])]);
  return { ...Object.fromEntries(values), path: page.path, seed: page.seed, drawn: page.drawn };
}

// What follows from a change: the run begins anew, up to the step that is shown.
function begin() {
  page.history.begin(settings());
  page.stale = true;
  say();
  remember();
}

function say() {
  const now = settings();
  for (const [name, one] of Object.entries(SLIDERS)) {
    const text = name === "speed" ? PATHS[page.path].say(now.speed) : one.say(now[name]);
    $(name).value = page.raw[name]; $(name).setAttribute("aria-valuetext", text);
    $(`say-${name}`).textContent = text;
  }
  $("speed").disabled = page.path === "rest" || page.path === "yours";
  $(`path-${page.path}`).checked = true;
  $("picture").classList.toggle("grab", page.path === "yours");
  $("hint").hidden = page.path !== "yours" || page.drawn.length > 1;
  $("story").textContent = STORIES[page.path];
  for (const name of NAMES) {
    const off = page.off.has(name);
    $(`rule-${name}`).toggleAttribute("data-off", off);
    $(`rule-${name}`).querySelector("button").setAttribute("aria-pressed", !off);
  }
}

function play(on) {
  if (on && page.step >= STEPS - 1) page.step = 0;
  page.playing = on;
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  $("sign").setAttribute("d", on ? "M6 4h4.5v16H6zM13.5 4H18v16h-4.5z" : "M7 4v16l13-8z");
  page.stale = true;
  remember();
}

function show(step) {
  page.step = step;
  page.stale = true;
  if (page.playing) play(false);
  remember();
}

// What the address says, from its beginning.
function again() {
  restore();
  page.history.known = 0;
  begin();
  play(page.playing);
}

// One frame.
let last = 0;
function frame(now) {
  const { history: run } = page;
  const passed = Math.min(now - last, 50);
  last = now;
  const live = page.path === "yours";
  if (page.playing && !page.waiting) {
    const to = page.step + PACE * passed / 1000;
    if (live) hold(Math.min(Math.floor(to), STEPS - 1));
    // No further than is known, which is old news while a run begins anew; who is ahead waits.
    page.step = live ? Math.min(to, STEPS - 1) : Math.max(page.step, Math.min(to, run.known - 1));
    if (page.step >= STEPS - 1) play(false);
    page.stale = true;
  }
  const until = reach() + 1;
  if (run.head < until) {
    run.compute(until, BUDGET);
    page.stale = true;                            // charts have room for all that is known
  }
  if (page.stale) { draw(); page.stale = false; }
  // When the first picture was there, from the start of the visit.
  if (page.first === null && run.head > 1) page.first = performance.now();
  page.frames++;
  requestAnimationFrame(frame);
}

// The last step that is computed; of a path by hand, none that is not drawn yet.
function reach() {
  const { drawn } = page, end = drawn.length ? drawn[drawn.length - 1][0] : 0;
  return page.path === "yours" ? Math.max(Math.floor(page.step), end) : STEPS - 1;
}

function draw() {
  const { history: run, colours } = page;
  // While a run begins anew the last one is still there, unless it takes too long to come.
  const wait = run.head && run.cost / run.head * (page.step - run.head) > 1200;
  const known = wait || run.known <= page.step ? run.head : run.known;
  const step = Math.max(0, Math.min(Math.floor(page.step), known - 1));
  const shown = NAMES.map((name, k) => ({ name, k })).filter(one => !page.off.has(one.name));
  const line = (kind, error) => shown.map(({ name, k }) => ({
    values: run[kind][k], error: error && run[error][k], colour: colours[name],
    dash: name === "linear" ? [6, 3] : null,
    alpha: faded(name),
  }));
  const marks = [];
  if (page.path === "jumps") for (let t = EVERY; t < STEPS - 1; t += EVERY) marks.push(t);
  const span = Math.max(step, Math.min(run.known - 1, reach()));
  const far = kind => extent(shown.map(({ k }) => run[kind][k]), span);
  const [lowRate, highRate] = far("rates");
  const low = Math.min(Math.max(.7 * lowRate, 1e-5), .02), top = Math.min(Math.max(1.2 * highRate, 2), 20);
  chart($("rates"), line("rates"), step, decades(low, top), logarithmic(low, top), colours, marks);
  // Between a straight and a logarithmic scale: small ones are seen, and 0 is there.
  const most = Math.min(Math.max(1.05 * far("learning")[1], 2), 5);
  chart($("learning"), line("learning"), step, LEARNING, v => Math.sqrt(Math.max(v, 0) / most), colours, marks);
  // From the first loss on; what is a thousand times worse than the best leaves the picture.
  const [least, worst, end] = far("regret");
  const high = 1.5 * Math.min(worst, 2000 * end), floor = Math.max(.8 * least, 1e-6 * high);
  chart($("regret"), line("regret", "error"), step, decades(floor, high), logarithmic(floor, high), colours, marks);
  const view = look(shown, step);
  page.map = chase($("picture"), view, colours);
  if ($("seen").textContent !== view.seen) $("seen").textContent = view.seen;
  $("time").value = step; $("time").setAttribute("aria-valuetext", `step ${step}`);
  $("clock").textContent = `${step} / ${STEPS - 1}`;
  let best = Infinity;
  page.best = undefined;
  for (const { k } of shown) if (run.regret[k][step] < best) { best = run.regret[k][step]; page.best = k; }
  const found = page.best === undefined ? "" : `; ${LEARNERS[NAMES[page.best]][0]} has the least regret so far`;
  const label = page.playing ? "The chase, playing" : `The chase at step ${step} of ${STEPS - 1}${found}`;
  if ($("picture").ariaLabel !== label) $("picture").ariaLabel = label;
  NAMES.forEach((name, k) => {
    const value = run.regret[k][step];
    $(`regret-${name}`).textContent = value === value ? number3(value) : step ? "diverged" : "";
    $(`rule-${name}`).toggleAttribute("data-best", k === page.best && step > 0);
  });
}

// Where one rate is pointed at, the others step back.
function faded(name) { return page.hot && page.hot !== name ? .15 : 1; }

function number3(value) {
  if (value >= 1e5) return value.toExponential(1).replace("+", "");
  return value >= 100 ? String(Math.round(value)) : value.toPrecision(3);
}

// The least value above 0, the largest, and the least of the last ones.
function extent(columns, step) {
  let low = Infinity, high = 0, end = Infinity;
  for (const column of columns) {
    for (let t = 0; t <= step; t++) {
      const v = column[t];
      if (v > 0) { if (v < low) low = v; if (v > high && v < 1e30) high = v; }
    }
    if (column[step] > 0 && column[step] < end) end = column[step];
  }
  return [low === Infinity ? .01 : low, high || 1, end === Infinity ? high || 1 : end];
}

// What the chase shows: where things are, and the window on them.
function look(shown, step) {
  const { history: run } = page, path = run.world.path;
  if (path === null) {
    // As seen from the target: every learner has its own. Who is lost is shown on the edge.
    const far = shown.map(({ k }) => {
      let most = 0;
      for (let t = Math.max(0, step - 60); t <= step; t += 4) if (run.away[k][t] > most) most = run.away[k][t];
      return most;
    }).sort((a, b) => a - b);
    const radius = Math.max(.6, 1.6 * (far[Math.floor(.7 * (far.length - 1))] || 0));
    const learners = shown.map(({ name, k }) => ({
      colour: page.colours[name], dash: name === "linear", alpha: faded(name),
      place: (t, seed) => {
        const at = 2 * (t * SEEDS + seed);
        return [run.places[k][at], run.places[k][at + 1]];
      },
    }));
    const seen = "as seen from the target, which runs from each learner by itself";
    return { centre: [0, 0], radius: Math.min(radius, 1e4), step, target: null, learners, seen };
  }
  const [radius, follow] = windowOf(run.world.settings), centre = [page.path === "rest" ? .8 : 0, 0];
  if (follow) {
    // The window moves with the target, but later.
    const from = Math.max(0, step - follow);
    for (let t = from; t <= step; t++) {
      centre[0] += path[2 * t] / (step - from + 1); centre[1] += path[2 * t + 1] / (step - from + 1);
    }
  }
  const learners = shown.map(({ name, k }) => ({
    colour: page.colours[name], dash: name === "linear", alpha: faded(name),
    place: (t, seed) => {
      const at = 2 * (t * SEEDS + seed);
      return [run.places[k][at] + path[2 * t], run.places[k][at + 1] + path[2 * t + 1]];
    },
  }));
  const dim = SLIDERS.dim.value(page.raw.dim);
  const seen = dim > 2 ? `2 of ${dim} weights: the others\u2019 target is 0` : "";
  return { centre, radius, step, target: t => [path[2 * t], path[2 * t + 1]], learners, seen };
}

function paint() {
  const probe = document.body.appendChild(document.createElement("i"));
  for (const name of ["card", "ink", "soft", "line", "faint", "target", ...NAMES]) {
    probe.style.color = `var(--${name})`;
    page.colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  page.stale = true;
}

// What the document is made of that a list knows better.
function furnish() {
  const group = document.createElement("div");
  for (const path of Object.keys(PATHS)) {
    const label = document.createElement("label");
    label.innerHTML = `<input type="radio" name="path" id="path-${path}" value="${path}"><span>${path}</span>`;
    group.append(label);
  }
  $("paths").append(group);
  $("rules").innerHTML = '<h2><span>click to hide</span><span>regret so far</span></h2>' + NAMES.map(name => {
    const [title, told, slider] = LEARNERS[name];
    const own = slider in SLIDERS ? `<label><span hidden>rate</span><input type="range" id="${slider}"
      aria-label="Rate of ${title}"><output id="say-${slider}"></output></label>` : "";
    return `<div class="rule" id="rule-${name}" style="--c: var(--${name})"><button type="button" aria-pressed="true">
      <i></i><b>${title}</b><data id="regret-${name}"></data><small>${told}</small></button>${own}</div>`;
  }).join("");
  // Each story holds its place, so that none moves what is below.
  for (const story of Object.values(STORIES)) {
    const place = document.createElement("p");
    place.textContent = story; place.ariaHidden = "true";
    $("stories").append(place);
  }
  $("tries").innerHTML = TRIES.map(([say, hash]) => `<a href="#${hash}">${say}</a>`).join("");
  for (const [name, one] of Object.entries(SLIDERS)) {
    Object.assign($(name), { min: one.low, max: one.high, step: 1 });
    $(name).addEventListener("input", () => { page.raw[name] = Number($(name).value); begin(); });
  }
  $("time").max = STEPS - 1;
}

function listen() {
  $("paths").addEventListener("change", event => {
    page.path = event.target.value;
    if (page.path === "yours") page.drawn = [];
    // Without motion the end is shown, except where there is none yet.
    if (page.path === "yours" || !still) page.step = 0;
    else page.step = STEPS - 1;
    page.history.known = 0;
    begin();
    if (!still) play(true);
  });
  $("rules").addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    const name = button.parentNode.id.slice(5);
    if (!page.off.delete(name)) page.off.add(name);
    page.hot = null;
    page.stale = true; say(); remember();
  });
  const point = event => {
    if (event.type === "focusin" && !event.target.matches(":focus-visible")) return;
    const card = event.target.closest(".rule"), name = card && card.id.slice(5);
    const hot = card && !page.off.has(name) ? name : null;
    if (hot !== page.hot) { page.hot = hot; page.stale = true; }
  };
  for (const kind of ["pointerover", "focusin"]) $("rules").addEventListener(kind, point);
  for (const kind of ["pointerleave", "focusout"]) {
    $("rules").addEventListener(kind, () => { page.hot = null; page.stale = true; });
  }
  for (const id of ["rates", "learning", "regret"]) {
    const go = event => { if (event.buttons) show(stepAt($(id), event.offsetX)); };
    $(id).addEventListener("pointerdown", go);
    $(id).addEventListener("pointermove", go);
  }
  $("play").addEventListener("click", () => play(!page.playing));
  $("time").addEventListener("input", () => show(Number($("time").value)));
  $("tries").addEventListener("click", event => {
    clearTimeout(page.due);                       // the link's address is the one
    if (event.target.hash === location.hash) again();
  });
  $("fresh").addEventListener("click", () => { page.seed = page.seed % 1e6 + 1; begin(); });
  document.addEventListener("keydown", event => {
    if (event.key !== " " || event.target.closest("button, a")) return;
    event.preventDefault(); play(!page.playing);
  });
  window.addEventListener("hashchange", again);
  window.addEventListener("resize", () => { page.stale = true; });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  hand($("picture"));
  $("copy").addEventListener("click", copy);
}

furnish();
embed();
restore();
paint();
listen();
begin();
play(page.playing);
requestAnimationFrame(frame);
