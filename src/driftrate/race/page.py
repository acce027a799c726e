"""The page of a race: what to do now, the table, then every stream with its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

import numpy as np

from driftrate._html import document
from driftrate.race.leaderboard import CONSTANT, FLAGSHIP, Curve, Leaderboard, Row
from driftrate.race.page_looks import (
    OURS,
    OURS_TOO,
    REFERENCE,
    SCRIPT,
    SECOND_ORDER,
    STYLE,
    WINNER,
)
from driftrate.race.page_now import Facts, now
from driftrate.race.page_tables import anchor, heat_table, placings_table, stream_table
from driftrate.race.plots import Line, line, panel
from driftrate.race.words import overall, setting_words, verdict


def render_race(
    board: Leaderboard,
    lead: str,
    absent: Mapping[str, str],
    facts: Mapping[str, Facts] | None = None,
    *,
    reading: str = "",
    mark: str = "",
    others: str = "",
) -> str:
    """Return the page as HTML with everything inside.

    Args:
        board: The results.
        lead: A line on how they were made.
        absent: Why methods are not in the race.
        facts: What else is known of each stream, by its name.
        reading: HTML on what was read.
        mark: Attributes of the title that tell which race it is.
        others: Links to other races, as HTML.
    """
    missing = "; ".join(f"{name} ({reason})" for name, reason in absent.items())
    left_out = f'<p class="note">Not in the race: {escape(missing)}.</p>' if missing else ""
    one = len(board.streams) == 1
    many = "" if one else f"{_list(overall(board))}{placings_table(board)}{heat_table(board)}"
    count = "1 stream" if one else f"{len(board.streams)} streams"
    known = facts or {}
    streams = (_stream(board, stream, known.get(stream), one) for stream in board.streams)
    body = f"""<h1{mark}>The race: {count}, {len(board.placings())} methods</h1>
<p class="lead">Prequential loss: every batch is predicted, then learned from. {escape(lead)}</p>
{others}
{many}
{"" if one else left_out + reading}
{"".join(streams)}
{left_out + reading if one else ""}
{SCRIPT}"""
    return document("driftrate: the race", STYLE, body)


def _list(lines: Sequence[str]) -> str:
    return f'<ul class="says">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _stream(board: Leaderboard, stream: str, facts: Facts | None, alone: bool) -> str:
    """Return the section of a stream; where it stands alone its table is the page's."""
    rows = board.of(stream)
    groups = {row.method: place for place, row in enumerate(rows)}
    colours = _colours(rows)
    hindsight = _hindsight(board, stream)
    if hindsight is not None:
        # What it does untuned is one of the crowd; the reference is what it could do.
        colours.pop(CONSTANT, None)
    chips = [_chip(groups[row.method], row.method, colours.get(row.method)) for row in rows]
    if hindsight is not None:
        text = f"dashed: best constant rate in hindsight, {setting_words(hindsight)}"
        chips.append(_chip(groups[CONSTANT], text, REFERENCE))
    table = stream_table(board, stream, groups)
    if not alone:
        table = f"<details><summary>All {len(rows)} methods</summary>{table}</details>"
    curves = (
        f'<div class="chips">{"".join(chips)}</div>'
        f'<div class="panels">{_panels(board, stream, hindsight, groups, colours)}'
        f"{_memory(board, stream, facts, groups)}</div>"
    )
    says = _list(verdict(board, stream))
    rest = f"{says}{table}{curves}" if alone else f"{says}{curves}{table}"
    return (
        f'<section class="stream" id="{anchor(board, stream)}"><h2>{escape(stream)}</h2>'
        f"{now(board, stream, facts, alone)}{rest}</section>"
    )


def _chip(group: int, text: str, colour: str | None) -> str:
    look = "" if colour is None else f' class="k" style="--c:{colour}"'
    return f'<button data-m="{group}"{look}>{escape(text)}</button>'


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    """Return the methods worth following on a stream; the rest is the crowd."""
    ours = sorted((row.method for row in rows if row.ours), key=lambda name: name != FLAGSHIP)
    second = [row.method for row in rows if not (row.first_order or row.ours) and row.loss]
    found = dict(zip(ours, (OURS, OURS_TOO), strict=False))
    found |= dict.fromkeys(second[:1], SECOND_ORDER)
    found |= {row.method: REFERENCE for row in rows if row.method == CONSTANT}
    return {rows[0].method: WINNER, **found}


def _hindsight(board: Leaderboard, stream: str) -> Row | None:
    """Return the best constant rate, where it is another than the default."""
    best = (row for row in board.of(stream, "best") if row.method == CONSTANT)
    return next((row for row in best if row.setting != "default" and row.status == "ok"), None)


def _panels(
    board: Leaderboard,
    stream: str,
    hindsight: Row | None,
    groups: Mapping[str, int],
    colours: Mapping[str, str],
) -> str:
    rows = [row for row in board.of(stream) if row.status == "ok"]
    if hindsight:
        rows.append(hindsight)

    def lines(kind: Curve) -> list[Line]:
        found = []
        for row in rows:
            steps, runs = board.curves(row, kind)
            late = row is hindsight
            if steps:
                label = f"{row.method}, best constant rate in hindsight" if late else row.method
                colour = REFERENCE if late else colours.get(row.method)
                found.append(line(groups[row.method], label, colour, steps, runs, late))
        return found

    pictures = ""
    if losses := lines("loss"):
        pictures += panel("Mean loss so far", losses, settle=0.1)
        if regrets := lines("regret"):
            pictures += panel("Dynamic regret, summed", regrets)
        else:
            pictures += panel("Loss above the winner's, summed", _excess(losses))
    if rates := lines("rate"):
        pictures += panel("Rate (logarithmic)", rates, log=True)
    return pictures


def _memory(board: Leaderboard, stream: str, facts: Facts | None, groups: Mapping[str, int]) -> str:
    """Draw how many past rows the pool of memories believes in, beside how many there were."""
    row = next((row for row in board.of(stream) if row.method == FLAGSHIP), None)
    if row is None or row.status != "ok":
        return ""
    steps, runs = board.curves(row, "memory")
    if not steps:
        return ""
    lines = [line(groups[FLAGSHIP], FLAGSHIP, OURS, steps, np.maximum(runs, 1.0), False)]
    if facts is not None:
        past = np.asarray([steps], float) * facts.batch
        lines.append(line(-1, "all rows so far", REFERENCE, steps, past, True))
    dashed = ", dashed: all" if len(lines) > 1 else ""
    return panel(f"Rows that {FLAGSHIP} believes in{dashed}", lines, log=True)


def _excess(losses: Sequence[Line]) -> list[Line]:
    """Return what each has lost to the first, summed up, from running means."""
    best, found = losses[0], []
    for one in losses:
        if list(one.steps) == list(best.steps):
            gap = (one.middle - best.middle) * np.asarray(best.steps, float)
            found.append(replace(one, low=gap, middle=gap, high=gap))
    return found
