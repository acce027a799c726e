"""Figure 6: a network sorts cells while their mixture shifts; Adam, with and without resets."""

from __future__ import annotations

from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from driftrate.data.cytometry import CLASSES, Cells, CellStream, load_cells
from driftrate.errors import needs
from driftrate.paper import style
from driftrate.paper.base import Context, Piece, Tables, table
from driftrate.paper.figure6 import cells as figure6_cells
from driftrate.paper.figure6.protocols import (
    DESIGNS,
    PROTOCOLS,
    RATES,
    RESETS,
    SHIFTS,
    Protocol,
    adam_name,
    losses,
    measured_name,
)
from driftrate.schedules import MeasuredRate, NonconvexRate

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

    from driftrate.paper.figure6.adam import Curves, Trial

Runs = npt.NDArray[np.float64]

TITLE = "Sorting cells while their mixture shifts"
CAPTION = (
    "The ten genes in the plane, by cell type: alpha, beta and delta overlap. Then the cumulative"
    " loss of Adam at five rates, without (solid) and with resets (dashed), medians and quartiles"
    " over seeds; vertical lines mark the shifts. As written: the last layer's activation gives the"
    " logits, no penalty, classes in the order of the text. As run: the authors' program, which"
    " counts its penalty as loss and resets 100 steps after the last two shifts. As it should be:"
    " resets at the shifts, cross entropy alone; beside Adam, plain SGD with the paper's non-convex"
    " schedule, its constants measured on the first batch, and Adam whose rate of 0.01 a measured"
    " factor multiplies, that of MeasuredRate(relative=True) attached to Adam; both rates in the"
    " last panel. The fifth panel: where all runs of the authors' network end, over the rate."
)
# The version of the experiment: a change here computes all of it anew.
_VERSION = 1
_COLOURS = {"Alpha": "#D55E00", "Beta": "#0072B2", "Delta": "#CC79A7", "Ductal": "#009E73"}
_MARKERS = {"Alpha": "o", "Beta": "s", "Delta": "^", "Ductal": "D"}
_DESCENT = "descent-the-papers-rule"
_PAPERS, _PAPERS_COLOUR = "SGD, the paper's rule", style.COLOURS["the paper's rule"]
_RESET_COLOURS = {
    "no resets": style.INK,
    "at the shifts": style.COLOURS["exact form"],
    "as the program does": style.COLOURS["closed form"],
}
_MEASURED, _MEASURED_COLOUR = "times the measured factor", style.COLOURS["best constant rate"]
_RULE = MeasuredRate(relative=True)  # the optimum of each step
_BASE = 0.01  # the paper's choice of rate, whose measured runs are drawn step by step
_GREY = style.COLOURS["rate 0"]
_EVERY = 5  # one step in so many is drawn
# The runs whose rate follows the stream, with their labels and colours.
_FOLLOWED = (
    (_DESCENT, _PAPERS, _PAPERS_COLOUR),
    (measured_name(_BASE), f"Adam {_BASE:g} {_MEASURED}", _MEASURED_COLOUR),
)


def _source(cells: Cells) -> pa.Table:
    return table(
        source=cells.source,
        note=cells.note,
        imputed=cells.imputed,
        simulated=cells.simulated,
        type=np.array(CLASSES),
        cells=np.bincount(cells.label, minlength=len(CLASSES)),
    )


def _trial(cells: Cells, design: str) -> Trial:
    # Torch is needed where a network is trained, not where a figure is listed or drawn.
    with needs("Figure 6", "torch"):
        from driftrate.paper.figure6.adam import Trial
    chosen = DESIGNS[design]
    return Trial(CellStream(cells, order=chosen.order), chosen.penalty, chosen.activated)


def _rows(runs: Curves, **columns: Any) -> pa.Table:
    """Return a table of runs of (..., seeds, steps) with more columns."""
    seeds, steps = runs.entropy.shape[-2:]
    seed, step = np.arange(seeds)[:, None], np.arange(1, steps + 1)
    return table(seed=seed, step=step, entropy=runs.entropy, penalty=runs.penalty, **columns)


