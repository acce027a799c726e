"""The tables of a race's page: all methods over all streams, and on one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from driftrate.race.leaderboard import Leaderboard, Placing, Row
from driftrate.race.page_looks import OURS
from driftrate.race.significance import Comparison
from driftrate.race.words import (
    BY_ROW,
    BY_ROW_LEGEND,
    TEST,
    duration,
    figures,
    setting_words,
    times,
)

_TIED = '<abbr title="not told apart from the leader">●</abbr> '


def _head(text: str, kind: str = "n") -> str:
    return f'<th class="{kind}">{text}</th>'


def _number(text: str, kind: str = "n") -> str:
    return f'<td class="{kind}">{text}</td>'


def _row(cells: Sequence[str], ours: bool, more: str = "") -> str:
    return f'<tr class="{"ours" if ours else ""}"{more}>{"".join(cells)}</tr>'


def _table(heads: Sequence[str], rows: Sequence[str], kind: str = "") -> str:
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _who(name: str, tags: str = "") -> str:
    return f'<td class="who">{escape(name)}{tags}</td>'


def placings_table(board: Leaderboard) -> str:
    """Return the methods by their mean rank over the streams."""
    comparison, placings = board.comparison(), board.placings()
    first = {one.method: one.mean_rank for one in board.placings(first_order=True)}
    best = {one.method: one.mean_rank for one in board.placings("best")} if board.has_grid else {}
    width = max(len(board.of(stream)) for stream in board.streams)
    reach = comparison.critical_difference
    rows = []
    for place, one in enumerate(placings, 1):
        ring, wins = best.get(one.method), board.against_constant(one.method)
        strip = _strip(one, ring, width, placings[0].mean_rank, reach)
        cells = [
            _number(f"{place}"),
            _who(one.method, _tags(one, len(board.streams))),
            _number(f"{_TIED if one.tied else ''}{one.mean_rank:.1f}"),
            _number(times(one.above)),
            f'<td class="strip">{strip}</td>',
            _number(figures(first.get(one.method), 3), "n wide"),
        ]
        if best:
            won = "–" if wins is None else f"{wins.won} of {wins.streams} · {wins.ratio:.3f}"
            cells += [_number("–" if ring is None else f"{ring:.1f}"), _number(won)]
        rows.append(_row([*cells, _number(duration(one.seconds_per_step))], one.ours))
    heads = [_head(""), "<th>method</th>", _head("mean rank<br>at default")]
    heads.append(_head("loss over<br>the least"))
    strip = f"1 {'&nbsp;' * 2} filled: default{', ring: best' if best else ''}"
    heads.append(_head(strip, "strip"))
    heads.append(_head("among<br>first-order", "n wide"))
    if best:
        against = "default against the best constant<br>rate in hindsight: won · loss ratio"
        heads += [_head("at best,<br>hindsight"), _head(against)]
    heads.append(_head("a step"))
    return f'{_table(heads, rows)}<p class="note">{escape(_notes(board, comparison))}</p>'


def _notes(board: Leaderboard, comparison: Comparison) -> str:
    if comparison.tied is None:
        note = f"No ranks are compared: {comparison.test}."
    else:
        note = f"● not told apart from the leader: {comparison.test}."
    if comparison.p is not None:
        note += f" All alike: p = {comparison.p:.2g}."
    if comparison.critical_difference is not None:
        reach = f"{comparison.critical_difference:.1f} ranks: the shaded band, from the leader"
        note += f" The critical difference is {reach}."
    note += " Loss over the least: a method's loss over that of the stream's winner, the geometric "
    note += "mean over the streams that it came through. A method that failed, diverged or ran out "
    note += "of time shares the last place of that stream. "
    if board.has_grid:
        note += "“At best” is the setting of a small grid with the lowest loss on that very "
        note += "stream, which nobody knows beforehand. "
    return note + (BY_ROW_LEGEND if board.has_by_row else "")


def _tags(one: Placing, streams: int) -> str:
    tags = [] if one.first_order else ["second order"]
    if one.streams < streams:
        tags.append(f"{one.streams} of {streams} streams")
    if one.marked:
        tags.append(f"no result on {one.marked}")
    mark = f" {BY_ROW}" if one.by_row else ""
    return mark + "".join(f'<span class="tag">{escape(tag)}</span>' for tag in tags)


def _strip(one: Placing, best: float | None, width: int, lead: float, reach: float | None) -> str:
    """Draw a mean rank on a line from the first place to the last."""
    colour = OURS if one.ours else "#4a5058"

    def x(rank: float) -> float:
        return 2 + 96 * (rank - 1) / max(width - 1, 1)

    band = ""
    if reach is not None:
        span = min(x(lead + reach), 99) - x(lead)
        band = f'<rect x="{x(lead):.1f}%" y="0" width="{span:.1f}%" height="24" fill="#eef2f6"/>'
    ring = ""
    if best is not None:
        ring = f'<circle cx="{x(best):.1f}%" cy="12" r="4" fill="#fff" stroke="{colour}"'
        ring += ' stroke-width="1.5"/>'
    return f"{_line(band, ring)}{_dot(x(one.mean_rank), colour)}</svg>"


def _line(*under: str) -> str:
    line = '<line x1="2%" x2="98%" y1="12" y2="12" stroke="#d9dde3"/>'
    return f'<svg aria-hidden="true">{under[0]}{line}{"".join(under[1:])}'


def _dot(place: float, colour: str) -> str:
    return f'<circle cx="{place:.1f}%" cy="12" r="4.5" fill="{colour}"/>'


def heat_table(board: Leaderboard) -> str:
    """Return the rank of each method on each stream."""
    of_stream = {stream: {row.method: row for row in board.of(stream)} for stream in board.streams}
    heads = [
        f'<th><a href="#{anchor(board, name)}"><span>{escape(name)}</span></a></th>'
        for name in board.streams
    ]
    rows = []
    for one in board.placings():
        cells = [_heat_cell(found.get(one.method), len(found)) for found in of_stream.values()]
        rows.append(_row([_who(one.method), *cells], one.ours))
    table = _table(["<th></th>", *heads], rows, ' class="heat"')
    return f"<h2>Rank on each stream, at defaults</h2>{table}"


def _heat_cell(row: Row | None, count: int) -> str:
    if row is None:
        return "<td></td>"
    if row.status != "ok":
        hint = escape(f"{row.status}: {row.message}")
        return f'<td style="background:#fbdfd3;color:#8f2d00" title="{hint}">×</td>'
    depth = 1 - ((row.rank or 1) - 1) / max(count - 1, 1)
    ink = "#fff" if depth > 0.6 else "#22272e"
    style = f"background:rgb(0 90 145/{depth**1.6:.2f});color:{ink}"
    return f'<td style="{style}" title="loss {escape(figures(row.loss))}">{row.rank:g}</td>'


def anchor(board: Leaderboard, stream: str) -> str:
    """Return what the section of a stream is called in links."""
    return f"s{board.streams.index(stream)}"


def stream_table(board: Leaderboard, stream: str, groups: dict[str, int]) -> str:
    """Return the methods on one stream, by their loss.

    Args:
        board: The results.
        stream: The stream.
        groups: The number under which each method is highlighted.
    """
    rows, tied = board.of(stream), board.tied(stream)
    best = {row.method: row for row in board.of(stream, "best")}
    regret = any(row.regret is not None for row in rows)
    least = rows[0].loss
    ratios = [row.loss / least for row in rows if row.loss is not None and least]
    lines = []
    for row in rows:
        mark = f" {BY_ROW}" if row.by_row else ""
        shown = mark if row.first_order else f'{mark}<span class="tag">second order</span>'
        alike = _TIED if tied is not None and row.method in tied else ""
        if row.loss is not None:
            error = "" if row.loss_error is None else f" ± {row.loss_error:.1g}"
            ratio = row.loss / least if least else None
            cells = [_number(f"{row.rank:g}"), _who(row.method, shown)]
            cells.append(_number(f"{alike}{figures(row.loss)}{error}"))
            cells.append(_number(times(ratio)))
            strip = _ratio_strip(ratio, max(ratios, default=1.0), row.ours)
            cells += [f'<td class="strip">{strip}</td>', _number(figures(row.error), "n wide")]
        else:
            hint = escape(f"{row.status}: {row.message}")
            cells = [_number("×"), _who(row.method, shown)]
            cells.append(f'<td colspan="2" class="why">{hint}</td>')
            cells.append('<td class="strip"></td><td class="wide"></td>')
        cells.append(_number(duration(row.seconds_per_step)))
        cells += [_number(figures(row.regret))] * regret
        if best:
            top = best[row.method]
            tag = f'<br><span class="tag">{escape(setting_words(top))}</span>'
            cells.append(_number(f"{figures(top.loss)}{tag}"))
        lines.append(_row(cells, row.ours, f' data-m="{groups[row.method]}"'))
    heads = [_head(""), "<th>method</th>", _head("loss"), _head("over the<br>least")]
    heads += [_head("loss, logarithmic", "strip"), _head("error", "n wide"), _head("a step")]
    heads += [_head("regret")] * regret + [_head("best of grid,<br>hindsight")] * bool(best)
    seeds = max(row.seeds for row in rows)
    bars = f" ± is the standard error over {seeds} seeds." if seeds > 1 else ""
    marks = "● not told apart from the leader. " if tied is not None else ""
    legend = f" {BY_ROW_LEGEND}" if any(row.by_row for row in rows) else ""
    return f'{_table(heads, lines)}<p class="note">{marks}{TEST}{bars}{legend}</p>'


def _ratio_strip(ratio: float | None, widest: float, ours: bool) -> str:
    """Draw a loss over the least on a logarithmic line; far off is at its end."""
    if ratio is None or ratio <= 0.0:
        return ""
    end = math.log(min(max(widest, 1.5), 30.0))
    place = 2 + 96 * min(math.log(ratio) / end, 1.0)
    return f"{_line('')}{_dot(place, OURS if ours else '#4a5058')}</svg>"
