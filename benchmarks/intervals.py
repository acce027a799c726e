"""Intervals of ShiftRegressor against adaptive conformal inference on the best single filter.

    python benchmarks/intervals.py [--held-out] [--coverage 0.9]

Batches of 16 are foretold and then learned. ShiftRegressor gets raw features. The filters of the
race (recursive least squares that forget) get features standardised by the rows before; the one
whose mean square was the least, in hindsight, is given intervals by adaptive conformal inference,
the quantile of the last absolute errors at a level α that follows its own misses,

    α ← α + γ (1 - coverage - [missed]),

for each γ and each window below, and the best of these in hindsight is shown too. The score of an
interval (l, u) is u - l + 2/(1 - coverage) · (how far the target lies outside), here over the mean
of |y - its mean|; the smaller the better. Development streams alone are played without
`--held-out`, and each run with it is noted in benchmarks/filters_log.md.

Reference:
    Gibbs and Candès (2021), "Adaptive conformal inference under distribution shift"; Gneiting and
    Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", for the score.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from filters import LOG, MEMORIES
from networks import commit, note
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from driftrate.data import tables
from driftrate.estimate import Standardiser
from driftrate.learners import forgetting
from driftrate.sklearn import ShiftRegressor

Floats = NDArray[np.float64]

DEVELOPMENT, HELD_OUT = ("bike_hourly", "airquality_co"), ("beijing_pm25", "metro_traffic")
BATCH, PRIOR, STRETCH = 16, 0.1, 1000
START = 10 * BATCH  # rows before anyone is judged
PACES = (0.001, 0.005, 0.02, 0.05)  # γ; 0.005 is the authors'
WINDOWS = (250, 1000, 100_000)
USUAL = (0.005, 1000)
console = Console(width=140)


def rows(stream: str) -> tuple[Floats, Floats]:
    """Return raw features, NaN where missing, and targets."""
    folder = Path(os.environ.get("DRIFTRATE_DATA", "../shared/data")) / "streams"
    table = tables.open_table(folder / f"{stream}.parquet", target="y", kind="numbers")
    x, y = (np.concatenate(part) for part in zip(*table.chunks(), strict=True))
    whole = len(y) - len(y) % BATCH
    return x[:whole], y[:whole]


def ours(x: Floats, y: Floats, coverage: float) -> tuple[Floats, Floats]:
    """Return the forecasts of ShiftRegressor, and its intervals (rows, 2)."""
    model = ShiftRegressor(missing="mean", batch_size=BATCH)
    means, limits = [np.zeros(BATCH)], [np.zeros((BATCH, 2))]
    for start in range(0, len(y), BATCH):
        part = slice(start, start + BATCH)
        if start:
            means.append(model.predict(x[part]))
            limits.append(model.predict_interval(x[part], coverage))
        model.partial_fit(x[part], y[part])
    return np.concatenate(means), np.concatenate(limits)


def filtered(x: Floats, y: Floats) -> Floats:
    """Return the forecasts of the filter whose mean square is the least."""
    scale, prior = Standardiser(x.shape[1]), np.full(len(MEMORIES), PRIOR)
    info = forgetting.start(x.shape[1] + 1, 1, prior, joint=False)
    weights, found = np.zeros((len(MEMORIES), x.shape[1] + 1)), []
    keep = np.tile((np.array(MEMORIES) ** BATCH)[:, None], weights.shape[1])
    level = float(y[:BATCH].mean())
    for start in range(0, len(y), BATCH):
        part = slice(start, start + BATCH)
        if not start:  # the first batch only starts the scale
            scale.update(x[part])
        z = np.concatenate([scale(x[part]), np.ones((BATCH, 1))], axis=1)
        guess = weights @ z.T
        found.append(guess + level)
        info = forgetting.forget(info, keep, prior)
        slope = (guess - (y[part] - level))[:, None]
        gains = forgetting.gains(info, z)
        moved, info = forgetting.step(info, z, slope, np.ones(BATCH), gains)
        weights = weights - moved[:, 0]
        if start:
            scale.update(x[part])
    means = np.concatenate(found, axis=1)
    best: Floats = means[np.argmin(((means - y) ** 2)[:, START:].mean(axis=1))]
    return best


def conformal(means: Floats, y: Floats, coverage: float, pace: float, window: int) -> Floats:
    """Return the intervals (rows, 2) of adaptive conformal inference."""
    errors, level, widths = np.abs(y - means), 1.0 - coverage, np.zeros(len(y))
    for start in range(BATCH, len(y), BATCH):
        # The first batch was foretold by nobody.
        past = np.sort(errors[max(BATCH if start > BATCH else 0, start - window) : start])
        for row in range(start, start + BATCH):
            place = int(np.ceil((1.0 - level) * (len(past) + 1))) - 1
            # No interval is infinite: none is wider than the widest error of the window asks.
            widths[row] = past[min(place, len(past) - 1)] if place >= 0 else 0.0
        # The batch's targets become known together.
        for row in range(start, start + BATCH):
            level += pace * (1.0 - coverage - float(errors[row] > widths[row]))
    return np.stack([means - widths, means + widths], axis=1)


def judged(limits: Floats, y: Floats, coverage: float) -> tuple[float, float, float]:
    """Return the coverage, the least in 1,000 rows on end, and the mean score."""
    low, high = limits[START:].T
    targets = y[START:]
    inside = ((low <= targets) & (targets <= high)).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(inside)])
    span = min(STRETCH, len(targets))
    outside = np.maximum(low - targets, 0.0) + np.maximum(targets - high, 0.0)
    score = (high - low + 2.0 / (1.0 - coverage) * outside).mean()
    least = ((sums[span:] - sums[:-span]) / span).min()
    return inside.mean(), least, score / np.abs(targets - targets.mean()).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--coverage", type=float, default=0.9)
    options = parser.parse_args()
    if options.held_out:
        note(commit(), LOG)
    table = Table("stream", "intervals", "covered", "least of 1,000", "score", "squared error")
    for stream in HELD_OUT if options.held_out else DEVELOPMENT:
        x, y = rows(stream)
        means, limits = ours(x, y, options.coverage)
        base = filtered(x, y)
        found = {
            (pace, window): judged(
                conformal(base, y, options.coverage, pace, window), y, options.coverage
            )
            for pace in PACES
            for window in WINDOWS
        }
        best = min(found, key=lambda one: found[one][2])
        lines = [
            ("ShiftRegressor", means, judged(limits, y, options.coverage)),
            ("conformal, {:g}, {:,}".format(*USUAL), base, found[USUAL]),
            ("conformal, best: {:g}, {:,}".format(*best), base, found[best]),
        ]
        for name, centre, (covered, least, score) in lines:
            error = ((centre - y)[START:] ** 2).mean() / y[START:].var()
            told = f"{covered:.3f}", f"{least:.3f}", f"{score:.3f}", f"{error:.4f}"
            table.add_row(stream, name, *told)
        table.add_section()
    console.print(table, f"commit {commit()}")


if __name__ == "__main__":
    main()
