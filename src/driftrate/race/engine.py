"""Play the cells of a race: what is missing, in parallel, here or on a cluster."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from time import sleep
from typing import Any

from driftrate.errors import ConfigError, MissingDependency
from driftrate.race.cell import Cell, Result
from driftrate.race.child import Child
from driftrate.race.store import CellStore

ENGINES = ("local", "dask")
PLAY = "driftrate.race.play:play"
# How often to look for cells that another process is at.
_POLL_SECONDS = 0.5
Finished = tuple[Cell, Result]


class _Stopped(Exception):
    """The race was stopped in mid-cell."""


class _Children:
    """The child processes of this process: as many as it plays cells at once."""

    def __init__(self) -> None:
        self._all: set[Child] = set()
        self._idle: list[Child] = []
        self._turn = threading.Lock()

    def play(self, cell: Cell, limit: float | None, folder: str, play: str) -> Result:
        child = self._take(play)
        result = child.play(cell, limit, folder)
        with self._turn:
            if child not in self._all:
                raise _Stopped
            if child.alive:
                self._idle.append(child)
            else:
                self._all.discard(child)
        return result

    def _take(self, play: str) -> Child:
        with self._turn:
            for child in [child for child in self._idle if not child.alive]:  # somebody killed it
                self._idle.remove(child)
                self._all.discard(child)
                child.close()
            fit = next((child for child in self._idle if child.play_name == play), None)
            if fit is not None:
                self._idle.remove(fit)
                return fit
        child = Child(play)
        with self._turn:
            self._all.add(child)
        return child

    def close(self) -> None:
        """End all of them: idle ones in peace, busy ones in mid-cell."""
        with self._turn:
            for child in self._all.difference(self._idle):
                child.kill()  # the thread that waits for its answer cleans up
            for child in self._idle:
                child.close()
            self._all.clear()
            self._idle.clear()


_CHILDREN = _Children()


def _play(
    cell: Cell, limit: float | None, folder: str, play: str, store: CellStore | None
) -> Finished:
    result = _CHILDREN.play(cell, limit, folder, play)
    if store is not None:
        store.put(cell, result, _within(limit))
    return cell, result


def _within(limit: float | None) -> float:
    return math.inf if limit is None else limit


def _end_children() -> None:
    _CHILDREN.close()


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
) -> Generator[Finished, None, None]:
    """Yield every cell with its result: the stored ones first, the others as they finish.

    joblib's threads, or Dask's, each look after a process that plays one cell at a time. A result
    is stored before it is yielded. Cells that another process has claimed are left to it, and taken
    over if it ends.

    Args:
        cells: The cells, those that are wanted first before the others.
        store: Where finished cells lie.
        jobs: How many cells to play at once; a cluster given by `scheduler` has its own number.
        limit: The time limit of a cell in seconds.
        engine: `"local"` or `"dask"`.
        scheduler: The address of a Dask scheduler; without it Dask starts workers here.
        play: The function that plays a cell, as `MODULE:FUNCTION`.

    Raises:
        DriftrateError: The store cannot be written, or no scheduler answers.
    """
    from joblib import delayed

    check_engine(engine, scheduler)
    within = _within(limit)
    # What is played here is stored before the next cell begins; a cluster cannot reach the store.
    here = store if engine == "local" else None
    todo = yield from _stored(cells, store, within)
    if not todo:
        return
    with _pool(engine, jobs, scheduler) as pool:
        while todo:
            left: list[Cell] = []
            error: list[Exception] = []
            mine = _claimed(todo, store, within, left, error)
            rest = (limit, str(Path.cwd()), play, here)
            finished = pool(delayed(_play)(cell, *rest) for cell in mine)
            try:
                for cell, result in finished:
                    if here is None:
                        store.put(cell, result, within)
                    yield cell, result
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
def _pool(engine: str, jobs: int, scheduler: str | None) -> Iterator[Any]:
    """Give joblib's runner of calls, which yields what they return as they finish."""
    from joblib import Parallel, parallel_config

    options: Any = {"return_as": "generator_unordered", "batch_size": 1}
    try:
        if engine == "local":
            # Threads, since each only waits for a process that it may have to kill: joblib's own
            # processes are a pool in which one that is killed ends them all.
            yield Parallel(jobs, backend="threading", pre_dispatch="n_jobs", **options)
        else:
            with _client(jobs, scheduler) as client, parallel_config("dask", client=client):
                try:
                    yield Parallel(jobs, pre_dispatch="2*n_jobs", **options)
                finally:
                    client.run(_end_children)
    finally:
        _end_children()


@contextmanager
def _client(jobs: int, scheduler: str | None) -> Iterator[Any]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError as missing:
        said = "--engine dask needs distributed: pip install 'driftrate[race]'"
        raise MissingDependency(said) from missing
    if scheduler is not None:
        try:
            client = distributed.Client(scheduler, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            said = f"no Dask scheduler answers at {scheduler}: {error}; give host:port"
            raise ConfigError(said) from error
        with client:
            if not client.ncores():
                raise ConfigError(f"the Dask scheduler at {scheduler} has no workers: start some")
            yield client
        return
    # Threads: the work is done in child processes all the same.
    threads = {"n_workers": jobs, "threads_per_worker": 1, "processes": False}
    cluster = distributed.LocalCluster(**threads, dashboard_address=None)
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client
