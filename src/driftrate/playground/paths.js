// Where the target is at each step: in the plane of the first two weights, all others are 0.
const STEPS = 2001, EVERY = 250, START = 1.5;     // steps 0 to 2000
const PATHS = {
  rest: { say: () => "none" },
  jumps: { say: speed => `${number(1.2 * speed)} a jump` },
  drift: { say: speed => `${number(0.03 * speed)} a step` },
  spiral: { say: speed => `${number(2 * speed)} turns` },
  runaway: { say: speed => `${number(0.02 * speed)} a step` },
  yours: { say: () => "your hand\u2019s" },
};

function number(value) { return String(Number(value.toPrecision(2))); }

// How wide a window on the chase is, and over how many steps the window follows the target.
function windowOf({ path, speed, noise, batch }) {
  const cloud = 1.5 * noise / Math.sqrt(batch);
  if (path === "jumps") return [Math.max(1.25 * 1.2 * speed, cloud, .4), 50];
  if (path === "drift") return [Math.max(.75 * speed, cloud, .4), 120];
  if (path === "rest") return [Math.max(1.2, cloud), 0];
  return [2.35, 0];
}

// Return the positions x, y by steps; null for nature that runs away from each learner by itself.
function pathOf(settings) {
  const { path, speed, seed } = settings, at = new Float64Array(2 * STEPS);
  if (path === "runaway") return null;
  const random = new Random(seed, 0xffff);
  let x = START, y = 0;
  for (let t = 0; t < STEPS; t++) {
    if (path === "jumps" && t > 0 && t < STEPS - 1 && t % EVERY === 0) {
      // The first of some directions that does not lead out of the picture, or the best of them.
      const size = 1.2 * speed;
      let angle, near = Infinity;
      for (let k = 0; k < 12 && near > size; k++) {
        const a = 2 * Math.PI * random.uniform();
        const far = Math.hypot(x + size * Math.cos(a), y + size * Math.sin(a));
        if (far < near) { near = far; angle = a; }
      }
      x += size * Math.cos(angle); y += size * Math.sin(angle);
    } else if (path === "drift" && t > 0) {
      const angle = 2 * Math.PI * random.uniform();
      x += 0.03 * speed * Math.cos(angle); y += 0.03 * speed * Math.sin(angle);
    } else if (path === "spiral") {
      // The paper's equation (22) in two dimensions.
      const share = t / (STEPS - 1), radius = 2 * (1 - 2 * share) ** 3;
      x = radius * Math.cos(4 * Math.PI * speed * share);
      y = radius * Math.sin(4 * Math.PI * speed * share);
    } else if (path === "yours") [x, y] = drawnAt(settings.drawn, t);
    at[2 * t] = x; at[2 * t + 1] = y;
  }
  return at;
}

// A path by hand is a list of [step, x, y], straight between them.
function drawnAt(drawn, t) {
  let low = 0, high = drawn.length - 1;
  if (high < 0 || t <= drawn[0][0]) return high < 0 ? [START, 0] : drawn[0].slice(1);
  if (t >= drawn[high][0]) return drawn[high].slice(1);
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (drawn[middle][0] <= t) low = middle; else high = middle;
  }
  const [t0, x0, y0] = drawn[low], [t1, x1, y1] = drawn[high], share = (t - t0) / (t1 - t0);
  return [x0 + share * (x1 - x0), y0 + share * (y1 - y0)];
}

// The same in few letters: differences of steps and of hundredths, in base 36.
function packed(drawn) {
  let t = 0, x = 0, y = 0;
  const words = drawn.map(one => {
    const now = [one[0], Math.round(100 * one[1]), Math.round(100 * one[2])];
    const word = [now[0] - t, now[1] - x, now[2] - y].map(v => v.toString(36)).join(".");
    [t, x, y] = now;
    return word;
  });
  return words.join("_");
}

function unpacked(text) {
  let t = 0, x = 0, y = 0;
  const found = [];
  for (const word of (text || "").split("_")) {
    const [a, b, c] = word.split(".").map(v => parseInt(v, 36));
    if (!(a >= 0 && Number.isFinite(b) && Number.isFinite(c)) || (found.length && a === 0)) break;
    t += a; x += b; y += c;
    if (t >= STEPS) break;
    found.push([t, x / 100, y / 100]);
  }
  return found;
}
