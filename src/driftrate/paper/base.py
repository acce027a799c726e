"""What every figure of the paper is made of: pieces that are computed once, a picture, claims."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from driftrate.schedules import LinearRate

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure as Picture

Tables = Mapping[str, "pa.Table"]
Verdict = Literal["holds", "holds in part", "does not hold", "cannot be judged"]

# The paper writes N(0, 0.1) and does not say whether 0.1 is the deviation or the variance.
NOISE_READINGS = {"deviation": 0.1, "variance": sqrt(0.1)}


def algorithm1(dim: int, noise: float, cap: float, initial_error: float) -> LinearRate:
    """Return the paper's Algorithm 1, its v started at the true squared error instead of 0."""
    return LinearRate(dim, noise, cap, initial_error=initial_error, form="euler", kappa=0.1)


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings of divergence, where divergence is what is studied."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*diverged", category=RuntimeWarning)
        yield


@dataclass(frozen=True)
class Context:
    """What a user may choose about a reproduction."""

    seeds: int = 32  # of each experiment
    data: str | None = None  # a file of cells for Figure 6, or None to look for one


@dataclass(frozen=True)
class Piece:
    """A part of an experiment that is computed and stored by itself."""

    name: str  # within the figure; also that of its table
    key: str  # all that determines its result besides the code, in words
    compute: Callable[[], pa.Table]  # picklable, so that another process can call it


class Figure(Protocol):
    """A module `figureN`: the experiment behind one figure of the paper."""

    TITLE: str
    CAPTION: str

    def pieces(self, context: Context) -> list[Piece]:
        """List what is to be computed."""

    def draw(self, tables: Tables) -> Picture:
        """Draw the picture."""


def chase(weights: Any, path: Any, **columns: Any) -> pa.Table:
    """Return the first two coordinates of a learner (..., steps, dim) and of its target."""
    (x, y), (target_x, target_y) = (np.moveaxis(way[..., :2], -1, 0) for way in (weights, path))
    step = np.arange(1, len(path) + 1)
    return table(step=step, x=x, y=y, target_x=target_x, target_y=target_y, **columns)


def table(**columns: Any) -> pa.Table:
    """Return a table of columns; scalars are repeated.

    Example:
        >>> table(rate=0.1, step=[1, 2]).to_pylist()
        [{'rate': 0.1, 'step': 1}, {'rate': 0.1, 'step': 2}]
    """
    import pyarrow as pa

    arrays = np.broadcast_arrays(*(np.asarray(column) for column in columns.values()))
    return pa.table({name: np.ravel(array) for name, array in zip(columns, arrays, strict=True)})
