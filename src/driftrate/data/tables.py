"""Streams from files: CSV and Parquet, read in pieces, whatever their size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from driftrate.data._pieces import pieces, schema
from driftrate.errors import ConfigError, DataError

if TYPE_CHECKING:
    from driftrate.data._columns import Column
    from driftrate.data._target import Target

Floats = npt.NDArray[np.float64]
# Differs once a file was edited, even if its size and modification time were kept.
Stamp = tuple[int, ...]
# A table that is not in order of time is sorted in memory up to this size.
SORT_BYTES = 256 * 2**20
# Clocks of file systems tick this coarsely: an edit so soon after another may leave no trace.
_AT_REST = 0.05


@dataclass(frozen=True)
class Seen:
    """What was seen while a table was looked through.

    Args:
        rows: The rows read.
        missing: Those without a target.
        infinite: Those whose target is infinite.
        left_out: The columns that are no features, each with the reason.
        fault: The first row, from 1, that is earlier than the one before; 0 if none is.
        warnings: What may have been read wrongly, and the option that changes it.
    """

    rows: int
    missing: int
    infinite: int
    left_out: tuple[tuple[str, str], ...]
    fault: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A file as a stream of rows of numbers.

    Read twice, in pieces, so that memory does not grow with the file: first to learn what each
    column holds, then to yield it. From the first reading nothing is used but the columns' kinds:

    - a number is one column; if any is missing or infinite, another column says where (such numbers
      are NaN, to be replaced by the running centre where features are standardised); `$1,234.50`,
      `12 %` and, where all are written so, `1.234,5` are numbers;
    - a category is one column of 0 and 1 for each of the first 32 levels in the order in which they
      appear, and one for all others; a missing one is a level of its own;
    - a time, an ISO timestamp or Parquet's own, is the number of seconds since 1970;
    - true and false are 1 and 0 in Parquet, and categories in CSV;
    - an index (a row's number under the name that pandas gives it, or under `id` and the like where
      it rises) and a column without any value are left out.

    A level's column is 0 until the level appears, so that a learner knows of it no earlier than if
    the column had been added then. Rows without a target, or with an infinite one, are left out.

    Args:
        name: What errors call it.
        read: Yields it in pieces, Arrow record batches, each with the number of rows before it.
        columns: The features, in the file's order, the time column not among them.
        target: The target column.
        time: The column by whose order the rows come, or None for the file's.
        classes: The names of the target's classes, or None for numbers.
        rows: The number of rows with a target.
        ordered: Whether the file already is in order of time.
        seen: What was seen of it.
    """

    name: str
    read: Callable[[], Iterator[tuple[Any, int]]]
    columns: tuple[Column, ...]
    target: Target
    time: str | None
    classes: tuple[str, ...] | None
    rows: int
    ordered: bool
    seen: Seen

    @property
    def width(self) -> int:
        """The number of numbers in a row."""
        return sum(column.width for column in self.columns)

    def chunks(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield features (n, width), NaN where missing, and targets (n,): reals, class numbers."""
        if self.ordered:
            for piece, start in self.read():
                x, y, _ = self._encode(piece, start)
                yield x, y
            return
        # Small enough, or `open_table` would have refused.
        parts = [self._encode(piece, start) for piece, start in self.read()]
        x, y, time = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(time, kind="stable")
        yield x[order], y[order]

    def _encode(self, piece: Any, start: int) -> tuple[Floats, Floats, Floats]:
        from driftrate.data import _values

        y = self.target.encode(piece.column(self.target.name), start)
        kept = ~np.isnan(y)
        x = np.empty((piece.num_rows, self.width))
        place = 0
        for column in self.columns:
            column.encode(piece.column(column.name), x[:, place : place + column.width], start)
            place += column.width
        time = np.zeros(len(y))
        if self.time is not None and not self.ordered:
            time = _values.order_of(piece.column(self.time), self.time, start)
        return x[kept], y[kept], time[kept]


def open_table(
    path: str | Path,
    target: str | None,
    time: str | None = None,
    kind: Literal["classes", "numbers"] | None = None,
    drop: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    sep: str | None = None,
) -> Table:
    r"""Look through a file and say what it holds.

    Args:
        path: A `.csv` (also `.tsv`, `.csv.gz`) or `.parquet` file; a CSV's first line names its
            columns.
        target: The column to predict. Text, true/false and whole numbers of at most 30 levels are
            classes, other numbers are a regression's target; whole numbers of 3 to 30 levels that
            are written as reals may be either, so `kind` must say.
        time: A column of numbers or of ISO timestamps by which the rows are ordered, or None for
            the file's own order. A file that is not in this order is sorted if that takes at most
            256 MB of memory. The column is not a feature.
        kind: What the target is, where the rule above would choose the other.
        drop: Columns that are left out.
        kinds: What columns are, by name, where the rules of `Table` would choose another: number,
            category, time, index or decimal-comma.
        sep: What parts the columns of a CSV, where the first line does not show it.

    Returns:
        The table.

    Raises:
        DataError: Where the file cannot be read or does not hold what it should.
        ConfigError: Where a column that was named does not exist.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "small.csv"
        >>> _ = file.write_text("size,colour,y\n1.5,red,0\n,blue,1\n2.5,red,1\n")
        >>> table = open_table(file, target="y")
        >>> table.classes, table.width
        (('0', '1'), 4)
        >>> x, y = next(table.chunks())
        >>> x[1].tolist(), y.tolist()
        ([nan, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    """
    place = Path(path)
    names = tuple(schema(place, sep))
    told = tuple(sorted((kinds or {}).items()))
    what = (names, target, time, kind, tuple(drop), told)
    return _open(place, stamp(place), sep, *what)


@lru_cache(maxsize=32)
def _open(path: Path, _: Stamp, sep: str | None, *what: Any) -> Table:
    """Scan a file once; its stamp is there for the cache alone."""
    names, target, time, kind, drop, told = what
    asked = (names, target, time, kind, drop, dict(told))
    columns = [name for name in names if name not in drop]
    return scan_table(path.name, lambda: pieces(path, columns, sep), *asked)


def stamp(path: Path) -> Stamp:
    """Return what a cache should know a file by, beside its name."""
    stat, now = path.stat(), time_ns()
    changed = max(stat.st_mtime_ns, stat.st_ctime_ns)
    unsure = now if abs(now - changed) < _AT_REST * 1e9 else 0
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, unsure


def scan_table(
    name: str,
    read: Callable[[], Iterator[tuple[Any, int]]],
    names: Sequence[str],
    target: str | None,
    time: str | None = None,
    kind: str | None = None,
    drop: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
) -> Table:
    """Look through Arrow record batches and say what they hold, as `open_table` does.

    `read` yields the batches, each with the number of rows before it, and is called twice or more;
    `name` is what errors call the table.
    """
    kinds = kinds or {}
    _check_asked(name, names, target, time, drop, kinds)
    assert target is not None
    from driftrate.data import _columns, _target

    features = [column for column in names if column not in (target, time, *drop)]
    scanners = [_columns.Scanner(column, kinds.get(column)) for column in features]
    if not scanners:
        raise DataError(f"{name} has no column besides target and time: nothing to learn from")
    labels = _target.TargetScanner(target, kind, kinds.get(target))
    order = _columns.OrderScanner(time)
    rows = 0
    for piece, start in read():
        rows += piece.num_rows
        for scanner in scanners:
            scanner.look(piece.column(scanner.name), start)
        labels.look(piece.column(target), start)
        order.look(piece, start)
    if not labels.rows:
        raise DataError(f"{name} has no rows with a target: nothing to learn from")
    styles = {labels.style, *(scanner.style for scanner in scanners)}
    commas = "decimal-comma" in styles
    label, warnings = labels.target(commas)
    left_out = [(column, "left out, as asked for") for column in drop]
    columns = []
    for scanner in scanners:
        reason = scanner.left_out()
        if reason is not None:
            left_out.append((scanner.name, reason))
            continue
        column, said = scanner.column(commas)
        columns.append(column)
        warnings += said
    if not columns:
        gone = "; ".join(f"{column!r} is left out ({reason})" for column, reason in left_out)
        raise DataError(f"{name} has no column to learn from: {gone}")
    seen = Seen(
        rows, labels.missing, labels.infinite, tuple(left_out), order.fault, tuple(warnings)
    )
    features_of = (tuple(columns), label, time, label.classes, labels.rows, order.ordered)
    table = Table(name, read, *features_of, seen)
    needed = 3 * 8 * (table.width + 2) * table.rows  # encoded, joined, sorted
    if not order.ordered and needed > SORT_BYTES:
        raise DataError(
            f"{name} is not in order of {time!r} (row {order.fault:,}) and too large to sort in"
            f" memory ({needed / 2**20:,.0f} MB): sort the file first"
        )
    return table


def _check_asked(
    name: str,
    names: Sequence[str],
    target: str | None,
    time: str | None,
    drop: Sequence[str],
    kinds: Mapping[str, str],
) -> None:
    """Raise `ConfigError` where what is asked for is not there or makes no sense."""
    from driftrate.data._columns import KINDS

    if target is None:
        asks = "name the column to predict (--target)"
        raise ConfigError(f"{name}: {asks}; columns are {_list(names)}")
    named = [("target", target), ("time", time), *(("dropped", one) for one in drop)]
    _check_names(name, names, [*named, *(("told", one) for one in kinds)])
    if time == target:
        raise ConfigError(f"{name}: time and target are both {target!r}; they must differ")
    if {target, time} & set(drop):
        raise ConfigError(f"{name}: a target or time cannot be dropped")
    for column, told in kinds.items():
        if told not in KINDS:
            choices = ", ".join(KINDS)
            raise ConfigError(f"the kind of {column!r} must be one of {choices}, got {told!r}")


def _check_names(name: str, names: Sequence[str], asked: Sequence[tuple[str, str | None]]) -> None:
    """Raise `ConfigError` where a column that was named is not there."""
    spelled = {one.strip().casefold(): one for one in names}
    for what, column in asked:
        if column is None or column in names:
            continue
        near = get_close_matches(column.strip().casefold(), spelled, n=1, cutoff=0.8)
        hint = f"did you mean {spelled[near[0]]!r}? " if near else ""
        raise ConfigError(f"{name} has no {what} column {column!r}; {hint}it has {_list(names)}")


def fingerprint(path: str | Path) -> str:
    """Return a hash of a file's bytes, sixteen hexadecimal digits."""
    place = Path(path)
    try:
        return _hash(place, stamp(place))
    except OSError as error:
        raise DataError(f"{place} cannot be read: {error.strerror or error}") from error


@lru_cache(maxsize=64)
def _hash(path: Path, _: Stamp) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _list(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
