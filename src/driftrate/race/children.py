"""The child processes of a race in one process: as many as it plays cells there at once."""

from __future__ import annotations

import threading

from driftrate.race.cell import Cell, Result
from driftrate.race.child import Child


class Stopped(Exception):
    """The race was stopped in mid-cell."""


class Children:
    """Processes that play cells for the threads of this one, kept for the next cell."""

    def __init__(self) -> None:
        self._all: set[Child] = set()
        self._idle: list[Child] = []
        self._turn = threading.Lock()
        self._closed = False

    def play(self, cell: Cell, limit: float | None, folder: str, play: str) -> Result:
        """Play a cell in a process that has no other to play; see `Child.play`."""
        child = self._take(play)
        result = child.play(cell, limit, folder)
        with self._turn:
            if child not in self._all:
                raise Stopped
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
            if not self._closed:
                self._all.add(child)
                return child
        child.close()
        raise Stopped

    def close(self) -> None:
        """End all of them: idle ones in peace, busy ones in mid-cell."""
        with self._turn:
            self._closed = True
            for child in self._all.difference(self._idle):
                child.kill()  # the thread that waits for its answer cleans up
            for child in self._idle:
                child.close()
            self._all.clear()
            self._idle.clear()
