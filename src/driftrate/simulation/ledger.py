"""The ledger adds up regret and keeps columns of values, at every step or every n-th."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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

    def column(self, name: str) -> Array:
        """Return a column, the kept steps along the first axis."""
        return self._columns[name][: len(self.kept)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(self._columns)
