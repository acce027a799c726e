"""A network of two layers whose labels change their law, and `Pursuit` on it in NumPy."""

from __future__ import annotations

import numpy as np

from driftrate.adapters import _pursuit as law

INPUTS, HIDDEN, OUTPUTS, BATCH, STEPS = 4, 8, 3, 16, 300
LR, DECAY = 0.75, 0.5  # not the defaults, so that both are seen; exact in single precision


def first():
    """The first weights: two kernels, inputs × outputs, each with its bias."""
    rng = np.random.default_rng(3)
    shapes = (INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, OUTPUTS), (OUTPUTS,)
    # Numbers of float32, so that every precision starts from the same.
    return [np.float32(0.4 * rng.standard_normal(s)).astype(np.float64) for s in shapes]


def gradients(weights, t):
    """The gradients of step t, in double precision."""
    rng = np.random.default_rng((4, t))
    x = rng.standard_normal((BATCH, INPUTS))
    x[:, -1] *= t % 3 == 0  # a row of the first kernel is visited now and then
    rule = np.random.default_rng((5, t // 100)).standard_normal((INPUTS, OUTPUTS))
    y = np.sin(x @ rule) + 0.1 * rng.standard_normal((BATCH, OUTPUTS))
    kernel, bias, last, shift = weights
    hidden = np.tanh(x @ kernel + bias)
    error = (hidden @ last + shift - y) / BATCH
    back = (error @ last.T) * (1 - hidden**2)
    grads = [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
    if t == 40:
        grads[0][0, 0], grads[2][1, 1] = np.inf, np.nan
    if t == 80:
        grads[2][0, 0] *= 1e6
    return grads


def play(step, weights):
    """Take all steps; return all weights after each, in one row."""
    rows = []
    for t in range(STEPS):
        weights = [np.asarray(w, np.float64) for w in step(gradients(weights, t))]
        rows.append(np.concatenate([w.reshape(-1) for w in weights]))
    return np.array(rows)


def reference():
    """The law on NumPy's arrays."""
    weights = first()
    scales = [law.scale(np, w.shape, np.sqrt(np.mean(w**2))) for w in weights]
    scales = np.array(law.settle(np, scales, [w.size for w in weights]))
    squares, trails, leads = ([np.zeros_like(w) for w in weights] for _ in range(3))
    state = law.Law(*(np.array([law.Law.start(scale).stacked(np) for scale in scales]).T))

    def step(grads):
        nonlocal state
        factors, signals = law.factors(np, state, LR, DECAY), np.zeros((4, 2))
        for i, g in enumerate(grads):
            told = dict(zip(law.FACTORS, factors[i], strict=True))
            if weights[i].ndim < 2:
                told["keep"] = 1.0
            weights[i], squares[i], trails[i], leads[i], signals[i] = law.move(
                np, weights[i], g, squares[i], trails[i], leads[i], **told
            )
        state = law.follow(np, state, *signals.T)
        return weights

    return play(step, weights)
