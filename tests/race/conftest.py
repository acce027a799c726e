from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from driftrate.race.store import CellStore

# The toys are shared with child processes, which find them by the environment.
HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)


@pytest.fixture
def toys(monkeypatch):
    """Let child processes import the toys."""
    paths = [HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def played(toys, tmp_path, monkeypatch):
    """Return a function that counts how often each toy cell was played, by its key."""
    notes = tmp_path / "played.txt"
    monkeypatch.setenv("TOY_NOTES", str(notes))
    return lambda: Counter(notes.read_text().split()) if notes.exists() else Counter()


@pytest.fixture
def cluster(tmp_path):
    from dask_cluster import Cluster  # late: it skips where there is no Dask

    (tmp_path / "cluster").mkdir()
    with closing(Cluster(tmp_path / "cluster")) as made:
        yield made


@pytest.fixture
def store(tmp_path):
    with CellStore(tmp_path / "race.sqlite") as opened:
        yield opened
