"""What a column of a table holds, learnt piece by piece, and its way into numbers.

It needs pyarrow: `tables` imports it where the first piece of a table is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from driftrate.data import _values
from driftrate.data._signs import Signs

Floats = npt.NDArray[np.float64]
Kind = Literal["number", "category", "time"]
# What a column may be told to be.
KINDS = ("number", "category", "time", "index", "decimal-comma")

MOST_LEVELS = 32
# Levels of a category are counted up to here, and estimated beyond: at most 18 MB of a column.
_MOST_COUNTED = 2**17
_LONG = 64  # bytes of a text, beyond which it is counted by its hash
_MOST_WIDE = 1000  # whole numbers beyond 2^53 that are compared with those of the next piece
# The names that pandas gives the index it writes, and those that others give a row's number.
_INDEX = r"(unnamed: ?\d+(_level_\d+)?|__index_level_\d+__|level_0|)"
_ROW = r"(index|id|idx|row|(row|record)[_ ]?(id|no|nr|num|number|index))"


@dataclass(frozen=True)
class Column:
    """A column, how it is encoded, and what was seen of it."""

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()  # of a category, those that have a column of their own
    missing: bool = False  # whether any value is, or is infinite
    other: bool = False  # whether a category has more levels than columns
    style: _values.Style = "plain"
    count: int = 0  # the levels of a category
    gaps: int = 0  # the values that are missing
    infinite: int = 0

    @property
    def width(self) -> int:
        """How many numbers a value becomes."""
        if self.kind != "category":
            return 1 + self.missing
        return len(self.levels) + self.missing + self.other

    @property
    def counted(self) -> str:
        """How many levels there are, in words."""
        about = "about " * (self.count > _MOST_COUNTED)
        return f"{about}{self.count:,} level{'s' * (self.count != 1)}"

    def encode(self, array: Any, out: Floats, start: int) -> None:
        """Fill `out`, of shape (rows, width), from an Arrow array that begins at row `start`."""
        if self.kind != "category":
            values = _read(array, self.name, start, self.kind, self.style)
            out[:, 0] = np.where(np.isfinite(values), values, np.nan)
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
class LevelCount:
    """Counts different texts; of more than 131,072 it keeps those with the smallest checksums."""

    kept: set[bytes] = field(default_factory=set)
    below: int = 2**32  # checksums that are kept

    def look(self, found: Any) -> None:
        """Take in an Arrow array of texts."""
        texts = found.cast(pa.binary()).to_pylist()
        if (pc.max(pc.binary_length(found)).as_py() or 0) > _LONG:
            texts = [blake2b(one).digest() if len(one) > _LONG else one for one in texts]
        if self.below < 2**32:
            texts = [one for one in texts if crc32(one) < self.below]
        self.kept.update(texts)
        while len(self.kept) > _MOST_COUNTED:
            self.below //= 2
            self.kept = {one for one in self.kept if crc32(one) < self.below}

    @property
    def count(self) -> int:
        """How many there were; of more than 131,072 an estimate, good to half a per cent."""
        if self.below == 2**32:
            return len(self.kept)
        return max(len(self.kept) * (2**32 // self.below), _MOST_COUNTED + 1)


@dataclass
class Scanner:
    """Learns what a column of features holds."""

    name: str
    told: str | None = None  # its kind, where it is told
    kind: Kind | None = None
    style: _values.Style = "plain"
    levels: dict[str, None] = field(default_factory=dict)  # the first
    counter: LevelCount = field(default_factory=LevelCount)
    wide: Any = None  # whole numbers beyond 2^53 of the pieces before
    merged: bool = False  # whether two of them are one float
    signs: Signs = field(default_factory=Signs)
    rows: int = 0
    gaps: int = 0
    infinite: int = 0
    whole: bool = True
    rising: bool = True
    falls: bool = False
    dates: bool = False  # whether it is text that looks like dates, but is not ISO
    counting: bool = True  # each value is the one before, plus 1
    last: float | None = None
    low: float = np.inf
    high: float = -np.inf

    def look(self, array: Any, start: int) -> None:
        """Take in one piece."""
        self.rows += len(array)
        if self.told == "index":
            return
        if array.null_count == len(array):  # nothing shows the kind yet
            self.gaps += len(array)
            return
        if self.kind is None:
            self._begin(array)
        if self.kind == "category":
            self.gaps += array.null_count
            found = pc.unique(_values.as_text(array).drop_null())
            self.counter.look(found)
            for level in found:
                if len(self.levels) > MOST_LEVELS:
                    break
                self.levels[level.as_py()] = None
            return
        if self.kind == "number" and _values.is_text(array.type):
            self.signs.look(array, self.style)
        values = _read(array, self.name, start, self.kind or "number", self.style)
        self.gaps += int(np.isnan(values).sum())
        self.infinite += int(np.isinf(values).sum())
        self._follow(values)
        if self.kind == "number" and not self.merged:
            self._compare(_values.wide(array, values))

    def _begin(self, array: Any) -> None:
        _values.check_type(self.name, array.type)
        text = _values.is_text(array.type)
        style = _values.style_of(array) if text else "plain"
        if self.told in ("category", "time"):
            self.kind = "category" if self.told == "category" else "time"
        elif self.told is not None:
            self.kind = "number"
            self.style = "decimal-comma" if self.told == "decimal-comma" else style or "plain"
        elif _values.mostly_times(array):
            self.kind = "time"
        else:
            self.kind, self.style = ("number" if style else "category"), style or "plain"
            self.dates = style is None and _values.mostly_dates(array)
        if self.kind == "number" and not text:
            self.style = "plain"

    def _follow(self, values: Floats) -> None:
        there = values[np.isfinite(values)]
        if there.size:
            self.low = min(self.low, float(there.min()))
            self.high = max(self.high, float(there.max()))
            self.whole = self.whole and bool((there == np.round(there)).all())
        with np.errstate(invalid="ignore"):
            before = values[:1] - 1.0 if self.last is None else [self.last]
            steps = np.diff(values, prepend=before)
        self.rising = self.rising and bool((steps > 0).all())
        self.falls = self.falls or bool((steps < 0).any())
        self.counting = self.counting and bool((steps == 1).all())
        self.last = float(values[-1])

    def _compare(self, found: Any) -> None:
        if not len(found):
            return
        if self.wide is not None:
            found = pc.unique(pa.concat_arrays([self.wide, found]))
        self.merged = pc.count_distinct(found.cast(pa.float64())).as_py() < len(found)
        self.wide = found.slice(0, _MOST_WIDE)

    def left_out(self) -> str | None:
        """Return why the column is no feature, or None."""
        if self.told == "index":
            return "index, as asked for"
        if self.kind is None:
            return "empty"
        if self.told is None and self.kind == "number" and self.whole and not self.gaps:
            if re.fullmatch(_INDEX, self.name, re.IGNORECASE):
                return "index: the name that pandas gives a row's number"
            rising = self.rising or (self.merged and not self.falls)
            if rising and re.fullmatch(_ROW, self.name, re.IGNORECASE):
                return "index: whole numbers that rise from row to row"
        return None

    def column(self, commas: bool) -> tuple[Column, list[str]]:
        """Return what was learnt, and warnings; `commas`: are there decimal commas in the table?"""
        if self.told is None:
            self.signs.check("column", self.name, commas)
        levels = tuple(self.levels)[:MOST_LEVELS] if self.kind == "category" else ()
        column = Column(
            self.name,
            self.kind or "number",
            levels,
            missing=self.gaps + self.infinite > 0,
            other=len(self.levels) > MOST_LEVELS,
            style=self.style,
            count=self.counter.count,
            gaps=self.gaps,
            infinite=self.infinite,
        )
        return column, self._warnings(column)

    def _warnings(self, column: Column) -> list[str]:
        name = self.name
        told: list[str] = []
        if self.told is not None:
            return told
        if self.kind == "category":
            told += self._of_levels(column)
        elif self.merged:
            told.append(
                f"column {name!r} holds whole numbers beyond 2^53, and some of them are rounded to"
                f" the same number: --kind {name}=category if they are names, or --drop {name}"
            )
        elif not self.gaps and self.low == self.high:
            told.append(f"column {name!r} never changes: it tells nothing")
        elif self.kind == "number" and self.counting and self.rows > 2:
            told.append(
                f"column {name!r} counts the rows: --time {name} if it is the time, --drop {name}"
                " if it is their number"
            )
        elif self.kind == "time" and self.falls:
            told.append(f"the rows are not in order of {name!r}: --time {name} sorts them")
        return told

    def _of_levels(self, column: Column) -> list[str]:
        name, first = self.name, next(iter(self.levels), "")
        if self.dates:
            return [
                f"column {name!r} is read as a category, and looks like dates ({first!r}): write"
                f" them as ISO 8601 (2024-01-31), or --drop {name}"
            ]
        if column.count > max(MOST_LEVELS, self.rows / 2):
            return [
                f"column {name!r} is read as a category of {column.counted} ({first!r}):"
                f" --drop {name} if it names the rows"
            ]
        if len(self.levels) == 1 and not self.gaps:
            return [f"column {name!r} never changes: it tells nothing"]
        return []


@dataclass
class OrderScanner:
    """Looks whether the rows are in order of time."""

    name: str | None
    ordered: bool = True
    last: Any = None
    fault: int = 0  # the first row, from 1, that is earlier than the one before

    def look(self, piece: Any, start: int) -> None:
        """Take in one piece."""
        if self.name is None or not self.ordered:
            return
        values = _values.order_of(piece.column(self.name), self.name, start)
        # Compared, not subtracted: whole numbers beyond 2^53 are no floats.
        before = np.append(values[0] if self.last is None else self.last, values[:-1])
        back = np.flatnonzero(values < before)
        if back.size:
            self.ordered, self.fault = False, start + int(back[0]) + 1
        self.last = values[-1]


def _read(array: Any, name: str, start: int, kind: Kind, style: _values.Style) -> Floats:
    if kind == "time":
        return _values.seconds(array, name, start)
    return _values.numbers(array, name, start, style)


def _codes(array: Any, levels: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return each value's place among the levels; -1 where missing, -2 where not among them."""
    text = _values.as_text(array)
    found = pc.index_in(text, value_set=pa.array(levels, type=pa.string()))
    codes = np.array(found.fill_null(-2).to_numpy(zero_copy_only=False), dtype=np.int64)
    codes[np.asarray(text.is_null().to_numpy(zero_copy_only=False))] = -1
    return codes
