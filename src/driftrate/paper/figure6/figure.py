"""Figure 6: a network sorts cells while their mixture shifts; Adam, with and without resets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from driftrate.data.cytometry import CLASSES, Cells, CellStream, load_cells
from driftrate.errors import MissingDependency
from driftrate.paper import style
from driftrate.paper.base import Context, Piece, Tables, table
from driftrate.paper.figure6 import cells as figure6_cells
from driftrate.paper.figure6.protocols import (
    DESIGNS,
    METHODS,
    PROTOCOLS,
    RATES,
    RESETS,
    SHIFTS,
    Protocol,
    adam_name,
    losses,
    measured_name,
)
from driftrate.schedules import MeasuredRate

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

    from driftrate.paper.figure6.adam import Trial

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
    " factor multiplies, as MeasuredRate gives it where it is attached to Adam; both rates in the"
    " last panel. The fifth panel: where all runs of the authors' network end, over the rate."
)
# The version of the experiment: a change here computes all of it anew.
_VERSION = 1
_COLOURS = {"Alpha": "#D55E00", "Beta": "#0072B2", "Delta": "#CC79A7", "Ductal": "#009E73"}
_MARKERS = {"Alpha": "o", "Beta": "s", "Delta": "^", "Ductal": "D"}
_METHOD_COLOURS = (style.COLOURS["the paper's rule"], style.COLOURS["exact form"])
_RESET_COLOURS = {
    "no resets": style.INK,
    "at the shifts": style.COLOURS["exact form"],
    "as the program does": style.COLOURS["closed form"],
}
_MEASURED, _MEASURED_COLOUR = "times the measured factor", style.COLOURS["best constant rate"]
_RULE = MeasuredRate()  # what one line attaches
_BASE = 0.01  # the paper's choice of rate, whose measured runs are drawn step by step
_GREY = style.COLOURS["rate 0"]
_EVERY = 5  # one step in so many is drawn
_DESCENT = "descent-"


def _source(cells: Cells) -> pa.Table:
    count = np.bincount(cells.label, minlength=len(CLASSES))
    return table(
        source=cells.source,
        note=cells.note,
        imputed=cells.imputed,
        simulated=cells.simulated,
        type=np.array(CLASSES),
        cells=count,
    )


def _trial(cells: Cells, design: str) -> Trial:
    try:
        # Torch is needed where a network is trained, not where a figure is listed or drawn.
        from driftrate.paper.figure6.adam import Trial
    except ImportError as error:
        raise MissingDependency("Figure 6 needs torch: pip install 'driftrate[torch]'") from error
    chosen = DESIGNS[design]
    return Trial(CellStream(cells, order=chosen.order), chosen.penalty, chosen.activated)


def _adam(cells: Cells, design: str, rate: float, seeds: int) -> pa.Table:
    trial = _trial(cells, design)
    from driftrate.paper.figure6.adam import Setting, train

    kinds = DESIGNS[design].resets
    runs = train(trial, [Setting(rate, RESETS[kind]) for kind in kinds], range(seeds))
    return table(
        resets=np.array(kinds)[:, None, None],
        rate=rate,
        seed=np.arange(seeds)[:, None],
        step=np.arange(1, trial.stream.steps + 1),
        entropy=runs.entropy,
        penalty=runs.penalty,
    )


def _measured(cells: Cells, rate: float, seeds: int) -> pa.Table:
    trial = _trial(cells, PROTOCOLS["as it should be"].design)
    from driftrate.paper.figure6.adam import Setting, train

    runs = train(trial, [Setting(rate)], range(seeds), _RULE)
    return table(
        base=rate,
        seed=np.arange(seeds)[:, None],
        step=np.arange(1, trial.stream.steps + 1),
        entropy=runs.entropy[0],
        penalty=runs.penalty[0],
        rate=runs.rate[0],
    )


def _descent(cells: Cells, method: str, seeds: int) -> pa.Table:
    trial = _trial(cells, PROTOCOLS["as it should be"].design)
    from driftrate.paper.figure6.descent import descend

    runs = descend(trial, METHODS[method], range(seeds))
    return table(
        method=method,
        seed=np.arange(seeds)[:, None],
        step=np.arange(1, trial.stream.steps + 1),
        entropy=runs.entropy,
        penalty=runs.penalty,
        rate=runs.rate,
    )


def pieces(context: Context) -> list[Piece]:
    """List what is to be computed: the cells' source, their map, what they tell, and the runs.

    Args:
        context: The seeds, and the file of cells or None to look for one.

    Returns:
        The pieces; a key names the numbers in the cells, so that other cells are computed anew.
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
    for method in METHODS:
        key = f"{data}, {method}, {seeds} seeds"
        name = _DESCENT + method.replace("'", "").replace(" ", "-")
        listed.append(Piece(name, key, partial(_descent, cells, method, seeds)))
    return listed


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
        panel.scatter(
            x[rows],
            y[rows],
            s=9,
            marker=_MARKERS[name],
            color=_COLOURS[name],
            alpha=0.7,
            linewidths=0,
            label=f"{name.lower()} ({rows.sum():,})",
            rasterized=True,
        )
    row = tables["source"].slice(0, 1).to_pylist()[0]
    source = "\n".join(fill(part, 62) for part in (row["source"], row["note"]) if part)
    panel.set(title="ten genes, four types of cells", xticks=[], yticks=[])
    panel.set_xlabel(f"t-SNE of log(1 + expression)\n{source}", fontsize=8)
    panel.legend(markerscale=2)


