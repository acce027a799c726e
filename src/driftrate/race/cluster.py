"""Cells on a Dask cluster: workers may die, come back, and lack the files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple

from driftrate.errors import ConfigError, DataError, DriftrateError, MissingDependency
from driftrate.race.cell import Cell, Result, without_result
from driftrate.race.children import CHILDREN
from driftrate.race.shipping import Files, place

# How often the scheduler is asked for its workers.
_LOOK_SECONDS = 1.0
# A scheduler that is gone for so long does not come back.
_PATIENCE_SECONDS = 10.0
# Cells that wait at each worker's thread, so that it never waits for one; no more, since they are
# claimed from other races on the same store.
_AHEAD = 2
# So many times over, a cell is handed out again after Dask gave it up: several workers died at it.
_AGAIN = 3

Say = Callable[[str], None]


class _Lacking(NamedTuple):
    """What a worker answers that has not the file of a cell."""

    worker: str


class Cluster:
    """Plays cells on the workers of a Dask client.

    Args:
        client: The client.
        limit: The time limit of a cell in seconds.
        play: The function that plays a cell, as `MODULE:FUNCTION`.
        say: Is told, in a line, when no worker is left and when one is back.
    """

    def __init__(self, client: Any, limit: float | None, play: str, say: Say) -> None:
        self._client = client
        self._rest = (limit, str(Path.cwd()), play)
        self._say = say
        self._files = Files(self._send)
        self._names = count()
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._waiting: dict[Any, tuple[Cell, int]] = {}  # by future: the cell, and how often again
        self._seen = monotonic()  # when the scheduler last answered
        self._threads = 1

    def play(self, cells: Iterable[Cell]) -> Generator[tuple[Cell, Result], None, None]:
        """Yield every cell with its result, as they finish.

        A cell of a worker that dies is played by another. Without any worker the cells wait, which
        is said, until one joins.

        Raises:
            DataError: The scheduler is gone.
            DriftrateError: A worker cannot play.
        """
        left = iter(cells)
        looked = -_LOOK_SECONDS
        try:
            while True:
                if monotonic() - looked >= _LOOK_SECONDS:
                    self._look()
                    looked = monotonic()
                room = max(0, _AHEAD * max(1, self._threads) - len(self._waiting))
                for cell in islice(left, room):
                    self._submit(cell)
                if not self._waiting:
                    return
                with suppress(Empty):
                    yield from self._take(self._done.get(timeout=_LOOK_SECONDS))
        finally:
            _told(self._client, lambda: self._client.cancel(list(self._waiting)))
            self._waiting.clear()

    def _submit(self, cell: Cell, again: int = 0) -> None:
        # A name of its own: Dask would give what it has of that name.
        name = f"{cell.method}-{next(self._names)}-{cell.key()[:16]}"
        arguments = (cell, *self._rest, self._files.has(cell))
        future = self._client.submit(_on_worker, *arguments, key=name, pure=False)
        self._wait(future, cell, again)

    def _wait(self, future: Any, cell: Cell, again: int) -> None:
        self._waiting[future] = cell, again
        future.add_done_callback(self._done.put)

    def _take(self, future: Any) -> Iterator[tuple[Cell, Result]]:
        cell, again = self._waiting.pop(future, (None, 0))
        if cell is None:
            return
        if future.status in ("cancelled", "lost"):  # with a scheduler that was away
            self._submit(cell, again)
            return
        try:
            error = future.exception(timeout=_LOOK_SECONDS)
            answer: Any = None if error else future.result(timeout=_LOOK_SECONDS)
        except TimeoutError:  # its worker died with the answer: it is played once more
            self._wait(future, cell, again)
            return
        if error is None:
            if isinstance(answer, _Lacking):
                # A worker that is gone by now, or has no room, is Dask's to replace.
                self._ship(cell, answer.worker)
                self._submit(cell, again)
            else:
                yield cell, answer
        elif type(error).__name__ == "KilledWorker":
            if again < _AGAIN:
                self._submit(cell, again + 1)
            else:
                said = "the workers that played it died, one after the other"
                yield cell, without_result("not played", said)
        elif isinstance(error, DriftrateError):
            raise error
        else:
            said = f"a Dask worker cannot play cells: {type(error).__name__}: {error}"
            raise ConfigError(f"{said}; it needs driftrate[race] as it is here") from error

    def _ship(self, cell: Cell, worker: str) -> None:
        try:
            self._files.ship(cell, worker)
        except DriftrateError:
            raise
        except Exception as error:
            if worker in self._client.ncores():
                said = f"cannot send {cell.stream} to the worker at {worker}: {error}"
                raise DataError(said) from error

    def _send(self, worker: str, function: Callable[..., object], *arguments: object) -> None:
        self._client.run(_beside, function, *arguments, workers=[worker])

    def _look(self) -> None:
        """Count the workers' threads, and say where there are none."""
        where = self._client.scheduler.address
        if self._client.status == "running":
            try:
                cores = self._client.ncores()
            except Exception:  # whatever the connection broke with
                cores = None
            if cores is not None:
                self._seen = monotonic()
                threads = sum(cores.values())
                if self._threads and not threads:
                    waiting = f"{len(self._waiting)} begun cells wait until one joins"
                    self._say(f"no worker is left at the Dask scheduler {where}: {waiting}")
                elif threads and not self._threads:
                    self._say("a Dask worker is there again: going on")
                self._threads = threads
                return
        if monotonic() - self._seen > _PATIENCE_SECONDS:
            said = f"the Dask scheduler at {where} is gone"
            raise DataError(f"{said}; run again to go on: no finished cell is played twice")


@contextmanager
def cluster(
    jobs: int, scheduler: str | None, limit: float | None, play: str, say: Say
) -> Iterator[Cluster]:
    """Give a cluster: that of a scheduler's address, or as many threads here as there are jobs."""
    with _client(jobs, scheduler) as client:
        try:
            yield Cluster(client, limit, play, say)
        finally:
            _told(client, lambda: client.run(_end_children, on_error="ignore"))


def _told(client: Any, tell: Callable[[], object]) -> None:
    """Tell a cluster something, if it is still there."""
    if client.status == "running":
        with suppress(Exception):  # it may go at any time
            tell()


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
    local = distributed.LocalCluster(**threads, dashboard_address=None)
    with local, distributed.Client(local, set_as_default=False) as client:
        yield client


# What runs in a worker


def _on_worker(
    cell: Cell, limit: float | None, folder: str, play: str, of_file: bool
) -> Result | _Lacking:
    """Play a cell in a child process of this worker."""
    if not of_file:
        return CHILDREN.play(cell, limit, folder, play)
    worker = import_module("distributed").get_worker()
    here = place(cell, folder, _kept(worker))
    return _Lacking(worker.address) if here is None else CHILDREN.play(here, limit, folder, play)


def _beside(function: Callable[..., object], *arguments: object, dask_worker: Any) -> None:
    """Call a function with the folder of this worker that is removed with it."""
    function(*arguments, _kept(dask_worker))


def _end_children() -> None:
    CHILDREN.close()


def _kept(worker: Any) -> tuple[str, str]:
    return str(worker.local_directory), "driftrate"
