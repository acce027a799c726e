"""A regression whose target jumps, schedules for each mode, and the pure core's own trajectory."""

from __future__ import annotations

import math

import numpy as np

import driftrate as dr

DIM, BATCH, STEPS, JUMP = 6, 16, 300, 150
SCHEDULE = dr.Clip(
    dr.Estimated(dr.LinearRate(dim=DIM, noise_std=0.5), dr.estimate.DebiasedShift()), min=0.01
)
MEASURED = dr.MeasuredRate()
GIVEN = dr.ConvexRate(smoothness=2.0, noise_std=1.0, diameter=4.0)


def batches() -> tuple[np.ndarray, np.ndarray]:
    """Features (steps, batch, dim) and labels (steps, batch)."""
    rng = np.random.default_rng(3)
    target = np.where(np.arange(STEPS)[:, None] < JUMP, 1.0, -2.0) * np.ones(DIM)
    x = rng.standard_normal((STEPS, BATCH, DIM))
    return x, np.einsum("tbd,td->tb", x, target) + 0.5 * rng.standard_normal((STEPS, BATCH))


def shift(step: int) -> float:
    """What a schedule that is told the shift is told."""
    return 3.0 * math.sqrt(DIM) if step == JUMP else 0.0


def rule(mode: str) -> dr.Schedule:
    """The schedule of a mode."""
    if mode.startswith("measured"):
        return MEASURED
    return GIVEN if mode == "given" else SCHEDULE


def core(mode: str, parts: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Rates and weights of plain SGD in Python floats and NumPy: nothing of any adapter."""
    x, y = batches()
    schedule = rule(mode)
    if mode == "measured sequence":
        schedule = dr.MeasuredRate(mode="sequence")
    state, theta, previous, length = schedule.init(), np.zeros(DIM), None, 0.0
    trail = np.zeros(DIM)
    rates, weights = [], []
    for t in range(STEPS):
        each = np.stack(
            [
                a.T @ (a @ theta - b) / len(b)
                for a, b in zip(np.split(x[t], parts), np.split(y[t], parts), strict=True)
            ]
        )
        gradient = each.mean(axis=0)
        signal = dr.Signal(batch_size=BATCH, shift=shift(t))
        if mode in ("parts", "measured parts"):
            signal = dr.estimate.from_parts(each)._replace(batch_size=BATCH)
            signal = dr.Signal(*(None if v is None else float(v) for v in signal))
        elif mode == "measured sequence":
            signal = signal._replace(grad_sq=float(gradient @ gradient))
        elif mode == "sequence" and previous is not None:
            signal = signal._replace(
                grad_sq=float(gradient @ gradient),
                cross=float(gradient @ previous),
                spread=float((gradient - previous) @ (gradient - previous)) / 2,
            )
        signal = signal._replace(dim=DIM, trail=float(gradient @ trail))
        eta = state["rate"]
        if mode != "sequence" or previous is not None:
            eta, state = schedule.update(state, signal._replace(step_length=length))
        theta = theta - eta * gradient
        trail = 0.9 * trail + gradient
        previous, length = gradient, float(eta * np.linalg.norm(gradient))
        rates.append(eta)
        weights.append(theta)
    return np.array(rates), np.array(weights)
