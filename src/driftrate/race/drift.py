"""Whether a stream drifts: the same race on shuffled rows, and how long a memory serves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from driftrate.race.cell import Cell, Result
from driftrate.race.leaderboard import FLAGSHIP, Leaderboard
from driftrate.race.shuffled import head
from driftrate.race.significance import LEVEL
from driftrate.race.sources import Source
from driftrate.race.words import figures, share

# Cheap ones, those to believe first; the first two that take part are played.
_METHODS = (FLAGSHIP, "HedgedSGD", "Pursuit", "adam", "sgd")
_MOST_METHODS = 2
_ORDERS = 4
# Longer streams are not held in memory.
_MOST_BYTES = 256 * 2**20
_FEWEST_STEPS = 50
# A difference below this share is told as small.
_SMALL = 0.01


class Drift(NamedTuple):
    """A method's loss after the head of a stream, in the order given and in drawn ones.

    Args:
        method: The method, at its default.
        own: Its loss in the order given.
        drawn: Its losses in the drawn orders.
    """

    method: str
    own: float
    drawn: tuple[float, ...]

    @property
    def share(self) -> float:
        """By which share the loss in the order given is above that in drawn ones."""
        other = float(np.mean(self.drawn))
        return self.own / other - 1.0 if other > 0 else 0.0

    @property
    def p(self) -> float:
        """The p-value of the order given being like the drawn ones.

        Rows that do not drift are exchangeable: then the losses of all orders are draws of one
        distribution, and (own - mean)/(s √(1 + 1/n)) of n drawn ones is a Student t.
        """
        from scipy.stats import t

        count = len(self.drawn)
        spread = float(np.std(self.drawn, ddof=1)) * math.sqrt(1.0 + 1.0 / count)
        gap = abs(self.own - float(np.mean(self.drawn)))
        if spread == 0.0:
            return float(gap == 0.0)
        return float(2.0 * t.sf(gap / spread, count - 1))


def checks(cells: Sequence[Cell], sources: Mapping[str, Source]) -> list[Cell]:
    """Return the cells on shuffled rows that go with those of a race."""
    default = [cell for cell in cells if cell.setting == "default" and cell.seed == 0]
    found = []
    for spec, source in sources.items():
        large = 8 * source.rows * (source.n_features + 3) > _MOST_BYTES
        if source.protocol is not None or large or source.steps < _FEWEST_STEPS:
            continue
        there = {cell.method: cell for cell in default if cell.stream == spec}
        chosen = [there[name] for name in _METHODS if name in there][:_MOST_METHODS]
        found += [
            replace(cell, shuffle=number) for cell in chosen for number in range(1, _ORDERS + 1)
        ]
    return found


def compare(stream: str, results: Mapping[Cell, Result]) -> list[Drift]:
    """Return what came of a stream's rows in other orders, of the methods that are through.

    Args:
        stream: The stream as given.
        results: Finished cells.
    """
    drawn: dict[str, list[float]] = {}
    for cell, result in results.items():
        if cell.stream == stream and cell.shuffle and result["status"] == "ok":
            drawn.setdefault(cell.method, []).append(_after_head(result))
    found = []
    for cell, result in results.items():
        alone = cell.stream == stream and not cell.shuffle and cell.setting == "default"
        losses = drawn.get(cell.method, [])
        if alone and cell.seed == 0 and result["status"] == "ok" and len(losses) == _ORDERS:
            found.append(Drift(cell.method, _after_head(result), tuple(sorted(losses))))
    return sorted(found, key=lambda one: _METHODS.index(one.method))


def _after_head(result: Result) -> float:
    """Return the mean loss of the steps after the head, from the running means."""
    steps, means = result["curve_steps"], result["loss_curve"]
    place = steps.index(head(result["steps"]))
    first = steps[place]
    return (means[-1] * steps[-1] - means[place] * first) / (steps[-1] - first)


def sentence(found: Sequence[Drift]) -> str:
    """Return whether a stream drifts, in words, with what it is read off.

    Example:
        >>> print(sentence([Drift("adam", 0.5, (0.41, 0.4, 0.39, 0.4))]))
        It drifts: in 4 drawn orders of its rows the loss of adam, from a tenth on, is 0.4000, in
        their own 0.5000, 25 % higher (p = 0.0016): what holds now does not hold later.
    """
    one = found[0]
    p = "p < 0.001" if one.p < 0.001 else f"p = {one.p:.2g}"
    what = f"in {len(one.drawn)} drawn orders of its rows the loss of {one.method}, from a tenth on"
    other = f"{what}, is {figures(float(np.mean(one.drawn)))}, in their own {figures(one.own)}"
    if one.p > LEVEL:
        return f"No drift is seen: {other} ({p}): the order of the rows makes no difference."
    size, lower = abs(one.share), one.share < 0
    differs = f"{other}, {share(size)} {'lower' if lower else 'higher'} ({p})"
    if size < _SMALL:
        return f"It drifts little: {differs}."
    means = (
        "what came last tells what comes next" if lower else "what holds now does not hold later"
    )
    return f"It drifts: {differs}: {means}."


def memory(board: Leaderboard, stream: str) -> str:
    """Return how many past rows the pool of memories believed in, in words; empty without it."""
    row = next((row for row in board.of(stream) if row.method == FLAGSHIP), None)
    if row is None or row.status != "ok":
        return ""
    _, curves = board.curves(row, "memory")
    if not curves.size:
        return ""
    late = np.median(curves, axis=0)[curves.shape[1] // 2 :]
    low, high = late.min(), late.max()
    between = f"{low:,.0f} to {high:,.0f}" if round(high) > round(low) else f"{high:,.0f}"
    return (
        f"{FLAGSHIP} believed in the last {between} rows over the second half, "
        f"{late[-1]:,.0f} at the end."
    )
