"""Figure 2: Algorithm 1's rate under bursty and smooth shifts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from driftrate.paper import style
from driftrate.paper.base import Context, Piece, Tables, table
from driftrate.schedules import LinearRate, Signal

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure as Picture

TITLE = "The schedule under bursty and smooth shifts"
CAPTION = (
    "Linear regression with d = 100, B = 100, σ = 2 and a cap of 0.1. Left: the target jumps by s"
    " every 40 steps; the rate goes up at each jump and comes down after it. Right: a shift of"
    " t^-α at every step; the smaller α, the larger the rate. The paper gives neither s, α nor the"
    " first error v₀: these are ours, and they are varied."
)
STEPS, EPISODE, DIM, BATCH, NOISE, CAP = 200, 40, 100, 100, 2.0, 0.1
JUMPS = (0.5, 1.0, 2.0, 4.0)
EXPONENTS = (0.25, 0.5, 0.75, 1.0, 1.5)
ERRORS = (1.0, 100.0)


def rates(shifts: np.ndarray, error: float, kappa: float = 0.01) -> np.ndarray:
    """Return Algorithm 1's rates under a sequence of shifts γ_0, γ_1, ..."""
    rule = LinearRate(DIM, NOISE, CAP, initial_error=error, form="euler", kappa=kappa)
    state, found = rule.init(), []
    for shift in shifts:
        eta, state = rule.update(state, Signal(batch_size=BATCH, shift=float(shift)))
        found.append(eta)
    return np.array(found)


def _bursty() -> pa.Table:
    shifts = [np.where(np.arange(STEPS) % EPISODE == 0, jump, 0.0) for jump in JUMPS]
    return _all_rates(shifts, jump=np.array(JUMPS)[:, None])


def _smooth() -> pa.Table:
    before = np.array([np.inf, *range(1, STEPS)])  # the rate of step t knows γ_{t-1}
    return _all_rates([before**-a for a in EXPONENTS], alpha=np.array(EXPONENTS)[:, None])


def _all_rates(shifts: list[np.ndarray], **kind: np.ndarray) -> pa.Table:
    error, step = np.array(ERRORS)[:, None, None], np.arange(1, STEPS + 1)
    rate = np.array([[rates(row, first) for row in shifts] for first in ERRORS])
    return table(error=error, step=step, rate=rate, **kind)


def pieces(context: Context) -> list[Piece]:
    """List what is to be computed: nothing here is random."""
    del context
    return [
        Piece("bursty", f"jumps {JUMPS}, errors {ERRORS}", _bursty),
        Piece("smooth", f"exponents {EXPONENTS}, errors {ERRORS}", _smooth),
    ]


@style.styled
def draw(tables: Tables) -> Picture:
    """Draw the rate over time, one line a jump size or exponent, dashed for the larger v₀."""
    figure, ((left, right),) = style.canvas(1, 2)
    panels = ((left, "bursty", "jump", "s", JUMPS), (right, "smooth", "alpha", "α", EXPONENTS))
    for axes, name, field, symbol, values in panels:
        key, error, step, rate = style.columns(tables[name], field, "error", "step", "rate")
        colours = style.ramp(len(values))[:: 1 if field == "jump" else -1]
        for value, colour in zip(values, colours, strict=True):
            looks: Any = {"label": f"{symbol} = {value:g}"}, {"linestyle": (0, (1, 1.2))}
            for first, look in zip(ERRORS, looks, strict=True):
                rows = (key == value) & (error == first)
                axes.plot(step[rows], rate[rows], color=colour, **look)
        axes.set(xlabel="step t", ylabel="rate η", ylim=(0, 1.08 * CAP))
        style.legend(axes, ncols=len(values))
    left.set_title(f"bursty shifts (dotted: v₀ = {ERRORS[1]:g} instead of {ERRORS[0]:g})")
    right.set_title("smooth shifts, γ = t^-α")
    return figure
