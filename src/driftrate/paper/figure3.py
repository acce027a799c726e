"""Figure 3: the bound ṽ and the rate η* when nothing shifts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from driftrate.paper import style
from driftrate.paper.base import Context, Piece, Tables, table
from driftrate.schedules import LinearRate, Signal
from driftrate.theory import no_shift, switch_time, tail

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure as Picture

TITLE = "At standstill the rate falls as 1/t"
CAPTION = (
    "No shift, ε = 0.1, a = 0.1, b = 0.3, ṽ₀ = 1. Dots: the schedule itself, step by step, in the"
    " limit of a fine discretisation. Lines: the lemma, corrected: the rate stays at its cap until"
    " τ*, then follows an implicit equation with a 1/t tail (dashed)."
)
CAP, A, B, START, STEPS = 0.1, 0.1, 0.3, 1.0, 2000
# ε(d + 1)/B = a and εσ²d/B = b, with a batch of 100.
BATCH = 100
DIM = round(A / CAP * BATCH) - 1
NOISE = float(np.sqrt(B / CAP * BATCH / DIM))


def _trajectory() -> pa.Table:
    rule = LinearRate(DIM, NOISE, CAP, initial_error=START, form="flow")
    state, rows = rule.init(), []
    for _ in range(STEPS):
        eta, state = rule.update(state, Signal(batch_size=BATCH, shift=0.0))
        rows.append((state["v"], eta))
    v, rate = np.array(rows).T
    step = np.arange(1, STEPS + 1)
    exact, asymptote = (law(CAP * step, START, A, B) for law in (no_shift, tail))
    return table(
        step=step,
        v=v,
        rate=rate,
        v_lemma=exact.second,
        rate_lemma=CAP * exact.rate,
        v_tail=asymptote.second,
        rate_tail=CAP * asymptote.rate,
    )


def pieces(context: Context) -> list[Piece]:
    """List what is to be computed: nothing here is random."""
    del context
    return [Piece("trajectory", f"cap {CAP}, a {A}, b {B}, start {START}", _trajectory)]


@style.styled
def draw(tables: Tables) -> Picture:
    """Draw ṽ and the rate, on axes that make a 1/t tail a straight line."""
    figure, ((left, right),) = style.canvas(1, 2)
    dots = np.unique(np.geomspace(1, STEPS, 40).astype(int)) - 1
    for axes, name, label in ((left, "v", "ṽ"), (right, "rate", "rate η")):
        names = ("step", name, f"{name}_lemma", f"{name}_tail")
        step, found, lemma, line = style.columns(tables["trajectory"], *names)
        axes.loglog(step, lemma, color=style.COLOURS["closed form"], label="lemma, corrected")
        shown = line < 3 * lemma
        axes.loglog(step[shown], line[shown], color=style.INK, ls="--", lw=1, label="1/t tail")
        colour = style.COLOURS["the paper's rule"]
        axes.loglog(step[dots], found[dots], "o", ms=4, color=colour, label="schedule")
        axes.axvline(switch_time(START, A, B) / CAP, color=style.GRID, lw=1.2)
        axes.set(xlabel="step t", ylabel=label)
        axes.legend(loc="lower left")
    left.set_title("the bound on the squared error")
    right.set_title("the rate")
    return figure
