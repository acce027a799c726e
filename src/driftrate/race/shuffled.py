"""A stream with its rows in a drawn order, so that nothing in it drifts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from driftrate.race.cell import CURVE_POINTS
from driftrate.race.sources import Batch, Source


def head(steps: int) -> int:
    """Return how many first steps stay where they are: about a tenth, the end at a curve's point.

    They are few rows under scales that still settle: elsewhere they would be strange.

    Example:
        >>> head(50), head(10_000)
        (6, 1006)
    """
    points = np.linspace(1, steps, min(steps, CURVE_POINTS)).round().astype(int)
    return int(points[len(points) // 10])


def shuffled(source: Source, number: int) -> Source:
    """Return the stream whose rows after its head come in an order that a number draws.

    Each row is what it was, scales included; only its neighbours are others.

    Args:
        source: A stream that fits into memory, and is no protocol.
        number: The seed of the order.

    Example:
        >>> from driftrate.race import Reading, resolve
        >>> source = resolve("synthetic:walk,dim=2,steps=40", Reading(batch=4))
        >>> rows = [sorted(np.concatenate([b.y for b in one.batches()]).tolist())
        ...         for one in (source, shuffled(source, 1))]
        >>> rows[0] == rows[1]
        True
    """

    def draw(seed: int) -> Iterator[Batch]:
        batches = list(source.batches(seed))
        first = head(len(batches))
        yield from batches[:first]
        rest = [
            None if column[0] is None else np.concatenate(column)
            for column in zip(*batches[first:], strict=True)
        ]
        if not rest:
            return
        rows = (len(batches) - first) * source.batch
        order = np.random.default_rng([3, number, seed]).permutation(rows)
        for start in range(0, rows, source.batch):
            which = order[start : start + source.batch]
            yield Batch(*(None if column is None else column[which] for column in rest))  # type: ignore[arg-type]

    return replace(source, draw=draw, key=(*source.key, "shuffled", number))
