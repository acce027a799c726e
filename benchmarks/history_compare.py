"""What benchmarks/history.py has measured of each commit, and which figures became worse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from math import hypot
from pathlib import Path
from typing import Any, NamedTuple

_SURE = 3.0  # standard errors of the difference
# And as a share of the figure: a machine's speed is never quite the same, nor is rounding.
_CLEAR = {"speed": 0.2, "regret": 0.001}

Figure = dict[str, Any]


class Entry(NamedTuple):
    """What was measured of one commit: its figures by name, and on which machine."""

    commit: str
    committed: str
    version: str
    machine: dict[str, Any]
    measures: dict[str, Figure]


def read(folder: Path) -> list[Entry]:
    """Read all files of a folder, the oldest commit first."""
    found = []
    for path in folder.glob("*.json"):
        told = json.loads(path.read_text())
        told["measures"] = {one["name"]: one for one in told["measures"]}
        found.append(Entry(**told))
    # By the moment, not by the letter: a commit has its author's time zone.
    return sorted(found, key=lambda one: datetime.fromisoformat(one.committed))


def comparable(name: str, before: Entry, after: Entry) -> bool:
    """Say whether both have the figure, by the same yardstick, a speed on the same machine."""
    old, new = (one.measures.get(name) for one in (before, after))
    if old is None or new is None or old["over"] != new["over"]:
        return False
    return new["kind"] == "regret" or before.machine == after.machine


def worse(entries: Sequence[Entry]) -> list[str]:
    """Say which figures of the newest are worse by more than their error bars; low is good.

    Each is compared with all that came before: against the last alone, many small losses would
    pass one by one. Of those that it is worse than, the last and the best are told.
    """
    after, said = entries[-1], []
    for name, new in after.measures.items():
        before = _still_asked_of(name, entries)
        worse_than = [one for one in before if _is_worse(one.measures[name], new)]
        told = {}
        if worse_than:
            told[min(worse_than, key=lambda one: one.measures[name]["value"]).commit] = "the best"
        if worse_than and worse_than[-1] is before[-1]:
            told[before[-1].commit] = "the one before"
        said += [
            f"{name}: {_value(new)} in {after.commit}, {_value(one.measures[name])} in"
            f" {one.commit}, {told[one.commit]}"
            for one in worse_than
            if one.commit in told
        ]
    return said


def _still_asked_of(name: str, entries: Sequence[Entry]) -> list[Entry]:
    """Return what the newest's figure is compared with, back to where a loss was accepted."""
    after, found = entries[-1], []
    for before, later in zip(entries[-2::-1], entries[:0:-1], strict=True):
        if "accepted" in later.measures.get(name, {}):
            break
        if comparable(name, before, after):
            found.append(before)
    return found[::-1]


def _is_worse(old: Figure, new: Figure) -> bool:
    bar = _SURE * hypot(new["error"], old["error"])
    return bool(new["value"] - old["value"] > max(bar, _CLEAR[new["kind"]] * old["value"]))


def _value(one: Figure) -> str:
    return f"{one['value']:.3f} ± {one['error']:.3f}"
