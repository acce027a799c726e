"""Cells on a Dask cluster: workers may die, fall silent, come back, and lack the files."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any
from uuid import uuid4

from driftrate.errors import ConfigError, DataError, DriftrateError, MissingDependency
from driftrate.race import at_worker
from driftrate.race.at_worker import Lacking
from driftrate.race.beats import SILENT_SECONDS, Beats
from driftrate.race.cell import Cell, Result, without_result
from driftrate.race.shipping import Files, Refused, content

# How often the scheduler is asked for its workers, and how long it may take to answer.
_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 3.0
# A race ends when its scheduler has not answered for so long.
_PATIENCE_SECONDS = 10.0
# Cells that wait at each worker's thread, so that it never waits for one; no more, since they are
# claimed from other races on the same store.
_AHEAD = 2
# So many times over, a cell is handed out again after Dask gave it up: several workers died while
# they had it. So many times, too, it is taken from a worker that is silent; then it stays there,
# since a cell that makes every worker slow would never end.
_AGAIN = 3

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Handed:
    """A cell that is handed out.

    Args:
        cell: The cell.
        died: How often Dask gave it up.
        moved: How often it was taken from a silent worker.
        when: When it was handed out last.
        only: The workers that may have it; all if none.
        withheld: Whether its answer is there, but could not be fetched.
    """

    cell: Cell
    died: int = 0
    moved: int = 0
    when: float = 0.0
    only: frozenset[str] = frozenset()
    withheld: bool = False


@dataclass
class _Sending:
    """A file on its way to a worker, and the cells that came back from there for the lack of it."""

    cell: Cell
    to: Lacking
    cells: list[_Handed]


class Cluster:
    """Plays cells on the workers of a Dask client.

    Args:
        client: The client.
        limit: The time limit of a cell in seconds.
        play: The function that plays a cell, as `MODULE:FUNCTION`.
        say: Is told, in a line, which workers fall silent, when none answers and when one does
            again, and which are sent a file.
        at_once: Is told how many cells are played at once, whenever that changes.
    """

    def __init__(
        self,
        client: Any,
        limit: float | None,
        play: str,
        say: Say,
        at_once: Callable[[int], None],
    ) -> None:
        self.race = uuid4().hex
        self._client = client
        self._where = client.scheduler.address  # a client that gives up forgets it
        self._rest = (limit, str(Path.cwd()), play)
        self._say, self._at_once = say, at_once
        self._beats = Beats()
        self._files = Files(self.race, self._beside)
        self._names = count()
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._waiting: dict[Any, _Handed] = {}  # by the future of a cell
        self._sending: dict[Any, _Sending] = {}  # by the future of a file
        self._refused: dict[str, set[str]] = {}  # workers that cannot take it, by fingerprint
        self._asked: float | None = None  # when the scheduler was first asked in vain
        self._threads: int | None = None

    def play(self, cells: Iterable[Cell]) -> Generator[tuple[Cell, Result], None, None]:
        """Yield every cell with its result, as they finish.

        A cell of a worker that dies, or is silent while others answer, is played by another. While
        no worker answers the cells wait, which is said, until one does.

        Raises:
            DataError: The scheduler does not answer, or no worker can take a file.
            DriftrateError: A worker cannot play.
        """
        left = iter(cells)
        looked = -_LOOK_SECONDS
        try:
            while True:
                if monotonic() - looked >= _LOOK_SECONDS:
                    self._look()
                    looked = monotonic()
                busy = len(self._waiting) + sum(len(one.cells) for one in self._sending.values())
                for cell in islice(left, max(0, _AHEAD * max(1, self._threads or 0) - busy)):
                    self._hand_out(_Handed(cell))
                if not self._waiting and not self._sending:
                    return
                with suppress(Empty):
                    done = self._done.get(timeout=_LOOK_SECONDS)
                    if done in self._sending:
                        self._has_file(done)
                    elif done in self._waiting:
                        yield from self._take(done)
        finally:
            for sending in self._sending:
                sending.cancel()
            self._tell(self._client.cancel, list(self._waiting))
            self._waiting.clear()
            self._sending.clear()

    def end(self) -> None:
        """End what this race has running on the workers that answer."""
        at = {"workers": [*self._beats.answering], "on_error": "ignore"}
        self._tell(self._client.run, at_worker.end, self.race, **at)

    def _hand_out(self, one: _Handed) -> None:
        # A name of its own: Dask would give what it has of that name.
        name = f"{one.cell.method}-{self.race}-{next(self._names)}"
        of_file = self._files.has(one.cell)
        arguments = (self.race, one.cell, *self._rest, of_file)
        only = self._fit(one.cell.fingerprint if of_file else None)
        options = {"key": name, "pure": False, "workers": sorted(only) or None}
        try:
            future = self._client.submit(at_worker.play_here, *arguments, **options)
        except Exception as error:
            raise self._unanswered() if self._gave_up else error from error
        self._wait(future, replace(one, when=monotonic(), only=only, withheld=False))

    def _fit(self, fingerprint: str | None) -> frozenset[str]:
        """Return the workers that may have a cell where some may not; none where all may."""
        unfit = set(self._beats.silent)
        if fingerprint is not None:
            unfit |= self._refused.get(fingerprint, set())
            coming = (one for one in self._sending.values() if one.cell.fingerprint == fingerprint)
            unfit |= {one.to.worker for one in coming}
        return frozenset(self._beats.answering.keys() - unfit) if unfit else frozenset()

    def _wait(self, future: Any, one: _Handed) -> None:
        self._waiting[future] = one
        future.add_done_callback(self._done.put)

    def _take(self, future: Any) -> Iterator[tuple[Cell, Result]]:
        one = self._waiting.pop(future)
        # The scheduler forgot it: it was away, or somebody cleared it.
        if future.status in ("cancelled", "lost"):
            self._hand_out(one)
            return
        try:
            error = future.exception(timeout=_LOOK_SECONDS)
            answer: Any = None if error else future.result(timeout=_LOOK_SECONDS)
        except (TimeoutError, CancelledError):
            # The answer is at a worker that does not give it. If that one dies, Dask has the cell
            # played again under the same future; while it is silent, `_look` takes it from there.
            self._wait(future, replace(one, withheld=True))
            return
        if error is None:
            if isinstance(answer, Lacking):
                self._send(one, answer)
            else:
                yield one.cell, answer
        elif type(error).__name__ == "KilledWorker":
            if one.died < _AGAIN:
                self._hand_out(replace(one, died=one.died + 1))
            else:
                said = "the workers that had it died, one after the other"
                yield one.cell, without_result("not played", said)
        elif isinstance(error, DriftrateError):
            raise error
        else:
            said = f"a Dask worker cannot play cells: {type(error).__name__}: {error}"
            raise ConfigError(f"{said}; it needs driftrate[race] as it is here") from error

    def _send(self, one: _Handed, to: Lacking) -> None:
        """Have a worker sent the file of a cell, which waits for it."""
        fingerprint = one.cell.fingerprint
        for sending in self._sending.values():
            if sending.to == to and content(sending.cell) == content(one.cell):
                sending.cells.append(one)
                return
        refused = self._refused.get(fingerprint, set())
        others = self._beats.answering.keys() - refused
        if self._files.came(one.cell, to.name, one.when) or (to.worker in refused and others):
            self._hand_out(one)
            return
        work = self._files.send(one.cell, *to)
        future = asyncio.run_coroutine_threadsafe(work, self._client.loop.asyncio_loop)
        self._sending[future] = _Sending(one.cell, to, [one])
        future.add_done_callback(self._done.put)

    async def _beside(self, worker: str, function: Callable[..., object], *rest: object) -> None:
        await self._client.run(at_worker.beside, function, *rest, workers=[worker])

    def _has_file(self, future: Any) -> None:
        """Hand out the cells that waited for a file, which has come or will not."""
        sending = self._sending.pop(future)
        worker, cell = sending.to.worker, sending.cell
        try:
            sent = future.result()
        except CancelledError:  # of a worker that is gone or silent
            pass
        except Refused as refusal:
            self._look()
            if worker in self._beats.answering:
                self._refuse(cell, worker, refusal)
        else:
            name = Path(cell.stream).name
            if sent:
                self._say(f"sent {name} to the worker at {worker}: {sent:,} bytes")
        for one in sending.cells:
            self._hand_out(one)

    def _refuse(self, cell: Cell, worker: str, refusal: Refused) -> None:
        refused = self._refused.setdefault(cell.fingerprint, set())
        refused.add(worker)
        said = f"cannot send {cell.stream} to the worker at {worker}: {refusal}"
        if self._beats.answering.keys() <= refused:
            raise DataError(said) from refusal
        self._say(f"{said}; others play its cells")

    def _look(self) -> None:
        """See which workers answer, say what changed, and go round those that do not."""
        begin = monotonic()
        try:
            known = self._ask(self._client.scheduler.identity)["workers"]
        except Exception as error:  # whatever the connection broke with
            # Not since it last answered: whoever takes the cells may have been away.
            self._asked = begin if self._asked is None else self._asked
            if self._gave_up or monotonic() - self._asked > _PATIENCE_SECONDS:
                raise self._unanswered() from error
            return
        self._asked, now = None, monotonic()
        if now - begin > _LOOK_SECONDS:
            self._beats.excuse(now)
        self._beats.note(known, now)
        # Another may come to the address of one that is gone, and take it.
        for refused in self._refused.values():
            refused.intersection_update(known)
        threads = sum(self._beats.answering.values())
        if not threads and self._threads != 0:
            none, end = ("answers", "joins or wakes") if known else ("is", "joins")
            waiting = f"the cells wait until one {end}"
            self._say(f"no worker {none} at the Dask scheduler {self._where}: {waiting}")
        elif threads and self._threads == 0:
            self._say("a Dask worker answers: going on")
        if threads and threads != self._threads:
            self._at_once(threads)
        self._threads = threads
        # Where none was heard just now, the others may be about to be found silent, too.
        if threads and self._beats.quiet < SILENT_SECONDS / 2:
            self._go_round(known)

    @property
    def _gave_up(self) -> bool:
        """Whether the client itself has waited for the scheduler for as long as it does."""
        return bool(self._client.status == "closed")

    def _unanswered(self) -> DataError:
        said = f"has not answered for {_PATIENCE_SECONDS:g} s; run again to go on"
        said = f"the Dask scheduler at {self._where} {said}"
        return DataError(f"{said}: no finished cell is played twice")

    def _go_round(self, known: Any) -> None:
        """Take from silent workers, and from those that are gone, what others can do."""
        for future, sending in self._sending.items():
            if sending.to.worker not in self._beats.answering:
                future.cancel()
        at = self._at_silent()
        moved: Counter[str] = Counter()
        for future, one in list(self._waiting.items()):
            worker = at.get(future.key)
            if worker is not None and one.moved < _AGAIN:
                moved[worker] += 1
                again = replace(one, moved=one.moved + 1)
            elif not one.only or one.only & known.keys():
                continue
            else:
                again = one
            del self._waiting[future]
            self._client.cancel([future])
            self._hand_out(again)
        for worker, cells in moved.items():
            its = "its cell goes" if cells == 1 else f"its {cells} cells go"
            self._say(f"{worker} has not answered for {SILENT_SECONDS:g} s: {its} to others")

    def _at_silent(self) -> dict[str, str]:
        """Return the silent workers that have cells of this race, by the names of the futures."""
        silent = [*self._beats.silent]
        if not silent:
            return {}
        withheld = [future.key for future, one in self._waiting.items() if one.withheld]
        try:
            doing = self._ask(self._client.scheduler.processing, workers=silent)
            having = self._ask(self._client.scheduler.who_has, keys=withheld) if withheld else {}
        except Exception:  # one is gone by now: the next look will do
            return {}
        found = {name: worker for worker, names in doing.items() for name in names}
        here = {name: workers for name, workers in having.items() if workers}
        return found | {n: ws[0] for n, ws in here.items() if self._beats.silent.issuperset(ws)}

    def _tell(self, tell: Callable[..., Any], *rest: Any, **more: Any) -> None:
        """Tell the cluster something, if it is still there."""

        async def told() -> None:
            await tell(*rest, **more)

        if self._client.status == "running":
            with suppress(Exception):  # it may go at any time
                self._ask(told)

    def _ask(self, question: Callable[..., Any], **rest: Any) -> Any:
        """Return the scheduler's answer to a question, if it comes in time."""
        return self._client.sync(question, callback_timeout=_ANSWER_SECONDS, **rest)


@contextmanager
def cluster(
    jobs: int,
    scheduler: str | None,
    limit: float | None,
    play: str,
    say: Say,
    at_once: Callable[[int], None],
) -> Iterator[Cluster]:
    """Give a cluster: that of a scheduler's address, or as many threads here as there are jobs."""
    with _client(jobs, scheduler) as client:
        made = Cluster(client, limit, play, say, at_once)
        try:
            yield made
        finally:
            made.end()


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
            yield client
        return
    # Threads: the work is done in child processes all the same.
    threads = {"n_workers": jobs, "threads_per_worker": 1, "processes": False}
    # Without a dashboard it still opens a port, which another race here would find taken.
    ports = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}
    local = distributed.LocalCluster(**threads, **ports)
    with local, distributed.Client(local, set_as_default=False) as client:
        yield client
