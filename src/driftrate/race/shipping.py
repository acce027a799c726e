"""A file on its way to the workers of a cluster: each that lacks it gets it once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from driftrate.data.tables import fingerprint
from driftrate.errors import DataError
from driftrate.race.cell import Cell
from driftrate.race.sources import NOT_FILES

_PIECE_BYTES = 32 * 2**20


# Of the client


class Files:
    """The files of a race, as this process has them.

    Args:
        send: Calls a function with arguments in the worker of an address, and waits for it.
    """

    def __init__(self, send: Callable[..., object]) -> None:
        self._send = send
        self._there: set[tuple[str, str]] = set()  # the workers that got a file, by fingerprint
        self._paths: dict[tuple[str, str], bool] = {}

    def has(self, cell: Cell) -> bool:
        """Return whether the stream of a cell is a file that could be sent."""
        known = (cell.stream, cell.fingerprint)
        if known not in self._paths:
            is_file = cell.stream.partition(":")[0] not in NOT_FILES and Path(cell.stream).is_file()
            self._paths[known] = is_file and fingerprint(cell.stream) == cell.fingerprint
        return self._paths[known]

    def ship(self, cell: Cell, worker: str) -> None:
        """Send the file of a cell to a worker that lacks it, in pieces; once.

        Raises:
            OSError: The worker is gone, or cannot write.
            DataError: The file has changed since the race began.
        """
        if (worker, cell.fingerprint) in self._there:
            return
        with Path(cell.stream).open("rb") as file:
            offset = 0
            while piece := file.read(_PIECE_BYTES):
                self._send(worker, receive, cell, offset, piece)
                offset += len(piece)
        self._send(worker, finish, cell)
        self._there.add((worker, cell.fingerprint))


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


def receive(cell: Cell, offset: int, piece: bytes, kept: Sequence[str]) -> None:
    """Write a piece of a file."""
    path = _coming(cell, kept)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(piece)


def finish(cell: Cell, kept: Sequence[str]) -> None:
    """Give a file its name when all its pieces are there."""
    coming = _coming(cell, kept)
    if fingerprint(coming) != cell.fingerprint:
        coming.unlink()
        raise DataError(f"{cell.stream} has changed since the race began: start the race again")
    os.replace(coming, _kept(cell, kept))


def _kept(cell: Cell, kept: Sequence[str]) -> Path:
    # By content, under its own name, which the stream is called by.
    return Path(*kept, cell.fingerprint, Path(cell.stream).name)


def _coming(cell: Cell, kept: Sequence[str]) -> Path:
    path = _kept(cell, kept)
    return path.with_name(f"{path.name}.coming")
