"""The scale by which a model measures its features: it follows the rows, and moves in steps."""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TOLERANCE = 0.05  # how far centre and scale may be off before they move, in parts of the scale
# Deviations of the values that differ, beyond which a value counts as no further out. Of 3, 5, 10
# and 30 on four development streams 5 was the best for numbers, and 3 for classes, before 5.
CLIP = 5.0
RECENT, MANY = 16.0, 0.25  # rows, and the part of them beyond which they are no outliers
FIRST = 15.0  # times the median distance from the median: the same, in a block that is new
_ROUNDING = 1e-12  # a column that varies by less of its mean is constant
_ENOUGH = 8  # rows, for a median to say what is far out
_LARGEST = 1e144  # its square has room for many rows
_LEAST = float(np.finfo(np.float64).tiny)


class Scale(NamedTuple):
    """Centres and scales of columns, at one moment; never written to.

    Args:
        centre: c.
        inverse: 1/s; 0 for a column that has not varied yet.
        reach: How far from the centre values count.
    """

    centre: Floats
    inverse: Floats
    reach: Floats

    def __call__(self, x: Floats) -> Floats:
        """Return (x - c)/s, clipped; 0 where a value is missing or its column has not varied."""
        with np.errstate(over="ignore", invalid="ignore"):
            z = np.clip(x - self.centre, -self.reach, self.reach) * self.inverse
        return np.where(np.isnan(z), 0.0, z)