def _adam(cells: Cells, design: str, rate: float, seeds: int) -> pa.Table:
    trial, kinds = _trial(cells, design), DESIGNS[design].resets
    from driftrate.paper.figure6.adam import Setting, train

    runs = train(trial, [Setting(rate, RESETS[kind]) for kind in kinds], range(seeds))
    return _rows(runs, resets=np.array(kinds)[:, None, None], rate=rate)


def _measured(cells: Cells, rate: float, seeds: int) -> pa.Table:
    trial = _trial(cells, PROTOCOLS["as it should be"].design)
    from driftrate.paper.figure6.adam import Setting, train

    runs = train(trial, [Setting(rate)], range(seeds), _RULE)
    return _rows(runs, base=rate, rate=runs.rate)


def _descent(cells: Cells, seeds: int) -> pa.Table:
    trial = _trial(cells, PROTOCOLS["as it should be"].design)
    from driftrate.paper.figure6.descent import descend

    runs = descend(trial, NonconvexRate, range(seeds))
    return _rows(runs, rate=runs.rate)


def pieces(context: Context) -> list[Piece]:
    """List what is to be computed: the cells' source, their map, what they tell, and the runs.

    A key names the numbers in the cells, so that other cells are computed anew.
    """
    cells = load_cells(context.data)
    seeds, data = context.seeds, f"version {_VERSION}, cells {cells.fingerprint}"
    about = f"{data}, {cells.source}, {cells.note}"
    listed = [
        Piece("source", about, partial(_source, cells)),
        Piece("embedding", data, partial(figure6_cells.embed, cells)),
        Piece("accuracy", data, partial(figure6_cells.accuracy, cells)),
    ]
    for design, chosen in DESIGNS.items():
        for rate in RATES:
            key = f"{data}, {chosen}, rate {rate:g}, {seeds} seeds"
            call = partial(_adam, cells, design, rate, seeds)
            listed.append(Piece(adam_name(design, rate), key, call))
    for rate in RATES:
        key = f"{data}, {_RULE} of version {_RULE.version}, rate {rate:g}, {seeds} seeds"
        call = partial(_measured, cells, rate, seeds)
        listed.append(Piece(measured_name(rate), key, call))
    key = f"{data}, the paper's rule, {seeds} seeds"
    return [*listed, Piece(_DESCENT, key, partial(_descent, cells, seeds))]


@style.styled
def draw(tables: Tables) -> Picture:
    """Draw the map of the cells, the three protocols, the end of all runs, and followed rates."""
    figure, axes = style.canvas(2, 3, width=14, height=4.1)
    _draw_map(axes[0, 0], tables)
    for panel, name in zip((axes[0, 1], axes[0, 2], axes[1, 0]), PROTOCOLS, strict=True):
        _draw_protocol(panel, tables, name)
    _draw_ends(axes[1, 1], tables)
    _draw_rates(axes[1, 2], tables)
    lines, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=6)
    return figure


def _draw_map(panel: Axes, tables: Tables) -> None:
    x, y, kind = style.columns(tables["embedding"], "x", "y", "type")
    # The many first, so that the few lie on top.
    for name in sorted(CLASSES, key=lambda name: -int((kind == name).sum())):
        rows = kind == name
        look: dict[str, Any] = {"s": 9, "alpha": 0.7, "linewidths": 0, "rasterized": True}
        look |= {"marker": _MARKERS[name], "color": _COLOURS[name]}
        panel.scatter(x[rows], y[rows], label=f"{name.lower()} ({rows.sum():,})", **look)
    row = tables["source"].slice(0, 1).to_pylist()[0]
    source = "\n".join(fill(part, 62) for part in (row["source"], row["note"]) if part)
    panel.set(title="ten genes, four types of cells", xticks=[], yticks=[])
    panel.set_xlabel(f"t-SNE of log(1 + expression)\n{source}", fontsize=8)
    panel.legend(markerscale=2)


