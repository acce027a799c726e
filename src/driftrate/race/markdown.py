"""The table of a race as Markdown, for a page of the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from driftrate.race.leaderboard import FLAGSHIP, Leaderboard
from driftrate.race.words import BY_ROW, BY_ROW_LEGEND, duration, figures, odds, overall, share


class Singles(NamedTuple):
    """What a race with batches of 1 adds to a table.

    Args:
        ranks: The mean rank of each method at its default, where it came through any stream.
        rows: The most rows that were played of a stream.
        streams: How many streams there were.
    """

    ranks: Mapping[str, float]
    rows: int
    streams: int


def markdown(board: Leaderboard, singles: Singles | None = None) -> str:
    """Return the sentences, the placings and a line on each stream.

    Args:
        board: The results.
        singles: Those of batches of 1, for a column of their own.
    """
    lines = [*overall(board), f"Test of the mean ranks: {board.comparison().test}."]
    says = "\n".join(f"- {line}" for line in lines)
    return f"{says}\n\n{_placings(board, singles)}\n\n{_streams(board)}\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _placings(board: Leaderboard, singles: Singles | None) -> str:
    first = {one.method: one for one in board.placings(first_order=True)}
    best = {one.method: one for one in board.placings("best")} if board.has_grid else {}
    heads = ["", "method", "mean rank at default", "among first-order"]
    if best:
        heads += ["at best of grid, hindsight", "beats best constant rate on", "loss ratio to it"]
    heads += ["mean rank, batches of 1"] if singles else []
    heads += ["no result on", "a step"]
    rows = []
    for place, one in enumerate(board.placings(), 1):
        name = f"**{one.method}**" if one.ours else one.method
        short = f" ({one.streams} streams)" if one.streams < len(board.streams) else ""
        mark = f" {BY_ROW}" if one.by_row else ""
        row = [f"{place}", name + mark + short, f"{one.mean_rank:.1f}{' ●' if one.tied else ''}"]
        row.append(figures(first[one.method].mean_rank, 3) if one.method in first else "–")
        if best:
            wins = board.against_constant(one.method)
            row.append(f"{best[one.method].mean_rank:.1f}")
            row += [f"{wins.won} of {wins.streams}", f"{wins.ratio:.3f}"] if wins else ["–", "–"]
        if singles:
            rank = singles.ranks.get(one.method)
            row.append("–" if rank is None else f"{rank:.1f}")
        rows.append([*row, f"{one.marked}", duration(one.seconds_per_step)])
    notes = ["● not told apart from the leader."]
    if board.has_by_row:
        notes.append(BY_ROW_LEGEND)
    if singles:
        notes.append(
            f"Batches of 1: each at its default, on {singles.rows:,} rows at most of each of "
            f"{singles.streams} streams."
        )
    return "\n\n".join([_table(heads, rows), *notes])


def _streams(board: Leaderboard) -> str:
    heads = ["stream", "winner at default", "loss", "lead over the second", f"{FLAGSHIP}'s rank"]
    heads += [f"{FLAGSHIP}'s loss", "best of all grids, hindsight"]
    rows = []
    for stream in board.streams:
        found = [row for row in board.of(stream) if row.status == "ok"]
        row = [stream, "–", "–", "–", "–", "–", "–"]
        if found:
            row[1:3] = found[0].method, figures(found[0].loss)
        if len(found) > 1:
            lead = board.lead(found[0], found[1])
            row[3] = f"{share(lead.share)} over {found[1].method} ({odds(lead)})"
        ours = next((one for one in board.of(stream) if one.method == FLAGSHIP), None)
        if ours is not None:
            row[4:6] = f"{ours.rank:g} of {len(board.of(stream))}", figures(ours.loss)
        best = board.of(stream, "best")
        if best:
            row[6] = f"{best[0].method} {figures(best[0].loss)}"
        rows.append(row)
    return _table(heads, rows)
