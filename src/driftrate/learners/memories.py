"""Who is in a pool of memories, and between which mixers it hedges."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Tuned on five real streams and on drawn ones (docs/hedged_filter.md), the same for every stream.
LEVEL = 20.0  # rows that the intercept is remembered for, in members where the level is quick
TEMPERS = (0.1, 0.3, 1.0)  # how much the evidence of a row counts: rows of a batch are alike
UNIT = 16.0  # rows
SHARES = (0.0, 0.01, 0.05, 0.2)  # dealt out equally every 16 rows; 0: 1/t of them, which fades
MANY = 100_000  # weights, from which on each member takes megabytes


class Members(NamedTuple):
    """Who is in a pool: filters first, of which the first never forgets, then SGD copies.

    Args:
        memory: Of each filter, in rows per feature.
        level: Of its intercept, in rows, where that is shorter.
        prior: v, the variance of each weight at the start, in units of the noise.
        tracks: Which filter forgets at once what a jump contradicts.
        octaves: Of each copy's rate below the fastest stable one.
    """

    memory: Floats
    level: Floats
    prior: Floats
    tracks: NDArray[np.bool_]
    octaves: Floats

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.memory) + len(self.octaves)


def _members(*rows: tuple[float, float, float, bool], octaves: tuple[float, ...]) -> Members:
    memory, level, prior, tracks = (np.array(column) for column in zip(*rows, strict=True))
    return Members(memory, level, prior, tracks.astype(bool), np.array(octaves))


MEMBERS = _members(
    (inf, inf, 0.1, False),
    (512.0, LEVEL, 10.0, False),
    (128.0, LEVEL, 0.01, False),
    (64.0, LEVEL, 10.0, False),
    (16.0, inf, 1.0, False),
    (8.0, LEVEL, 1.0, False),
    (512.0, inf, 100.0, True),
    (2.0, inf, 10.0, False),
    (2.0, inf, 0.01, False),
    octaves=(0.0, 1.5, 3.0, 4.5, 6.0),
)
# Which of them stay where each takes megabytes.
_FILTERS, _COPIES = (0, 5), (0, 2)


_kept = list(_FILTERS)
FEW = Members(
    memory=MEMBERS.memory[_kept],
    level=MEMBERS.level[_kept],
    prior=MEMBERS.prior[_kept],
    tracks=MEMBERS.tracks[_kept],
    octaves=MEMBERS.octaves[list(_COPIES)],
)


class Mixers(NamedTuple):
    """The mixers between which the pool hedges, one of each combination.

    Args:
        temper: How much evidence counts.
        share: What is dealt out equally every 16 rows, if that is more than what fades.
        heeds: 1 where a jump moves the shares to the member that tracks.
    """

    temper: Floats
    share: Floats
    heeds: Floats


_KINDS = [(share, 0.0) for share in SHARES] + [(0.0, 1.0)]
MIXERS = Mixers(*np.array([(t, *kind) for t in TEMPERS for kind in _KINDS]).T)


def members(weights: int) -> Members:
    """Return who is in a pool with that many weights a member.

    Example:
        >>> members(20).number, members(200_000).number
        (14, 4)
    """
    return MEMBERS if weights <= MANY else FEW


def stay() -> list[int]:
    """Return the places, among all members, of those that stay where there are few."""
    return [*_FILTERS, *(len(MEMBERS.memory) + place for place in _COPIES)]
