// What a run leaves to be drawn, for every step: means over the seeds, and where the learners were.
class History {
  constructor(names) {
    this.names = names;
    const numbers = () => names.map(() => new Float32Array(STEPS).fill(NaN));
    this.rates = numbers(); this.learning = numbers();
    this.regret = numbers(); this.error = numbers();
    this.away = numbers();                        // the mean distance from the target
    this.places = names.map(() => new Float32Array(2 * SEEDS * STEPS).fill(NaN));
    this.known = 0;                               // steps that are drawn, of this run or the last
    this.head = 0;                                // steps of this run
    this.cost = 0;                                // milliseconds that they took
  }

  begin(settings) {
    this.world = new World(settings, this.names);
    this.head = 0; this.cost = 0;
  }

  // Compute until a step, or until the clock says that it was enough.
  compute(until, milliseconds) {
    const begin = performance.now(), first = this.head;
    while (this.head < until) {
      this.next();
      if (performance.now() - begin > milliseconds) break;
    }
    if (this.head > first) this.cost += performance.now() - begin;
    this.known = Math.max(this.known, this.head);
  }

  next() {
    const { world, head, places } = this;
    for (const own of places) own.fill(NaN, 2 * SEEDS * head, 2 * SEEDS * (head + 1));
    world.advance((k, seed, error) => {
      const at = 2 * (head * SEEDS + seed);
      places[k][at] = error[0]; places[k][at + 1] = error[1];
    });
    world.learners.forEach((one, k) => {
      let rate = 0, sum = 0, squares = 0, alive = 0, away = 0;
      for (let seed = 0; seed < SEEDS; seed++) {
        sum += one.regret[seed]; squares += one.regret[seed] ** 2;
        if (!one.alive[seed] || Number.isNaN(one.rates[seed])) continue;
        const at = 2 * (head * SEEDS + seed);
        alive++; rate += one.rates[seed]; away += Math.hypot(places[k][at], places[k][at + 1]);
      }
      const mean = sum / SEEDS, variance = (squares / SEEDS - mean * mean) / (SEEDS - 1);
      this.rates[k][head] = alive ? rate / alive : NaN;
      this.away[k][head] = alive ? away / alive : NaN;
      this.learning[k][head] = alive && one.wanted > 0 ? one.taken / one.wanted : NaN;
      this.regret[k][head] = Number.isFinite(mean) ? mean : NaN;
      this.error[k][head] = Math.sqrt(Math.max(variance, 0));
    });
    this.head++;
  }
}
