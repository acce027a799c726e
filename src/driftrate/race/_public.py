"""Public datasets: those of River, and OpenML's through scikit-learn; held in memory whole."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from itertools import count
from typing import Any

import numpy as np

from driftrate.data import tables
from driftrate.errors import ConfigError, DataError, MissingDependency


def _in_memory(
    name: str, columns: Mapping[str, Sequence[Any]], target: Sequence[Any], kind: str | None
) -> tables.Table:
    """Return a table of columns, the target under a name that none of them has."""
    import pyarrow

    label = next(f"y{i or ''}" for i in count() if f"y{i or ''}" not in columns)
    table = pyarrow.table({**columns, label: target})

    def read() -> Iterator[tuple[Any, int]]:
        start = 0
        for piece in table.to_batches(max_chunksize=8192):
            yield piece, start
            start += piece.num_rows

    return tables.scan_table(name, read, table.schema.names, label, None, kind)


@lru_cache(maxsize=8)
def river(name: str, kind: str | None) -> tuple[tables.Table, str]:
    """Return a dataset of River and what stands for a hash of its content."""
    try:
        from river import datasets
    except ImportError as error:
        said = f"river:{name} needs River: pip install 'driftrate[river]'"
        raise MissingDependency(said) from error
    maker = getattr(datasets, name, None)
    if not isinstance(maker, type):
        names = ", ".join(n for n in dir(datasets) if n[0].isupper())
        raise ConfigError(f"River has no dataset {name!r}; it has {names}")
    try:
        dataset = maker()
        # River would fetch and unpack it without comparing it with anything.
        if not getattr(dataset, "is_downloaded", True):
            how = f'python -c "from river import datasets; datasets.{name}().download()"'
            raise OSError(
                f"it is not here, and River downloads it unchecked; if you trust it, {how}"
            )
        pairs = [(x, y) for x, y in dataset]
    except (OSError, TypeError) as error:
        raise DataError(f"river:{name} cannot be had: {_line(error)}") from error
    if not pairs or not isinstance(pairs[0][0], dict) or isinstance(pairs[0][1], dict):
        raise DataError(f"river:{name} is not a table with one target")
    keys = dict.fromkeys(key for x, _ in pairs for key in x)
    columns = {str(key): [x.get(key) for x, _ in pairs] for key in keys}
    if kind is None:
        kind = "numbers" if str(dataset.task).lower().startswith("regr") else "classes"
    table = _in_memory(f"river:{name}", columns, [y for _, y in pairs], kind)
    return table, f"river-{version('river')}-{name}"


@lru_cache(maxsize=8)
def openml(name: str, kind: str | None) -> tuple[tables.Table, str]:
    """Return a dataset of OpenML and what stands for a hash of its content."""
    try:
        from sklearn.datasets import fetch_openml
    except ImportError as error:
        said = f"openml:{name} needs scikit-learn: pip install 'driftrate[sklearn]'"
        raise MissingDependency(said) from error
    plain, _, edition = name.partition("@")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of every retry; the error below says enough
            wanted = int(edition) if edition else "active"
            found = fetch_openml(plain, version=wanted, as_frame=False, parser="liac-arff")
    except (OSError, ValueError, KeyError) as error:  # the last, where OpenML gives no checksum
        hint = "it is downloaded once, from openml.org, by the checksum that OpenML gives"
        raise DataError(f"openml:{name} cannot be had: {_line(error)}; {hint}") from error
    data = found.data.toarray() if hasattr(found.data, "toarray") else found.data
    columns: dict[str, Sequence[Any]] = {}
    for place, key in enumerate(found.feature_names):
        values = data[:, place].astype(np.float64)
        levels = (found.categories or {}).get(key)
        if levels is not None:
            values = [None if np.isnan(v) else str(levels[int(v)]) for v in values]
        columns[key] = values
    table = _in_memory(f"openml:{name}", columns, list(found.target), kind)
    details = found.details
    return table, f"openml-{details['id']}-{details.get('md5_checksum', details['version'])}"


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
