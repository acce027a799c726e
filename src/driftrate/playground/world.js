// The world: a linear regression, x ~ N(0, I) and y = <x, target> + noise, and all rules in it.
// All rules see the same batches; a run is a function of the settings alone.
const SEEDS = 20, FORGET = 0.9;

class Learner {
  constructor(rule, told, dim, seeds) {
    this.rule = rule; this.dim = dim; this.told = told;
    this.length = rule.length || dim;             // of the vectors that the rule keeps
    const own = rule.scalars + rule.vectors * this.length;
    // The weights are one of them, or come after them.
    this.home = rule.at < rule.vectors ? rule.scalars + rule.at * dim : own;
    this.size = Math.max(own, this.home + dim);
    this.state = new Float64Array(this.size * seeds);
    this.scratch = new Float64Array(rule.kept * this.length);
    this.trail = rule.kind === "schedule" ? new Float64Array(dim * seeds) : null;
    this.own = null;                              // targets that run from this learner alone
    this.alive = new Uint8Array(seeds).fill(1);
    this.regret = new Float64Array(seeds);
    this.rates = new Float64Array(seeds);
    this.taken = 0; this.wanted = 0;              // how far steps went, and should have gone
    for (let seed = 0; seed < seeds; seed++) {
      rule.start(this.state, seed * this.size, this.length, told, this.scratch);
    }
  }
}

class World {
  // `draw(step, seed, batch)` fills a batch; without it batches are drawn from the seed.
  constructor(settings, names, draw) {
    const { noise, batch, dim } = settings;
    this.settings = settings; this.seeds = settings.seeds || SEEDS; this.step = 0;
    this.path = pathOf(settings);
    this.batch = new Batch(batch, dim);
    this.randoms = Array.from({ length: this.seeds }, (_, k) => new Random(settings.seed, k + 1));
    this.draw = draw || ((step, seed, drawn) => drawn.draw(this.randoms[seed]));
    const told = {
      rate: settings.rate, adam: settings.adam, dim, noise, scale: SCALES[dim],
      first: batch / (batch + dim + 1),
    };
    this.names = names;
    this.learners = names.map(name => new Learner(RULES[name], told, dim, this.seeds));
    if (this.path === null) {
      for (const one of this.learners) {
        one.own = new Float64Array(2 * this.seeds);
        for (let seed = 0; seed < this.seeds; seed++) one.own[2 * seed] = START;
      }
    }
    this.signal = { batch_size: batch, dim, parts: 2, cross: 0, spread: 0, trail: 0, shift: 0 };
    const most = Math.max(1, ...this.learners.map(one => one.rule.points || 1));
    this.error = new Float64Array(dim); this.move = new Float64Array(dim);
    this.halves = new Float64Array(2 * dim);
    this.points = new Float64Array(most * dim); this.gradients = new Float64Array(most * dim);
    this.losses = new Float64Array(most);
  }

  // Where the target is for a learner and a seed at a step, in its plane.
  target(learner, seed, step) {
    return learner.own === null ? [this.path[2 * step], this.path[2 * step + 1]]
      : [learner.own[2 * seed], learner.own[2 * seed + 1]];
  }

  // Nature runs from a learner by so much a step; return how far.
  flee(learner, seed) {
    const { own, state, home, size } = learner, speed = 0.02 * this.settings.speed;
    const at = seed * size + home;
    let x = own[2 * seed] - state[at], y = own[2 * seed + 1] - state[at + 1], square = x * x + y * y;
    for (let i = 2; i < learner.dim; i++) square += state[at + i] * state[at + i];
    const length = Math.sqrt(square) || 1;
    if (square === 0) x = 1;
    own[2 * seed] += speed * x / length; own[2 * seed + 1] += speed * y / length;
    return speed;
  }

  // Take a step of all learners and seeds; `record(learner number, seed, error)` sees each before.
  advance(record) {
    const { batch, seeds, learners, step, signal } = this;
    let shift = 0;
    if (step > 0 && this.path !== null) {
      const p = this.path, t = 2 * step;
      shift = Math.hypot(p[t] - p[t - 2], p[t + 1] - p[t - 1]);
    }
    for (const one of learners) { one.taken *= FORGET; one.wanted *= FORGET; }
    for (let seed = 0; seed < seeds; seed++) {
      this.draw(step, seed, batch);
      for (let k = 0; k < learners.length; k++) {
        const one = learners[k];
        if (!one.alive[seed]) continue;
        signal.shift = one.own !== null && step > 0 ? this.flee(one, seed) : shift;
        this.learn(one, seed, k, record);
      }
    }
    this.step++;
  }

  learn(one, seed, k, record) {
    const { batch, error, move, halves, gradients, signal } = this;
    const { noise, dim } = this.settings;
    const { rule, state, told, scratch } = one, offset = seed * one.size, at = offset + one.home;
    const [x, y] = this.target(one, seed, this.step);
    let square = 0;
    for (let i = 0; i < dim; i++) {
      const e = state[at + i] - (i === 0 ? x : i === 1 ? y : 0);
      error[i] = e; move[i] = state[at + i];
      square += e * e;
    }
    if (!(square < 1e12)) {
      one.alive[seed] = 0; one.regret[seed] = Infinity; one.rates[seed] = NaN;
      return;
    }
    one.regret[seed] += 0.5 * square;
    record(k, seed, error);
    let rate, usual = 0;
    if (rule.kind === "schedule") {
      for (let i = 0; i < 2 * dim; i++) halves[i] = 0;
      batch.half(0, error, 0, noise, 1, halves, 0);
      batch.half(1, error, 0, noise, 1, halves, dim);
      let cross = 0, spread = 0, trail = 0;
      const h = seed * dim;
      for (let i = 0; i < dim; i++) {
        const a = halves[i], b = halves[dim + i], g = 0.5 * (a + b);
        cross += a * b; spread += 0.25 * (a - b) * (a - b);
        trail += g * one.trail[h + i];
        one.trail[h + i] = TRAIL * one.trail[h + i] + g;
        gradients[i] = g;
      }
      signal.cross = cross; signal.spread = spread; signal.trail = trail;
      rate = rule.step(state, offset, one.length, told, scratch, signal);
      for (let i = 0; i < dim; i++) state[at + i] -= rate * gradients[i];
    } else if (rule.kind === "optimizer") {
      batch.gradient(error, 0, noise, gradients, 0);
      rule.step(state, offset, one.length, told, scratch, signal, gradients);
    } else {
      const { points, losses } = this;
      rule.members(state, offset, dim, points, scratch);
      for (let p = 0; p < rule.points; p++) {
        points[p * dim] -= x; points[p * dim + 1] -= y;
        losses[p] = batch.gradient(points, p * dim, noise, gradients, p * dim);
      }
      rate = rule.step(state, offset, one.length, told, scratch, signal, gradients, losses);
    }
    let length = 0, downhill = 0;
    for (let i = 0; i < dim; i++) {
      move[i] = state[at + i] - move[i];
      length += move[i] * move[i]; usual += gradients[i] * gradients[i];
      downhill -= gradients[i] * move[i];
    }
    // Of a step that no single rate made: its length over that of the gradient, 0 where there is none.
    one.rates[seed] = rate === undefined ? (usual > 0 ? Math.sqrt(length / usual) : 0) : rate;
    // The loss of this batch is least at downhill/bend of the way along the step.
    one.taken += batch.bend(move); one.wanted += downhill;
  }
}
