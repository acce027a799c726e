"""The engine: each cell once, as soon as it is done, whatever a contestant does."""

from __future__ import annotations

import threading
import time

import pytest
from race_child import toy_cells

from driftrate.errors import ConfigError, DataError
from driftrate.race import child, children, engine
from driftrate.race.store import CellStore

pytestmark = pytest.mark.usefixtures("toys")


@pytest.fixture
def started(monkeypatch):
    """Note the child processes that are started."""
    found, real = [], children.Child
    monkeypatch.setattr(children, "Child", lambda play: found.append(real(play)) or found[-1])
    return found


def race(cells, store, **options):
    settings = {"limit": 20.0, "jobs": 1, "play": "toys:play", **options}
    return dict(engine.run(cells, store, **settings))


def test_each_cell_once_and_never_again(store, played):
    cells = toy_cells(["ok", "chatty"])
    first = race(cells, store, jobs=2)
    assert set(first) == set(cells)
    assert {result["status"] for result in first.values()} == {"ok"}
    assert race(cells, store) == first
    assert played() == {cell.key(): 1 for cell in cells}


def test_a_cell_is_stored_before_it_is_told(store):
    for cell, result in engine.run(toy_cells(["ok"]), store, jobs=1, play="toys:play"):
        assert store.get(cell) == result


def test_stopping_keeps_what_is_done_and_ends_the_children(store, started):
    cells = toy_cells(["slow"])
    finished = engine.run(cells, store, jobs=1, play="toys:play")
    next(finished)
    assert started
    begin = time.monotonic()
    finished.close()
    assert time.monotonic() - begin < 5.0
    assert all(one._process.wait(timeout=5.0) is not None for one in started)
    done = sum(store.get(cell) is not None for cell in cells)
    assert 1 <= done < len(cells)
    assert set(race(cells, store)) == set(cells)


def test_a_race_that_ends_leaves_another_of_the_same_process_alone(store, tmp_path):
    cells = toy_cells(["slow"], ["left"], seeds=12)
    long = engine.run(cells, store, jobs=1, play="toys:play")
    found = dict([next(long)])
    playing = threading.Thread(target=lambda: found.update(long))
    playing.start()
    with CellStore(tmp_path / "other.sqlite") as other:
        race(toy_cells(["ok"], ["left"], seeds=1), other)
    playing.join(timeout=60.0)
    assert set(found) == set(cells)
    assert {result["status"] for result in found.values()} == {"ok"}


def test_two_races_with_workers_of_their_own_take_no_port_from_each_other(store, tmp_path):
    long = engine.run(toy_cells(["ok"]), store, engine="dask", play="toys:play")
    next(long)
    with CellStore(tmp_path / "other.sqlite") as other:
        race(toy_cells(["ok"], ["left"], seeds=1), other, engine="dask")
    long.close()


