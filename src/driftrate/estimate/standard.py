"""Standardising a stream by the rows before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Standardiser:
    """Mean and deviation of all rows so far, column by column, missing values left out.

    z = (x - m)/s, clipped; m and s are those of the rows given to `update` so far. A column that
    has not varied yet is only shifted. A missing value becomes 0, the mean of the rows before.

    Args:
        width: The number of columns.
        clip: The largest |z|.

    Example:
        >>> standard = Standardiser(1)
        >>> standard.update(np.array([[1.0], [3.0]]))
        >>> standard(np.array([[4.0], [np.nan], [99.0]])).tolist()
        [[2.0], [0.0], [5.0]]

    Reference:
        Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing
        sample variances".
    """

    def __init__(self, width: int, clip: float = 5.0) -> None:
        self._clip = clip
        self._count = np.zeros(width)
        self._mean = np.zeros(width)
        self._squares = np.zeros(width)

    def __call__(self, x: Floats) -> Floats:
        """Return the rows standardised."""
        deviation = np.sqrt(self._squares / np.maximum(self._count, 1.0))
        # Rounding alone makes a constant column vary by a few parts in 10^16.
        varied = deviation > 1e-8 * np.maximum(np.abs(self._mean), 1.0)
        z = (x - self._mean) / np.where(varied, deviation, 1.0)
        return np.where(np.isnan(z), 0.0, np.clip(z, -self._clip, self._clip))

    def update(self, x: Floats) -> None:
        """Take in rows."""
        there = ~np.isnan(x)
        count = there.sum(axis=0)
        some = np.maximum(count, 1)
        mean = np.where(there, x, 0.0).sum(axis=0) / some
        squares = (np.where(there, x - mean, 0.0) ** 2).sum(axis=0)
        total = np.maximum(self._count + count, 1.0)
        apart = mean - self._mean
        self._squares += squares + apart**2 * self._count * count / total
        self._mean += apart * count / total
        self._count += count
