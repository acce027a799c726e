"""The page of a race: the table over all streams, then every stream with its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

import numpy as np

from driftrate._html import document
from driftrate.race.leaderboard import CONSTANT, FLAGSHIP, Curve, Leaderboard, Placing, Row
from driftrate.race.plots import Line, line, panel
from driftrate.race.words import (
    BY_ROW,
    BY_ROW_LEGEND,
    TEST,
    duration,
    figures,
    overall,
    setting_words,
    verdict,
)

# Okabe and Ito's palette; one role, one colour, on every stream.
_OURS, _OURS_TOO, _WINNER = "#0072B2", "#009E73", "#D55E00"
_REFERENCE, _SECOND_ORDER = "#E69F00", "#CC79A7"
_STYLE = """
section.stream h2 { overflow-wrap: anywhere; }
ul.says { margin: .6rem 0 1.2rem; padding-left: 1.2rem; } ul.says li { margin: .15rem 0; }
ul.says li:first-child { font-weight: 600; }
.note { color: var(--soft); font-size: .86rem; max-width: 60rem; margin: .4rem 0; }
.scroll { overflow-x: auto; }
th { text-align: left; font-weight: 600; padding: .3rem .5rem; border-bottom: 2px solid var(--line);
  vertical-align: bottom; font-size: .8rem; color: var(--soft); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { vertical-align: middle; } td.who { white-space: nowrap; font-weight: 500; }
tr.ours td.who { color: #0072B2; font-weight: 700; }
.tag { font-size: .72rem; color: var(--soft); font-weight: 400; margin-left: .35rem; }
td.strip { min-width: 13rem; width: 34%; padding: 0 .5rem; }
.strip svg { display: block; width: 100%; height: 1.5rem; }
table.heat { width: auto; font-size: .76rem; margin-top: .6rem; }
table.heat td, table.heat th { padding: .12rem .3rem; text-align: center; border: 1px solid #fff; }
table.heat th { vertical-align: bottom; border-bottom: 0; }
table.heat th span { writing-mode: vertical-rl; transform: rotate(180deg); white-space: nowrap;
  max-height: 15rem; overflow: hidden; text-overflow: ellipsis; }
table.heat td.who { text-align: left; position: sticky; left: 0; background: #fff; }
.chips { display: flex; flex-wrap: wrap; gap: .3rem; margin: .5rem 0; }
.chips button { font: inherit; font-size: .76rem; line-height: 1.2; padding: .12rem .5rem;
  border: 1px solid var(--line); border-radius: 1rem; background: #fff; color: var(--soft);
  cursor: pointer; }
.chips button.k { border-color: var(--c); color: var(--ink);
  box-shadow: inset .55rem 0 0 -.1rem var(--c); padding-left: .85rem; }
.chips button.hot { background: #22272e; color: #fff; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: .5rem; }
.panel { width: 100%; height: auto; font: 22px system-ui, sans-serif; fill: var(--ink); }
.panel .t { font-weight: 600; font-size: 24px; } .panel .n { fill: var(--soft); font-size: 20px; }
.panel .e { text-anchor: end; } .panel .m { text-anchor: middle; }
.panel .g { stroke: var(--line); stroke-width: 1.5; }
.c path { fill: none; stroke: #b9c0c9; stroke-width: 1.6; stroke-linejoin: round; }
.c.k path { stroke: var(--c); stroke-width: 4; } .c.d path { stroke-dasharray: 14 9; }
.c path.b { fill: var(--c); stroke: none; opacity: .2; }
.c.hot path { stroke: #22272e; stroke-width: 5; } .c.hot path.b { stroke: none; }
details { margin: .4rem 0; } summary { cursor: pointer; color: #0a5c99; font-size: .9rem; }
@media (max-width: 42rem) { td.strip { min-width: 9rem; } .wide { display: none; } }
@media print { .chips { display: none; } }
"""
# A chip, a row or a curve under the pointer shows its method in all panels of the stream.
_SCRIPT = """<script>
document.querySelectorAll("section.stream").forEach(section => {
  const show = event => {
    const at = event.target.closest("[data-m]");
    section.querySelectorAll(".hot").forEach(one => one.classList.remove("hot"));
    if (!at) return;
    section.querySelectorAll(`[data-m="${at.dataset.m}"]`).forEach(one => {
      one.classList.add("hot");
      if (one.matches("g")) one.parentNode.appendChild(one);
    });
  };
  section.addEventListener("pointerover", show);
  section.addEventListener("focusin", show);
});
</script>"""


def render_race(board: Leaderboard, lead: str, absent: Mapping[str, str], reading: str = "") -> str:
    """Return the page as HTML with everything inside.

    Args:
        board: The results.
        lead: A line on how they were made.
        absent: Why methods are not in the race.
        reading: HTML on what was read.
    """
    says = overall(board)
    missing = "; ".join(f"{name} ({reason})" for name, reason in absent.items())
    left_out = f'<p class="note">Not in the race: {escape(missing)}.</p>' if missing else ""
    body = f"""<h1>The race: {len(board.streams)} stream{"s" * (len(board.streams) != 1)}, \
{len(board.placings())} methods</h1>
<p class="lead">Prequential loss: every batch is predicted, then learned from. {escape(lead)}</p>
{_list(says) if says else ""}
{_placings(board)}
{_heat(board)}
{left_out}
{reading}
{"".join(_stream(board, stream) for stream in board.streams)}
{_SCRIPT}"""
    return document("driftrate: the race", _STYLE, body)


def _list(lines: Sequence[str]) -> str:
    return f'<ul class="says">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _head(text: str) -> str:
    return f'<th class="n">{text}</th>'


def _number(text: str) -> str:
    return f'<td class="n">{text}</td>'


def _row(cells: Sequence[str], ours: bool, more: str = "") -> str:
    return f'<tr class="{"ours" if ours else ""}"{more}>{"".join(cells)}</tr>'


def _table(heads: Sequence[str], rows: Sequence[str], kind: str = "") -> str:
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _placings(board: Leaderboard) -> str:
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
            f'<td class="who">{escape(one.method)}{_tags(one, len(board.streams))}</td>',
            _number(f"{'●' if one.tied else ''} {one.mean_rank:.1f}"),
            f'<td class="strip">{strip}</td>',
            _number(figures(first.get(one.method), 3)),
        ]
        if best:
            won = "–" if wins is None else f"{wins.won} of {wins.streams} · {wins.ratio:.3f}"
            cells += [_number("–" if ring is None else f"{ring:.1f}"), _number(won)]
        rows.append(_row([*cells, _number(duration(one.seconds_per_step))], one.ours))
    heads = [_head(""), "<th>method</th>", _head("mean rank<br>at default")]
    heads.append(f"<th>1 {'&nbsp;' * 2} filled: default{', ring: best' if best else ''}</th>")
    heads.append(_head("among<br>first-order"))
    if best:
        against = "default against the best constant<br>rate in hindsight: won · loss ratio"
        heads += [_head("at best,<br>hindsight"), _head(against)]
    heads.append(_head("a step"))
    note = f"● not told apart from the leader: {comparison.test}."
    if comparison.p is not None:
        note += f" All alike: p = {comparison.p:.2g}."
    if reach is not None:
        note += f" The critical difference is {reach:.1f} ranks: the shaded band, from the leader."
    note += " A method that failed, diverged or ran out of time shares the last place of that "
    note += "stream. "
    if best:
        note += "“At best” is the setting of a small grid with the lowest loss on that very "
        note += "stream, which nobody knows beforehand. "
    note += BY_ROW_LEGEND if board.has_by_row else ""
    return f'{_table(heads, rows)}<p class="note">{escape(note)}</p>'


def _tags(one: Placing, streams: int) -> str:
    tags = [BY_ROW] if one.by_row else []
    tags += [] if one.first_order else ["second order"]
    if one.streams < streams:
        tags.append(f"{one.streams} of {streams} streams")
    if one.marked:
        tags.append(f"no result on {one.marked}")
    return "".join(f'<span class="tag">{escape(tag)}</span>' for tag in tags)


def _strip(one: Placing, best: float | None, width: int, lead: float, reach: float | None) -> str:
    """Draw a mean rank on a line from the first place to the last."""
    colour = _OURS if one.ours else "#4a5058"

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
    return (
        f'<svg aria-hidden="true">{band}<line x1="2%" x2="98%" y1="12" y2="12" stroke="#d9dde3"/>'
        f'{ring}<circle cx="{x(one.mean_rank):.1f}%" cy="12" r="4.5" fill="{colour}"/></svg>'
    )


def _heat(board: Leaderboard) -> str:
    """Draw the rank of each method on each stream."""
    if len(board.streams) < 2:
        return ""
    of_stream = {stream: {row.method: row for row in board.of(stream)} for stream in board.streams}
    heads = [
        f'<th><a href="#{_anchor(board, name)}"><span>{escape(name)}</span></a></th>'
        for name in board.streams
    ]
    rows = []
    for one in board.placings():
        cells = [_heat_cell(found.get(one.method), len(found)) for found in of_stream.values()]
        rows.append(_row([f'<td class="who">{escape(one.method)}</td>', *cells], one.ours))
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


def _anchor(board: Leaderboard, stream: str) -> str:
    return f"s{board.streams.index(stream)}"


def _stream(board: Leaderboard, stream: str) -> str:
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
        chips.append(_chip(groups[CONSTANT], text, _REFERENCE))
    pictures = _panels(board, stream, hindsight, groups, colours)
    return (
        f'<section class="stream" id="{_anchor(board, stream)}"><h2>{escape(stream)}</h2>'
        f'{_list(verdict(board, stream))}<div class="chips">{"".join(chips)}</div>'
        f'<div class="panels">{pictures}</div>{_all_rows(board, stream, groups)}</section>'
    )


def _chip(group: int, text: str, colour: str | None) -> str:
    look = "" if colour is None else f' class="k" style="--c:{colour}"'
    return f'<button data-m="{group}"{look}>{escape(text)}</button>'


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    """Return the methods worth following on a stream; the rest is the crowd."""
    ours = sorted((row.method for row in rows if row.ours), key=lambda name: name != FLAGSHIP)
    second = [row.method for row in rows if not row.first_order and row.loss]
    found = dict(zip(ours, (_OURS, _OURS_TOO), strict=False))
    found |= dict.fromkeys(second[:1], _SECOND_ORDER)
    found |= {row.method: _REFERENCE for row in rows if row.method == CONSTANT}
    return {rows[0].method: _WINNER, **found}


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
                colour = _REFERENCE if late else colours.get(row.method)
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


def _excess(losses: Sequence[Line]) -> list[Line]:
    """Return what each has lost to the first, summed up, from running means."""
    best, found = losses[0], []
    for one in losses:
        if list(one.steps) == list(best.steps):
            gap = (one.middle - best.middle) * np.asarray(best.steps, float)
            found.append(replace(one, low=gap, middle=gap, high=gap))
    return found


def _all_rows(board: Leaderboard, stream: str, groups: Mapping[str, int]) -> str:
    best = {row.method: row for row in board.of(stream, "best")}
    regret = any(row.regret is not None for row in board.of(stream))
    rows = []
    for row in board.of(stream):
        mark = f" {BY_ROW}" if row.by_row else ""
        cells = [f'<td class="who">{escape(row.method)}{mark}</td>']
        if row.status == "ok":
            error = "" if row.loss_error is None else f" ± {row.loss_error:.1g}"
            shown = [f"{row.rank:g}", figures(row.loss) + error, figures(row.error)]
            cells += map(_number, shown)
        else:
            hint = escape(f"{row.status}: {row.message}")
            cells.append(f'{_number("×")}<td colspan="2">{hint}</td>')
        cells += [_number(figures(row.regret))] * regret
        if best:
            top = best[row.method]
            tag = f'<span class="tag">{escape(setting_words(top))}</span>'
            cells.append(_number(f"{figures(top.loss)} {tag}"))
        cells.append(_number(duration(row.seconds_per_step)))
        rows.append(_row(cells, row.ours, f' data-m="{groups[row.method]}"'))
    names = ["rank", "loss", "error", *["regret"] * regret]
    names += [*["best of grid, hindsight"] * bool(best), "a step"]
    heads = ["<th>method</th>", *map(_head, names)]
    seeds = max(row.seeds for row in board.of(stream))
    bars = f" ± is the standard error over {seeds} seeds." if seeds > 1 else ""
    return (
        f"<details><summary>All {len(rows)} methods</summary>{_table(heads, rows)}"
        f'<p class="note">{TEST}{bars}</p></details>'
    )