class TestContestants:
    @pytest.mark.parametrize("kind", ["local", "dask"])
    def test_marks_the_bad_and_goes_on(self, store, monkeypatch, kind):
        monkeypatch.setattr(child, "GRACE_SECONDS", 0.3)
        bad = {
            "raises": ("failed", "ZeroDivisionError: a step went wrong"),
            "exits": ("failed", "SystemExit: a package that ends the program"),
            "crashes": ("failed", "its process ended (killed by SIGABRT)"),
            "killed": ("not played", "its process ended (killed by SIGKILL)"),
            "greedy": ("not played", "MemoryError: Unable to allocate 74.5 GiB"),
            "explodes": ("diverged", "OverflowError: math range error"),
            "diverges": ("diverged", "loss is inf at step 3"),
            "hangs": ("timeout", "over its limit"),
            "stuck": ("timeout", "over 0.5 s, the last of them in one step"),
        }
        cells = toy_cells([*bad, "ok"], ["left"], seeds=1)
        found = race(cells, store, limit=0.5, engine=kind)
        told = {cell.method: (one["status"], one["message"]) for cell, one in found.items()}
        assert told == {**bad, "ok": ("ok", "")}

    def test_a_child_outlives_what_it_can(self, store, started):
        """Raising costs no new process; crashing costs one."""
        race(toy_cells(["raises", "ok"], ["left"], seeds=3), store)
        assert len(started) == 1
        race(toy_cells(["crashes", "ok"], ["right"], seeds=2), store)
        assert len(started) == 1 + 3

    def test_one_that_is_killed_while_it_waits_costs_no_cell(self, store, started):
        cells = toy_cells(["ok"], ["left"], seeds=2)
        finished = engine.run(cells, store, jobs=1, play="toys:play")
        next(finished)
        for waiting in started:
            waiting.kill()
        assert next(finished)[1]["status"] in ("ok", "not played")  # killed at work, or before
        finished.close()
        assert {one["status"] for one in race(cells, store).values()} == {"ok"}

    def test_what_could_not_be_played_is_played_again_and_what_exploded_is_not(self, store, played):
        cells = toy_cells(["killed", "greedy", "explodes"], ["left"], seeds=1)
        for _ in range(2):
            race(cells, store)
        counts = {cell.method: played()[cell.key()] for cell in cells}
        assert counts == {"killed": 2, "greedy": 2, "explodes": 1}

    def test_no_process_to_be_had(self, store, monkeypatch):
        def refuse(*_, **__):
            raise OSError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(child.subprocess, "Popen", refuse)
        with pytest.raises(DataError, match="cannot start a process for cells: Resource temp"):
            race(toy_cells(["ok"]), store)

    def test_ends_with_its_parent(self):
        one = child.Child("toys:play")
        assert one.alive
        one._process.stdin.close()
        assert one._process.wait(timeout=10.0) == 0
        one.close()

    def test_ends_in_mid_cell_with_its_parent(self):
        one = child.Child("toys:play")
        (cell,) = toy_cells(["stuck"], ["left"], seeds=1)
        asking = threading.Thread(target=one.play, args=(cell, None, "."))
        asking.start()
        time.sleep(0.3)
        assert one.alive
        one._process.stdin.close()
        assert one._process.wait(timeout=10.0) == 0
        asking.join(timeout=10.0)
        assert not asking.is_alive()

    def test_one_thread_each(self):
        assert set(child._ONE_THREAD.values()) == {"1"}
        assert "OMP_NUM_THREADS" in child._ONE_THREAD

    def test_relative_paths_are_the_callers(self, tmp_path, store, monkeypatch):
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        monkeypatch.setenv("TOY_NOTES", "notes.txt")
        race(toy_cells(["ok"], ["left"], seeds=1), store)
        assert (tmp_path / "here" / "notes.txt").exists()


class TestSharing:
    def test_leaves_claimed_cells_to_their_owner(self, tmp_path, store, played):
        cells = toy_cells(["ok"])
        theirs = cells[0]
        with CellStore(tmp_path / "race.sqlite") as other:
            assert other.claim(theirs)
            finished = engine.run(cells, store, jobs=1, play="toys:play")
            mine = [next(finished)[0] for _ in cells[1:]]
            assert theirs not in mine
            result = {**child.without_result("ok", "theirs"), "loss": 1.0}
            other.put(theirs, result)
            assert next(finished) == (theirs, result)
            assert list(finished) == []
        assert theirs.key() not in played()

    def test_takes_over_what_another_left(self, tmp_path, store, played):
        cells = toy_cells(["ok"])
        other = CellStore(tmp_path / "race.sqlite")
        other.claim(cells[0])
        finished = engine.run(cells, store, jobs=1, play="toys:play")
        for _ in cells[1:]:
            next(finished)
        other.close()
        assert next(finished)[0] == cells[0]


class TestFaults:
    @pytest.mark.parametrize(
        ("what", "kind"), [("claim", "local"), ("put", "local"), ("claim", "dask")]
    )
    def test_a_store_that_fails_ends_the_race(self, store, monkeypatch, what, kind):
        calls = []
        real = getattr(CellStore, what)

        def fails(self, *arguments):
            calls.append(arguments)
            if len(calls) > 3:
                raise DataError("store: the disk is full")
            return real(self, *arguments)

        monkeypatch.setattr(CellStore, what, fails)
        with pytest.raises(DataError, match="the disk is full"):
            race(toy_cells(["ok"]), store, engine=kind)

    def test_no_such_engine(self, store):
        with pytest.raises(ConfigError, match="unknown engine 'loco': choose from local, dask"):
            race(toy_cells(["ok"]), store, engine="loco")

    def test_a_scheduler_is_for_a_cluster(self, store):
        with pytest.raises(ConfigError, match="is for --engine dask"):
            race(toy_cells(["ok"]), store, scheduler="localhost:8786")

    def test_no_such_play(self, store):
        with pytest.raises(ConfigError, match=r"cannot start a process for cells.*nowhere"):
            race(toy_cells(["ok"]), store, play="nowhere:play")
