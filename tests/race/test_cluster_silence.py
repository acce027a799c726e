"""A race on Dask workers that stand still without being gone, and on a scheduler that does."""

from __future__ import annotations

import signal
import time
from contextlib import closing

import pytest
from dask_cluster import Cluster, distributed
from race_child import toy_cells

from driftrate.errors import DataError
from driftrate.race import beats, engine
from driftrate.race.beats import Beats

pytestmark = pytest.mark.usefixtures("toys")


class Said:
    """What a race says, and when; the first line is an occasion to act."""

    def __init__(self, act=lambda: None):
        self.lines, self.times, self._act = [], [], act

    def __call__(self, line):
        self.lines.append(line)
        self.times.append(time.monotonic())
        if len(self.lines) == 1:
            self._act()


def slow(count):
    return toy_cells(["slow"], ["left"], seeds=count)


def stand_still(*workers):
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)


def check(found, cells):
    assert len(found) == len(cells)
    assert {cell for cell, _ in found} == set(cells)
    assert {result["status"] for _, result in found} == {"ok"}


class TestBeats:
    def worker(self, last_seen, threads=1):
        return {"nthreads": threads, "last_seen": last_seen}

    def test_a_worker_that_comes_back_is_heard_at_once(self):
        heard = Beats()
        for now in range(10):
            heard.note({"a": self.worker(1e9)}, now)
        assert (heard.answering, heard.silent) == ({}, {"a"})
        heard.note({"a": self.worker(1e9 + 0.5, 4)}, 10.0)
        assert (heard.answering, heard.silent) == ({"a": 4}, set())

    def test_a_scheduler_that_was_late_proves_nothing(self):
        heard = Beats()
        heard.note({"a": self.worker(5.0)}, 0.0)
        heard.excuse(20.0)
        heard.note({"a": self.worker(5.0)}, 20.0)
        assert not heard.silent

    def test_one_of_many_may_beat_seldom_but_not_all_of_them(self):
        heard = Beats()
        many = {f"{i}": self.worker(0.0) for i in range(1000)}
        heard.note(many, 0.0)
        heard.note({**many, "0": self.worker(1.0)}, 8.0)
        assert not heard.silent
        heard.note({**many, "0": self.worker(1.0)}, 14.1)
        assert heard.silent == set(many)
        assert not heard.answering


def test_the_cells_of_a_worker_whose_heart_stops_go_to_others(store, monkeypatch):
    # Less than the race takes, also where the processes of its cells run already.
    monkeypatch.setattr(beats, "SILENT_SECONDS", 1.5)
    monkeypatch.setattr(beats, "_BEATS", 1)
    options = {"processes": False, "n_workers": 2, "threads_per_worker": 1}
    options |= {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}
    cells, said = slow(40), Said()
    with distributed.LocalCluster(**options) as local:
        where = {"engine": "dask", "scheduler": local.scheduler_address}
        finished = engine.run(cells, store, play="toys:play", say=said, **where)
        found = [next(finished)]
        local.workers[0].periodic_callbacks["heartbeat"].stop()
        found += finished
        silent = local.workers[0].address
    check(found, cells)
    assert any(line.startswith(f"{silent} has not answered for") for line in said.lines)


@pytest.mark.slow
def test_the_cells_of_a_silent_worker_go_to_others(cluster, store):
    one, _ = cluster.join(2)
    cells, said = slow(12), Said()
    finished = engine.run(cells, store, play="toys:play", say=said, **cluster.options)
    found = [next(finished)]
    stand_still(one)
    found += finished
    check(found, cells)
    assert any("has not answered for" in line for line in said.lines)


@pytest.mark.slow
def test_with_all_silent_it_says_so_within_ten_seconds_and_goes_on_with_one_that_is_back(
    cluster, store
):
    workers = cluster.join(2)
    said = Said(lambda: workers[0].send_signal(signal.SIGCONT))
    cells = slow(40)
    finished = engine.run(cells, store, play="toys:play", say=said, **cluster.options)
    found = [next(finished)]
    begin = time.monotonic()
    stand_still(*workers)
    found += finished
    check(found, cells)
    assert said.lines[0].startswith("no worker answers at the Dask scheduler")
    assert said.lines[0].endswith("the cells wait until one joins or wakes")
    assert said.times[0] - begin < 10.0
    assert said.lines[1] == "a Dask worker answers: going on"


@pytest.mark.slow
def test_with_all_silent_it_goes_on_with_one_that_joins(cluster, store):
    workers = cluster.join(2)
    said = Said(cluster.join)
    cells = slow(12)
    finished = engine.run(cells, store, play="toys:play", say=said, **cluster.options)
    found = [next(finished)]
    stand_still(*workers)
    found += finished
    check(found, cells)
    assert said.lines[0].startswith("no worker answers")


@pytest.mark.slow
def test_a_race_ends_in_time_whoever_stands_still(cluster, store):
    workers = cluster.join(2)
    finished = engine.run(slow(40), store, play="toys:play", **cluster.options)
    next(finished)
    stand_still(*workers)
    begin = time.monotonic()
    finished.close()
    assert time.monotonic() - begin < 10.0


@pytest.mark.slow
def test_a_scheduler_that_stands_still_ends_the_race(cluster, store):
    cluster.join()
    cells = slow(40)
    finished = engine.run(cells, store, play="toys:play", **cluster.options)
    one, _ = next(finished)
    cluster.scheduler.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    try:
        with pytest.raises(DataError, match="has not answered for 10 s; run again to go on"):
            list(finished)
    finally:
        cluster.scheduler.send_signal(signal.SIGCONT)
    assert time.monotonic() - begin < 60.0
    assert store.get(one)["status"] == "ok"


@pytest.mark.slow
def test_a_cell_that_kills_its_workers_is_given_up(tmp_path, store, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    monkeypatch.setattr("driftrate.race.cluster._AGAIN", 1)
    cells = toy_cells(["ok"], ["left"], seeds=1)
    with closing(Cluster(tmp_path)) as cluster:
        cluster.join(3)
        kills = "toys:play_and_kill_parent"
        ((_, result),) = engine.run(cells, store, play=kills, **cluster.options)
    assert result["status"] == "not played"
    assert result["message"] == "the workers that had it died, one after the other"
