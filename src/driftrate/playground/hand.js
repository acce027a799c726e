// Drawing by mouse, finger or arrow keys.
function hand(canvas) {
  const place = event => {
    const box = canvas.getBoundingClientRect();
    return [page.map.x(event.clientX - box.left), page.map.y(event.clientY - box.top)];
  };
  const take = at => {
    page.pointer = at;
    if (page.step >= STEPS - 1) page.step = 0;    // as play does at the end
    // What comes after this step is drawn anew, and a run that is past it begins again.
    const from = Math.floor(page.step), later = page.drawn.some(one => one[0] > from);
    if (later) {
      page.drawn = [...page.drawn.filter(one => one[0] < from), [from, ...drawnAt(page.drawn, from).map(round)]];
    }
    if (later || page.history.head > from + 1) page.history.begin(settings());
    $("hint").hidden = true;
    if (!page.playing) play(true);
  };
  canvas.addEventListener("pointerdown", event => {
    if (page.path !== "yours" || event.button !== 0 || !event.isPrimary) return;
    canvas.setPointerCapture(event.pointerId);
    take(place(event));
  });
  canvas.addEventListener("pointermove", event => {
    if (page.pointer && event.buttons && event.isPrimary) page.pointer = place(event);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, event => {
      if (event.isPrimary) page.pointer = null;
      remember();
    });
  }
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  canvas.addEventListener("keydown", event => {
    const way = ways[event.key];
    if (!way || page.path !== "yours") return;
    event.preventDefault();
    const [x, y] = drawnAt(page.drawn, page.step);
    take([x + .3 * way[0], y + .3 * way[1]]);
    // At once: the key may be up again before the next frame.
    hold(Math.floor(page.step) + 1);
    page.step = Math.min(Math.floor(page.step) + 1, STEPS - 1);
    page.pointer = null;
    remember();
  });
}

// The target under the hand, until a step.
function hold(to) {
  if (!page.pointer || to <= Math.floor(page.step)) return;
  const { drawn } = page, [x, y] = page.pointer, end = drawn[drawn.length - 1];
  const from = Math.floor(page.step);
  if (end && to <= end[0]) return;
  const [px, py] = drawnAt(drawn, from);
  if (Math.hypot(px - x, py - y) < .01) return;
  if (!end || end[0] < from) drawn.push([from, round(px), round(py)]);
  drawn.push([to, round(x), round(y)]);
  const path = page.history.world.path;
  for (let t = from; t < STEPS; t++) [path[2 * t], path[2 * t + 1]] = drawnAt(drawn, t);
}

function round(value) { return Math.round(100 * value) / 100; }
