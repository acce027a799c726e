"""One look for all figures: a method has the same colour wherever it appears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")
INK, GRID = "#22272e", "#d9dde3"
# Okabe and Ito's palette, told apart with every kind of colour vision.
COLOURS = {
    "the paper's rule": "#0072B2",
    "exact form": "#009E73",
    "best constant rate": "#E69F00",
    "rate 0": "#8a8f98",
    "target": "#8a8f98",
    "closed form": "#D55E00",
}
# For a quantity that grows (a rate, a dimension, a shift): light to dark, even in grey.
RAMP = ("#fde0a6", "#f9b178", "#ee7f6c", "#cf4f7a", "#993390", "#5f2389", "#2c1563", "#0d0830")

SETTINGS: Any = {
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    **dict.fromkeys(
        ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK
    ),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "figure.facecolor": "white",
    "svg.fonttype": "none",
}


def ramp(count: int) -> list[str]:
    """Return `count` colours from light to dark, all of them different."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    colours = LinearSegmentedColormap.from_list("ramp", RAMP)
    return [to_hex(colours(place)) for place in np.linspace(0.15, 0.9, count)]


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Make a drawing function use this look, without touching matplotlib's global settings."""

    @wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        from matplotlib import rc_context

        with rc_context(SETTINGS):
            return draw(*args, **kwargs)

    return wrapped


def canvas(rows: int, columns: int, width: float = 10.0, height: float = 3.4) -> tuple[Figure, Any]:
    """Return a figure and its axes, drawn without a screen or global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def legend(axes: Axes, ncols: int = 3) -> None:
    """Put the legend under the panel, where it hides nothing."""
    place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
    axes.legend(ncols=ncols, handlelength=1.2, columnspacing=1.0, **place)


def band(axes: Axes, x: Any, runs: Any, colour: str, label: str, **options: Any) -> None:
    """Draw the median of runs (seeds, steps) and the band between their quartiles."""
    low, middle, high = np.nanquantile(np.asarray(runs, float), [0.25, 0.5, 0.75], axis=0)
    axes.plot(x, middle, color=colour, label=label, **options)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def columns(table: Any, *names: str) -> Sequence[Any]:
    """Return columns of a table as NumPy arrays."""
    return [table[name].to_numpy(zero_copy_only=False) for name in names]
