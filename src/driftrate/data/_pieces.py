"""A CSV or Parquet file as a sequence of small Arrow tables."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from driftrate.errors import ConfigError, DataError, needs

# Rows of Parquet, bytes of CSV: a piece is a few megabytes, so that any file can be read.
PIECE_ROWS = 8192
PIECE_BYTES = 2**22
# A column of a piece holds no more text: a small Parquet may write a long one once for all rows.
TEXT_BYTES = 2**25
_MISSING = [
    "", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NAN", "-NaN", "-nan", "NaT", "NULL",
    "null", "None", "?",
]  # fmt: skip
_CSV, _PARQUET = (".csv", ".csv.gz", ".tsv", ".tsv.gz"), (".parquet", ".pq")
# What may part columns, with the name that an option or a message gives it.
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")


def schema(path: Path, sep: str | None = None) -> list[str]:
    """Return the names of the columns."""
    if "://" in str(path) or str(path).startswith(("http:/", "https:/")):
        raise DataError(f"{path} is an address: download the file and give its path")
    if path.is_dir():
        raise DataError(f"{path} is a folder: give a file in it")
    if not path.is_file():
        raise DataError(f"no file at {path}")
    if not path.stat().st_size:
        raise DataError(f"{path.name} is empty")
    with _told(path), _open(path, sep) as reader:
        names: list[str] = reader.schema.names if _is_csv(path) else reader.schema_arrow.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path.name} has more than one column {twice[0]!r}: rename one")
    if _is_csv(path) and all(_NUMBER.fullmatch(name) for name in names):
        line = "its first line holds numbers alone, and should name the columns"
        raise DataError(f"{path.name}: {line}")
    return names


def pieces(path: Path, columns: Sequence[str], sep: str | None = None) -> Iterator[tuple[Any, int]]:
    """Yield record batches of some columns, each with the number of rows before it.

    All columns of a CSV come as text: one piece does not determine what the next one holds.
    """
    start = 0
    with _told(path):
        read = _of_csv(path, columns, sep) if _is_csv(path) else _of_parquet(path, columns)
        for batch in read:
            if batch.num_rows:
                yield batch, start
            start += batch.num_rows


def _of_csv(path: Path, columns: Sequence[str], sep: str | None) -> Iterator[Any]:
    with _open(path, sep, columns) as reader:
        yield from reader


def _of_parquet(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """Yield record batches, of fewer rows where these are long."""
    from driftrate.data import _values

    arrow = _arrow()
    with _open(path, None) as reader:
        kinds = {name: reader.schema_arrow.field(name).type for name in columns}
        for name, kind in kinds.items():
            _values.check_type(name, kind)
        coded = _encodings(reader, [name for name in columns if _values.is_text(kinds[name])])
        about = reader.metadata
        groups = map(about.row_group, range(about.num_row_groups))
        longest = max((one.total_byte_size // max(one.num_rows, 1) for one in groups), default=0)
    rows = min(PIECE_ROWS, max(TEXT_BYTES // 8 // max(longest, 1), 1))
    # Arrow cannot keep what is written as differences, where a byte may stand for a long text too.
    deltas = {name for name, found in coded.items() if "DELTA" in found}
    rows = min(rows, PIECE_ROWS // 16) if deltas else rows
    kept = [name for name, found in coded.items() if "DICTIONARY" in found and name not in deltas]
    with _parquet(path, read_dictionary=kept) as reader:
        for batch in reader.iter_batches(batch_size=rows, columns=list(columns)):
            # A text that is no UTF-8 would break whatever looks at it.
            batch.validate(full=True)
            texts = [_text(name, batch.column(name)) for name in columns]
            yield arrow.RecordBatch.from_arrays(texts, names=list(columns))


def _encodings(reader: Any, columns: Sequence[str]) -> dict[str, str]:
    """Return the names of all encodings of some columns of a Parquet."""
    about = reader.metadata
    paths = [reader.schema.column(place).path for place in range(about.num_columns)]
    groups = range(about.num_row_groups)
    return {
        name: " ".join(
            one for group in groups for one in about.row_group(group).column(place).encodings
        )
        for place, name in enumerate(paths)
        if name in columns
    }


def _text(name: str, array: Any) -> Any:
    """Return a column, text that is kept as a dictionary written out, unless that is too much."""
    from driftrate.data import _values

    if not _values.is_text(array.type):
        return array
    size, rows = array.nbytes, len(array)
    if _arrow().types.is_dictionary(array.type) and array.dictionary.nbytes * rows > TEXT_BYTES:
        compute = import_module("pyarrow.compute")
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        size = compute.sum(lengths).as_py() or 0
    if size > TEXT_BYTES:
        much = f"{size / 2**20:,.0f} MB of text in {rows:,} rows"
        raise DataError(f"column {name!r} holds {much}: leave it out (--drop {name})")
    return _values.as_text(array)


def separator(path: Path, sep: str | None = None) -> str | None:
    """Return what parts the columns of a file, None if it is no CSV.

    Raises:
        ConfigError: Where the first line may be parted in two ways.
    """
    if not _is_csv(path):
        return None
    if sep is not None:
        told = {name: sign for sign, name in SEPARATORS.items()}.get(sep, sep)
        told = "\t" if told == "\\t" else told
        if len(told) != 1 or told in '"\r\n':
            names = ", ".join(SEPARATORS.values())
            raise ConfigError(f"sep must be one sign, or {names}, got {sep!r}")
        return told
    line = re.sub(r'"[^"]*"', "", _first_line(path))
    counts = {sign: line.count(sign) for sign in SEPARATORS if sign in line}
    if not counts:
        return ","
    most = max(counts.values())
    best = [sign for sign, count in counts.items() if count == most]
    if len(best) > 1:
        ways = " or ".join(f"--sep {SEPARATORS[sign]}" for sign in best)
        raise ConfigError(f"{path.name}: its first line may be parted in two ways: say {ways}")
    return best[0]


def _first_line(path: Path) -> str:
    try:
        with _opened(path) as file:
            line: bytes = file.readline(PIECE_BYTES)
    except (OSError, EOFError) as error:
        raise _unreadable(path, error) from error
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in line:
        raise DataError(f"{path.name} is no UTF-8 text (UTF-16?): save it as UTF-8")
    return line.decode("utf-8", errors="replace")


def _arrow() -> Any:
    with needs("reading a table", "race"):
        return import_module("pyarrow")


def _is_csv(path: Path) -> bool:
    if path.name.lower().endswith(_CSV):
        return True
    if path.name.lower().endswith(_PARQUET):
        return False
    known = ", ".join(_CSV + _PARQUET)
    raise DataError(f"{path.name} is of no known format: give a file that ends in {known}")


def _open(path: Path, sep: str | None, columns: Sequence[str] | None = None) -> Any:
    arrow = _arrow()
    with _told(path):
        if not _is_csv(path):
            return _parquet(path)
        from pyarrow import csv

        read = csv.ReadOptions(block_size=PIECE_BYTES, use_threads=False)
        parse = csv.ParseOptions(delimiter=separator(path, sep))
        with csv.open_csv(path, read_options=read, parse_options=parse) as reader:
            names = reader.schema.names
        kinds = dict.fromkeys(names, arrow.string())
        convert = csv.ConvertOptions(
            column_types=kinds,
            include_columns=columns,
            null_values=_MISSING,
            strings_can_be_null=True,
        )
        return csv.open_csv(path, read_options=read, parse_options=parse, convert_options=convert)


def _parquet(path: Path, **options: Any) -> Any:
    from pyarrow import parquet

    # Buffered, so that one huge row group is not read at once.
    return parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False, **options)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say in one line that a file cannot be read."""
    try:
        yield
    except DataError:
        raise
    except (_arrow().ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, UnicodeDecodeError) or "invalid utf8" in said.lower():
        return DataError(f"{path.name} is no UTF-8 text: save it as UTF-8{_first_bad(path)}")
    return DataError(f"{path.name} cannot be read: {said}")


def _first_bad(path: Path) -> str:
    """Return where a CSV stops being UTF-8, and what stands there if it is Latin-1."""
    if not _is_csv(path):
        return ""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as bad:
                shown = line[max(bad.start - 12, 0) : bad.start + 12].decode("latin-1").strip()
                place = f"line {number:,} has the byte 0x{line[bad.start]:02x} at {bad.start + 1}"
                how = "iconv -f latin1 -t utf-8"
                return f"; {place}, {shown!r} if it is Latin-1 ({how} {path.name})"
    return ""


def _opened(path: Path) -> Any:
    return (gzip.open if path.name.lower().endswith(".gz") else open)(path, "rb")
