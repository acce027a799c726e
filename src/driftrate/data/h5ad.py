"""Counts of chosen genes from an `.h5ad` file, read with h5py alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftrate.errors import DataError, needs


class Counts(NamedTuple):
    """Raw counts of some genes, one row per cell."""

    genes: npt.NDArray[np.float64]  # (cells, genes)
    total: npt.NDArray[np.float64]  # over all genes of the file
    label: npt.NDArray[np.str_]


def read_counts(path: Path, genes: Sequence[str], label: str) -> Counts:
    """Read the counts of some genes, the total of each cell, and a label of each cell.

    All layouts that AnnData has written are understood: tables as groups or as compound
    datasets, categories next to their column or below it, X dense or sparse by rows or by columns.

    Args:
        path: The file.
        genes: The names of the genes, in the order wanted.
        label: The column of `obs` to return.

    Raises:
        DataError: Where the file is not HDF5, or lacks a gene, the column or raw counts.

    Reference:
        The on-disk format of AnnData, https://anndata.readthedocs.io.
    """
    with needs("reading an .h5ad file", "paper"):
        h5py = import_module("h5py")
    try:
        with h5py.File(path, "r") as file:
            for part in ("X", "obs", "var"):
                if part not in file:
                    raise DataError(f"{path} is not an .h5ad file: it has no {part!r}")
            names = _index(file["var"])
            missing = [gene for gene in genes if gene not in names]
            if missing:
                raise DataError(f"{path} has no gene {', '.join(missing)}")
            labels = _column(file, label)
            if labels is None:
                raise DataError(f"{path} has no column {label!r} in obs")
            places = [names.index(gene) for gene in genes]
            counts, total = _matrix(h5py, file["X"], places, (len(labels), len(names)))
    except DataError:
        raise
    except (OSError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read as .h5ad: {reason}") from error
    if not (np.isfinite(total).all() and (counts >= 0).all() and (counts % 1 == 0).all()):
        raise DataError(f"{path} holds no raw counts in X; give the file as published")
    return Counts(counts, total, labels)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _texts(values: Any) -> npt.NDArray[np.str_]:
    return np.array(list(map(_text, values)), dtype=np.str_)


def _index(table: Any) -> list[str]:
    if hasattr(table, "dtype"):  # a compound dataset, as AnnData wrote before 0.7
        name = "_index" if "_index" in (table.dtype.names or ()) else "index"
        return list(map(_text, table[name]))
    return list(map(_text, table[table.attrs.get("_index", "_index")][()]))


def _column(file: Any, name: str) -> npt.NDArray[np.str_] | None:
    table = file["obs"]
    if hasattr(table, "dtype"):
        if name not in (table.dtype.names or ()):
            return None
        values, categories = table[name], file.get(f"uns/{name}_categories")
    elif name not in table:
        return None
    elif hasattr(table[name], "dtype"):
        values, categories = table[name][()], table.get(f"__categories/{name}")
    else:
        values, categories = table[name]["codes"][()], table[name]["categories"]
    if categories is None:
        return _texts(values)
    # A code of -1 means that nothing is known; appended, it becomes the empty name.
    return np.append(_texts(categories[()]), "")[np.asarray(values, dtype=np.int64)]


def _matrix(
    h5py: Any, matrix: Any, places: list[int], shape: tuple[int, int]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return some columns of X and the sum of each row."""
    cells, genes = shape
    if isinstance(matrix, h5py.Dataset):
        dense = np.asarray(matrix[()], dtype=np.float64)
        if dense.shape != shape:
            raise ValueError(f"X has shape {dense.shape}, obs and var say {shape}")
        return dense[:, places], dense.sum(axis=1)
    kind = _text(matrix.attrs.get("encoding-type", matrix.attrs.get("h5sparse_format", "csr")))
    data = np.asarray(matrix["data"][()], dtype=np.float64)
    minor, pointer = matrix["indices"][()], matrix["indptr"][()]
    by_row = kind.startswith("csr")
    if len(pointer) != (cells if by_row else genes) + 1:
        raise ValueError(f"X has {len(pointer) - 1} {kind} rows, obs and var say {shape}")
    major = np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))
    row, column = (major, minor) if by_row else (minor, major)
    total = np.bincount(row, weights=data, minlength=cells).astype(np.float64)
    counts = np.zeros((cells, len(places)))
    for slot, place in enumerate(places):
        chosen = column == place
        counts[:, slot] = np.bincount(row[chosen], weights=data[chosen], minlength=cells)
    return counts, total
