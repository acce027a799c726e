"""Areas of block characters: a picture that every terminal can show."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple


class Glyphs(NamedTuple):
    """What a picture is drawn with.

    Args:
        levels: From an empty cell to a full one.
        tick: The axis beside a number.
        axis: The axis elsewhere.
        corner: Where the axes meet.
        floor: The horizontal axis.
        jump: Marks a jump.
        drift: Marks where a drift goes on.
    """

    levels: str
    tick: str
    axis: str
    corner: str
    floor: str
    jump: str
    drift: str


BLOCKS = Glyphs(" ▁▂▃▄▅▆▇█", "┤", "│", "└", "─", "▲", "≈")
ASCII = Glyphs(" .:#", "|", "|", "+", "-", "^", "~")


def area(values: Sequence[float], width: int, height: int, top: float, glyphs: Glyphs) -> list[str]:
    """Draw values as columns from the floor up; what is above `top` is cut off.

    Args:
        values: One a column, at most `width` of them.
        width: Columns of the picture.
        height: Its rows.
        top: The value of a full column.
        glyphs: What to draw with.

    Returns:
        The rows, from above.

    Example:
        >>> area([0.0, 1.0, 2.0, 3.0, 4.0], width=6, height=2, top=4.0, glyphs=ASCII)
        ['   .# ', ' .### ']
    """
    full = len(glyphs.levels) - 1
    filled = [min(ceil(full * height * max(one, 0.0) / top - 0.5), full * height) for one in values]
    rows = []
    for row in reversed(range(height)):
        cells = (glyphs.levels[min(max(one - full * row, 0), full)] for one in filled)
        rows.append("".join(cells).ljust(width))
    return rows


def columns(values: Sequence[float], width: int, whole: int) -> list[float]:
    """Return the means of what falls into each column of a picture of `whole` values.

    Example:
        >>> columns([1.0, 3.0, 5.0], width=2, whole=4)
        [2.0, 5.0]
    """
    bins: list[list[float]] = []
    for i, value in enumerate(values):
        if i * width // whole >= len(bins):
            bins.append([])
        bins[-1].append(value)
    return [sum(one) / len(one) for one in bins]
