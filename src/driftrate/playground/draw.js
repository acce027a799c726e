// The pictures.
const LINE = 2, FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

function fitted(canvas) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

const LEFT = 40, RIGHT = 6;                       // of a chart, beside its lines

// The step under a pointer on a chart.
function stepAt(canvas, x) {
  const share = (x - LEFT) / (canvas.clientWidth - LEFT - RIGHT);
  return Math.round(Math.min(Math.max(share, 0), 1) * (STEPS - 1));
}

// A chart of lines over the steps; `scale` maps a value to 0 (bottom) to 1 (top).
function chart(canvas, lines, step, ticks, scale, colours, marks) {
  const { pen, width, height } = fitted(canvas);
  const left = LEFT, right = RIGHT, top = 6, bottom = 20;
  const x = t => left + (width - left - right) * t / (STEPS - 1);
  const y = v => top + (height - top - bottom) * (1 - scale(v));
  pen.font = FONT; pen.lineWidth = 1; pen.textBaseline = "middle";
  let worded = -Infinity;                         // where words are: none lie on others
  for (const { value, say, strong, words } of ticks) {
    const at = Math.round(y(value)) + .5;
    if (at < top - 2 || at > height - bottom + 2) continue;
    pen.strokeStyle = strong ? colours.soft : colours.line;
    pen.setLineDash(strong ? [2, 3] : []);
    pen.beginPath(); pen.moveTo(left, at); pen.lineTo(width - right, at); pen.stroke();
    pen.fillStyle = colours.soft; pen.textAlign = "right"; pen.fillText(say, left - 6, at);
    if (words && at > worded + 15) {
      pen.globalAlpha = .75; pen.fillText(words, width - right, at - 8); pen.globalAlpha = 1;
      worded = at;
    }
  }
  pen.setLineDash([]);
  pen.strokeStyle = colours.line;
  for (const t of marks) {
    pen.beginPath(); pen.moveTo(x(t), height - bottom); pen.lineTo(x(t), height - bottom + 5); pen.stroke();
  }
  pen.textBaseline = "alphabetic"; pen.fillStyle = colours.soft;
  for (let t = 0; t < STEPS; t += 500) {
    pen.textAlign = t === 0 ? "left" : t === STEPS - 1 ? "right" : "center";
    pen.fillText(t === 0 ? "step 0" : t, x(t), height - 5);
  }
  pen.save();
  pen.beginPath(); pen.rect(left, top - 2, width - left, height - top - bottom + 4); pen.clip();
  const stride = Math.max(1, Math.floor(2 * STEPS / (width - left)));
  for (const { values, error, colour, dash, alpha } of lines) {
    if (error) {
      pen.fillStyle = colour; pen.globalAlpha = .16 * alpha; pen.beginPath();
      for (let t = 0; t <= step; t += stride) pen.lineTo(x(t), y(values[t] + 2 * error[t]));
      for (let t = step - step % stride; t >= 0; t -= stride) {
        pen.lineTo(x(t), y(values[t] - 2 * error[t]));
      }
      pen.fill();
    }
    pen.globalAlpha = alpha; pen.strokeStyle = colour; pen.lineWidth = LINE; pen.lineJoin = "round"; pen.setLineDash(dash || []);
    pen.beginPath();
    let gap = true;
    const to = t => {
      if (gap) pen.moveTo(x(t), y(values[t])); else pen.lineTo(x(t), y(values[t]));
      gap = false;
    };
    for (let from = 0; from <= step; from += stride) {
      // Of each stretch its least and its largest, so that no peak is lost.
      let low = -1, high = -1;
      for (let t = from; t < from + stride && t <= step; t++) {
        const v = values[t];
        if (v !== v) continue;
        if (low < 0 || v < values[low]) low = t;
        if (high < 0 || v > values[high]) high = t;
      }
      if (low < 0) { gap = true; continue; }
      to(Math.min(low, high));
      if (low !== high) to(Math.max(low, high));
    }
    if (!gap && values[step] === values[step]) to(step);
    pen.stroke(); pen.setLineDash([]);
    if (values[step] === values[step]) {
      pen.fillStyle = colour; pen.beginPath();
      pen.arc(x(step), y(values[step]), 3.2, 0, 2 * Math.PI); pen.fill();
    }
    pen.globalAlpha = 1;
  }
  pen.restore();
}

function logarithmic(low, high) {
  const a = Math.log(low), b = Math.log(high);
  return v => v > low ? (Math.log(v) - a) / (b - a) : 0;
}

