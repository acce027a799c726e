"""What a race says, in sentences: who won, by how much, and whether that is more than luck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from driftrate.race.leaderboard import FLAGSHIP, Column, Lead, Leaderboard, Placing, Row
from driftrate.race.significance import BLOCKS

_Placed = TypeVar("_Placed", Placing, Row)
TEST = (
    f"Within a stream two methods are compared by a paired t-test on the loss differences of "
    f"{BLOCKS} consecutive blocks of the stream, averaged over seeds; correlation between "
    "neighbouring blocks is allowed for. A file has one order: there, seeds change first weights "
    "and ties alone."
)

# The mark of a method that learns row by row, and what it means.
BY_ROW = "†"
BY_ROW_LEGEND = (
    f"{BY_ROW} learns from the rows of a batch one after the other: as many steps as rows, where "
    "the others take one."
)


def ordinal(number: float) -> str:
    """Return 1st, 2nd, 3rd, ...; a shared place keeps its half.

    Example:
        >>> [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 21, 2.5)]
        ['1st', '2nd', '3rd', '4th', '11th', '12th', '21st', '2.5th']
    """
    if number != int(number):
        return f"{number:g}th"
    whole = int(number)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(whole % 10 if whole % 100 not in (11, 12, 13) else 0)
    return f"{whole}{ending or 'th'}"


def figures(value: float | None, digits: int = 4) -> str:
    """Return a number to some figures, or a dash.

    Example:
        >>> figures(0.123456), figures(12345.6), figures(1e-9), figures(None)
        ('0.1235', '12,346', '1.000e-09', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def share(value: float) -> str:
    """Return a share as per cent, with a figure more where it is small.

    Example:
        >>> share(0.123), share(0.0123), share(0.0001)
        ('12 %', '1.2 %', '0.01 %')
    """
    per_cent = 100 * value
    return f"{per_cent:.0f} %" if per_cent >= 10 else f"{per_cent:.2g} %"


def duration(seconds: float) -> str:
    """Return a short time in a fitting unit.

    Example:
        >>> duration(0.00012), duration(0.0034), duration(5.0)
        ('120 µs', '3.4 ms', '5 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def odds(lead: Lead) -> str:
    """Return what the test says of a lead."""
    if lead.p is None:
        return "too few steps to test"
    p = "p < 0.001" if lead.p < 0.001 else f"p = {lead.p:.2g}"
    return f"significant, {p}" if lead.significant else f"not significant, {p}"


def _chosen(placed: Sequence[_Placed]) -> _Placed | None:
    """Return the one of ours to speak of: the flagship, or else the best."""
    ours = [one for one in placed if one.ours]
    return next((one for one in ours if one.method == FLAGSHIP), ours[0] if ours else None)


def overall(board: Leaderboard) -> list[str]:
    """Return the sentences on all streams together."""
    if len(board.streams) < 2:
        return []
    lines = [_placing_sentence(board, "default")]
    placings = board.placings()
    if not placings[0].first_order:
        lines.append(_placing_sentence(board, "default", first_order=True))
    ours = _chosen(placings)
    wins = None if ours is None else board.against_constant(ours.method)
    if ours is not None and wins is not None:
        lines.append(
            f"{ours.method} at its default beats the best constant rate, chosen in hindsight for "
            f"each stream, on {wins.won} of {wins.streams} streams; its loss is {wins.ratio:.3f} "
            "times as high (geometric mean)."
        )
    if board.has_grid:
        lines.append(_placing_sentence(board, "best"))
    return lines


def _placing_sentence(board: Leaderboard, column: Column, first_order: bool = False) -> str:
    placings = board.placings(column, first_order)
    leader = placings[0]
    among = "first-order methods" if first_order else "methods"
    where = "at its default" if column == "default" else "at its best of a small grid, in hindsight"
    ours = _chosen(placings)
    best = [one.method for one in placings if one.mean_rank == leader.mean_rank]
    whose = f"{leader.method} has" if len(best) == 1 else f"{' and '.join(best)} share"
    text = (
        f"Among {len(placings)} {among}, each {where}, {whose} the best mean rank "
        f"over {len(board.streams)} streams ({leader.mean_rank:.1f})"
    )
    if ours is not None and ours.method not in best:
        place = ordinal(placings.index(ours) + 1)
        text += f"; {ours.method} is {place} ({ours.mean_rank:.1f})"
    return text + "."


def verdict(board: Leaderboard, stream: str) -> list[str]:
    """Return the sentences on one stream."""
    rows = board.of(stream)
    fine = [row for row in rows if row.status == "ok"]
    if not fine:
        return [f"No method came through {stream}."]
    winner = fine[0]
    if len(fine) == 1:
        return [f"{winner.method} alone came through, with mean loss {figures(winner.loss)}."]
    lead = board.lead(winner, fine[1])
    lines = [
        f"{winner.method} wins at its default: mean loss {figures(winner.loss)}, "
        f"{share(lead.share)} below {fine[1].method} ({figures(fine[1].loss)}; {odds(lead)})."
    ]
    told = {fine[1].method}
    if not winner.first_order:
        first = next((row for row in fine if row.first_order), None)
        if first is not None:
            behind = board.lead(winner, first)
            told.add(first.method)
            higher = f"{share(behind.share / (1 - behind.share))} higher ({odds(behind)})"
            leads = f"among those {first.method} leads, with a loss {higher}"
            lines.append(f"It is not a first-order method; {leads}.")
    ours = _chosen(rows)
    if ours is not None and ours.method not in told and not winner.ours:
        lines.append(_loss_sentence(board, winner, ours, len(rows)))
    best = board.of(stream, "best")
    if best and best[0].loss is not None:
        leads = f"{best[0].method} ({setting_words(best[0])}) leads with {figures(best[0].loss)}"
        lines.append(f"Each at its best of a small grid, chosen in hindsight, {leads}.")
    return lines


def not_played(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each cause for which methods could not be played on a stream.

    Args:
        rows: Those without a rank, `Leaderboard.unplayed`.
    """
    causes: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        causes.setdefault((row.stream, row.message), {})[row.method] = None
    return [
        f"Not played on {stream}, and without a rank there: {_some(list(methods))} "
        f"({message or 'no cause known'}); the same command plays what is missing."
        for (stream, message), methods in causes.items()
    ]


def _some(names: Sequence[str], most: int = 5) -> str:
    """Return some names, and how many there are besides.

    Example:
        >>> _some(["a", "b"]), _some(["a", "b", "c"], most=1)
        ('a, b', 'a and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _loss_sentence(board: Leaderboard, winner: Row, ours: Row, count: int) -> str:
    if ours.loss is None:
        ended = "ran out of time" if ours.status == "timeout" else ours.status
        return f"{ours.method} {ended} here."
    lead = board.lead(winner, ours)
    leads = f"{winner.method} leads it by {share(lead.share)} ({odds(lead)})"
    return f"{ours.method} is {ordinal(ours.rank or 0)} of {count} here; {leads}."


def setting_words(row: Row) -> str:
    """Return a setting without the marks of JSON."""
    return row.setting.strip("{}").replace('"', "").replace(":", " ").replace(",", ", ")
