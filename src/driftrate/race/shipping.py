"""A file on its way to the workers of a cluster: each that lacks it gets it once."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic

from driftrate.data.tables import fingerprint
from driftrate.errors import DataError
from driftrate.race.cell import Cell
from driftrate.race.sources import NOT_FILES

_PIECE_BYTES = 32 * 2**20
# Files on their way at once: the scheduler holds a piece of each.
_AT_ONCE = 4
Content = tuple[str, str]

# A worker that lacks a file after it was sent so many times cannot have it.
_TIMES = 3


# Of the client


class Refused(Exception):
    """A worker did not take a file."""


def content(cell: Cell) -> Content:
    """Return what a worker keeps the file of a cell by: its fingerprint and its name."""
    return cell.fingerprint, Path(cell.stream).name


class Files:
    """The files of a race, as this process has them, on their way to workers.

    Args:
        race: The name of the race.
        run: Awaits a function with arguments in the worker of an address.
    """

    def __init__(self, race: str, run: Callable[..., Awaitable[object]]) -> None:
        self._race, self._run = race, run
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._paths: dict[tuple[str, str], bool] = {}
        # By a worker's own name, since another may take its address, and what is in the file.
        self._tries: Counter[tuple[str, Content]] = Counter()
        self._why: dict[tuple[str, Content], str] = {}
        self._came: dict[tuple[str, Content], float] = {}

    def has(self, cell: Cell) -> bool:
        """Return whether the stream of a cell is a file that could be sent."""
        known = (cell.stream, cell.fingerprint)
        if known not in self._paths:
            is_file = cell.stream.partition(":")[0] not in NOT_FILES and Path(cell.stream).is_file()
            self._paths[known] = is_file and fingerprint(cell.stream) == cell.fingerprint
        return self._paths[known]

    def came(self, cell: Cell, name: str, since: float) -> bool:
        """Return whether the file of a cell has come to a worker that lacked it since then."""
        return self._came.get((name, content(cell)), -inf) > since

    async def send(self, cell: Cell, worker: str, name: str) -> int:
        """Send the file of a cell to a worker, in pieces.

        Returns:
            How many bytes were sent; 0 if it failed and may be tried again.

        Raises:
            Refused: The worker cannot take the file, or does not keep it, time and again.
            DataError: The file cannot be read, or has changed since the race began.
        """
        known = (name, content(cell))
        if self._tries[known] == _TIMES:
            raise Refused(self._why.get(known, "it does not keep what it is sent"))
        self._tries[known] += 1
        try:
            async with self._turns:
                sent = await self._pieces(cell, worker)
        except asyncio.CancelledError:  # the worker stands still, or is gone: it refused nothing
            self._tries[known] -= 1
            raise
        except Refused as refusal:
            self._why[known] = str(refusal)
            if self._tries[known] == _TIMES:
                raise
            return 0
        self._came[known] = monotonic()
        return sent

    async def _pieces(self, cell: Cell, worker: str) -> int:
        sent = 0
        try:
            with Path(cell.stream).open("rb") as file:
                while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                    await self._ask(worker, receive, cell, sent, piece)
                    sent += len(piece)
        except OSError as error:
            said = f"{cell.stream} cannot be read: {error.strerror or error}"
            raise DataError(said) from error
        if await asyncio.to_thread(fingerprint, cell.stream) != cell.fingerprint:
            said = f"{cell.stream} has changed since the race began"
            raise DataError(f"{said}: start the race again")
        await self._ask(worker, finish, cell)
        return sent

    async def _ask(self, worker: str, function: Callable[..., object], *arguments: object) -> None:
        try:
            await self._run(worker, function, self._race, *arguments)
        except Exception as error:  # whatever its connection broke with, or it raised
            raise Refused(str(error) or type(error).__name__) from error


# Of the worker


def place(cell: Cell, folder: str, kept: Sequence[str]) -> Cell | None:
    """Return a cell with its file where this worker has it; None if it has not.

    Args:
        cell: The cell, whose stream is a file.
        folder: That of the race, which relative paths start from.
        kept: The folder of what was sent here, as parts of a path.
    """
    for path in (Path(folder, cell.stream), _kept(cell, kept)):
        try:
            if fingerprint(path) == cell.fingerprint:
                return replace(cell, stream=str(path))
        except DataError:  # it is not there, or not to be read
            continue
    return None


def receive(race: str, cell: Cell, offset: int, piece: bytes, kept: Sequence[str]) -> None:
    """Write a piece of a file that a race sends."""
    path = _coming(race, cell, kept)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(piece)


def finish(race: str, cell: Cell, kept: Sequence[str]) -> None:
    """Give a file its name when all its pieces are there."""
    coming = _coming(race, cell, kept)
    if fingerprint(coming) != cell.fingerprint:
        coming.unlink()
        raise DataError(f"{cell.stream} did not arrive whole")
    os.replace(coming, _kept(cell, kept))


def _kept(cell: Cell, kept: Sequence[str]) -> Path:
    # By content, under its own name, which the stream is called by.
    return Path(*kept, *content(cell))


def _coming(race: str, cell: Cell, kept: Sequence[str]) -> Path:
    # Of one race: another may be sending the same file.
    path = _kept(cell, kept)
    return path.with_name(f"{path.name}.{race}.coming")
