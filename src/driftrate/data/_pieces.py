"""A CSV or Parquet file as a sequence of small Arrow tables."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from driftrate.errors import ConfigError, DataError, needs

# Rows of Parquet, bytes of CSV: a piece is a few megabytes, so that any file can be read.
PIECE_ROWS = 8192
PIECE_BYTES = 2**22
_MISSING = [
    "", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "NULL", "null", "None", "?",
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
    with _open(path, sep) as reader:
        names: list[str] = reader.schema.names if _is_csv(path) else reader.schema_arrow.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path.name} has more than one column {twice[0]!r}: rename one")
    if _is_csv(path) and all(_NUMBER.fullmatch(name) for name in names):
        line = "its first line holds numbers alone, and should name the columns"
        raise DataError(f"{path.name}: {line}")
    return names


def pieces(path: Path, sep: str | None = None) -> Iterator[tuple[Any, int]]:
    """Yield record batches, each with the number of rows before it.

    All columns of a CSV come as text: one piece does not determine what the next one holds.
    """
    arrow = _arrow()
    start = 0
    with _open(path, sep) as reader:
        batches = reader if _is_csv(path) else reader.iter_batches(batch_size=PIECE_ROWS)
        try:
            for batch in batches:
                if batch.num_rows:
                    yield batch, start
                start += batch.num_rows
        except (arrow.ArrowInvalid, OSError) as error:
            raise _unreadable(path, error) from error


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
        open_file = gzip.open if path.name.lower().endswith(".gz") else open
        with open_file(path, "rb") as file:
            line = file.readline(PIECE_BYTES)
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


def _open(path: Path, sep: str | None) -> Any:
    arrow = _arrow()
    try:
        if not _is_csv(path):
            from pyarrow import parquet

            # Buffered, so that one huge row group is not read at once.
            return parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
        from pyarrow import csv

        read = csv.ReadOptions(block_size=PIECE_BYTES, use_threads=False)
        parse = csv.ParseOptions(delimiter=separator(path, sep))
        with csv.open_csv(path, read_options=read, parse_options=parse) as reader:
            names = reader.schema.names
        kinds = dict.fromkeys(names, arrow.string())
        convert = csv.ConvertOptions(
            column_types=kinds, null_values=_MISSING, strings_can_be_null=True
        )
        return csv.open_csv(path, read_options=read, parse_options=parse, convert_options=convert)
    except DataError:
        raise
    except (arrow.ArrowInvalid, arrow.ArrowKeyError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "invalid UTF8" in said or "Invalid UTF8" in said:
        return DataError(f"{path.name} is no UTF-8 text: save it as UTF-8")
    return DataError(f"{path.name} cannot be read: {said}")
