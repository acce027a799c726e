"""Adam, written to be read: the page's rival from every deep learning loop."""

from __future__ import annotations

from typing import Any

from driftrate.schedules.base import Array, State

KEEP, KEEP_SQUARE, TINY = 0.9, 0.999, 1e-8  # β1, β2 and ε, as torch.optim.Adam has them


def start(weights: Array) -> State:
    """Return the state before the first step."""
    return {"weights": weights, "mean": 0.0 * weights, "square": 0.0 * weights, "count": 0.0}


def step(xp: Any, state: State, gradient: Array, rate: Array) -> State:
    r"""Return the state after a step.

        m ← β1 m + (1 - β1) g,   v ← β2 v + (1 - β2) g²,
        θ ← θ - rate · m/(1 - β1^t) / (√(v/(1 - β2^t)) + ε)

    Example:
        >>> import numpy as np
        >>> state = step(np, start(np.zeros(2)), np.array([3.0, -0.1]), 0.01)
        >>> state["weights"].round(6).tolist()
        [-0.01, 0.01]

    Reference:
        Kingma and Ba, Adam: a method for stochastic optimization (2015), Algorithm 1.
    """
    count = state["count"] + 1.0
    mean = KEEP * state["mean"] + (1.0 - KEEP) * gradient
    square = KEEP_SQUARE * state["square"] + (1.0 - KEEP_SQUARE) * gradient * gradient
    usual = xp.sqrt(square / (1.0 - KEEP_SQUARE**count)) + TINY
    weights = state["weights"] - rate * (mean / (1.0 - KEEP**count)) / usual
    return {"weights": weights, "mean": mean, "square": square, "count": count}
