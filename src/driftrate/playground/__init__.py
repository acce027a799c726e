"""A page on which learners chase a target, with the library's own rates in the browser.

    python -m driftrate.playground --out FILE

writes one file that asks nothing of any server. Its parts:

- *Rates* are not written twice. Each rule of the library, and Adam, which is the page's own
  (`adam.py`), is run once on symbols (`driftrate._trace`), with its constants, signals and weights
  left open, and what it computed is written as JavaScript
  (`javascript.py`). Vectors are loops: the weights, of any dimension, and the hypotheses of
  `MeasuredRate`; ten copies of `HedgedSGD` are unrolled. The whole page has 124 kB.
- *The world* (`world.js`, `batch.js`) is `streams.LinearStream` with normal covariates. A batch is
  drawn as what gradients see of it, the triangle R of X = QR by Bartlett's decomposition and the
  noise in the columns of Q, for each of two halves: the law of one batch at all points at once, so
  that all learners share it and `HedgedSGD` gets its gradients at twelve points. `cross`, `spread`
  and `trail` are products of these gradients themselves.
- *Random numbers* (`random.js`) come from sfc32, a generator a seed. What is shown is a function of
  the settings alone, so that an address tells all of it.
- *Told*: Algorithm 1 (`LinearRate`) is told every shift, the noise and the dimension; 1/t its best
  first rate B/(B + d + 1); the constant rate and Adam what their sliders say; the others nothing.

tests/pages/test_playground.py holds rates and weights of every rule to those of its Python within
1e-9 over 1,000 steps on the same draws, and the world to `dr.simulate`; Adam is held to PyTorch's.
"""

from driftrate.playground.build import build

__all__ = ["build"]
