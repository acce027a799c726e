"""Figure 1: SGD chases a spiral with four constant rates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from driftrate.paper import style
from driftrate.paper.base import Context, Piece, Tables, chase, quiet, table
from driftrate.schedules import ConstantRate
from driftrate.simulation import Record, simulate
from driftrate.streams import LinearStream, warmup_spiral

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure as Picture

TITLE = "The wildest learner has the least regret"
CAPTION = (
    "Constant rates chase a target that jumps every 100 steps (grey), one sample a step. The"
    " paper does not give the label noise: the trajectories are drawn for a deviation of 0.1, and"
    " the last panel shows the regret for all. With little noise regret falls as the rate rises,"
    " until the next rates diverge; with much noise the order turns."
)
RATES = (0.003, 0.01, 0.03, 0.1)
BEYOND = (0.3, 1.0)  # where the story ends
NOISES = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
DRAWN = 0.1


def _regret(noise: float, seeds: int) -> pa.Table:
    stream = LinearStream(warmup_spiral(), batch_size=1, noise_std=noise)
    rates = RATES + BEYOND
    with quiet():
        runs = simulate(stream, [ConstantRate(rate) for rate in rates], seeds=seeds, seed=1)
    total = np.array([run.total for run in runs])
    return table(noise=noise, rate=np.array(rates)[:, None], seed=np.arange(seeds), regret=total)


def _trajectory() -> pa.Table:
    path = warmup_spiral()
    stream = LinearStream(path, batch_size=1, noise_std=DRAWN)
    rules = [ConstantRate(rate) for rate in RATES]
    runs = simulate(stream, rules, seeds=1, seed=1, record=Record(weights=True))
    weights = np.concatenate([cast(Any, run.weights) for run in runs])
    return chase(weights, path, rate=np.array(RATES)[:, None])


def pieces(context: Context) -> list[Piece]:
    """List what is to be computed: one piece per noise level, and one run to draw."""
    runs = [
        Piece(
            f"regret-{noise:g}",
            f"rates {RATES + BEYOND}, noise {noise}, {context.seeds} seeds",
            partial(_regret, noise, context.seeds),
        )
        for noise in NOISES
    ]
    return [Piece("trajectory", f"rates {RATES}, noise {DRAWN}", _trajectory), *runs]


@style.styled
def draw(tables: Tables) -> Picture:
    """Draw the four chases and the regret over the noise."""
    figure, axes = style.canvas(1, 5, width=15, height=3.3)
    rate, step, *places = style.columns(
        tables["trajectory"], "rate", "step", "x", "y", "target_x", "target_y"
    )
    colours = dict(zip(RATES, style.ramp(len(RATES)), strict=True))
    for panel, value in zip(axes[0], RATES, strict=False):
        rows = rate == value
        x, y, target_x, target_y = (place[rows] for place in places)
        stops = step[rows] % 100 == 0
        panel.plot(target_x, target_y, "o-", color=style.COLOURS["target"], ms=5, lw=0.8)
        panel.plot(x, y, color=colours[value], lw=0.9)
        panel.plot(x[stops], y[stops], "s", color=colours[value], ms=4.5, mec="white", mew=0.6)
        panel.set(title=f"η = {value:g}", aspect="equal", xlim=(-1.2, 1.2), ylim=(-1.2, 1.2))
    last = axes[0, -1]
    for value in RATES:
        mean, spread = [], []
        for noise in NOISES:
            rates, regret = style.columns(tables[f"regret-{noise:g}"], "rate", "regret")
            found = regret[rates == value]
            mean.append(found.mean())
            spread.append(found.std() / np.sqrt(len(found)))
        last.errorbar(NOISES, mean, spread, color=colours[value], label=f"{value:g}", capsize=2)
    last.set(title="total regret", xlabel="deviation of the label noise", yscale="log")
    last.set_xscale("symlog", linthresh=0.03)
    last.set_xticks([0, 0.1, 1], ["0", "0.1", "1"])
    last.legend(title="rate η", loc="upper left")
    return figure
