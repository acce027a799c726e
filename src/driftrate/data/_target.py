"""What the column to predict holds: classes or numbers, and why.

It needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from driftrate.data import _values
from driftrate.data._signs import Signs
from driftrate.errors import ConfigError, DataError

Floats = npt.NDArray[np.float64]
# Texts are the classes, or numbers up to so many levels; above, a regression or a question.
MOST_CLASSES = 30
_MOST_LEVELS = 1000
# Whole numbers of more levels than this are more often amounts than names.
_FEW = 10


@dataclass(frozen=True)
class Target:
    """The column to predict, and how it is encoded."""

    name: str
    classes: tuple[str, ...] | None  # their names, None for a regression
    why: str
    style: _values.Style | None  # None for text
    levels: tuple[float | Decimal, ...] = ()  # of classes that are numbers
    low: float = np.nan
    high: float = np.nan
    low_row: int = 0  # from 1; 0 if there are none
    high_row: int = 0

    def encode(self, array: Any, start: int) -> Floats:
        """Return targets as reals or class numbers, NaN where missing or infinite."""
        if self.style is None:
            text = _values.as_text(array)
            found = pc.index_in(text, value_set=pa.array(self.classes, type=pa.string()))
            codes = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
            return np.array(codes, dtype=np.float64)
        values = _values.numbers(array, self.name, start, self.style)
        values[~np.isfinite(values)] = np.nan
        if self.classes is None:
            return values
        places = {level: float(place) for place, level in enumerate(self.levels)}
        found, which = _values.exactly(array, self.style)
        return np.array([*(places.get(one, np.nan) for one in found), np.nan])[which]


@dataclass
class TargetScanner:
    """Learns whether a target is of classes or numbers, and of which."""

    name: str
    wanted: str | None  # classes or numbers, None where the values decide
    kind: str | None = None  # number, category or decimal-comma, where told
    rows: int = 0  # with a target
    missing: int = 0
    infinite: int = 0
    style: _values.Style | None = None
    begun: bool = False
    whole: bool = True
    real: bool = False  # whether they are written as reals
    signs: Signs = field(default_factory=Signs)
    levels: set[Any] | None = field(default_factory=set)  # None for more than 1,000
    low: float = np.inf
    high: float = -np.inf
    low_row: int = 0
    high_row: int = 0

    def look(self, array: Any, start: int) -> None:
        """Take in one piece."""
        present = array.drop_null()
        if not len(present):
            self.missing += len(array)
            return
        if not self.begun:
            self._begin(present)
        if self.style is None:
            self.missing += len(array) - len(present)
            self.rows += len(present)
            self._keep(pc.unique(_values.as_text(present)).to_pylist())
            return
        values = _values.numbers(array, self.name, start, self.style)
        there = np.isfinite(values)
        self.missing += int(np.isnan(values).sum())
        self.infinite += int(np.isinf(values).sum())
        self.rows += int(there.sum())
        if _values.is_text(array.type):
            self.signs.look(present, self.style)
            self.real = self.real or bool(
                pc.any(pc.match_substring_regex(_values.as_text(present), r"[.eE]")).as_py()
            )
        else:
            self.real = self.real or bool(pa.types.is_floating(array.type))
        if not there.any():
            return
        kept = values[there]
        self.whole = self.whole and bool((kept == np.round(kept)).all())
        self._extremes(values, start)
        if self.levels is not None:
            self._keep(_values.exactly(array.filter(pa.array(there)), self.style)[0])

    def _begin(self, present: Any) -> None:
        kind = present.type
        self.begun = True
        if str(kind) == "bool" or self.kind == "category":
            return
        if _values.is_text(kind):
            if self.kind == "decimal-comma":
                self.style = "decimal-comma"
            elif _values.mostly_times(present):
                raise DataError(f"target {self.name!r} holds times: predict a number or a class")
            else:
                self.style = _values.style_of(present)
                if self.style is None and "numbers" in (self.wanted, f"{self.kind}s"):
                    text = "holds text: a regression needs numbers"
                    raise DataError(f"target {self.name!r} {text}")
            return
        if pa.types.is_temporal(kind):
            raise DataError(f"target {self.name!r} holds times: predict a number or a class")
        _values.check_type(self.name, kind, "target")
        self.style = "plain"

    def _extremes(self, values: Floats, start: int) -> None:
        safe = np.where(np.isfinite(values), values, np.nan)
        low, high = int(np.nanargmin(safe)), int(np.nanargmax(safe))
        if safe[low] < self.low:
            self.low, self.low_row = float(safe[low]), start + low + 1
        if safe[high] > self.high:
            self.high, self.high_row = float(safe[high]), start + high + 1

    def _keep(self, found: Iterable[Any]) -> None:
        for one in found:
            if self.levels is None:
                return
            self.levels.add(one)
            # More are no classes, even if classes are asked for: every text may be unique.
            self.levels = self.levels if len(self.levels) <= _MOST_LEVELS else None

    def target(self, commas: bool) -> tuple[Target, list[str]]:
        """Return the target, and warnings; `commas`: are there decimal commas in the table?"""
        known = self.levels
        count = _MOST_LEVELS + 1 if known is None else len(known)
        if self.kind is None:
            self.signs.check("target", self.name, commas)
        classes, why, warnings = self._why(count)
        if classes and known is None:
            most = "more than 1,000 classes: for numbers use a regression (--task regression)"
            raise DataError(f"target {self.name!r} has {most}")
        if count == 1 and known:
            only = next(iter(known))
            alone = f"one value alone, {only if self.style is None else f'{only:g}'!r}"
            raise DataError(f"target {self.name!r} has {alone}: there is nothing to predict")
        extremes = (self.low, self.high, self.low_row, self.high_row)
        if not classes:
            return Target(self.name, None, why, self.style, (), *extremes), warnings
        assert known is not None
        if self.style is None:
            return Target(self.name, tuple(sorted(known)), why, None), warnings
        levels = tuple(sorted(known))
        names = tuple(str(int(v)) if v == int(v) else f"{v}" for v in levels)
        return Target(self.name, names, why, self.style, levels, *extremes), warnings

    def _why(self, count: int) -> tuple[bool, str, list[str]]:
        """Return whether it is of classes, why, and warnings."""
        levels = f"{min(count, _MOST_LEVELS):,}{' or more' * (count > _MOST_LEVELS)} levels"
        if self.style is None:
            self._check_text(count, levels)
            return True, f"text of {levels}", []
        what = f"{'whole ' * self.whole}numbers of {levels}"
        if self.wanted is not None:
            return self.wanted == "classes", f"{what}, and is asked for so", []
        if not self.whole or self.style != "plain":
            return False, what, []
        if count > MOST_CLASSES:
            return False, f"{what}, more than {MOST_CLASSES}", self._labels(count)
        if self.real and count > 2:
            raise ConfigError(
                f"target {self.name!r} holds {count} whole numbers written as reals, classes or"
                " amounts: say --task classes or --task regression"
            )
        told = []
        if count > _FEW:
            told.append(
                f"target {self.name!r} is read as {count} classes: if it holds amounts, say"
                " --task regression"
            )
        return True, what, told

    def _check_text(self, count: int, levels: str) -> None:
        if self.wanted == "numbers":
            raise DataError(f"target {self.name!r} holds text: a regression needs numbers")
        many = MOST_CLASSES < count <= _MOST_LEVELS and count > self.rows / 4
        if many and self.wanted is None and self.kind is None:
            raise ConfigError(
                f"target {self.name!r} is text of {levels} in {self.rows:,} rows: mend it if it"
                " should hold numbers, or say --task classes"
            )

    def _labels(self, count: int) -> list[str]:
        """Return a warning where amounts look like labels: 0 ... k - 1 or 1 ... k, each there."""
        if self.low not in (0, 1) or self.high - self.low + 1 != count or count > 200:
            return []
        span = f"all whole numbers from {self.low:g} to {self.high:g}"
        return [
            f"target {self.name!r} is read as numbers: it holds {span}; if they are labels, say"
            " --task classes"
        ]
