"""The mark on a saved state: which version it is of, and of which schedule."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from driftrate.errors import StateError
from driftrate.schedules.base import Schedule

STATE_VERSION = 3  # of what any adapter saves; it counts up when one of them changes


def stamp(schedule: Schedule) -> tuple[int, int]:
    """Return version and mark as numbers below 2^31: trees of arrays hold no strings."""
    return STATE_VERSION, crc32(f"{schedule.name} {schedule.version}".encode()) & 0x7FFFFFFF


def check_version(version: Any, what: str = "state", reads: int = STATE_VERSION) -> None:
    """Refuse a saved thing of another version, by number."""
    if version != reads:
        raise StateError(
            f"the saved {what} is of version {version}; this driftrate reads version {reads}"
        )


def check_stamp(saved: Any, schedule: Schedule) -> None:
    """Raise `StateError` unless a saved stamp is that of the schedule."""
    version, mark = (int(number) for number in saved)
    check_version(version)
    if mark != stamp(schedule)[1]:
        raise StateError(
            f"the saved state is of another schedule than {schedule.name}, or of another version"
            " of it: attach the same one"
        )
