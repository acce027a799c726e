"""Figure 5: cumulative regret in high dimension, linear and logistic."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from driftrate.paper import style
from driftrate.paper.base import NOISE_READINGS, Context, Piece, Tables, algorithm1, quiet, table
from driftrate.schedules import ConstantRate, ConvexRate, LinearRate, Schedule
from driftrate.simulation import Record, simulate
from driftrate.streams import LinearStream, LogisticStream, Stream, spiral

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure as Picture

TITLE = "Regret rises, levels off and rises again"
CAPTION = (
    "The spiral with ℓ = 8 and B = 256. Left: cumulative regret of the paper's rule (darker for"
    " larger d); it rises while the target spirals in, rests near the origin, and rises as the"
    " target leaves. Middle: the total over d, beside the exact form, the best constant rate in"
    " hindsight and rate 0. In high dimension a jump moves the target by more than its own length"
    " and nothing can track it: at d = 1,024 every rule meets the line of rate 0, never to move at"
    " all, or has more regret than it. Right: the first two coordinates at d = 128. N(0, 0.1) is"
    " read as a deviation of 0.1; the verdicts also weigh the reading as a variance."
)
DIMS = tuple(2**k for k in range(1, 11))
STEPS, HOLD, BATCH, SHOWN, EVERY = 2000, 8, 256, 128, 20
KINDS = ("linear", "logistic")
METHODS = ("the paper's rule", "exact form", "best constant rate", "rate 0")
GRID = {"linear": np.geomspace(1e-3, 1.0, 24), "logistic": np.geomspace(1e-2, 64.0, 24)}


def stream(kind: str, dim: int, noise: float) -> Stream:
    """Return the stream of one panel."""
    path = spiral(dim=dim, steps=STEPS, hold=HOLD)
    make = LinearStream if kind == "linear" else LogisticStream
    return make(path, batch_size=BATCH, noise_std=noise)


def rule(kind: str, dim: int, noise: float) -> Schedule:
    """Return the paper's rule with the paper's constants."""
    if kind == "linear":
        return algorithm1(dim, noise, 1.0 / np.sqrt(dim), initial_error=dim / 2)
    return ConvexRate(smoothness=0.25, noise_std=np.sqrt(dim / 4), diameter=dim)


def _regret(kind: str, dim: int, noise: float, seeds: int) -> pa.Table:
    nature = stream(kind, dim, noise)
    with quiet():
        tried = [ConstantRate(float(rate)) for rate in GRID[kind]]
        trials = simulate(nature, tried, seeds=min(8, seeds), seed=50)
        totals = [run.total.mean() for run in trials]
        best = tried[int(np.argmin(totals))]
        rules = {"the paper's rule": rule(kind, dim, noise)}
        if kind == "linear":
            rules["exact form"] = LinearRate(dim, noise, initial_error=dim / 2)
        rules |= {"best constant rate": best, "rate 0": ConstantRate(0.0)}
        record = Record(every=EVERY)
        runs = simulate(nature, list(rules.values()), seeds=seeds, seed=5, record=record)
    return table(
        kind=kind,
        dim=dim,
        noise=noise,
        method=np.array(list(rules))[:, None, None],
        constant=best.rate,
        seed=np.arange(seeds)[:, None],
        step=runs[0].step,
        regret=np.array([run.regret for run in runs]),
        rate=np.array([run.rates for run in runs]),
    )


def _coordinates(kind: str, noise: float) -> pa.Table:
    nature = stream(kind, SHOWN, noise)
    path = spiral(dim=SHOWN, steps=STEPS, hold=HOLD)
    run = simulate(nature, rule(kind, SHOWN, noise), seeds=1, seed=5, record=Record(weights=True))
    assert run.weights is not None
    x, y = run.weights[0, :, :2].T
    return table(kind=kind, step=run.step, x=x, y=y, target_x=path[:, 0], target_y=path[:, 1])


def pieces(context: Context) -> list[Piece]:
    """List what is to be computed: one piece a model, reading of the noise and dimension."""
    noise = NOISE_READINGS["deviation"]
    shown = [
        Piece(f"{kind}-coordinates", f"{kind}, noise {noise}", partial(_coordinates, kind, noise))
        for kind in KINDS
    ]
    runs = [
        Piece(
            f"{kind}-{reading}-{dim}",
            f"{kind}, d {dim}, noise {value}, {context.seeds} seeds, grid {len(GRID[kind])}",
            partial(_regret, kind, dim, value, context.seeds),
        )
        for reading, value in NOISE_READINGS.items()
        for kind in KINDS
        for dim in reversed(DIMS)
    ]
    return [*shown, *runs]


def curves(tables: Tables, kind: str, reading: str, dim: int, method: str) -> tuple[Any, Any]:
    """Return the kept steps and the cumulative regret, of shape (seeds, steps)."""
    names = ("method", "step", "regret")
    found, step, regret = style.columns(tables[f"{kind}-{reading}-{dim}"], *names)
    steps = np.unique(step)
    return steps, regret[found == method].reshape(-1, len(steps))


@style.styled
def draw(tables: Tables) -> Picture:
    """Draw regret over time, total regret over d, and two coordinates."""
    figure, axes = style.canvas(2, 3, width=13, height=3.7)
    reading = "deviation"
    for (left, middle, right), kind in zip(axes, KINDS, strict=True):
        for dim, colour in zip(DIMS, style.ramp(len(DIMS)), strict=True):
            step, regret = curves(tables, kind, reading, dim, "the paper's rule")
            style.band(left, step, regret, colour, f"d = {dim}", lw=1.3)
        left.set(yscale="log", xlabel="step t", ylabel="cumulative regret")
        left.set_title(f"{kind} regression: the paper's rule")
        style.legend(left, ncols=5)
        for method in METHODS:
            if kind == "logistic" and method == "exact form":
                continue
            runs = [curves(tables, kind, reading, dim, method)[1][:, -1] for dim in DIMS]
            mean, error = np.mean(runs, 1), np.std(runs, 1) / np.sqrt(len(runs[0]))
            main = {"lw": 2.0, "alpha": 1.0} if method == "the paper's rule" else {}
            look = {"color": style.COLOURS[method], "lw": 1.2, "alpha": 0.75, **main}
            middle.errorbar(DIMS, mean, error, label=method, marker="o", ms=3, **look)
        middle.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="total regret")
        middle.set_xscale("log", base=2)
        middle.set_title("total regret")
        middle.legend(loc="upper left")
        x, y, target_x, target_y = style.columns(
            tables[f"{kind}-coordinates"], "x", "y", "target_x", "target_y"
        )
        right.plot(target_x, target_y, "o-", color=style.COLOURS["target"], ms=2, lw=0.5)
        right.plot(x, y, color=style.COLOURS["the paper's rule"], lw=1)
        right.set(aspect="equal", xlabel="θ(1)", ylabel="θ(2)")
        right.set_title(f"d = {SHOWN}, first two coordinates")
    return figure
