"""The chase: SGD follows a target that rests, jumps twice and drifts, and nobody says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import driftrate as dr
from driftrate.schedules.base import TRAIL

DIM, BATCH, NOISE, STEPS = 32, 16, 1.0, 480
JUMPS, JUMP = (120, 240), 3.0
DRIFTS, DRIFT = 360, 0.05  # from which step on, and how far a step
CONSTANTS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3)


class Moment(NamedTuple):
    """What is seen of one step.

    Args:
        step: The step, from 0.
        rate: The learning rate that the step was taken with.
        distance: How far the weights were from the target before it.
        regret: The sum of the regrets so far, ‖θ - θ*‖²/2 each.
        constants: The same for each of `CONSTANTS`, on the same batches.
    """

    step: int
    rate: float
    distance: float
    regret: float
    constants: tuple[float, ...]


def chase(seed: int = 0) -> Iterator[Moment]:
    """Follow the target with `MeasuredRate`, which is told nothing, and with constant rates.

    Args:
        seed: Seed of the batches and of the target's directions.

    Yields:
        One moment a step.

    Example:
        >>> moments = list(chase())
        >>> max(one.rate for one in moments[120:130]) > 5 * moments[119].rate
        True
    """
    rng = np.random.default_rng(seed)
    rate = dr.MeasuredRate()
    state = rate.init()
    rates = np.array([0.0, *CONSTANTS])  # the first is set at every step
    weights, trail = np.zeros((len(rates), DIM)), np.zeros(DIM)
    target, regret = _unit(rng), np.zeros(len(rates))
    course = _unit(rng)
    for step in range(STEPS):
        if step in JUMPS:
            target = target + JUMP * _unit(rng)
        elif step >= DRIFTS:
            target = target + DRIFT * course
        x = rng.standard_normal((BATCH, DIM))
        y = x @ target + NOISE * rng.standard_normal(BATCH)
        each = (weights @ x.T - y)[..., None] * x  # the gradient of each sample, for each rate
        gradients = each.mean(axis=1)
        halves = each[0].reshape(2, BATCH // 2, DIM).mean(axis=1)
        signal = dr.estimate.from_parts(halves)
        signal = signal._replace(batch_size=BATCH, dim=DIM, trail=float(gradients[0] @ trail))
        rates[0], state = rate.update(state, signal)
        trail = TRAIL * trail + gradients[0]
        squares = ((weights - target) ** 2).sum(axis=1)
        regret += squares / 2
        yield Moment(
            step, float(rates[0]), float(np.sqrt(squares[0])), float(regret[0]), tuple(regret[1:])
        )
        weights = weights - rates[:, None] * gradients


def _unit(rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a direction drawn uniformly from the sphere."""
    z = rng.standard_normal(DIM)
    return z / np.linalg.norm(z)