def _draw_protocol(panel: Axes, tables: Tables, name: str) -> None:
    protocol = PROTOCOLS[name]
    ends = {}

    def draw_total(runs: Runs, colour: str, label: str, **look: Any) -> float:
        total = np.cumsum(runs, axis=1)
        step, shown = np.arange(1, total.shape[1] + 1), slice(_EVERY - 1, None, _EVERY)
        style.band(panel, step[shown], total[:, shown], colour, label, **look)
        return float(np.median(total[:, -1]))

    for colour, rate in zip(style.ramp(len(RATES)), RATES, strict=True):
        for reset in (False, True):
            label, line = f"Adam {rate:g}{', resets' if reset else ''}", "--" if reset else "-"
            runs = losses(tables, protocol, rate, reset)
            ends[rate, reset] = draw_total(runs, colour, label, linestyle=line)
    if name == "as it should be":
        for piece, label, colour in _FOLLOWED:
            draw_total(_column(tables, piece, "entropy"), colour, label, linewidth=2.2)
    _draw_shifts(panel)
    last = RATES[-1]
    beyond = f"{last:g} leaves the picture:\n{ends.pop((last, False)):,.0f}"
    beyond += f", with resets {ends.pop((last, True)):,.0f}"
    panel.text(0.21, 0.98, beyond, transform=panel.transAxes, va="top", fontsize=8)
    panel.set(title=name, xlabel="step", ylabel="cumulative loss")
    panel.set(xlim=(0, None), ylim=(0, 1.25 * max(ends.values())))


def _draw_ends(panel: Axes, tables: Tables) -> None:
    """Draw the loss at the end over the rate, for the authors' network."""
    kinds = {"no resets": "none", "at the shifts": "shifts", "as the program does": "program"}
    for nudge, (label, kind) in zip((0.91, 0.97, 1.03), kinds.items(), strict=True):
        protocol = Protocol("program", kind, penalised=False)
        runs = [losses(tables, protocol, rate, reset=True) for rate in RATES]
        _draw_runs(panel, nudge, runs, label, _RESET_COLOURS[label])
    runs = [_column(tables, measured_name(rate), "entropy") for rate in RATES]
    _draw_runs(panel, 1.09, runs, f"none, {_MEASURED}", _MEASURED_COLOUR)
    end = float(np.median(_column(tables, _DESCENT, "entropy").sum(axis=1)))
    panel.axhline(end, color=_PAPERS_COLOUR, ls=":", label=_PAPERS)
    panel.set(title="at the end of the stream", xlabel="rate of Adam", ylabel="cumulative loss")
    panel.set(xscale="log", yscale="log", xticks=RATES, xticklabels=[f"{r:g}" for r in RATES])
    panel.minorticks_off()
    panel.legend(title="resets", loc="upper left")


def _draw_runs(panel: Axes, nudge: float, runs: list[Runs], label: str, colour: str) -> None:
    """Draw where runs end over the rate, each rate a little aside so that none hides another."""
    low, middle, high = np.quantile(np.sum(runs, axis=2), [0.25, 0.5, 0.75], axis=1)
    place, error = nudge * np.array(RATES), (middle - low, high - middle)
    panel.errorbar(place, middle, error, label=label, color=colour, marker="o", ms=4, capsize=2)


def _draw_rates(panel: Axes, tables: Tables) -> None:
    for piece, label, colour in _FOLLOWED:
        rate = _column(tables, piece, "rate")
        # The first measured step is 0: nothing was seen yet, and the axis is logarithmic.
        skip = int(piece != _DESCENT)
        style.band(panel, np.arange(1 + skip, rate.shape[1] + 1), rate[:, skip:], colour, label)
    _draw_shifts(panel)
    panel.set(title="rates that follow the stream", xlabel="step", ylabel="rate")
    panel.set(xlim=(0, None), yscale="log")
    panel.legend()


def _draw_shifts(panel: Axes) -> None:
    for shift in SHIFTS:
        panel.axvline(shift, color=_GREY, lw=0.8, zorder=0)


def _column(tables: Tables, piece: str, column: str) -> Runs:
    """Return a column of runs as (seeds, steps)."""
    seed, values = style.columns(tables[piece], "seed", column)
    runs: Runs = values.astype(np.float64).reshape(len(np.unique(seed)), -1)
    return runs
