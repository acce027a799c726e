"""What a race says, in sentences: who won, by how much, and whether that is more than luck."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from driftrate.race.leaderboard import FLAGSHIP, Column, Lead, Leaderboard, Placing, Row
from driftrate.race.significance import BLOCKS

_Placed = TypeVar("_Placed", Placing, Row)
TEST = (
    f"Within a stream two methods are compared by a paired t-test on the signed ranks of the "
    f"relative loss differences of {BLOCKS} consecutive blocks of the stream, averaged over "
    "seeds; correlation between neighbouring blocks is allowed for, and so is the number of "
    "methods that are compared with the winner (Holm). A file has one order: there, seeds change "
    "first weights and ties alone."
)

_ENDED = {"timeout": "ran out of time"}
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


def times(ratio: float | None) -> str:
    """Return how many times as much.

    Example:
        >>> times(1.0), times(1.0234), times(12.71), times(4e6), times(None)
        ('1.000×', '1.023×', '12.7×', '4.0e+06×', '–')
    """
    if ratio is None or not math.isfinite(ratio):
        return "–"
    if ratio >= 1e4:
        return f"{ratio:.1e}×"
    return f"{ratio:.3f}×" if ratio < 10 else f"{ratio:,.1f}×"


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
        return [f"No method came through {stream}: {_why(rows)}."]
    winner = fine[0]
    if len(fine) == 1:
        return [f"{winner.method} alone came through, with mean loss {figures(winner.loss)}."]
    leads = board.leads(stream)
    lines = [_first_sentence(winner, fine[1], leads[fine[1].method])]
    told = {fine[1].method}
    if not winner.first_order:
        first = next((row for row in fine if row.first_order), None)
        if first is not None:
            behind = leads[first.method]
            told.add(first.method)
            higher = f"{share(behind.share / (1 - behind.share))} higher ({odds(behind)})"
            best_of_them = f"among those {first.method} leads, with a loss {higher}"
            lines.append(f"{winner.method} is not a first-order method; {best_of_them}.")
    ours = _chosen(rows)
    if ours is not None and ours.method not in told and not winner.ours:
        lines.append(_loss_sentence(winner, ours, leads.get(ours.method), len(rows)))
    best = board.of(stream, "best")
    if best and best[0].loss is not None:
        front = f"{best[0].method} ({setting_words(best[0])}) leads with {figures(best[0].loss)}"
        lines.append(f"Each at its best of a small grid, chosen in hindsight, {front}.")
    return lines


def none_through(board: Leaderboard) -> str:
    """Return why no method came through a race, in a sentence; empty if one did."""
    rows = [row for row in board.rows if row.column == "default"]
    if not rows or any(row.status == "ok" for row in board.rows):
        return ""
    return f"No method came through: {_why(rows)}."


def _why(rows: Sequence[Row]) -> str:
    """Return how most of these rows ended, and what one of them says."""
    ((status, count),) = Counter(row.status for row in rows).most_common(1)
    one = next(row for row in rows if row.status == status)
    ended = _ENDED.get(status, status)
    return f"{count} of {len(rows)} {ended} ({one.method}: {one.message or 'no cause known'})"


def _first_sentence(winner: Row, second: Row, lead: Lead) -> str:
    if winner.loss == second.loss:
        both = f"{winner.method} and {second.method} share the lowest mean loss"
        return f"{both}, {figures(winner.loss)}: a tie."
    below = f"{share(lead.share)} below {second.method} ({figures(second.loss)}; {odds(lead)})"
    if lead.significant:
        return f"{winner.method} wins at its default: mean loss {figures(winner.loss)}, {below}."
    tie = "" if lead.p is None else ": a tie"
    lowest = f"{winner.method} has the lowest mean loss at its default"
    return f"{lowest}, {figures(winner.loss)}, {below}{tie}."


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


def _loss_sentence(winner: Row, ours: Row, lead: Lead | None, count: int) -> str:
    if lead is None:
        return f"{ours.method} {_ENDED.get(ours.status, ours.status)} here."
    leads = f"{winner.method} leads it by {share(lead.share)} ({odds(lead)})"
    return f"{ours.method} is {ordinal(ours.rank or 0)} of {count} here; {leads}."


def setting_words(row: Row) -> str:
    """Return a setting without the marks of JSON."""
    return row.setting.strip("{}").replace('"', "").replace(":", " ").replace(",", ", ")
