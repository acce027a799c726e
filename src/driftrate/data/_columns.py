"""What a column of a table holds, learnt piece by piece, and its way into numbers.

It needs pyarrow: `tables` imports it where the first piece of a table is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from driftrate.errors import DataError

Floats = npt.NDArray[np.float64]
Kind = Literal["number", "category"]

MOST_LEVELS = 32
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_WHOLE = r"^\s*[+-]?\d+\s*$"
_SHOWN = 5  # rows that an error names


@dataclass(frozen=True)
class Column:
    """A column and how it is encoded."""

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()  # of a category, those that have a column of their own
    missing: bool = False  # whether any value is
    other: bool = False  # whether a category has more levels than columns

    @property
    def width(self) -> int:
        """How many numbers a value becomes."""
        if self.kind == "number":
            return 1 + self.missing
        return len(self.levels) + self.missing + self.other

    def encode(self, array: Any, out: Floats, start: int) -> None:
        """Fill `out`, of shape (rows, width), from an Arrow array that begins at row `start`."""
        if self.kind == "number":
            out[:, 0] = numbers(array, self.name, start)
            if self.missing:
                out[:, 1] = np.isnan(out[:, 0])
            return
        codes = _codes(array, self.levels)
        out[:] = 0.0
        known = np.flatnonzero(codes >= 0)
        out[known, codes[known]] = 1.0
        if self.missing:
            out[codes == -1, len(self.levels)] = 1.0
        if self.other:
            out[codes == -2, -1] = 1.0


@dataclass
class Scanner:
    """Learns what a column of features holds."""

    name: str
    kind: Kind | None = None
    levels: dict[str, None] = field(default_factory=dict)
    missing: bool = False
    other: bool = False

    def look(self, array: Any, start: int) -> None:
        """Take in one piece."""
        if self.kind is None:
            if array.null_count == len(array):  # nothing shows the kind yet
                self.missing = True
                return
            self.kind = "number" if _mostly_numbers(array, self.name) else "category"
        if self.kind == "number":
            self.missing = self.missing or bool(np.isnan(numbers(array, self.name, start)).any())
            return
        self.missing = self.missing or array.null_count > 0
        for level in pc.unique(_text(array).drop_null()).to_pylist():
            if level not in self.levels and len(self.levels) == MOST_LEVELS:
                self.other = True
                break
            self.levels[level] = None

    def column(self) -> Column:
        """Return what was learnt."""
        levels = tuple(self.levels)
        return Column(self.name, self.kind or "number", levels, self.missing, self.other)


@dataclass
class TargetScanner:
    """Learns whether a target is of classes or numbers, and of which."""

    name: str
    most: int
    wanted: str | None
    rows: int = 0
    numeric: bool = True
    whole: bool = True
    levels: set[str] | None = field(default_factory=set)
    low: float = np.inf
    high: float = -np.inf

    def look(self, array: Any, start: int) -> None:
        """Take in one piece."""
        present = array.drop_null()
        if not len(present):
            return
        if not self.rows:
            self.numeric = _mostly_numbers(present, self.name) and str(array.type) != "bool"
        if self.numeric:
            values = numbers(array, self.name, start)
            there = ~np.isnan(values)
            present = array.filter(pa.array(there))
            self.low = min(self.low, values[there].min(initial=np.inf))
            self.high = max(self.high, values[there].max(initial=-np.inf))
            self.whole = self.whole and _all_whole(present)
        self.rows += len(present)
        if self.levels is not None:
            self.levels |= set(pc.unique(_text(present)).to_pylist())
            # More are no classes, even if classes are asked for: every text may be unique.
            if len(self.levels) > 1000:
                self.levels = None

    def column(self) -> tuple[Column, tuple[str, ...] | None]:
        """Return the column, and the classes or None."""
        count = 1001 if self.levels is None else len(self.levels)
        classes = not self.numeric or (self.whole and count <= self.most)
        if self.wanted is not None:
            classes = self.wanted == "classes"
        if not classes and not self.numeric:
            raise DataError(f"target {self.name!r} holds text: a regression needs numbers")
        if classes and self.levels is None:
            most = "more than 1,000 classes: for numbers use a regression"
            raise DataError(f"target {self.name!r} has {most}")
        if count == 1 or (not classes and self.low == self.high):
            only = next(iter(self.levels)) if self.levels else f"{self.low:g}"
            alone = f"one value alone, {only!r}: there is nothing to predict"
            raise DataError(f"target {self.name!r} has {alone}")
        if not classes or self.levels is None:
            return Column(self.name, "number"), None
        key = (lambda level: (float(level), level)) if self.numeric else None
        return Column(self.name, "category"), tuple(sorted(self.levels, key=key))


@dataclass
class OrderScanner:
    """Looks whether the rows are in order of time."""

    name: str | None
    ordered: bool = True
    last: float = -np.inf
    fault: int = 0  # the first row, from 1, that is earlier than the one before

    def look(self, piece: Any, start: int) -> None:
        """Take in one piece."""
        if self.name is None or not self.ordered:
            return
        values = times(piece.column(self.name), self.name, start)
        back = np.flatnonzero(np.diff(values, prepend=self.last) < 0)
        if back.size:
            self.ordered, self.fault = False, start + int(back[0]) + 1
        self.last = float(values[-1])


def numbers(array: Any, name: str, start: int) -> Floats:
    """Return an Arrow array as reals, NaN where missing or infinite; refuse text, by row."""
    if pa.types.is_temporal(array.type):
        array = _ticks(array)
    try:
        reals = pc.cast(array, pa.float64(), safe=False)
    except pa.ArrowInvalid:  # text: a blank too many, or words
        array = pc.utf8_trim_whitespace(_text(array))
        number = pc.match_substring_regex(array, _NUMBER).fill_null(True)
        bad = np.flatnonzero(~number.to_numpy(zero_copy_only=False))
        if bad.size:
            raise _text_in_numbers(array, name, start, bad) from None
        reals = pc.cast(array, pa.float64())
    values = np.array(reals.to_numpy(zero_copy_only=False), dtype=np.float64)
    values[~np.isfinite(values)] = np.nan
    return values


def targets(array: Any, column: Column, classes: tuple[str, ...] | None, start: int) -> Floats:
    """Return targets as reals or class numbers, NaN where missing."""
    if classes is None:
        return numbers(array, column.name, start)
    codes = _codes(array, classes).astype(np.float64)
    codes[codes < 0] = np.nan
    return codes


def times(array: Any, name: str, start: int) -> Floats:
    """Return a time column as reals whose order is the order of time."""
    if array.null_count:
        row = start + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]) + 1
        raise DataError(f"time column {name!r} is missing in row {row:,}")
    if _is_text(array.type) and not _mostly_numbers(array, name):
        try:
            array = pc.cast(_text(array), pa.timestamp("us"))
        except pa.ArrowInvalid as error:
            raise DataError(
                f"time column {name!r} must hold numbers or ISO timestamps (2024-01-31 09:30:00),"
                f" got {array[0].as_py()!r}"
            ) from error
    return numbers(array, name, start)


def _is_text(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or (types.is_dictionary(kind) and _is_text(kind.value_type))
    )


def _text(array: Any) -> Any:
    """Return an Arrow array as text."""
    return pc.cast(array, pa.string())


def _ticks(array: Any) -> Any:
    """Return points or lengths of time as whole numbers."""
    if pa.types.is_date(array.type):
        array = pc.cast(array, pa.timestamp("ms"))
    wide = pa.types.is_timestamp(array.type) or array.type.bit_width == 64
    return pc.cast(array, pa.int64() if wide else pa.int32())


def _mostly_numbers(array: Any, name: str) -> bool:
    """Return whether more than half of what is there are numbers."""
    kind, types = array.type, pa.types
    if _is_text(kind):
        found = pc.sum(pc.match_substring_regex(_text(array), _NUMBER)).as_py() or 0
        return bool(2 * found > len(array) - array.null_count)
    if not (types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind)):
        raise DataError(f"column {name!r} is of type {kind}: drop it, or turn it into numbers")
    return True


def _all_whole(array: Any) -> bool:
    if _is_text(array.type):
        return bool(pc.all(pc.match_substring_regex(_text(array), _WHOLE)).as_py())
    return bool(pa.types.is_integer(array.type) or pa.types.is_boolean(array.type))


def _codes(array: Any, levels: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return each value's place among the levels; -1 where missing, -2 where not among them."""
    text = _text(array)
    found = pc.index_in(text, value_set=pa.array(levels, type=pa.string()))
    codes = np.array(found.fill_null(-2).to_numpy(zero_copy_only=False), dtype=np.int64)
    codes[np.asarray(text.is_null().to_numpy(zero_copy_only=False))] = -1
    return codes


def _text_in_numbers(array: Any, name: str, start: int, bad: npt.NDArray[np.int64]) -> DataError:
    rows = ", ".join(f"{start + int(i) + 1:,}" for i in bad[:_SHOWN])
    more = f" and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
    return DataError(
        f"column {name!r} holds text where numbers are expected, in row{'s' * (len(bad) > 1)}"
        f" {rows}{more} (the first is {array[int(bad[0])].as_py()!r}): mend or blank them"
    )
