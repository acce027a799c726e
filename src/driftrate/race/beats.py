"""Which workers of a cluster answer: a worker may stand still without being gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A worker that the scheduler has not heard of for so long is silent: twelve beats of one of ten.
SILENT_SECONDS = 6.0
# Workers of large clusters beat more seldom, every 1 + n / 200 s: so many beats may be missing.
_BEATS = 3


class Beats:
    """Tells from a scheduler's notes on its workers which of them answer.

    The notes say when a worker was last heard, by the scheduler's clock: all that counts here is
    that they change, so that the two clocks need not agree.

    Example:
        >>> beats, worker = Beats(), {"nthreads": 2, "last_seen": 100.0}
        >>> beats.note({"a": worker, "b": worker}, now=0.0)
        >>> beats.note({"a": worker, "b": {**worker, "last_seen": 106.5}}, now=7.0)
        >>> beats.answering, beats.silent
        ({'b': 2}, {'a'})
    """

    def __init__(self) -> None:
        self.answering: dict[str, int] = {}  # by address: how many threads
        self.silent: set[str] = set()
        self.quiet = 0.0  # for how many seconds none of them was heard
        self._heard: dict[str, tuple[float, float]] = {}  # the note, and when it last changed

    def note(self, workers: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Take in a scheduler's notes on all its workers."""
        heard = {}
        for address, worker in workers.items():
            note, since = self._heard.get(address, (None, now))
            seen = worker["last_seen"]
            heard[address] = (seen, since if seen == note else now)
        self._heard = heard
        patience = max(SILENT_SECONDS, _BEATS * (1.0 + len(heard) / 200))
        # Of many workers, none is heard for long only if all of them stand still.
        self.quiet = now - max((since for _, since in heard.values()), default=now)
        if self.quiet >= SILENT_SECONDS:
            patience = 0.0
        self.silent = {one for one, (_, since) in heard.items() if now - since > patience}
        self.answering = {
            address: worker["nthreads"]
            for address, worker in workers.items()
            if address not in self.silent
        }

    def excuse(self, now: float) -> None:
        """Begin to listen anew: the scheduler was late itself, and may not have heard in time."""
        self._heard = {address: (note, now) for address, (note, _) in self._heard.items()}
