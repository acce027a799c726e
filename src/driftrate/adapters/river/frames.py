"""Data frames of any library in, of the same library out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def columns(frame: Any) -> tuple[list[Hashable], NDArray[np.float64]]:
    """Return the names of columns and their numbers (rows, columns), NaN where one is missing."""
    if _is_pandas(frame):
        found = frame.to_numpy(dtype=np.float64, na_value=np.nan)
        return list(frame.columns), np.ascontiguousarray(found)
    import narwhals

    table = narwhals.from_native(frame, eager_only=True)
    # Sums in the same order give the same bits, whatever library the rows come from.
    return list(table.columns), np.ascontiguousarray(table.to_numpy(), dtype=np.float64)


def values(series: Any) -> list[Any]:
    """Return what a column or an array holds."""
    if hasattr(series, "to_pylist"):  # pyarrow
        return list(series.to_pylist())
    return list(series.tolist() if hasattr(series, "tolist") else series)


def column(found: Any, like: Any) -> Any:
    """Return a column of the library of a data frame, with its index where there is one."""
    if _is_pandas(like):
        import pandas

        return pandas.Series(found, index=like.index)
    import narwhals

    library = narwhals.get_native_namespace(like)
    return narwhals.new_series("", list(np.asarray(found).tolist()), backend=library).to_native()


def frame(found: Mapping[Any, NDArray[np.float64]], like: Any) -> Any:
    """Return a data frame of the library of another one; names are strings but in pandas."""
    if _is_pandas(like):
        import pandas

        return pandas.DataFrame(dict(found), index=like.index)
    import narwhals

    named = {str(name): column for name, column in found.items()}
    library = narwhals.get_native_namespace(like)
    return narwhals.from_dict(named, backend=library).to_native()


def _is_pandas(frame: Any) -> bool:
    return hasattr(frame, "assign")  # all that River before 0.23 knows
