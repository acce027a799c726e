"""Races that are killed, stopped, shared, or spread over a cluster end in the same table."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import race_child
from race_child import toy_cells

from driftrate.race import engine
from driftrate.race.leaderboard import Leaderboard
from driftrate.race.store import CellStore

pytestmark = pytest.mark.usefixtures("toys")
# Twenty for a thorough look: DRIFTRATE_KILLS=20.
KILLS = int(os.environ.get("DRIFTRATE_KILLS", "3"))
SEEDS = 2 * KILLS
METHODS = ("ok", "slow", "diverges", "raises")


def table(place, methods=METHODS):
    """Return the rows of the table, timings aside, from what is stored."""
    with CellStore(place) as store:
        rows = store._base.execute("SELECT key, result FROM results").fetchall()
        assert store._base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    cells = {cell.key(): cell for cell in toy_cells(methods, seeds=SEEDS)}
    assert set(cells) == {key for key, _ in rows}
    results = {cells[key]: json.loads(text) for key, text in rows}
    who = {
        name: SimpleNamespace(name=name, family="toy", first_order=True, ours=False, by_row=False)
        for name in methods
    }
    board = Leaderboard(results, who, {name: name for name in race_child.STREAMS})
    return [{k: v for k, v in asdict(row).items() if "seconds" not in k} for row in board.rows]


def start(place, *methods, jobs=2, seeds=SEEDS):
    call = [sys.executable, race_child.__file__, str(place), str(jobs), str(seeds), *methods]
    return subprocess.Popen(call, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole") / "race.sqlite"
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        with CellStore(place) as store:
            list(engine.run(toy_cells(METHODS, seeds=SEEDS), store, play="toys:play"))
    return table(place)


def test_killed_at_random_moments(tmp_path, uninterrupted, played):
    """The cells that were being played are lost; the rest is neither lost nor redone."""
    place = tmp_path / "race.sqlite"
    rng = random.Random(0)
    cells = toy_cells(METHODS, seeds=SEEDS)
    killed = 0
    for _ in range(KILLS):
        with start(place, *METHODS) as process:
            for _ in range(rng.randrange(5)):
                process.stdout.readline()
            try:
                process.wait(timeout=rng.random() * 0.2)
            except subprocess.TimeoutExpired:
                process.kill()
        killed += process.returncode == -signal.SIGKILL
    assert killed > KILLS / 2
    with start(place, *METHODS) as process:
        assert process.wait(timeout=60) == 0
    assert table(place) == uninterrupted
    # What fails is tried again on purpose.
    again = sum(played()[cell.key()] - 1 for cell in cells if cell.method != "raises")
    assert again <= 2 * killed


def test_a_stop_from_the_keyboard(tmp_path, uninterrupted):
    place = tmp_path / "race.sqlite"
    with start(place, *METHODS) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) != 0
    with start(place, *METHODS) as process:
        assert process.wait(timeout=60) == 0
    assert table(place) == uninterrupted


def test_two_processes_share_a_store(tmp_path, played):
    place = tmp_path / "race.sqlite"
    with start(place, "slow", jobs=1, seeds=3) as one, start(place, "slow", jobs=1, seeds=3) as two:
        told = [process.communicate(timeout=60)[0].splitlines() for process in (one, two)]
    cells = toy_cells(["slow"], seeds=3)
    assert all(told)
    assert max(map(len, told)) == len(cells)
    assert played() == {cell.key(): 1 for cell in cells}


@contextmanager
def cluster(folder):
    """Start a scheduler and two workers, each a process of its own."""
    address = folder / "scheduler.json"
    module = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    options = ["--port", "0", "--no-dashboard", "--scheduler-file", str(address)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(address)]
    worker += ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder)]
    processes = [subprocess.Popen([*module, *options], **quiet)]
    try:
        processes += [subprocess.Popen([*worker, "--name", name], **quiet) for name in "ab"]
        import distributed

        with distributed.Client(scheduler_file=str(address), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            yield client.scheduler.address
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(timeout=30)


def test_a_cluster_gives_the_same_table(tmp_path, uninterrupted):
    place = tmp_path / "race.sqlite"
    cells = toy_cells(METHODS, seeds=SEEDS)
    with cluster(tmp_path) as address, CellStore(place) as store:
        options = {"engine": "dask", "scheduler": address, "play": "toys:play"}
        assert {cell for cell, _ in engine.run(cells, store, **options)} == set(cells)
    assert table(place) == uninterrupted
