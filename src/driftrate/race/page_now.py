"""What to do now, on the page: the recommendation and the lines to copy."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from driftrate.race.advice import advise
from driftrate.race.drift import Drift, memory, sentence
from driftrate.race.leaderboard import Leaderboard
from driftrate.race.recipes import LOOPS, Lines, recipes
from driftrate.race.words import duration, share


class Facts(NamedTuple):
    """What is known of a stream besides its results.

    Args:
        task: What is predicted.
        model: The name of the model.
        batch: The rows of a batch.
        drift: What came of its rows in other orders, by method; the one to believe first.
    """

    task: str
    model: str
    batch: int
    drift: Sequence[Drift] = ()


def now(board: Leaderboard, stream: str, facts: Facts | None, alone: bool) -> str:
    """Return the recommendation for a stream and the lines to copy, open where it stands alone."""
    advice = advise(board, stream, None if facts is None else facts.batch)
    text = f'<p class="take">{escape(advice.text)}</p>'
    if facts is not None and facts.drift:
        text += f"<p>{escape(sentence(facts.drift))}</p>"
    if remembered := memory(board, stream):
        text += f"<p>{escape(remembered)}</p>"
    if advice.row is not None and facts is not None:
        found = recipes(board, stream, facts.task, facts.model, facts.batch)
        loops = "".join(_loop(board, stream, loop, found[loop]) for loop in LOOPS)
        say = "Lines to copy, for the loop you have"
        text += f"<details{' open' * alone}><summary>{say}</summary>{loops}</details>"
    return f'<div class="now"><h3>What now?</h3>{text}</div>'


def _loop(board: Leaderboard, stream: str, loop: str, lines: Lines | None) -> str:
    name = LOOPS[loop]
    if lines is None:
        return f'<p class="loop none">{name}: nothing that came through has a form there.</p>'
    row = lines.row
    lead = board.leads(stream).get(row.method)
    if lead is None:
        what = "the winner"
    elif lead.share < 0.5:
        what = f"the best there, a loss {share(lead.share / (1 - lead.share))} higher"
    elif lead.share < 1.0:
        what = f"the best there, {1 / (1 - lead.share):.1f} times the loss"
    else:
        what = "the best there"
    cost = f"{duration(row.seconds_per_step)} a step"
    code = f'<button class="copy">copy</button><pre>{escape(lines.code)}</pre>'
    return (
        f'<details class="loop" name="{escape(stream)}"><summary>{name}: <b>{escape(row.method)}'
        f'</b> <span class="tag">{what}, {cost}</span></summary>{code}</details>'
    )
