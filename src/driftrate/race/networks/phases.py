"""A protocol: a stream for networks, in phases that are scored apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftrate.race.networks.network import Network, Transformer

# The rows of a batch in every protocol.
BATCH = 16


class Phase(NamedTuple):
    """Consecutive rows that are scored together; phases of one name are one figure.

    Args:
        name: What the figure is called.
        x: Features (rows, ...), float32, or whole numbers of a text.
        y: Targets: float32 reals, 0 and 1 of two classes, or int64 class numbers of more.
        learn: Whether each batch is learned from once it is predicted; held-out rows are not.
        oracle: The scores of the best weights, where they are known.
        expected: The expected targets given x, where they are known.
    """

    name: str
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    learn: bool = True
    oracle: npt.NDArray[np.float64] | None = None
    expected: npt.NDArray[np.float64] | None = None

    def rows(self, which: slice) -> Phase:
        """Return some of the rows."""
        oracle = None if self.oracle is None else self.oracle[which]
        expected = None if self.expected is None else self.expected[which]
        return Phase(self.name, self.x[which], self.y[which], self.learn, oracle, expected)

    def after(self, other: Phase) -> Phase:
        """Return the rows of another phase, then these."""
        pairs = ((other.x, self.x), (other.y, self.y))
        x, y = (np.concatenate(pair) for pair in pairs)
        oracle, expected = (
            None if one is None or two is None else np.concatenate([one, two])
            for one, two in ((other.oracle, self.oracle), (other.expected, self.expected))
        )
        return Phase(self.name, x, y, self.learn, oracle, expected)


@dataclass(frozen=True)
class Protocol:
    """A stream for networks.

    Args:
        name: Its name.
        model: The network that is trained on it.
        rows: How many rows are learned from.
        fingerprint: A hash of the content.
        draw: A function of the seed that yields the phases.
        figures: The phases whose loss is a result of its own; the whole stream's if none.
    """

    name: str
    model: Network | Transformer
    rows: int
    fingerprint: str
    draw: Callable[[int], Iterator[Phase]] = field(repr=False, compare=False)
    figures: tuple[str, ...] = ()
