"""A running scale that a single row cannot spoil, and that forgets what is long gone."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_CHUNK = 16  # rows taken in at once
_RECENT = 2 * _CHUNK
_OUTLYING = 5.0  # deviations
_NEAR = 3.0  # deviations up to which the rows that a scale begins with count in full
_NORMAL = 1.4826  # a normal deviation over its median absolute deviation
_MEAN = 1.2533  # and over its mean absolute deviation


class RobustScale:
    """Centre and deviation of the latest rows, column by column, missing values left out.

    z = (x - m)/s, clipped on demand. Of every n rows taken in, each deviation d = x - m counts up
    to ±5 max(s, r), with r the median |d| of the latest 32 rows; e is what is left of it, and

        a = n/(n + min(N, memory)),  m ← m + a ē,  s² ← (1 - a) s² + a mean(e²) - a² ē²

    after N rows. So one absurd row moves the scale by a few per cent at most, while a lasting move
    counts in full. Where even r > 5 s, the latest rows are not those that m and s tell of: these
    begin anew, from the median of the latest 32 rows and their deviation, clipped at three times
    the median one; so do those of the first rows. A column of two values cannot be spoilt, and one
    that tells a lasting state must not be centred anew in each: it has the mean and deviation of
    all its rows.

    A column that has not varied yet gives the sign of x - m. A missing value becomes 0.

    Args:
        width: The number of columns.
        memory: How many rows m and s remember.
        clip: The largest |z|.

    Example:
        >>> scale = RobustScale(1)
        >>> scale.update(np.array([[1.0], [2.0], [3.0], [1e9]]))
        >>> scale(np.array([[3.0], [np.nan]])).round(2).tolist()
        [[0.43], [0.0]]

    Reference:
        Huber (1964), "Robust estimation of a location parameter".
    """

    def __init__(self, width: int, memory: int = 2048, clip: float = math.inf) -> None:
        self._memory, self._clip = memory, clip
        self._count = np.zeros(width)
        self._centre = np.zeros(width)
        self._deviation = np.zeros(width)
        self._recent = np.full((_RECENT, width), np.nan)
        # A column's first two values, and whether it has a third.
        self._values = np.full((2, width), np.nan)
        self._many = np.zeros(width, dtype=bool)

    def __call__(self, x: Floats) -> Floats:
        """Return the rows standardised."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            apart = x - self._centre
            varied = self._deviation > 1e-12 * np.abs(self._centre)
            z = np.where(varied, apart / self._deviation, np.sign(apart))
        return np.where(np.isnan(x), 0.0, np.clip(z, -self._clip, self._clip))

    def update(self, x: Floats) -> None:
        """Take in rows."""
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(x), _CHUNK):
                self._take(x[start : start + _CHUNK])

    def _take(self, x: Floats) -> None:
        there = ~np.isnan(x)
        count = there.sum(axis=0)
        self._recent = np.concatenate([self._recent[len(x) :], x])
        self._tell_values(x, there)
        new = (self._count == 0) & (count > 0)
        if new.any():
            self._centre[new] = _median(x[:, new])
        usual = _median(np.abs(self._recent - self._centre))
        begins = new & self._many
        gone = usual > _OUTLYING * self._deviation
        begins |= gone & (self._deviation > 0) & self._many & (self._valid() >= _CHUNK)
        self._follow(np.where(there, x - self._centre, 0.0), count, usual)
        if begins.any():
            self._begin(begins)

    def _follow(self, apart: Floats, count: npt.NDArray[np.int_], usual: Floats) -> None:
        bound = _OUTLYING * np.maximum(self._deviation, usual)
        bound[~self._many | (bound == 0)] = np.inf
        apart = np.clip(apart, -bound, bound)
        past = np.where(self._many, np.minimum(self._count, self._memory), self._count)
        weight = count / np.maximum(past + count, 1)
        some = np.maximum(count, 1)
        # In units that neither overflow nor vanish when squared.
        unit = np.maximum(np.abs(apart).max(axis=0, initial=0.0), self._deviation)
        unit[unit == 0] = 1.0
        mean = (apart / unit).sum(axis=0) / some
        squares = ((apart / unit) ** 2).sum(axis=0) / some
        kept = (1 - weight) * (self._deviation / unit) ** 2
        variance = kept + weight * squares - (weight * mean) ** 2
        self._centre += weight * mean * unit
        self._deviation = unit * np.sqrt(np.maximum(variance, 0.0))
        self._count += count

    def _begin(self, which: npt.NDArray[np.bool_]) -> None:
        recent = self._recent[:, which]
        centre = _median(recent)
        apart = np.abs(recent - centre)
        deviation = _NORMAL * _median(apart)
        # The median alone is a rough measure of few rows.
        unit = np.where(deviation > 0, deviation, 1.0)
        near = np.minimum(apart / unit, _NEAR)
        flat = deviation == 0
        deviation = deviation * np.sqrt(np.nanmean(near**2, axis=0))
        if flat.any():
            deviation[flat] = _MEAN * np.nanmean(apart[:, flat], axis=0)
        self._centre[which], self._deviation[which] = centre, deviation
        self._count[which] = np.minimum(self._valid()[which], _CHUNK)

    def _tell_values(self, x: Floats, there: npt.NDArray[np.bool_]) -> None:
        if self._many.all():
            return
        other = there
        for place in (0, 1):
            known = self._values[place]
            fresh = np.isnan(known) & other.any(axis=0)
            first = x[other.argmax(axis=0), np.arange(x.shape[1])]
            known[fresh] = first[fresh]
            other = other & (x != known)
        self._many |= other.any(axis=0)

    def _valid(self) -> npt.NDArray[np.int_]:
        valid: npt.NDArray[np.int_] = (~np.isnan(self._recent)).sum(axis=0)
        return valid


def quantile(x: Floats, part: float) -> Floats:
    """Return the lower quantile of each column, NaN left out."""
    valid = (~np.isnan(x)).sum(axis=0)
    place = (part * np.maximum(valid - 1, 0)).astype(np.intp)
    found: Floats = np.sort(x, axis=0)[place, np.arange(x.shape[1])]
    return found


def _median(x: Floats) -> Floats:
    return quantile(x, 0.5)
