"""Races on Dask workers in this process: who shares them, who joins them, who lacks the file."""

from __future__ import annotations

import errno
import threading
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from race_child import toy_cells

from driftrate.data.tables import fingerprint
from driftrate.errors import DataError
from driftrate.race import at_worker, engine, shipping
from driftrate.race.cell import Cell
from driftrate.race.store import CellStore

pytestmark = pytest.mark.usefixtures("toys")
distributed = pytest.importorskip("distributed")


@pytest.fixture
def within(tmp_path):
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    options |= {"scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}
    folder = str(tmp_path / "workers")
    with distributed.LocalCluster(n_workers=1, local_directory=folder, **options) as made:
        yield made


def race(cells, place, made, **options):
    """Race on a cluster with a store of its own."""
    options = {"engine": "dask", "scheduler": made.scheduler_address, **options}
    with CellStore(place) as store:
        yield from engine.run(cells, store, **options)


def toys_of(method, count):
    return toy_cells([method], ["left"], seeds=count)


def test_a_race_that_ends_leaves_another_on_the_same_workers_alone(within, tmp_path):
    within.scale(2)
    within.wait_for_workers(2)
    cells, found = toys_of("slow", 16), []
    long = race(cells, tmp_path / "long.sqlite", within, play="toys:play")
    found.append(next(long))
    playing = threading.Thread(target=lambda: found.extend(long))
    playing.start()
    short = race(toys_of("ok", 1), tmp_path / "short.sqlite", within, play="toys:play")
    assert [result["status"] for _, result in short] == ["ok"]
    playing.join(timeout=60.0)
    assert {cell for cell, _ in found} == set(cells)
    assert {result["status"] for _, result in found} == {"ok"}
    assert not at_worker._guests


def test_two_races_on_the_same_cells_have_nothing_in_common(within, tmp_path, played):
    cells = toys_of("ok", 2)
    one = race(cells, tmp_path / "one.sqlite", within, play="toys:play")
    two = race(cells, tmp_path / "two.sqlite", within, play="toys:play")
    found = [next(one), *two, *one]
    assert sorted(cell.seed for cell, _ in found) == [0, 0, 1, 1]
    assert played() == {cell.key(): 2 for cell in cells}


def test_what_a_dead_race_left_running_is_ended(toys, monkeypatch):
    monkeypatch.setattr(at_worker, "_IDLE_SECONDS", 0.2)
    (cell,) = toys_of("ok", 1)
    arguments = (cell, None, str(Path.cwd()), "toys:play", False)
    assert at_worker.play_here("dead", *arguments)["status"] == "ok"
    (child,) = at_worker._guests["dead"].children._all
    assert child._process.wait(timeout=10.0) is not None
    assert "dead" not in at_worker._guests


def test_a_race_waits_for_its_first_worker(within, tmp_path):
    within.scale(0)
    said = []

    def say(line):
        said.append(line)
        within.scale(1)

    with distributed.Client(within, set_as_default=False) as client:
        while client.ncores():
            time.sleep(0.01)
        cells = toys_of("ok", 2)
        found = race(cells, tmp_path / "race.sqlite", within, play="toys:play", say=say)
        assert {cell for cell, _ in found} == set(cells)
    assert said[0].startswith("no worker is at the Dask scheduler")
    assert said[0].endswith("the cells wait until one joins")


def test_it_tells_how_many_cells_are_played_at_once(within, tmp_path):
    counts = []
    options = {"play": "toys:play", "at_once": counts.append}
    found = race(toys_of("slow", 30), tmp_path / "race.sqlite", within, **options)
    next(found)
    assert counts == [1]
    within.scale(3)
    within.wait_for_workers(3)
    list(found)
    assert counts[-1] == 3


class TestFiles:
    @pytest.fixture
    def cells(self, tmp_path, monkeypatch):
        x = np.random.default_rng(0).normal(size=(400, 2))
        path = tmp_path / "here" / "drifting.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1], "y": x @ [1.0, 2.0]}), path)
        monkeypatch.chdir(path.parent)
        # No worker finds the file in the folder that the race says it runs in.
        monkeypatch.setattr(
            "driftrate.race.cluster.Path.cwd", classmethod(lambda _: tmp_path / "nowhere")
        )
        monkeypatch.setattr(shipping, "place", away(shipping.place))
        mark = fingerprint(path)
        return [
            Cell(path.name, "HedgedSGD", "default", seed, mark, target="y", model="linear")
            for seed in range(8)
        ]

    def test_a_worker_that_lost_the_file_gets_it_again(self, cells, within, tmp_path):
        said = []
        found = race(cells, tmp_path / "race.sqlite", within, say=said.append)
        first = [next(found)]
        (kept,) = (tmp_path / "workers").glob("**/drifting.parquet")
        kept.unlink()
        told = dict(chain(first, found))
        assert set(told) == set(cells)
        # The one or two that were begun may find no file.
        assert sum(result["status"] == "ok" for result in told.values()) >= len(cells) - 3
        size = f"{(tmp_path / 'here' / 'drifting.parquet').stat().st_size:,} bytes"
        assert [line.split(" to ")[0] for line in said] == ["sent drifting.parquet"] * 2
        assert all(line.endswith(size) for line in said)

    def test_a_worker_that_keeps_no_file_is_not_sent_it_for_ever(
        self, cells, within, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(shipping, "place", lambda *_: None)
        with pytest.raises(DataError, match=r"cannot send .* does not keep what it is sent"):
            list(race(cells, tmp_path / "race.sqlite", within))

    def test_a_worker_without_room_leaves_its_cells_to_others(
        self, cells, within, tmp_path, monkeypatch
    ):
        within.scale(2)
        within.wait_for_workers(2)
        full, real = tmp_path / "full.txt", shipping.receive

        def receive(race, cell, offset, piece, kept):
            if not full.exists() or full.read_text() == kept[0]:
                full.write_text(kept[0])
                raise OSError(errno.ENOSPC, "No space left on device")
            real(race, cell, offset, piece, kept)

        said = []
        monkeypatch.setattr(shipping, "receive", receive)
        monkeypatch.setattr(shipping, "_TIMES", 1)
        found = dict(race(cells, tmp_path / "race.sqlite", within, say=said.append))
        assert {result["status"] for result in found.values()} == {"ok"}
        (refusal,) = (line for line in said if line.startswith("cannot send"))
        assert refusal.endswith("No space left on device; others play its cells")

    def test_one_failure_is_tried_again(self, cells, within, tmp_path, monkeypatch):
        failed, real = tmp_path / "failed.txt", shipping.receive

        def receive(*arguments):
            if not failed.exists():
                failed.write_text("once")
                raise ConnectionError("another has come to that address")
            real(*arguments)

        said = []
        monkeypatch.setattr(shipping, "receive", receive)
        found = dict(race(cells, tmp_path / "race.sqlite", within, say=said.append))
        assert failed.exists()
        assert {result["status"] for result in found.values()} == {"ok"}
        assert len(said) == 1

    def test_a_file_that_is_gone_here_ends_the_race(self, cells, within, tmp_path, monkeypatch):
        monkeypatch.setattr(shipping.Files, "has", lambda *_: True)
        Path(cells[0].stream).unlink()
        with pytest.raises(DataError, match=r"drifting.parquet cannot be read: No such file"):
            list(race(cells, tmp_path / "race.sqlite", within))

    def test_two_races_may_send_a_worker_the_same_file(self, cells, tmp_path):
        content = Path(cells[0].stream).read_bytes()
        kept = (str(tmp_path / "kept"),)
        for piece in (0, 1000):
            for sender in ("one", "two"):
                shipping.receive(sender, cells[0], piece, content[piece:][:1000], kept)
        for sender in ("one", "two"):
            shipping.receive(sender, cells[0], 2000, content[2000:], kept)
            shipping.finish(sender, cells[0], kept)
        (there,) = (path for path in Path(*kept).glob("**/*") if path.is_file())
        assert there.read_bytes() == content

    def test_while_a_file_is_written_the_worker_is_heard(
        self, cells, within, tmp_path, monkeypatch
    ):
        """Beside the loop in which its heart beats, that is."""
        note, real = tmp_path / "thread.txt", shipping.finish

        def finish(*arguments):
            note.write_text(threading.current_thread().name)
            real(*arguments)

        monkeypatch.setattr(shipping, "finish", finish)
        list(race(cells[:1], tmp_path / "race.sqlite", within))
        assert note.read_text().startswith("asyncio")


def away(place):
    """Return `place` as where relative paths mean nothing."""
    return lambda cell, folder, kept: place(cell, "/nowhere", kept)
