// One batch of a linear regression in two halves, for every learner at once.
//
// Of a half of b samples, x ~ N(0, I) and y = <x, target> + noise N(0, 1), a gradient sees X = QR
// only through R, and the noise through its part u in the columns of Q and the length of what is
// left. All three are drawn by their law, so that no sample is: R is Bartlett's triangle (normals,
// and roots of chi-squares on the diagonal), or X itself where b < d. The law of the gradients at
// any number of points together is that of one batch, and so are the products of its halves.
class Batch {
  constructor(size, dim) {
    this.size = size / 2; this.dim = dim;
    this.rows = Math.min(this.size, dim);
    this.root = [0, 1].map(() => new Float64Array(this.rows * dim));
    this.noise = [0, 1].map(() => new Float64Array(this.rows));
    this.rest = new Float64Array(2);
    this.residual = new Float64Array(this.rows);
    this.loss = 0;
  }

  draw(random) {
    const { size, dim, rows } = this, triangle = size >= dim;
    for (let half = 0; half < 2; half++) {
      const root = this.root[half], noise = this.noise[half];
      for (let row = 0; row < rows; row++) {
        const first = triangle ? row + 1 : 0;
        if (triangle) root[row * dim + row] = Math.sqrt(random.chisquare(size - row));
        for (let i = first; i < dim; i++) root[row * dim + i] = random.normal();
        noise[row] = random.normal();
      }
      this.rest[half] = random.chisquare(size - rows);
    }
  }

  // Add the half's gradient at `error` from the target to `out`, times `share`; return its loss.
  half(half, error, at, sigma, share, out, to) {
    const { size, dim, rows } = this, root = this.root[half], noise = this.noise[half];
    const triangle = size >= dim, scale = share / size;
    let square = sigma * sigma * this.rest[half];
    for (let row = 0; row < rows; row++) {
      const first = triangle ? row : 0, base = row * dim;
      let r = -sigma * noise[row];
      for (let i = first; i < dim; i++) r += root[base + i] * error[at + i];
      square += r * r;
      r *= scale;
      for (let i = first; i < dim; i++) out[to + i] += r * root[base + i];
    }
    return 0.5 * square / size;
  }

  // Put the batch's gradient into `out` and return its loss.
  gradient(error, at, sigma, out, to) {
    for (let i = 0; i < this.dim; i++) out[to + i] = 0;
    return 0.5 * this.half(0, error, at, sigma, 0.5, out, to)
      + 0.5 * this.half(1, error, at, sigma, 0.5, out, to);
  }

  // The curvature of the batch's loss along a move, <move, X'X move>/B.
  bend(move) {
    const { size, dim, rows } = this, triangle = size >= dim;
    let sum = 0;
    for (let half = 0; half < 2; half++) {
      const root = this.root[half];
      for (let row = 0; row < rows; row++) {
        let r = 0;
        for (let i = triangle ? row : 0; i < dim; i++) r += root[row * dim + i] * move[i];
        sum += r * r;
      }
    }
    return sum / (2 * size);
  }
}
