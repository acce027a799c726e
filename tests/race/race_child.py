"""Race the toys in a process that a test may kill: `race_child.py STORE JOBS SEEDS METHOD ...`."""

from __future__ import annotations

import sys
from pathlib import Path

from driftrate.race.cell import Cell
from driftrate.race.engine import run
from driftrate.race.store import CellStore

STREAMS = ("left", "right")
SEEDS = 3


def toy_cells(methods, streams=STREAMS, seeds=SEEDS):
    """Return cells of toys."""
    return [
        Cell(stream, method, "default", seed, "f", model="linear")
        for stream in streams
        for seed in range(seeds)
        for method in methods
    ]


def main(place, jobs, seeds, *methods):
    """Race, saying so after each cell that was not there before."""
    cells = toy_cells(methods, seeds=int(seeds))
    with CellStore(Path(place)) as store:
        there = {cell for cell in cells if store.get(cell)}
        for cell, result in run(cells, store, jobs=int(jobs), limit=30.0, play="toys:play"):
            if cell not in there:
                print(cell.method, result["status"], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
