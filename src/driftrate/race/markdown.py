"""The table of a race as Markdown, for a page of the docs."""

from __future__ import annotations

from collections.abc import Sequence

from driftrate.race.leaderboard import FLAGSHIP, Leaderboard
from driftrate.race.words import duration, figures, odds, overall, share


def markdown(board: Leaderboard) -> str:
    """Return the sentences, the placings and a line on each stream."""
    lines = [*overall(board), f"Test of the mean ranks: {board.comparison().test}."]
    says = "\n".join(f"- {line}" for line in lines)
    return f"{says}\n\n{_placings(board)}\n\n{_streams(board)}\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _placings(board: Leaderboard) -> str:
    first = {one.method: one for one in board.placings(first_order=True)}
    best = {one.method: one for one in board.placings("best")} if board.has_grid else {}
    heads = ["", "method", "mean rank at default", "among first-order"]
    if best:
        heads += ["at best of grid, hindsight", "beats best constant rate on", "loss ratio to it"]
    heads += ["no result on", "a step"]
    rows = []
    for place, one in enumerate(board.placings(), 1):
        name = f"**{one.method}**" if one.ours else one.method
        short = f" ({one.streams} streams)" if one.streams < len(board.streams) else ""
        row = [f"{place}", name + short, f"{one.mean_rank:.1f}{' ●' if one.tied else ''}"]
        row.append(figures(first[one.method].mean_rank, 3) if one.method in first else "–")
        if best:
            wins = board.against_constant(one.method)
            row.append(f"{best[one.method].mean_rank:.1f}")
            row += [f"{wins.won} of {wins.streams}", f"{wins.ratio:.3f}"] if wins else ["–", "–"]
        rows.append([*row, f"{one.marked}", duration(one.seconds_per_step)])
    return _table(heads, rows) + "\n\n● not told apart from the leader."


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
