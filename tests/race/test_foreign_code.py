"""Code beside the data: no engine imports it, and the results are those of a folder without it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from driftrate.race.run import race
from driftrate.race.settings import Race

SETTINGS = Race(["rows.csv"], target="y", methods=["HedgedSGD", "sgd"], grid=False, drift=False)


def raced(out, **options):
    """Race a file of the working folder; return its rows without their times."""
    rows = np.random.default_rng(0).normal(size=(200, 3))
    np.savetxt("rows.csv", rows, delimiter=",", header="a,b,y", comments="")
    race(replace(SETTINGS, jobs=1, **options), out, show=False)
    rows = json.loads((out / "leaderboard.json").read_text())
    return [{**row, "seconds_per_step": None} for row in rows]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return raced(folder / "out")


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_an_engine_in_this_process(engine, plain, foreign, tmp_path):
    found = raced(tmp_path / "out", engine=engine)
    assert foreign() == []
    assert found == plain
    assert {row["status"] for row in found} == {"ok"}


def test_the_workers_of_a_cluster(plain, foreign, tmp_path, cluster):
    cluster.join(cwd=Path.cwd())
    found = raced(tmp_path / "out", **cluster.options)
    assert foreign() == []
    assert found == plain
