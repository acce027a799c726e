"""The page of benchmarks/history.py: a small picture for each figure, over all commits."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from history_compare import Entry, Figure, comparable

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 130, 44, 12, 12, 24
_COLOUR = "#d9730d"
_LEAST = 0.05  # the least height of a picture, as a share of the figure: below it all is noise


def page(entries: Sequence[Entry]) -> str:
    """Return the page as Markdown with SVG inside."""
    newest = entries[-1]
    lines = [
        "# From commit to commit",
        "",
        "Quick figures of the library, each a ratio within one run: the lower the better. Bars are",
        "two standard errors, over seeds (regret) or over rounds of time (speed); a line joins",
        "what may be compared: speeds of one machine. Point at a dot to read it. Axes begin where",
        "the figures do, not at 0; a dashed line is at 1, where a figure equals its yardstick.",
        "",
        "    python benchmarks/history.py             # measures a commit, and writes this page",
        "    python benchmarks/history.py --compare   # fails if the newest became worse",
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


def _limits(one: Figure) -> tuple[float, float]:
    return one["value"] - 2 * one["error"], one["value"] + 2 * one["error"]


def axis(figures: Sequence[Figure]) -> tuple[float, float, list[float]]:
    """Return the lowest and the highest of an axis that the figures fill, and its round marks."""
    lows, highs = zip(*map(_limits, figures), strict=True)
    low, high = min(lows), max(highs)
    room = max(0.08 * (high - low), (_LEAST * high - (high - low)) / 2)
    low, high = low - room, high + room
    # The steps are 1, 2 or 5 times a power of ten: the finest that leaves six marks or so.
    power = 10.0 ** floor(log10((high - low) / 5))
    step = next(k * power for k in (1, 2, 5, 10) if (high - low) / (k * power) <= 6)
    marks = [round(i * step, 12) for i in range(ceil(low / step), floor(high / step) + 1)]
    return low, high, marks


def _picture(name: str, entries: Sequence[Entry]) -> str:
    """Return one figure over all commits that have it, as SVG on one line."""
    kept = [one for one in entries if name in one.measures]
    figures = [one.measures[name] for one in kept]
    low, high, marks = axis(figures)
    inner = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(i: int) -> float:
        return _LEFT + inner[0] * ((i + 0.5) / len(kept))

    def y(value: float) -> float:
        return _TOP + inner[1] * (high - value) / (high - low)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img"'
        f' aria-label="{escape(name)}" font-family="sans-serif" font-size="10" fill="currentColor">'
    ]
    right = _WIDTH - _RIGHT
    parts += [
        f'<path d="M{_LEFT} {y(value):.1f}H{right}" stroke="currentColor" opacity=".25"/>'
        f'<text x="{_LEFT - 5}" y="{y(value) + 3:.1f}" text-anchor="end">{value:g}</text>'
        for value in marks
    ]
    if low <= 1.0 <= high:
        parts.append(
            f'<path d="M{_LEFT} {y(1.0):.1f}H{right}" stroke="currentColor" stroke-dasharray="4"/>'
        )
    for j, new in enumerate(kept):
        before = [i for i, old in enumerate(kept[:j]) if comparable(name, old, new)]
        if before:
            i = before[-1]
            ends = (
                f"M{x(i):.1f} {y(figures[i]['value']):.1f}L{x(j):.1f} {y(figures[j]['value']):.1f}"
            )
            parts.append(f'<path d="{ends}" stroke="{_COLOUR}" stroke-width="1.5" fill="none"/>')
    for i, (entry, one) in enumerate(zip(kept, figures, strict=True)):
        least, most = _limits(one)
        told = f"{entry.commit}, {entry.committed[:10]}: {one['value']:.3f} ± {one['error']:.3f}"
        if "accepted" in one:
            told += f"; accepted: {one['accepted']}"
        at, middle = f"{x(i):.1f}", f"{y(one['value']):.1f}"
        parts.append(
            f"<g><title>{escape(told)}</title>"
            f'<path d="M{at} {y(least):.1f}V{y(most):.1f}" stroke="{_COLOUR}"/>'
            f'<circle cx="{at}" cy="{middle}" r="3.5" fill="{_COLOUR}"/></g>'
        )
        if i in (0, len(kept) - 1):
            below = f'<text x="{at}" y="{_HEIGHT - 8}" text-anchor="middle">'
            parts.append(f"{below}{entry.commit[:7]}</text>")
    return "".join([*parts, "</svg>"])
