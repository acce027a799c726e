"""What runs in a Dask worker: the cells of races, each race with child processes of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

from driftrate.race import shipping
from driftrate.race.cell import Cell, Result
from driftrate.race.children import Children

# A race that plays nothing here for so long has ended, or its process was killed.
_IDLE_SECONDS = 60.0


class Lacking(NamedTuple):
    """What a worker answers that has not the file of a cell: its address, and its own name."""

    worker: str
    name: str


@dataclass
class _Guest:
    """A race, as this worker knows it."""

    children: Children = field(default_factory=Children)
    playing: int = 0
    leaving: threading.Timer | None = None


_guests: dict[str, _Guest] = {}
_turn = threading.Lock()


def play_here(
    race: str, cell: Cell, limit: float | None, folder: str, play: str, of_file: bool
) -> Result | Lacking:
    """Play a cell of a race in a child process, if its file is here."""
    if of_file:
        worker = import_module("distributed").get_worker()
        here = shipping.place(cell, folder, _kept(worker))
        if here is None:
            return Lacking(worker.address, worker.id)
        cell = here
    with _turn:
        guest = _guests.setdefault(race, _Guest())
        guest.playing += 1
        if guest.leaving is not None:
            guest.leaving.cancel()
    try:
        return guest.children.play(cell, limit, folder, play)
    finally:
        with _turn:
            guest.playing -= 1
            if not guest.playing:
                guest.leaving = threading.Timer(_IDLE_SECONDS, _leave, (race, guest))
                guest.leaving.daemon = True
                guest.leaving.start()


def _leave(race: str, guest: _Guest) -> None:
    with _turn:
        if guest.playing or _guests.get(race) is not guest:
            return
        del _guests[race]
    guest.children.close()


def end(race: str) -> None:
    """End what a race has running here, and nothing of the other races."""
    with _turn:
        guest = _guests.pop(race, None)
    if guest is None:
        return
    if guest.leaving is not None:
        guest.leaving.cancel()
    guest.children.close()


async def beside(function: Callable[..., object], *arguments: object, dask_worker: Any) -> None:
    """Call a function with the folder of this worker that is removed with it.

    In a thread, so that the worker's heart beats on while a large file is written or read.
    """
    await asyncio.to_thread(function, *arguments, _kept(dask_worker))


def _kept(worker: Any) -> tuple[str, str]:
    return str(worker.local_directory), "driftrate"
