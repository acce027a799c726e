"""A race on Dask: what a cell costs, time against workers, and what dies with half of them.

    python benchmarks/cluster.py                  # 10,000 cells, then 1 to 8 workers here
    python benchmarks/cluster.py --cells 1000     # a shorter look

All workers are processes of this machine. What is printed is a page of Markdown for
docs/benchmark.md. Times are ratios in one run.

The cells of the first table do nothing, so that what is timed is the race itself: handing out,
playing in a child process, storing. Those of the second wait, or compute, a tenth of a second each:
workers share this machine's cores, but not a wait, so that computing ones are timed only on as many
workers as there are cores. Those that half of the workers die at are real ones, whose results are
compared bit by bit with those of a race on this process's own threads, in which nobody dies.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import distributed as _distributed
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from driftrate.data.tables import fingerprint
from driftrate.race import engine
from driftrate.race.cell import Cell, Result
from driftrate.race.store import CellStore

TAKES_SECONDS = 0.1
WORKERS = (1, 2, 4, 8)
# How long cells are counted, and how long before, for each worker, its child process starts.
COUNTED_SECONDS = 6.0
START_SECONDS = 0.5
FILE_ROWS = 250_000
STREAM = "synthetic:spiral,dim=16,steps=1000"
distributed: Any = _distributed  # untyped
TOYS = f"""
import time
from driftrate.race.cell import without_result

def nothing(cell, deadline=None):
    return without_result("ok", "") | {{"loss": float(cell.seed)}}

def wait(cell, deadline=None):
    time.sleep({TAKES_SECONDS})
    return nothing(cell)

def compute(cell, deadline=None):
    end = time.process_time() + {TAKES_SECONDS}
    while time.process_time() < end:
        pass
    return nothing(cell)
