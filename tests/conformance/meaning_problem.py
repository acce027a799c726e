"""A regression whose target jumps, by one layer or two, and what is attached to which optimizer."""

from __future__ import annotations

import numpy as np

import driftrate as dr

DIM, BATCH, STEPS, HOLD = 5, 16, 1000, 250
EPSILON = 1e-12  # frameworks place it differently: it must not matter
TOLD = dr.LinearRate(dim=DIM, noise_std=0.5, max_rate=0.5)
HIDDEN = 4
# By name: the optimizer, its own rate, the schedule, whether the model is a network.
CASES = {
    "SGD 0.1": ("sgd", 0.1, dr.MeasuredRate(), False),
    "SGD 1.0": ("sgd", 1.0, dr.MeasuredRate(), False),
    "Adam 0.01": ("adam", 0.01, dr.MeasuredRate(), False),
    "SGD told": ("sgd", 0.1, TOLD, False),
    "Adam told": ("adam", 0.01, TOLD, False),
    "network SGD": ("sgd", 0.1, dr.MeasuredRate(), True),
    "network Adam": ("adam", 0.1, dr.MeasuredRate(), True),
}


def start(network: bool) -> list[np.ndarray]:
    """The first weights: zeros of a linear model, or two layers with z/(1 + z²) between them."""
    rng = np.random.default_rng(9)
    if not network:
        return [np.zeros((DIM, 1))]
    return [0.5 * rng.standard_normal((DIM, HIDDEN)), 0.5 * rng.standard_normal((HIDDEN, 1))]


def targets() -> np.ndarray:
    """The weights that the labels are made with, a row a step: they jump every `HOLD` steps."""
    rng = np.random.default_rng(7)
    return np.repeat(rng.standard_normal((STEPS // HOLD, DIM)), HOLD, axis=0)


def batches() -> tuple[np.ndarray, np.ndarray]:
    """Features (steps, batch, dim) and labels (steps, batch)."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((STEPS, BATCH, DIM))
    noise = 0.5 * rng.standard_normal((STEPS, BATCH))
    return x, np.einsum("tbd,td->tb", x, targets()) + noise


def shifts() -> np.ndarray:
    """How far the target has moved before each step."""
    path = targets()
    moved = np.diff(path, axis=0, prepend=path[:1])
    return np.linalg.norm(moved, axis=1)