class RunningScale:
    r"""Mean and deviation of all rows so far, and the units that a model takes from them.

    The units z = (x - c)/s follow mean m and deviation d in steps: when d/s, or m - c in units of
    s, is more than 5 % off in any column, all of them move to c' = m, s' = d. A linear model that
    was learned in the units of before is moved with them:

        z' = a z + b,   a = s/s',   b = (c - c')/s'.

    A column that has not varied is not measured (z = 0), so that it says nothing of its weight.
    When it first varies only its centre moves (a = 1): the prior of its weight is in these units.

    *Outliers.* A value further from the mean than 5 deviations counts as that far, here and in z.
    The deviation is that of the values which differ from the first one, so that a rare word among
    zeros is no outlier. One value of 10⁹ among ordinary ones moves the scale by a few percent, or
    at most fivefold in the first rows. Where more than a quarter of the last 16 values or so are
    that far out the column has grown, and they count as they are. In such a block, and in the
    first, what is further out than 15 times the median distance from the median is no further if it
    has 8 rows or more; below that nothing is known of outliers.

    Args:
        width: The number of columns.
        centred: Whether c is the mean; else it is 0, and d the root of the mean square.
        clip: The most deviations.

    Attributes:
        now: The units, a `Scale`: replaced as one.

    Example:
        >>> scale = RunningScale(1)
        >>> scale.update(np.array([[1.0], [3.0]])) is None
        False
        >>> scale.now(np.array([[4.0], [np.nan], [99.0]])).tolist()
        [[2.0], [0.0], [7.07...]]
        >>> a, b = scale.update(np.array([[5.0], [7.0]]))
        >>> bool(np.isclose(a[0] * 2.0 + b[0], scale.now(np.array([[4.0]]))[0, 0]))
        True

    Reference:
        Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing
        sample variances".
    """

    def __init__(self, width: int, centred: bool = True, clip: float = CLIP) -> None:
        self._centred, self._clip = centred, clip
        self._origin = np.full(width, np.nan if centred else 0.0)
        # Of the values less the first one: its rounding is then no variation.
        self._mean, self._squares = np.zeros(width), np.zeros(width)
        self._count, self._differ = np.zeros(width), np.zeros(width)
        self._outside = np.zeros(width)  # which part of the recent values was too far out
        self.now = Scale(np.zeros(width), np.zeros(width), np.zeros(width))

    @property
    def mean(self) -> Floats:
        """The means of all rows so far; 0 of a column without a value."""
        return np.where(self._count > 0, self._origin, 0.0) + self._mean

    @property
    def variance(self) -> Floats:
        """The mean squares around the centres; 0 of a column that has not varied."""
        found: Floats = self._squares / np.maximum(self._count, _LEAST)
        return found

    def update(self, x: Floats, weight: Floats | None = None) -> tuple[Floats, Floats] | None:
        """Take in rows; return how the units moved, or None where they did not.

        Args:
            x: Rows (rows, width); NaN where a value is missing.
            weight: How often each row counts, > 0; once if None.

        Returns:
            a and b, (width,) each, with z' = a z + b for rows before these.
        """
        there = ~np.isnan(x)
        every = bool(there.all())
        if self._centred and (fresh := np.isnan(self._origin)).any():
            first = x[there.argmax(axis=0), np.arange(x.shape[1])]
            self._origin = np.where(fresh, first, self._origin)
        with np.errstate(over="ignore", invalid="ignore"):
            value = x - self._origin
        value = self._limited(value if every else np.where(there, value, np.nan))
        if not every:
            value = np.where(there, value, 0.0)
        share: Floats = there.astype(np.float64)
        if weight is not None:
            share = share * weight[:, None]
        count = share.sum(axis=0)
        some, total = np.where(count > 0, count, 1.0), self._count + count
        self._differ = self._differ + (share * (value != 0.0)).sum(axis=0)
        if self._centred:
            mean = (share * value).sum(axis=0) / some
            apart = np.where(count > 0, mean - self._mean, 0.0)
            part = count / np.where(total > 0, total, 1.0)
            between = apart**2 * self._count * part
            self._squares = self._squares + (share * (value - mean) ** 2).sum(axis=0) + between
            self._mean = self._mean + apart * part
        else:
            self._squares = self._squares + (share * value**2).sum(axis=0)
        seen, self._count = self._count > 0, total
        return self._move(seen)

    def widen(self, width: int) -> None:
        """Go on with more columns, which were 0 in all rows until now."""
        more, rows = width - len(self._count), self._count.max(initial=0.0)
        for name in ("_origin", "_count", "_mean", "_squares", "_differ", "_outside"):
            value = rows if name == "_count" else 0.0
            setattr(self, name, np.append(getattr(self, name), np.full(more, value)))
        self.now = Scale(*(np.append(part, np.zeros(more)) for part in self.now))

    def _limited(self, value: Floats) -> Floats:
        """Return values (less the first one) that are no further out than outliers count."""
        known, reach = self._squares > 0, self._clip * self._spread()
        low = np.where(known, self._mean - reach, -_LARGEST)
        high = np.where(known, self._mean + reach, _LARGEST)
        left = (1.0 - 1.0 / RECENT) ** len(value)
        outside = ((value < low) | (value > high)).mean(axis=0)
        self._outside = left * self._outside + (1.0 - left) * outside
        if (many := self._outside > MANY).any():
            low, high = np.where(many, -_LARGEST, low), np.where(many, _LARGEST, high)
        new = (~known & (self._count == 0)) | many
        if self._centred and new.any() and len(value) >= _ENOUGH:
            new &= ~np.isnan(value).any(axis=0)
            middle = np.median(value[:, new], axis=0)
            away = FIRST * np.median(np.abs(value[:, new] - middle), axis=0)
            away = np.where(away > 0, away, np.inf)
            low[new] = np.maximum(low[new], middle - away)
            high[new] = np.minimum(high[new], middle + away)
        return np.clip(value, low, high)

    def _spread(self) -> Floats:
        """Return the deviation of the values that differ from the first one."""
        found: Floats = np.sqrt(self._squares / np.maximum(self._differ, _LEAST))
        return found

    def _move(self, seen: npt.NDArray[np.bool_]) -> tuple[Floats, Floats] | None:
        """Let the units follow where they are too far off; `seen`: which columns had values."""
        old, mean, deviation = self.now, self.mean, np.sqrt(self.variance)
        measured = old.inverse > 0
        varied = measured | (deviation > _ROUNDING * np.abs(mean))
        if (varied == measured).all():
            with np.errstate(divide="ignore"):
                off = np.abs(np.log(deviation * old.inverse)) > log(1.0 + TOLERANCE)
            off |= np.abs(mean - old.centre) * old.inverse > TOLERANCE
            if not (off & measured).any():
                if not measured.all():  # the centre is then the one value that there was
                    self.now = old._replace(centre=np.where(measured, old.centre, mean))
                return None
        inverse = np.where(varied, 1.0 / np.where(varied, deviation, 1.0), 0.0)
        a = np.where(measured, inverse / np.where(measured, old.inverse, 1.0), 1.0)
        b = np.where(varied & seen, (old.centre - mean) * inverse, 0.0)
        self.now = Scale(mean, inverse, self._clip * np.maximum(self._spread(), deviation))
        return a, b