"""


def toys(count: int) -> list[Cell]:
    return [Cell("synthetic:toy", "toy", "default", seed, "f") for seed in range(count)]


class Workers:
    """Processes on this machine that play for a scheduler; who is killed stays dead."""

    def __init__(self, address: str, folder: str) -> None:
        self.address, self.folder = address, folder
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def engine(self) -> dict[str, Any]:
        """What `engine.run` is to be told of them."""
        return {"engine": "dask", "scheduler": self.address}

    def join(self, count: int) -> None:
        """Start some more, and wait until they are there."""
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        options += ["--local-directory", self.folder]
        module = [sys.executable, "-m", "distributed.cli.dask_worker", self.address, *options]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with distributed.Client(self.address, set_as_default=False) as client:
            there = len(client.ncores())
            self.processes += [
                subprocess.Popen(module, cwd=self.folder, **quiet) for _ in range(count)
            ]
            client.wait_for_workers(there + count, timeout=60)

    def signal(self, sign: signal.Signals) -> None:
        """Send all of them a signal."""
        for process in self.processes:
            process.send_signal(sign)

    def kill(self, count: int) -> None:
        """Kill the oldest."""
        for process in self.processes[:count]:
            process.kill()
            process.wait()
        del self.processes[:count]


@contextmanager
def workers(count: int) -> Iterator[Workers]:
    """Give so many workers in a folder of their own, and end them."""
    options = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}
    with (
        tempfile.TemporaryDirectory() as folder,
        distributed.LocalCluster(n_workers=0, **options) as cluster,
    ):
        found = Workers(cluster.scheduler_address, folder)
        try:
            found.join(count)
            yield found
        finally:
            found.kill(len(found.processes))


@contextmanager
def race(cells: list[Cell], **options: Any) -> Iterator[Iterator[tuple[Cell, Result]]]:
    """Give the finished cells of a race with an empty store."""
    with tempfile.TemporaryDirectory() as folder, CellStore(Path(folder) / "race.sqlite") as store:
        finished = engine.run(cells, store, **options)
        yield finished
        finished.close()
        assert all(store.get(cell) is not None for cell in cells)


def timed(count: int, play: str, **options: Any) -> float:
    """Return the seconds of a race of toys, the start of its processes left out."""
    with race(toys(count), play=f"driftrate_toys:{play}", **options) as finished:
        next(finished)
        start = time.perf_counter()
        found = [result for _, result in finished]
        seconds = time.perf_counter() - start
    assert len(found) == count - 1
    return seconds


def table(head: tuple[str, ...], *rows: tuple[str, ...]) -> None:
    """Print a table in Markdown, the first column to the left."""
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows]
    print("\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines), flush=True)


def cost(count: int) -> None:
    here = timed(count, "nothing", jobs=2)
    with workers(2) as two:
        dask = timed(count, "nothing", **two.engine)
    table(
        (f"{count:,} cells that do nothing, two at once", "seconds", "ms a cell", "ratio"),
        ("two threads, no Dask", f"{here:.0f}", f"{here / count * 1e3:.1f}", "1"),
        ("two Dask workers", f"{dask:.0f}", f"{dask / count * 1e3:.1f}", f"{dask / here:.2f}"),
    )


def rate(play: str, some: Workers) -> float:
    """Return how many toys workers play in a second."""
    count = len(some.processes)
    settled, end = START_SECONDS * count, START_SECONDS * count + COUNTED_SECONDS
    times = []
    with tempfile.TemporaryDirectory() as folder, CellStore(Path(folder) / "race.sqlite") as store:
        finished = engine.run(toys(10_000), store, play=f"driftrate_toys:{play}", **some.engine)
        next(finished)
        start = time.perf_counter()
        for _ in finished:
            times.append(time.perf_counter() - start)
            if times[-1] > end:
                break
        finished.close()
    counted = [seconds for seconds in times if seconds > settled]
    return (len(counted) - 1) / (counted[-1] - counted[0])


def speed() -> None:
    cores = os.cpu_count() or 1
    found: dict[tuple[int, str], float] = {}
    for number in WORKERS:
        with workers(number) as some:
            for play in ("wait", "compute")[: 2 if number <= cores else 1]:
                found[number, play] = rate(play, some)

    def cell(number: int, play: str) -> str:
        cells = found.get((number, play))
        return "–" if cells is None else f"{cells:.1f}, {cells / found[1, play]:.2f} ×"

    table(
        (
            f"workers, at cells of {TAKES_SECONDS} s",
            "cells a second that wait",
            f"that compute, on {cores} cores",
        ),
        *((f"{number}", cell(number, "wait"), cell(number, "compute")) for number in WORKERS),
    )


def bits(found: list[tuple[Cell, Result]]) -> dict[Cell, str]:
    """Return what is the same on every run: all but the seconds."""
    same = {cell: {k: v for k, v in one.items() if "seconds" not in k} for cell, one in found}
    return {cell: json.dumps(one, sort_keys=True) for cell, one in same.items()}


def deaths(count: int = 120) -> tuple[str, ...]:
    cells = [
        Cell(STREAM, "HedgedSGD", "default", seed, STREAM, model="linear") for seed in range(count)
    ]
    with race(cells, jobs=2) as finished:
        alone = bits(list(finished))
    with workers(4) as four, race(cells, **four.engine) as finished:
        found = list(islice(finished, count // 4))
        four.kill(2)
        found += finished
    same = sum(bits(found)[cell] == text for cell, text in alone.items())
    ok = sum(result["status"] == "ok" for _, result in found)
    after = f"{len(found)} of {count} cells told, {ok} ok, {same} with the bits of a race alone"
    return ("two of four are killed", "–", after)


def nobody(how: str, fate: Callable[[Workers], None], then: Callable[[Workers], None]) -> Any:
    """Return what comes of a race whose workers all go when a quarter of its cells is done."""
    count, said = 40, list[float]()

    def say(line: str) -> None:
        said.append(time.perf_counter())
        if len(said) == 1:
            then(two)

    with workers(2) as two:
        options = {"play": "driftrate_toys:wait", "say": say, **two.engine}
        with race(toys(count), **options) as finished:
            found = list(islice(finished, count // 4))
            start = time.perf_counter()
            fate(two)
            found += finished
    ok = sum(result["status"] == "ok" for _, result in found)
    return how, f"{said[0] - start:.1f}", f"{len(found)} of {count} cells told, {ok} ok"


def gone() -> None:
    table(
        ("after a quarter of the cells", "said after (s)", "in the end"),
        deaths(),
        nobody("both of two are killed, another joins", lambda w: w.kill(2), lambda w: w.join(1)),
        nobody(
            "both of two stand still, then wake",
            lambda w: w.signal(signal.SIGSTOP),
            lambda w: w.signal(signal.SIGCONT),
        ),
        nobody(
            "both of two stand still, another joins",
            lambda w: w.signal(signal.SIGSTOP),
            lambda w: w.join(1),
        ),
    )


def files(count: int = 40) -> None:
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder, workers(4) as four:
        x = np.random.default_rng(0).normal(size=(FILE_ROWS, 8))
        columns = {f"x{i}": x[:, i] for i in range(8)} | {"y": x.sum(axis=1)}
        pq.write_table(pa.table(columns), Path(folder) / "drifting.parquet")
        os.chdir(folder)
        # A path that each process follows to a folder of its own.
        path = "/proc/self/cwd/drifting.parquet"
        how: dict[str, Any] = {"target": "y", "model": "linear", "rows": 2000}
        mark = fingerprint(path)
        cells = [Cell(path, "HedgedSGD", "default", seed, mark, **how) for seed in range(count)]
        rows = []
        for what in ("the first race", "another race"):
            said.clear()
            with race(cells, say=said.append, **four.engine) as finished:
                ok = sum(result["status"] == "ok" for _, result in finished)
            sent: Counter[str] = Counter()
            for worker, size in re.findall(r"worker at (\S+): ([\d,]+) bytes", "\n".join(said)):
                sent[worker] += int(size.replace(",", ""))
            each = ", ".join(f"{size:,}" for size in sent.values()) or "none"
            rows.append((what, f"{ok} of {count}", f"{len(sent)} of 4", each))
        size = Path("drifting.parquet").stat().st_size
        os.chdir("/")
    table((f"a file of {size:,} bytes", "cells ok", "workers that got it", "bytes each"), *rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=10_000)
    asked = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "driftrate_toys.py").write_text(TOYS)
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        cost(asked.cells)
        speed()
        gone()
        files()
    versions = f"Dask {distributed.__version__}, Python {sys.version.split()[0]}"
    print(f"\n{os.cpu_count()} cores, {versions}; {time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
