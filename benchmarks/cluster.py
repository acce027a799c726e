"""A race on Dask: what a cell costs, time against workers, and what dies with half of them.

    python benchmarks/cluster.py                  # 10,000 cells, then 1 to 8 workers here
    python benchmarks/cluster.py --cells 1000     # a shorter look

The cells of the first table do nothing, so that what is timed is the race itself: handing out,
playing in a child process, storing. Those of the others wait a tenth of a second each: workers
share this machine's cores, but not a wait. Times are ratios in one run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import distributed as _distributed

from driftrate.race import engine
from driftrate.race.cell import Cell
from driftrate.race.store import CellStore

WAIT_SECONDS = 0.1
distributed: Any = _distributed  # untyped
TOYS = f"""
import time
from driftrate.race.cell import without_result

def nothing(cell, deadline=None):
    return without_result("ok", "") | {{"loss": float(cell.seed)}}

def wait(cell, deadline=None):
    time.sleep({WAIT_SECONDS})
    return nothing(cell)
"""


def cells(count: int) -> list[Cell]:
    return [Cell("synthetic:toy", "toy", "default", seed, "f") for seed in range(count)]


class Workers:
    """Processes on this machine that play for a scheduler; who is killed stays dead."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.processes: list[subprocess.Popen[bytes]] = []

    def join(self, count: int) -> None:
        """Start some more, and wait until they are there."""
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        module = [sys.executable, "-m", "distributed.cli.dask_worker", self.address, *options]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with distributed.Client(self.address, set_as_default=False) as client:
            there = len(client.ncores())
            self.processes += [subprocess.Popen(module, **quiet) for _ in range(count)]
            client.wait_for_workers(there + count, timeout=60)

    def kill(self, count: int) -> None:
        """Kill the oldest."""
        for process in self.processes[:count]:
            process.kill()
            process.wait()
        del self.processes[:count]


@contextmanager
def workers(count: int) -> Iterator[Workers]:
    """Give so many workers, and end them."""
    with distributed.LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        found = Workers(cluster.scheduler_address)
        try:
            found.join(count)
            yield found
        finally:
            found.kill(len(found.processes))


def timed(count: int, play: str, **options: Any) -> float:
    """Return the seconds of a race, the start of its processes left out."""
    with tempfile.TemporaryDirectory() as folder, CellStore(Path(folder) / "race.sqlite") as store:
        finished = engine.run(cells(count), store, play=f"driftrate_toys:{play}", **options)
        next(finished)
        start = time.perf_counter()
        found = [result for _, result in finished]
        seconds = time.perf_counter() - start
    assert len(found) == count - 1
    return seconds


def cost(count: int) -> None:
    local = timed(count, "nothing", jobs=2) / count
    with workers(2) as two:
        dask = timed(count, "nothing", engine="dask", scheduler=two.address) / count
    print(f"\nA cell that does nothing, {count:,} of them, two at once")
    print(f"{'':<24}{'ms':>8}{'ratio':>8}")
    print(f"{'threads here':<24}{local * 1e3:>8.2f}{1.0:>8.2f}")
    print(f"{'two Dask workers':<24}{dask * 1e3:>8.2f}{dask / local:>8.2f}")


def speed(count: int = 200) -> None:
    print(f"\n{count} cells that wait {WAIT_SECONDS} s, against workers of one thread each")
    print(f"{'workers':<10}{'s':>8}{'times one worker':>19}")
    first = 0.0
    for number in (1, 2, 4, 8):
        with workers(number) as some:
            seconds = timed(count, "wait", engine="dask", scheduler=some.address)
        first = first or seconds
        print(f"{number:<10}{seconds:>8.1f}{first / seconds:>19.2f}")


def deaths(count: int = 200) -> None:
    with tempfile.TemporaryDirectory() as folder, CellStore(Path(folder) / "race.sqlite") as store:
        with workers(4) as four:
            options: dict[str, Any] = {"engine": "dask", "scheduler": four.address}
            finished = engine.run(cells(count), store, play="driftrate_toys:wait", **options)
            found = list(islice(finished, count // 4))
            four.kill(2)
            found += finished
        kept = sum(store.get(cell) is not None for cell in cells(count))
    played = sum(result["status"] == "ok" for _, result in found)
    print(f"\nHalf of four workers killed after a quarter of {count} cells:", end=" ")
    print(f"{len(found)} told, {played} ok, {kept} stored")


def alone(count: int = 40) -> None:
    said: list[float] = []

    def say(line: str) -> None:
        said.append(time.perf_counter())
        print(f"  {line}")
        if len(said) == 1:
            two.join(1)

    place = tempfile.TemporaryDirectory()
    with place as folder, CellStore(Path(folder) / "race.sqlite") as store, workers(2) as two:
        options: dict[str, Any] = {"engine": "dask", "scheduler": two.address}
        options |= {"play": "driftrate_toys:wait", "say": say}
        finished = engine.run(cells(count), store, **options)
        found = list(islice(finished, count // 4))
        print(f"\nBoth of two workers killed after a quarter of {count} cells:")
        start = time.perf_counter()
        two.kill(2)
        found += finished
    ok = sum(result["status"] == "ok" for _, result in found)
    print(f"said after {said[0] - start:.1f} s; {len(found)} told, {ok} ok")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=10_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "driftrate_toys.py").write_text(TOYS)
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        cost(asked.cells)
        speed()
        deaths()
        alone()


if __name__ == "__main__":
    main()
