"""The suite: its streams, those that are missing, and figures as rows."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftrate.errors import ConfigError, DataError
from driftrate.race import Race, contestants
from driftrate.race.cell import without_result
from driftrate.race.figures import spread
from driftrate.race.networks.network import Network
from driftrate.race.plan import make_plan
from driftrate.race.run import race


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of data without streams and digits."""
    monkeypatch.setenv("DRIFTRATE_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def with_digits(data):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (10_000, 784)).astype(np.uint8), np.arange(10_000) % 10
    np.savez(data / "digits10k.npz", x=x, y=y)


def plan_of(**options):
    settings = Race(options.pop("streams", []), methods=["sgd"], grid=False, **options)
    return make_plan(settings, contestants())


def test_what_is_missing_is_left_out_and_said(data):
    plan = plan_of(suite="networks")
    assert list(plan.sources) == ["networks:flipping"]
    assert {"elec2", "usenet1", "pixels_2500", "stationary"} <= set(plan.absent)
    assert "digits10k" in plan.absent["plasticity"]
    assert "texts" not in plan.absent


def test_what_is_there_is_played(data, with_digits):
    (data / "streams").mkdir()
    table = pa.table({"a": np.arange(64.0), "y": np.arange(64) % 2})
    pq.write_table(table, data / "streams" / "elec2.parquet")
    plan = plan_of(suite="networks", hidden="32")
    models = {cell.stream: plan.sources[cell.stream].make_model() for cell in plan.cells}
    assert len(models) == 13
    elec2 = models[str(data / "streams" / "elec2.parquet")]
    assert elec2 == Network("binary", 1, 1, hidden=(32,))
    assert models["networks:plasticity"] == Network("classes", 784, 10, hidden=(32,))
    assert plan_of(suite="networks").sources["networks:plasticity"].make_model().hidden == (
        300,
        150,
    )


def test_texts_on_request(data, tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "a.txt").write_bytes(b"a line of text\n" * 1000)
    plan = plan_of(texts=str(tmp_path / "book"))
    (cell,) = plan.cells
    assert (cell.stream, cell.model) == (f"texts:{tmp_path / 'book'}", "mlp")
    with pytest.raises(DataError, match="nowhere"):
        plan_of(suite="networks", texts=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no stream given: name a file, or for example synthetic:spiral, or --suite networks"),
        ({"suite": "images"}, "suite must be networks, got 'images'"),
        ({"streams": ["networks:flipping"], "model": "linear"}, "protocols are for networks"),
        ({"streams": ["networks:flip"]}, "protocol must be one of"),
        ({"streams": ["synthetic:walk"], "model": "mlp", "hidden": "x"}, "hidden must be"),
    ],
)
def test_what_does_not_fit_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        plan_of(**options)


def test_figures_are_rows(data, with_digits):
    plan = plan_of(streams=["networks:rest_labels", "networks:rest_noise", "networks:flipping"])
    fine = {**without_result("ok", ""), "loss": 1.0, "error": 0.5, "steps": 9}
    figures = {"rest": (0.3, 0.1), "held out": (0.2, 0.05), "after": (0.9, 0.4)}
    lost = without_result("diverged", "the loss of step 3 is not finite")
    cells = {cell.stream.partition(":")[2]: cell for cell in plan.cells}
    results = {
        cells["rest_labels"]: {**fine, "figures": figures},
        cells["rest_noise"]: lost,
        cells["flipping"]: {**fine, "figures": {}},
    }
    found, names = spread(results, plan)
    rows = {names[cell.stream]: result for cell, result in found.items()}
    assert rows["rest_labels: held out"]["loss"] == 0.2
    assert rows["rest_labels: after"]["error"] == 0.4
    assert rows["rest_labels: rest"]["steps"] == 9
    assert rows["rest_noise: after"]["status"] == "diverged"
    assert rows["flipping"]["loss"] == 1.0
    assert set(rows) == set(names.values())
    assert len(rows) == 5


def test_a_race_of_a_protocol_ends_in_its_table(data, tmp_path):
    """One whole race, in a child process, of a protocol that needs no data."""
    settings = Race(["networks:flipping"], methods=["sgd"], grid=False, jobs=1, hidden="4")
    board = race(settings, tmp_path / "out", show=False)
    (row,) = board.rows
    assert (row.stream, row.status, row.steps) == ("flipping", "ok", 3125)
    assert json.loads((tmp_path / "out" / "leaderboard.json").read_text())[0]["loss"] == row.loss
    assert "flipping" in (tmp_path / "out" / "index.html").read_text()