def _draw_protocol(panel: Axes, tables: Tables, name: str) -> None:
    protocol = PROTOCOLS[name]
    shown, ends = slice(_EVERY - 1, None, _EVERY), {}
    for colour, rate in zip(style.ramp(len(RATES)), RATES, strict=True):
        for reset in (False, True):
            total = np.cumsum(losses(tables, protocol, rate, reset), axis=1)
            step = np.arange(1, total.shape[1] + 1)
            label = f"Adam {rate:g}{', resets' if reset else ''}"
            line = "--" if reset else "-"
            style.band(panel, step[shown], total[:, shown], colour, label, linestyle=line)
            ends[rate, reset] = float(np.median(total[:, -1]))
    if name == "as it should be":
        for colour, method, entropy in _methods(tables, "entropy"):
            step = np.arange(1, entropy.shape[1] + 1)[shown]
            total = np.cumsum(entropy, axis=1)[:, shown]
            style.band(panel, step, total, colour, f"SGD, {method}", linewidth=2.2)
        total = np.cumsum(_followed(tables, _BASE, "entropy"), axis=1)[:, shown]
        label = f"Adam {_BASE:g} {_MEASURED}"
        style.band(panel, step, total, _MEASURED_COLOUR, label, linewidth=2.2)
    for shift in SHIFTS:
        panel.axvline(shift, color=_GREY, lw=0.8, zorder=0)
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
    runs = [_followed(tables, rate, "entropy") for rate in RATES]
    _draw_runs(panel, 1.09, runs, f"none, {_MEASURED}", _MEASURED_COLOUR)
    for colour, method, entropy in _methods(tables, "entropy"):
        end = float(np.median(entropy.sum(axis=1)))
        panel.axhline(end, color=colour, ls=":", label=f"SGD, {method}")
    panel.set(title="at the end of the stream", xlabel="rate of Adam", ylabel="cumulative loss")
    panel.set(xscale="log", yscale="log", xticks=RATES, xticklabels=[f"{r:g}" for r in RATES])
    panel.minorticks_off()
    panel.legend(title="resets", loc="upper left")


def _draw_runs(panel: Axes, nudge: float, runs: list[Runs], label: str, colour: str) -> None:
    """Draw where runs end over the rate, each rate a little aside so that none hides another."""
    low, middle, high = np.quantile(np.sum(runs, axis=2), [0.25, 0.5, 0.75], axis=1)
    panel.errorbar(
        nudge * np.array(RATES),
        middle,
        (middle - low, high - middle),
        label=label,
        color=colour,
        marker="o",
        ms=4,
        capsize=2,
    )


def _draw_rates(panel: Axes, tables: Tables) -> None:
    for colour, method, rate in _methods(tables, "rate"):
        step = np.arange(1, rate.shape[1] + 1)
        style.band(panel, step, rate, colour, f"SGD, {method}")
    rate = _followed(tables, _BASE, "rate")
    # The first step is 0: nothing was measured yet, and the axis is logarithmic.
    step = np.arange(2, rate.shape[1] + 1)
    style.band(panel, step, rate[:, 1:], _MEASURED_COLOUR, f"Adam {_BASE:g} {_MEASURED}")
    for shift in SHIFTS:
        panel.axvline(shift, color=_GREY, lw=0.8, zorder=0)
    panel.set(title="rates that follow the stream", xlabel="step", ylabel="rate")
    panel.set(xlim=(0, None), yscale="log")
    panel.legend()


def _followed(tables: Tables, base: float, column: str) -> Runs:
    """Return a column of Adam's runs with the measured factor, (seeds, steps)."""
    seed, values = style.columns(tables[measured_name(base)], "seed", column)
    runs: Runs = values.astype(np.float64).reshape(len(np.unique(seed)), -1)
    return runs


def _methods(tables: Tables, column: str) -> Iterator[tuple[str, str, Runs]]:
    """Yield the colour and name of each schedule that ran, and a column as (seeds, steps)."""
    found = [name for name in tables if name.startswith(_DESCENT)]
    for colour, name in zip(cycle(_METHOD_COLOURS), found, strict=False):
        method, seed, values = style.columns(tables[name], "method", "seed", column)
        yield colour, str(method[0]), values.reshape(len(np.unique(seed)), -1)
