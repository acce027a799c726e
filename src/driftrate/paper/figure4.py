"""Figure 4: continuous against discrete shifts, on the spiral in the plane."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from driftrate.paper import style
from driftrate.paper.base import NOISE_READINGS, Context, Piece, Tables, algorithm1, chase
from driftrate.simulation import Record, simulate
from driftrate.streams import LinearStream, spiral

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure as Picture

TITLE = "The coarser the shift, the more the rate swings"
CAPTION = (
    "Algorithm 1 on a spiral that moves at every step (left), at every 4th (middle) and at every"
    " 16th (right); d = 2, B = 256, cap 0.5. Top: the path (grey) and the learner. Bottom: the"
    " rate, which returns to its cap at every jump. N(0, 0.1) is read as a deviation of 0.1; the"
    " verdict also holds the reading as a variance."
)
HOLDS, CAP, BATCH, STEPS, DIM = (1, 4, 16), 0.5, 256, 2000, 2


def _chase(hold: int, noise: float) -> pa.Table:
    path = spiral(dim=DIM, steps=STEPS, hold=hold)
    stream = LinearStream(path, batch_size=BATCH, noise_std=noise)
    rule = algorithm1(DIM, noise, CAP, initial_error=1.0)
    run = simulate(stream, rule, seeds=1, seed=4, record=Record(weights=True))
    assert run.weights is not None
    return chase(run.weights[0], path, noise=noise, hold=hold, rate=run.rates[0])


def pieces(context: Context) -> list[Piece]:
    """List what is to be computed: one run a discretisation and reading of the noise."""
    del context
    return [
        Piece(f"hold-{hold}-{reading}", f"hold {hold}, noise {noise}", partial(_chase, hold, noise))
        for reading, noise in NOISE_READINGS.items()
        for hold in HOLDS
    ]


@style.styled
def draw(tables: Tables) -> Picture:
    """Draw path and learner above the rates."""
    figure, axes = style.canvas(2, len(HOLDS), width=11, height=2.7)
    colour = style.COLOURS["the paper's rule"]
    for (top, bottom), hold in zip(axes.T, HOLDS, strict=True):
        step, rate, x, y, target_x, target_y = style.columns(
            tables[f"hold-{hold}-deviation"], "step", "rate", "x", "y", "target_x", "target_y"
        )
        top.plot(target_x, target_y, "o-", color=style.COLOURS["target"], ms=2, lw=0.5)
        top.plot(x, y, color=colour, lw=1.1)
        top.set(title=f"ℓ = {hold}", xlim=(-1.1, 1.1), ylim=(-0.5, 1.0))
        top.set(aspect="equal", xlabel="θ(1)", ylabel="θ(2)")
        bottom.plot(step, rate, color=colour, lw=0.9)
        bottom.set(ylim=(0, 1.08 * CAP), xlabel="step t", ylabel="rate η")
    return figure


def swing(tables: Tables, hold: int, reading: str) -> float:
    """Return the rate's range within a window of 16 steps, on average over the run."""
    (rate,) = style.columns(tables[f"hold-{hold}-{reading}"], "rate")
    windows = rate[: len(rate) // 16 * 16].reshape(-1, 16)
    return float(np.mean(np.ptp(windows, axis=1)))
