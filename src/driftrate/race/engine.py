"""Play the cells of a race: what is missing, in parallel, here or on a cluster."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from driftrate.errors import ConfigError
from driftrate.race.cell import Cell, Result
from driftrate.race.children import Children
from driftrate.race.cluster import Cluster, Say, cluster
from driftrate.race.store import CellStore

ENGINES = ("local", "dask")
PLAY = "driftrate.race.play:play"
# How often to look for cells that another process is at.
_POLL_SECONDS = 0.5
Finished = tuple[Cell, Result]
_Players = Callable[[Iterator[Cell]], Generator[Finished, None, None]]


def _play(
    cell: Cell, children: Children, limit: float | None, folder: str, play: str, store: CellStore
) -> Finished:
    result = children.play(cell, limit, folder, play)
    store.put(cell, result, _within(limit))
    return cell, result


def _within(limit: float | None) -> float:
    return math.inf if limit is None else limit


def check_engine(engine: str, scheduler: str | None) -> None:
    """Raise `ConfigError` unless there is such an engine and it takes a scheduler."""
    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}: choose from {', '.join(ENGINES)}")
    if scheduler is not None and engine != "dask":
        raise ConfigError(f"a scheduler ({scheduler}) is for --engine dask, not {engine}")


def run(
    cells: Sequence[Cell],
    store: CellStore,
    *,
    jobs: int = 2,
    limit: float | None = None,
    engine: str = "local",
    scheduler: str | None = None,
    play: str = PLAY,
    say: Say = print,
    at_once: Callable[[int], None] = lambda count: None,
) -> Generator[Finished, None, None]:
    """Yield every cell with its result: the stored ones first, the others as they finish.

    joblib's threads, or those of Dask's workers, each look after a process that plays one cell at a
    time. A result is stored before it is yielded. Cells that another process has claimed are left
    to it, and taken over if it ends.

    Args:
        cells: The cells, those that are wanted first before the others.
        store: Where finished cells lie.
        jobs: How many cells to play at once; a cluster given by `scheduler` has its own number.
        limit: The time limit of a cell in seconds.
        engine: `"local"` or `"dask"`.
        scheduler: The address of a Dask scheduler; without it Dask starts workers here.
        play: The function that plays a cell, as `MODULE:FUNCTION`.
        say: Is told, in a line, what befalls a cluster.
        at_once: Is told how many cells a cluster plays at once, whenever that changes.

    Raises:
        DriftrateError: The store cannot be written, or no scheduler answers.
    """
    check_engine(engine, scheduler)
    within = _within(limit)
    todo = yield from _stored(cells, store, within)
    if not todo:
        return
    if engine == "local":
        pool = _threads(jobs, limit, play, store)
    else:
        pool = _cluster(cluster(jobs, scheduler, limit, play, say, at_once), store, within)
    with pool as players:
        while todo:
            left: list[Cell] = []
            error: list[Exception] = []
            finished = players(_claimed(todo, store, within, left, error))
            try:
                yield from finished
            finally:
                with warnings.catch_warnings():  # joblib warns of an early stop
                    warnings.simplefilter("ignore", UserWarning)
                    finished.close()
            if error:
                raise error[0]
            todo = yield from _stored(left, store, within)
            if todo:
                sleep(_POLL_SECONDS)


def _stored(
    cells: Sequence[Cell], store: CellStore, limit: float
) -> Generator[Finished, None, list[Cell]]:
    """Yield the cells that are done and return the others."""
    found = {cell: store.get(cell, limit) for cell in cells}
    yield from ((cell, result) for cell, result in found.items() if result is not None)
    return [cell for cell, result in found.items() if result is None]


def _claimed(
    cells: Sequence[Cell], store: CellStore, limit: float, left: list[Cell], error: list[Exception]
) -> Iterator[Cell]:
    """Yield the cells that this process gets to claim, and note those that are left to others.

    joblib asks for the next in its own threads: what is raised there would be lost, and joblib
    wait for ever, so an error is noted, too.
    """
    for cell in cells:
        try:
            mine = store.claim(cell, limit)
        except Exception as problem:
            error.append(problem)
            return
        if mine:
            yield cell
        else:
            left.append(cell)


@contextmanager
def _threads(jobs: int, limit: float | None, play: str, store: CellStore) -> Iterator[_Players]:
    """Give what plays cells here: what is done is stored before the next cell begins."""
    from joblib import Parallel, delayed

    options: Any = {"return_as": "generator_unordered", "batch_size": 1}
    # Threads, since each only waits for a process that it may have to kill: joblib's own
    # processes are a pool in which one that is killed ends them all.
    pool = Parallel(jobs, backend="threading", pre_dispatch="n_jobs", **options)
    with closing(Children()) as children:
        rest = (children, limit, str(Path.cwd()), play, store)
        yield lambda cells: pool(delayed(_play)(cell, *rest) for cell in cells)


@contextmanager
def _cluster(
    made: AbstractContextManager[Cluster], store: CellStore, limit: float
) -> Iterator[_Players]:
    """Give what plays cells on a cluster, which cannot reach the store."""

    def stored(finished: Generator[Finished, None, None]) -> Generator[Finished, None, None]:
        with closing(finished):
            for cell, result in finished:
                store.put(cell, result, limit)
                yield cell, result

    with made as players:
        yield lambda cells: stored(players.play(cells))
