"""How long the memory of a model was, over time: at most 1,000 points, and their picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftrate.errors import needs

POINTS = 1000
SMOOTH = 40  # windows of the running mean in a picture


class History:
    """Pairs of numbers, one a step, thinned to every 2^k-th step so that they are at most 1,000.

    Example:
        >>> history = History()
        >>> for step in range(5000):
        ...     if history.due():
        ...         history.add(16.0 * step, 1.0)
        >>> history.points[:3, 0].tolist(), len(history.points)
        ([0.0, 128.0, 256.0], 625)
    """

    def __init__(self) -> None:
        self._steps, self._stride = 0, 1
        self._points: list[tuple[float, float]] = []

    @property
    def points(self) -> NDArray[np.float64]:
        """The pairs, (points, 2), in order."""
        return np.array(self._points, dtype=np.float64).reshape(-1, 2)

    def due(self) -> bool:
        """Count a step; return whether it is one of those that are kept."""
        self._steps += 1
        return (self._steps - 1) % self._stride == 0

    def add(self, at: float, value: float) -> None:
        """Keep a pair."""
        if len(self._points) == POINTS:
            self._points, self._stride = self._points[::2], 2 * self._stride
        self._points.append((at, value))


def plot_memory(history: History, ax: Any = None) -> Any:
    """Draw how many past rows a model believed in; return the axes.

    Args:
        history: Rows seen, and rows believed in.
        ax: Axes of matplotlib; new ones if None.
    """
    with needs("plot_memory", "paper"):
        from matplotlib import pyplot
    if ax is None:
        ax = pyplot.subplots(layout="constrained")[1]
    rows, memory = history.points.T
    ax.plot(rows, rows, color="0.7", linestyle="--", label="all of them")
    # Shares flicker from batch to batch; what drifts is their mean over some time.
    width = max(len(memory) // SMOOTH, 1)
    window = np.ones(width)
    counts = np.convolve(np.ones(len(memory)), window, "same")
    steady = np.exp(np.convolve(np.log(memory), window, "same") / counts)
    (line,) = ax.plot(rows, steady, label="believed in")
    ax.plot(rows, memory, color=line.get_color(), alpha=0.25, linewidth=0.8, zorder=1)
    ax.set(xlabel="rows seen", ylabel="past rows", yscale="log")
    ax.legend()
    return ax
