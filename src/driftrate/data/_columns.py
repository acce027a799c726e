"""What a column of a table holds, learnt piece by piece, and its way into numbers.

It needs pyarrow: `tables` imports it where the first piece of a table is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from driftrate.data import _values
from driftrate.data._signs import Signs
from driftrate.errors import DataError

Floats = npt.NDArray[np.float64]
Kind = Literal["number", "category", "time"]
# What a column may be told to be.
KINDS = ("number", "category", "time", "index", "decimal-comma")

MOST_LEVELS = 32
_MOST_COUNTED = 1000  # levels of a category
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
    count: int = 0  # the levels of a category, up to 1,001
    gaps: int = 0  # the values that are missing
    infinite: int = 0

    @property
    def width(self) -> int:
        """How many numbers a value becomes."""
        if self.kind != "category":
            return 1 + self.missing
        return len(self.levels) + self.missing + self.other

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
class Scanner:
    """Learns what a column of features holds."""

    name: str
    told: str | None = None  # its kind, where it is told
    kind: Kind | None = None
    style: _values.Style = "plain"
    levels: dict[str, None] = field(default_factory=dict)
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
            for level in pc.unique(_values.as_text(array).drop_null()).to_pylist():
                if len(self.levels) > _MOST_COUNTED:
                    break
                self.levels[level] = None
            return
        if self.kind == "number" and _values.is_text(array.type):
            self.signs.look(array, self.style)
        values = _read(array, self.name, start, self.kind or "number", self.style)
        self.gaps += int(np.isnan(values).sum())
        self.infinite += int(np.isinf(values).sum())
        self._follow(values)

    def _begin(self, array: Any) -> None:
        kind, types = array.type, pa.types
        text = _values.is_text(kind)
        if not (text or types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind)):
            raise DataError(
                f"column {self.name!r} is of type {kind}: leave it out (--drop {self.name}),"
                " or turn it into numbers"
            )
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

    def left_out(self) -> str | None:
        """Return why the column is no feature, or None."""
        if self.told == "index":
            return "index, as asked for"
        if self.kind is None:
            return "empty"
        if self.told is None and self.kind == "number" and self.whole and not self.gaps:
            if re.fullmatch(_INDEX, self.name, re.IGNORECASE):
                return "index: the name that pandas gives a row's number"
            if self.rising and re.fullmatch(_ROW, self.name, re.IGNORECASE):
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
            count=len(self.levels),
            gaps=self.gaps,
            infinite=self.infinite,
        )
        return column, self._warnings()

    def _warnings(self) -> list[str]:
        name = self.name
        told: list[str] = []
        if self.told is not None:
            return told
        if self.kind == "category":
            told += self._of_levels()
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

    def _of_levels(self) -> list[str]:
        name, first = self.name, next(iter(self.levels), "")
        if self.dates:
            return [
                f"column {name!r} is read as a category, and looks like dates ({first!r}): write"
                f" them as ISO 8601 (2024-01-31), or --drop {name}"
            ]
        if len(self.levels) > max(MOST_LEVELS, self.rows / 2):
            most = len(self.levels) > _MOST_COUNTED
            count = f"{min(len(self.levels), _MOST_COUNTED):,}{' or more' * most}"
            return [
                f"column {name!r} is read as a category of {count} levels ({first!r}):"
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
    last: float = -np.inf
    fault: int = 0  # the first row, from 1, that is earlier than the one before

    def look(self, piece: Any, start: int) -> None:
        """Take in one piece."""
        if self.name is None or not self.ordered:
            return
        values = _values.order_of(piece.column(self.name), self.name, start)
        back = np.flatnonzero(np.diff(values, prepend=self.last) < 0)
        if back.size:
            self.ordered, self.fault = False, start + int(back[0]) + 1
        self.last = float(values[-1])


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
