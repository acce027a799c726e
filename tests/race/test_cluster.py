"""A race on a Dask cluster whose workers die, come back, and lack the files."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dask_cluster import die
from race_child import toy_cells

from driftrate.data.tables import fingerprint
from driftrate.errors import ConfigError, DataError
from driftrate.race import engine
from driftrate.race.cell import Cell
from driftrate.race.play import play

pytestmark = pytest.mark.usefixtures("toys")


def toys_of(method, count):
    return toy_cells([method], ["left"], seeds=count)


def test_one_worker_plays_the_cells_itself(cluster, store, tmp_path, monkeypatch):
    notes = tmp_path / "who.txt"
    monkeypatch.setenv("TOY_PARENTS", str(notes))
    (worker,) = cluster.join()
    cells = toys_of("ok", 4)
    found = dict(engine.run(cells, store, play="toys:play_and_tell_parent", **cluster.options))
    assert set(found) == set(cells)
    assert set(notes.read_text().split()) == {str(worker.pid)}


def test_nothing_is_lost_when_half_of_the_workers_die(cluster, store):
    workers = cluster.join(4)
    cells = toys_of("slow", 24)
    finished = engine.run(cells, store, play="toys:play", **cluster.options)
    found = [next(finished) for _ in range(3)]
    die(*workers[:2])
    found += finished
    assert len(found) == len(cells)
    assert {cell for cell, _ in found} == set(cells)
    assert {result["status"] for _, result in found} == {"ok"}


def test_without_a_worker_it_says_so_and_goes_on_when_one_joins(cluster, store):
    (worker,) = cluster.join()
    cells, said = toys_of("slow", 6), []

    def say(line):
        said.append((line, time.monotonic()))
        if len(said) == 1:
            cluster.join()

    finished = engine.run(cells, store, play="toys:play", say=say, **cluster.options)
    found = [next(finished)]
    begin = time.monotonic()
    die(worker)
    found += finished
    assert {cell for cell, _ in found} == set(cells)
    assert [line[:18] for line, _ in said] == ["no worker is at th", "a Dask worker answ"]
    assert said[0][1] - begin < 10.0


def test_a_scheduler_that_is_gone_ends_the_race_and_keeps_what_is_done(cluster, store, monkeypatch):
    monkeypatch.setattr("driftrate.race.cluster._PATIENCE_SECONDS", 1.0)
    cluster.join()
    cells = toys_of("slow", 50)
    finished = engine.run(cells, store, play="toys:play", **cluster.options)
    one, _ = next(finished)
    cluster.scheduler.kill()
    with pytest.raises(DataError, match=r"scheduler at .* has not answered for 1 s; run again"):
        list(finished)
    assert store.get(one)["status"] == "ok"


@pytest.mark.slow  # as long as a client takes to give up
def test_a_client_that_gave_up_meanwhile_knows_where_the_scheduler_was(cluster, store):
    cluster.join()
    finished = engine.run(toys_of("slow", 50), store, play="toys:play", **cluster.options)
    next(finished)
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    time.sleep(11.0)  # a page is written, say
    with pytest.raises(DataError, match=r"scheduler at tcp://\S+ has not answered for 10 s"):
        list(finished)


class TestFiles:
    @pytest.fixture
    def cells(self, tmp_path, monkeypatch):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(400, 3))
        columns = {"a": x[:, 0], "b": x[:, 1], "y": x @ [1.0, 2.0, 3.0]}
        (tmp_path / "here").mkdir()
        path = tmp_path / "here" / "drifting.parquet"
        pq.write_table(pa.table(columns), path)
        monkeypatch.chdir(tmp_path / "here")
        mark = fingerprint(path)
        return [
            Cell(path.name, "HedgedSGD", "default", seed, mark, target="y", model="linear")
            for seed in range(4)
        ]

    def test_a_worker_without_the_file_gets_it_once(
        self, cells, cluster, store, tmp_path, monkeypatch
    ):
        monkeypatch.setattr("driftrate.race.shipping._PIECE_BYTES", 1000)
        (tmp_path / "there").mkdir()
        # The race says where it runs, and a worker elsewhere finds no such folder.
        monkeypatch.setattr(
            "driftrate.race.cluster.Path.cwd", classmethod(lambda _: tmp_path / "nowhere")
        )
        cluster.join(2, cwd=tmp_path / "there")
        said = []
        found = dict(engine.run(cells, store, say=said.append, **cluster.options))
        alone = play(replace(cells[0], stream=str(tmp_path / "here" / cells[0].stream)))
        assert {result["status"] for result in found.values()} == {"ok"}
        assert found[cells[0]]["loss"] == alone["loss"]
        kept = list(cluster.folder.glob("**/drifting.parquet"))
        assert 1 <= len(kept) <= 2
        assert {path.parent.name for path in kept} == {cells[0].fingerprint}
        assert not list(cluster.folder.glob("**/*.coming"))
        size = f"{kept[0].stat().st_size:,} bytes"
        assert len(said) == len(set(said)) == len(kept)
        assert all(re.fullmatch(rf"sent .* to the worker at .*: {size}", line) for line in said)

    @pytest.mark.slow
    def test_another_worker_at_the_same_address_gets_the_file_too(
        self, cells, cluster, store, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(
            "driftrate.race.cluster.Path.cwd", classmethod(lambda _: tmp_path / "nowhere")
        )
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        said = []
        (worker,) = cluster.join(port=port)
        many = [replace(cell, seed=seed) for cell in cells[:1] for seed in range(12)]
        finished = engine.run(many, store, say=said.append, **cluster.options)
        found = [next(finished)]
        die(worker)
        cluster.join(port=port)
        found += finished
        assert {cell for cell, _ in found} == set(many)
        assert {result["status"] for _, result in found} == {"ok"}
        sent = [line for line in said if line.startswith("sent ")]
        assert len(sent) == 2
        assert len(set(sent)) == 1

    def test_a_file_that_changes_on_its_way_is_not_played(self, cells, cluster, store, monkeypatch):
        cluster.join()
        stale = [replace(cell, fingerprint="0" * 16) for cell in cells[:1]]
        ((_, result),) = engine.run(stale, store, **cluster.options)
        assert result["status"] == "not played"
        assert "has changed since the race began" in result["message"]


def test_a_worker_that_cannot_play_ends_the_race_and_says_why(cluster, store):
    cluster.join()
    with pytest.raises(ConfigError, match=r"cannot start a process for cells.*nowhere"):
        list(engine.run(toys_of("ok", 2), store, play="nowhere:play", **cluster.options))
