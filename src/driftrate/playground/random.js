// Random numbers of one seed: sfc32 (public domain, Chris Doty-Humphrey), normals by the polar
// method, chi-squares by Marsaglia and Tsang's gammas.
class Random {
  constructor(seed, stream) {
    this.a = seed >>> 0; this.b = stream >>> 0; this.c = 0x9e3779b9; this.n = 1;
    this.spare = NaN;
    for (let i = 0; i < 16; i++) this.bits();
  }

  bits() {
    const sum = (this.a + this.b + this.n) | 0;
    this.n = (this.n + 1) | 0;
    this.a = this.b ^ (this.b >>> 9);
    this.b = (this.c + (this.c << 3)) | 0;
    this.c = ((this.c << 21) | (this.c >>> 11)) + sum | 0;
    return sum >>> 0;
  }

  uniform() { return (this.bits() + 0.5) / 4294967296; }

  normal() {
    const kept = this.spare;
    if (kept === kept) { this.spare = NaN; return kept; }
    let x, y, square;
    do {
      x = 2 * this.uniform() - 1;
      y = 2 * this.uniform() - 1;
      square = x * x + y * y;
    } while (square >= 1);
    const scale = Math.sqrt(-2 * Math.log(square) / square);
    this.spare = y * scale;
    return x * scale;
  }

  // A chi-square of k = 0, 1, 2, ... degrees of freedom.
  chisquare(k) {
    if (k === 0) return 0;
    if (k === 1) { const z = this.normal(); return z * z; }
    const d = k / 2 - 1 / 3, c = 1 / Math.sqrt(9 * d);
    for (;;) {
      const z = this.normal(), root = 1 + c * z;
      if (root <= 0) continue;
      const v = root * root * root;
      if (Math.log(this.uniform()) < z * z / 2 + d * (1 - v + Math.log(v))) return 2 * d * v;
    }
  }
}
