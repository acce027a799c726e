"""A CSV or Parquet file as a sequence of small Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from driftrate.errors import DataError, needs

# Rows of Parquet, bytes of CSV: a piece is a few megabytes, so that any file can be read.
PIECE_ROWS = 8192
PIECE_BYTES = 2**22
_MISSING = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?"]
_CSV, _PARQUET = (".csv", ".csv.gz"), (".parquet", ".pq")


def schema(path: Path) -> list[str]:
    """Return the names of the columns."""
    if not path.is_file():
        raise DataError(f"no file at {path}")
    if not path.stat().st_size:
        raise DataError(f"{path.name} is empty")
    with _open(path) as reader:
        names: list[str] = reader.schema.names if _is_csv(path) else reader.schema_arrow.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path.name} has more than one column {twice[0]!r}: rename one")
    return names


def pieces(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield record batches, each with the number of rows before it.

    All columns of a CSV come as text: one piece does not determine what the next one holds.
    """
    arrow = _arrow()
    start = 0
    with _open(path) as reader:
        batches = reader if _is_csv(path) else reader.iter_batches(batch_size=PIECE_ROWS)
        try:
            for batch in batches:
                if batch.num_rows:
                    yield batch, start
                start += batch.num_rows
        except arrow.ArrowInvalid as error:
            raise _unreadable(path, error) from error


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


def _open(path: Path) -> Any:
    arrow = _arrow()
    try:
        if not _is_csv(path):
            from pyarrow import parquet

            # Buffered, so that one huge row group is not read at once.
            return parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
        from pyarrow import csv

        read = csv.ReadOptions(block_size=PIECE_BYTES, use_threads=False)
        with csv.open_csv(path, read_options=read) as reader:
            names = reader.schema.names
        kinds = dict.fromkeys(names, arrow.string())
        convert = csv.ConvertOptions(
            column_types=kinds, null_values=_MISSING, strings_can_be_null=True
        )
        return csv.open_csv(path, read_options=read, convert_options=convert)
    except DataError:
        raise
    except (arrow.ArrowInvalid, arrow.ArrowKeyError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path.name} cannot be read: {str(error).splitlines()[0]}")