function decades(low, high) {
  const found = [];
  for (let k = Math.ceil(Math.log10(low) - 1e-9); k <= Math.log10(high) + 1e-9; k++) {
    found.push({ value: 10 ** k, say: k < 4 && k > -4 ? String(Number((10 ** k).toPrecision(1))) : `1e${k}` });
  }
  return found;
}

// The chase: target and learners in the plane, learners with trails, other seeds as dust.
function chase(canvas, view, colours) {
  const { pen, width, height } = fitted(canvas);
  const { centre, radius, step, target, learners } = view;
  const unit = Math.min(width, height) / (2 * radius);
  const x = v => width / 2 + unit * (v - centre[0]), y = v => height / 2 - unit * (v - centre[1]);
  // A grid of units, so that distances can be read.
  const grid = 10 ** Math.round(Math.log10(radius / 2));
  pen.strokeStyle = colours.faint; pen.lineWidth = 1; pen.beginPath();
  const across = width / unit / 2, up = height / unit / 2;
  for (let v = Math.ceil((centre[0] - across) / grid) * grid; v < centre[0] + across; v += grid) {
    pen.moveTo(Math.round(x(v)) + .5, 0); pen.lineTo(Math.round(x(v)) + .5, height);
  }
  for (let v = Math.ceil((centre[1] - up) / grid) * grid; v < centre[1] + up; v += grid) {
    pen.moveTo(0, Math.round(y(v)) + .5); pen.lineTo(width, Math.round(y(v)) + .5);
  }
  pen.stroke();
  pen.lineJoin = pen.lineCap = "round";
  const trail = (place, from, to, colour, thick, alpha) => {
    const parts = 5;
    pen.strokeStyle = colour; pen.lineWidth = thick;
    for (let part = 0; part < parts; part++) {
      const a = Math.floor(from + (to - from) * part / parts);
      const b = Math.floor(from + (to - from) * (part + 1) / parts);
      pen.globalAlpha = alpha * ((part + 1) / parts) ** 1.5;
      pen.beginPath();
      let gap = true;
      for (let t = a; t <= b; t++) {
        const [u, v] = place(t);
        if (u !== u) { gap = true; continue; }
        if (gap) pen.moveTo(x(u), y(v)); else pen.lineTo(x(u), y(v));
        gap = false;
      }
      pen.stroke();
    }
    pen.globalAlpha = 1;
  };
  if (target) trail(target, Math.max(0, step - 400), step, colours.soft, 1.4, .55);
  const [tx, ty] = target ? target(step) : [0, 0];
  for (const { colour, place, alpha } of learners) {
    pen.fillStyle = colour; pen.globalAlpha = .3 * alpha;
    for (let seed = 1; seed < SEEDS; seed++) {
      const [u, v] = place(step, seed);
      if (u === u) { pen.beginPath(); pen.arc(x(u), y(v), 2, 0, 2 * Math.PI); pen.fill(); }
    }
    pen.globalAlpha = 1;
  }
  for (const { colour, place, dash, alpha } of learners) {
    if (dash) pen.setLineDash([5, 4]);
    trail(t => place(t, 0), Math.max(0, step - 160), step, colour, 2.2, .9 * alpha);
    pen.setLineDash([]);
  }
  // The target: a ring with a cross, above the trails and under the learners.
  const r = 11;
  pen.lineWidth = 4.5; pen.strokeStyle = colours.card;
  for (let pass = 0; pass < 2; pass++) {
    pen.beginPath(); pen.arc(x(tx), y(ty), r, 0, 2 * Math.PI);
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      pen.moveTo(x(tx) + dx * (r - 4), y(ty) + dy * (r - 4));
      pen.lineTo(x(tx) + dx * (r + 5), y(ty) + dy * (r + 5));
    }
    pen.stroke(); pen.lineWidth = 2; pen.strokeStyle = colours.target;
  }
  for (const { colour, place, alpha } of learners) {
    const [u, v] = place(step, 0);
    if (u !== u) continue;
    pen.globalAlpha = alpha;
    // Who is out of sight is a half moon on the edge.
    const px = Math.min(Math.max(x(u), 0), width), py = Math.min(Math.max(y(v), 0), height);
    pen.beginPath(); pen.arc(px, py, px === x(u) && py === y(v) ? 6.2 : 9, 0, 2 * Math.PI);
    pen.fillStyle = colour; pen.fill(); pen.lineWidth = 1.8; pen.strokeStyle = colours.card; pen.stroke();
  }
  pen.globalAlpha = 1;
  return { x: px => centre[0] + (px - width / 2) / unit, y: py => centre[1] - (py - height / 2) / unit };
}
