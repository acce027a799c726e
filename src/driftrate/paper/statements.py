"""The claims that no figure of the paper shows: theorems, monotonicity, and what is printed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from driftrate import theory
from driftrate.estimate import DebiasedShift, Estimated, ShiftEMA
from driftrate.paper import style
from driftrate.paper.base import Context, Piece, Tables, algorithm1, quiet, table
from driftrate.schedules import (
    ConstantRate,
    ConvexRate,
    LinearRate,
    NonconvexRate,
    Schedule,
    Signal,
)
from driftrate.schedules.base import State
from driftrate.simulation import Record, simulate
from driftrate.streams import (
    Diagonal,
    LinearStream,
    Runaway,
    bursty,
    random_walk,
    spiral,
    standstill,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure as Picture

TITLE = "What the theorems say, and what the text advises"
CAPTION = (
    "From left to right: the distance between SGD and its SDE over the step ε, on a shared"
    " Brownian path (the slope promised is 1/2); the regret between the lower and the upper bound,"
    " for three condition numbers, against a target that runs away; the rates over the shift; and"
    " how often Algorithm 1 sits at its cap when the shift is told (blue), estimated as the paper"
    " advises (orange), or estimated with the learner's own noise taken out (green)."
)
STEPS_OF_SDE = tuple(2**k for k in range(5, 11))
CONDITIONS = (1.0, 3.0, 10.0)
SHIFTS = (0.0, *np.geomspace(1e-4, 100.0, 60))
DIM, STEPS = 16, 2000
GUIDES = ("told", "paper's estimate", "debiased estimate")


def _sde(seeds: int) -> pa.Table:
    fine = 2**14
    noise = theory.brownian(np.random.default_rng(11), horizon=1.0, steps=fine, shape=(seeds, 3))
    setting: dict[str, Any] = {
        "horizon": 1.0,
        "rate": lambda tau: 0.6 + 0.3 * np.cos(2 * tau),
        "batch_density": lambda tau: 8.0 + np.sin(tau),
        "target": lambda tau: np.array([np.sin(2 * tau), 0.5 * tau, 0.0]),
        "noise_std": 0.7,
    }
    start = np.array([1.0, -1.0, 0.5])
    truth = np.sum(theory.sde_paths(start, noise, **setting) ** 2, axis=-1)
    gaps = []
    for steps in STEPS_OF_SDE:
        stride = fine // steps
        sgd = theory.sde_paths(start, theory.coarsen(noise, stride), **setting)
        gaps.append(np.abs(np.sum(sgd**2, axis=-1) - truth[::stride]).max(axis=0))
    return table(eps=1 / np.array(STEPS_OF_SDE)[:, None], seed=np.arange(seeds), gap=np.array(gaps))


def _bounds(condition: float, seeds: int) -> pa.Table:
    curvature = np.linspace(1.0 / condition, 1.0, DIM)
    nature = Runaway(np.eye(DIM)[0], speed=0.05, steps=400)
    stream = LinearStream(nature, batch_size=16, noise_std=0.5, covariance=Diagonal(curvature))
    run = simulate(stream, ConstantRate(0.1), seeds=seeds, seed=12, record=Record(terms=True))
    return table(
        condition=condition,
        seed=np.arange(seeds),
        regret=run.total,
        upper=run.upper_bound(smoothness=1.0).total,
        lower=run.lower_bound(smoothness=1.0, strong_convexity=1.0 / condition).total,
    )


def _monotone() -> pa.Table:
    convex = ConvexRate(1.0, 4.0, 2.0)
    linear, nonconvex = LinearRate(DIM, 0.5, 0.5, initial_error=0.01), NonconvexRate(1.0, 4.0)
    rules: list[tuple[Schedule, State]] = [
        (linear, linear.init()),
        (convex, {"rate": 0.1}),
        (nonconvex, nonconvex.init()),
    ]
    signals = [Signal(batch_size=16, loss=0.1, shift=s, loss_shift=s) for s in SHIFTS]
    rates = [[rule.update(state, signal)[0] for signal in signals] for rule, state in rules]
    names = np.array([rule.name for rule, _ in rules])
    return table(schedule=names[:, None], shift=np.array(SHIFTS), rate=np.array(rates))


def _printed() -> pa.Table:
    rule = LinearRate(100, 2.0, 0.1, initial_error=0.0, form="euler", kappa=0.1)
    state, rates = rule.init(), []
    for _ in range(200):
        eta, state = rule.update(state, Signal(batch_size=100, shift=1.0))
        rates.append(eta)
    return table(step=np.arange(1, 201), rate=rates)


def _guides(seeds: int) -> pa.Table:
    paths = {
        "standstill": standstill(DIM, STEPS),
        "drift": random_walk(DIM, STEPS, size=0.01, seed=3),
        "jumps": bursty(DIM, STEPS, size=1.0, every=200, seed=3),
        "spiral": spiral(DIM, STEPS, hold=8),
    }
    cap, rows = 1.0 / np.sqrt(DIM), []
    rule = algorithm1(DIM, 1.0, cap, initial_error=1.0)
    rules = [rule, Estimated(rule, ShiftEMA(0.9)), Estimated(rule, DebiasedShift())]
    for name, way in paths.items():
        with quiet():
            runs = simulate(LinearStream(way, batch_size=16, noise_std=1.0), rules, seeds, seed=13)
        for guide, run in zip(GUIDES, runs, strict=True):
            capped = (run.rates[:, 100:] >= 0.999 * cap).mean(axis=1)
            rows.append(([name], [guide], capped, run.total))
    names = ("path", "guide", "capped", "regret")
    columns = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    return table(seed=np.arange(seeds), **columns)


def pieces(context: Context) -> list[Piece]:
    """List what is to be computed."""
    many = 4 * context.seeds
    return [
        Piece("sde", f"{many} seeds", partial(_sde, many)),
        *(
            Piece(f"bounds-{c:g}", f"condition {c}, {many} seeds", partial(_bounds, c, many))
            for c in CONDITIONS
        ),
        Piece("monotone", "", _monotone),
        Piece("printed", "", _printed),
        Piece("guides", f"{context.seeds} seeds", partial(_guides, context.seeds)),
    ]


@style.styled
def draw(tables: Tables) -> Picture:
    """Draw the four panels."""
    figure, ((sde, bounds, monotone, guides),) = style.canvas(1, 4, width=14, height=3.6)
    eps, gap = style.columns(tables["sde"], "eps", "gap")
    values = np.unique(eps)
    means = np.array([np.median(gap[eps == value]) for value in values])
    ours = style.COLOURS["the paper's rule"]
    sde.loglog(values, means, "o-", color=ours, label="sup error, median")
    promised = means[-1] * np.sqrt(values / values[-1])
    sde.loglog(values, promised, "--", color=style.INK, lw=1, label="slope 1/2")
    sde.set(title="SGD follows the SDE", xlabel="ε")
    sde.legend(loc="upper left")

    for place, condition in enumerate(CONDITIONS):
        names = ("regret", "upper", "lower")
        found = style.columns(tables[f"bounds-{condition:g}"], *names)
        regret, upper, lower = (column.mean() for column in found)
        bounds.plot([place, place], [lower, upper], color=style.COLOURS["rate 0"], lw=6, alpha=0.4)
        bounds.plot(place, regret, "o", color=ours)
    bounds.set_xticks(range(len(CONDITIONS)), [f"{c:g}" for c in CONDITIONS])
    bounds.set(title="regret between its bounds", xlabel="condition number L/μ", yscale="log")

    name, shift, rate = style.columns(tables["monotone"], "schedule", "shift", "rate")
    colours = ("the paper's rule", "exact form", "best constant rate")
    for schedule, colour in zip(dict.fromkeys(name), colours, strict=True):
        rows = (name == schedule) & (shift > 0)
        monotone.semilogx(shift[rows], rate[rows], color=style.COLOURS[colour], label=schedule)
    monotone.set(title="the rate over the shift", xlabel="shift γ")
    monotone.legend(loc="upper left")

    path, guide, capped = style.columns(tables["guides"], "path", "guide", "capped")
    paths = list(dict.fromkeys(path))
    shades = ("the paper's rule", "best constant rate", "exact form")
    for place, (label, shade) in enumerate(zip(GUIDES, shades, strict=True)):
        heights = [capped[(path == n) & (guide == label)].mean() for n in paths]
        left = np.arange(len(paths)) + 0.27 * (place - 1)
        guides.bar(left, heights, width=0.25, color=style.COLOURS[shade], label=label)
    guides.set_xticks(range(len(paths)), paths)
    guides.set(title="share of steps at the cap", ylim=(0, 1.05))
    guides.legend(loc="upper left", ncols=1, framealpha=1, frameon=True, bbox_to_anchor=(0.0, 0.92))
    return figure
