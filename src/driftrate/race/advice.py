"""What to do now: the recommendation for a stream, in one sentence."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from driftrate.race.leaderboard import Leaderboard, Row
from driftrate.race.words import duration, figures, odds, share

# More names than these are counted, not listed.
_MOST_NAMES = 3


class Advice(NamedTuple):
    """What to take on a stream.

    Args:
        text: The recommendation.
        row: The method that it is about; None where none came through.
    """

    text: str
    row: Row | None


def advise(board: Leaderboard, stream: str, batch: int | None = None) -> Advice:
    """Return the recommendation for a stream: a method at its default, its margin and its cost.

    It is the method of the lowest mean loss. Those that are not told apart from it are named with
    it, and the cheapest of them where it costs less.

    Args:
        board: The results.
        stream: The stream.
        batch: The rows of a step, for the sentence.
    """
    fine = [row for row in board.of(stream) if row.status == "ok"]
    if not fine:
        return Advice("Nothing to recommend: no method came through.", None)
    best, size = fine[0], "a step" if batch is None else f"a step of {_rows(batch)}"
    costs = f"{duration(best.seconds_per_step)} {size}"
    if len(fine) == 1:
        loss = f"mean loss {figures(best.loss)}, {costs}"
        return Advice(f"Take {best.method}, the only method that came through: {loss}.", best)
    tied = board.tied(stream)
    leads = board.leads(stream)
    if tied is None:
        second = f"{share(leads[fine[1].method].share)} below {fine[1].method}"
        lowest = f"the lowest mean loss so far, {figures(best.loss)}, {second}, at {costs}"
        doubt = "too few steps to tell that from luck"
        return Advice(f"Take {best.method} for the time being: it has {lowest}; {doubt}.", best)
    # One of the last places may be too wild to be told apart; that is no tie.
    alike = list(takewhile(lambda row: row.method in tied, fine[1:]))
    if not alike:
        lead = leads[fine[1].method]
        margin = f"{share(lead.share)} below the next, {fine[1].method} ({odds(lead)})"
        loss = f"its mean loss of {figures(best.loss)} is {margin}"
        return Advice(f"Take {best.method}: {loss}, at {costs}.", best)
    return Advice(_tie(best, alike, costs), best)


def _tie(best: Row, alike: list[Row], costs: str) -> str:
    names = [row.method for row in alike[:_MOST_NAMES]]
    if len(alike) > _MOST_NAMES:
        names[-1:] = [f"{len(alike) - _MOST_NAMES + 1} more"]
    others = f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]
    text = (
        f"A tie: take {best.method} (mean loss {figures(best.loss)}, {costs}), but {others} "
        f"{'is' if len(alike) == 1 else 'are'} not told apart from it"
    )
    cheapest = min(alike, key=lambda row: row.seconds_per_step)
    if cheapest.seconds_per_step < 0.5 * best.seconds_per_step:
        loss = f"mean loss {figures(cheapest.loss)}"
        text += f", and {cheapest.method} costs {duration(cheapest.seconds_per_step)} ({loss})"
    return f"{text}."


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"
