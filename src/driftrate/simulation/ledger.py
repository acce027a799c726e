"""The ledger adds up regret and keeps columns of values, at every step or every n-th."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from array_api_compat import array_namespace

from driftrate.schedules.base import Array


class Ledger:
    """Running sums, and columns of values at the steps that are kept.

    Sums are exact at the kept steps whatever is skipped between them. Memory is one array per
    column, allocated when the column first appears.

    Args:
        steps: The number of steps.
        every: Keep every n-th step, and the last.
        zeros: Makes a column of zeros: the kept steps, then the axes of one value.
        shape: The axes to which smaller values, such as one number for all seeds, are broadcast.

    Example:
        >>> import numpy as np
        >>> ledger = Ledger(5, 2, np.zeros, (1,))
        >>> for loss in [1.0, 2.0, 3.0, 4.0, 5.0]:
        ...     ledger.add({"loss": np.array([loss])}, sums={"total": np.array([loss])})
        >>> ledger.kept, ledger.column("total").ravel().tolist()
        ([2, 4, 5], [3.0, 10.0, 15.0])
    """

    def __init__(
        self,
        steps: int,
        every: int,
        zeros: Callable[[tuple[int, ...]], Array],
        shape: tuple[int, ...],
    ) -> None:
        self._steps, self._every, self._zeros, self._shape = steps, every, zeros, shape
        self._count = -(-steps // every)
        self._columns: dict[str, Any] = {}
        self._sums: dict[str, Any] = {}
        self._step = 0
        self.kept: list[int] = []

    def add(self, values: Mapping[str, Array], sums: Mapping[str, Array]) -> None:
        """Close one step: add up `sums`, and keep `values` if the step is kept."""
        self._step += 1
        for name, value in sums.items():
            if name in self._sums:
                self._sums[name] += value
            else:
                self._sums[name] = value + 0.0  # a copy that may be added to
        if self._step % self._every and self._step != self._steps:
            return
        for name, value in {**values, **self._sums}.items():
            if name not in self._columns:
                own = getattr(value, "shape", ())
                shape = own if len(own) > len(self._shape) else self._shape
                self._columns[name] = self._zeros((self._count, *shape))
            self._columns[name][len(self.kept)] = value
        self.kept.append(self._step)

    def extend(self, values: Mapping[str, Array], sums: Mapping[str, Array]) -> None:
        """Close many steps at once; all arrays have an axis of steps before those of `add`."""
        count = len(next(iter(sums.values())))
        steps = range(self._step + 1, self._step + count + 1)
        kept = [i for i, t in enumerate(steps) if t % self._every == 0 or t == self._steps]
        self._step += count
        place = slice(len(self.kept), len(self.kept) + len(kept))
        # Indices on the host would make a device wait; all but the last are evenly spaced.
        even = [i for i in kept if steps[i] % self._every == 0]
        for name, value in {**values, **self._running(sums)}.items():
            if name not in self._columns:
                self._columns[name] = self._zeros((self._count, *self._shape))
            column = self._columns[name][place]
            if even:
                column[: len(even)] = value[even[0] :: self._every]
            if len(even) < len(kept):
                column[len(even) :] = value[kept[-1] :]
        self.kept += [steps[i] for i in kept]

    def _running(self, sums: Mapping[str, Array]) -> dict[str, Array]:
        """Return the sums after every step, and keep the last."""
        running = {}
        for name, value in sums.items():
            total = _cumulated(value)
            if name in self._sums:
                total += self._sums[name]
            self._sums[name] = total[-1] + 0.0
            running[name] = total
        return running

    def column(self, name: str) -> Array:
        """Return a column, the kept steps along the first axis."""
        return self._columns[name][: len(self.kept)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(self._columns)


def _cumulated(values: Array) -> Array:
    """Return sums along the first axis, by doubling: a device's own differ from run to run."""
    xp, reach = array_namespace(values), 1
    total = values + 0.0
    while reach < len(values):
        total = xp.concat([total[:reach], total[reach:] + total[:-reach]], axis=0)
        reach *= 2
    return total
