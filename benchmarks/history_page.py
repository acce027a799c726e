"""The page of benchmarks/history.py: a small picture for each figure, and what became worse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from html import escape
from itertools import pairwise
from math import hypot
from pathlib import Path
from typing import Any, NamedTuple

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 130, 44, 12, 12, 24
_COLOUR = "#d9730d"
_SURE = 3.0  # standard errors of the difference
_CLEAR = {
    "speed": 0.2,
    "regret": 0.001,
}  # and as a share: a machine's speed is never quite the same


class Entry(NamedTuple):
    """What was measured of one commit: its figures by name, and on which machine."""

    commit: str
    committed: str
    version: str
    machine: dict[str, Any]
    measures: dict[str, dict[str, Any]]


def read(folder: Path) -> list[Entry]:
    """Read all files of a folder, the oldest commit first."""
    found = []
    for path in folder.glob("*.json"):
        told = json.loads(path.read_text())
        told["measures"] = {one["name"]: one for one in told["measures"]}
        found.append(Entry(**told))
    # By the moment, not by the letter: a commit has its author's time zone.
    return sorted(found, key=lambda one: datetime.fromisoformat(one.committed))


def worse(before: Entry, after: Entry) -> list[str]:
    """Say which figures are worse by more than their error bars; every figure is better low.

    Speeds are compared where the machine is the same.
    """
    said = []
    for name, new in after.measures.items():
        old = before.measures.get(name)
        if old is None or (new["kind"] == "speed" and before.machine != after.machine):
            continue
        more = new["value"] - old["value"]
        bar = _SURE * hypot(new["error"], old["error"])
        if more > max(bar, _CLEAR[new["kind"]] * old["value"]):
            said.append(
                f"{name}: {new['value']:.3f} ± {new['error']:.3f} in {after.commit},"
                f" {old['value']:.3f} ± {old['error']:.3f} in {before.commit}"
            )
    return said


def page(entries: Sequence[Entry]) -> str:
    """Return the page as Markdown with SVG inside."""
    newest = entries[-1]
    lines = [
        "# From commit to commit",
        "",
        "Quick figures of the library, each a ratio within one run: the lower the better. Bars are",
        "two standard errors, over seeds (regret) or over rounds of time (speed); a line joins",
        "what may be compared: speeds of one machine. Point at a dot to read it.",
        "",
        "    python benchmarks/history.py             # measures a commit, and writes this page",
        "    python benchmarks/history.py --compare   # fails if the newest is worse than the last",
        "",
        f"The newest is {newest.commit}, version {newest.version}, on {newest.machine['cpu']}"
        f" ({newest.machine['cores']} cores).",
        "",
    ]
    for kind, title in (("regret", "Regret and loss"), ("speed", "Speed")):
        lines += [f"## {title}", ""]
        for name, one in newest.measures.items():
            if one["kind"] == kind:
                lines += [
                    f"**{name}**, over {one['over']}: {one['value']:.3f} ± {one['error']:.3f}",
                    "",
                ]
                lines += [_picture(name, entries), ""]
    return "\n".join(lines).rstrip() + "\n"


def _picture(name: str, entries: Sequence[Entry]) -> str:
    """Return one figure over all commits that have it, as SVG on one line."""
    kept = [(one, one.measures[name]) for one in entries if name in one.measures]
    highest: float = 1.15 * max(m["value"] + 2 * m["error"] for _, m in kept)
    inner = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(i: int) -> float:
        return _LEFT + inner[0] * ((i + 0.5) / len(kept))

    def y(value: float) -> float:
        return _TOP + inner[1] * (1.0 - max(value, 0.0) / highest)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img"'
        f' aria-label="{escape(name)}" font-family="sans-serif" font-size="10" fill="currentColor">'
    ]
    right = _WIDTH - _RIGHT
    parts += [
        f'<path d="M{_LEFT} {y(value):.1f}H{right}" stroke="currentColor" opacity=".25"/>'
        f'<text x="{_LEFT - 5}" y="{y(value) + 3:.1f}" text-anchor="end">{value:.3g}</text>'
        for value in (0.0, highest / 1.15)
    ]
    for i, ((old, a), (new, b)) in enumerate(pairwise(kept)):
        if old.machine == new.machine or b["kind"] == "regret":
            ends = f"M{x(i):.1f} {y(a['value']):.1f}L{x(i + 1):.1f} {y(b['value']):.1f}"
            parts.append(f'<path d="{ends}" stroke="{_COLOUR}" stroke-width="1.5" fill="none"/>')
    for i, (entry, one) in enumerate(kept):
        low, high = (one["value"] + sign * 2 * one["error"] for sign in (-1, 1))
        told = f"{entry.commit}, {entry.committed[:10]}: {one['value']:.3f} ± {one['error']:.3f}"
        at, middle = f"{x(i):.1f}", f"{y(one['value']):.1f}"
        parts.append(
            f"<g><title>{escape(told)}</title>"
            f'<path d="M{at} {y(low):.1f}V{y(high):.1f}" stroke="{_COLOUR}"/>'
            f'<circle cx="{at}" cy="{middle}" r="3.5" fill="{_COLOUR}"/></g>'
        )
        if i in (0, len(kept) - 1):
            below = f'<text x="{at}" y="{_HEIGHT - 8}" text-anchor="middle">'
            parts.append(f"{below}{entry.commit[:7]}</text>")
    return "".join([*parts, "</svg>"])
