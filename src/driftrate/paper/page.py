"""The report of the paper: every claim with its verdict, then the pictures."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from driftrate._html import document
from driftrate.paper.claim import Judgement

_BADGES = {
    "holds": ("✓", "#0b6b50", "#d9f2ea"),
    "holds in part": ("◐", "#7a4d00", "#fdeecb"),
    "does not hold": ("✗", "#8f2d00", "#fbdfd3"),
    "cannot be judged": ("?", "#4a5058", "#e8eaee"),
}
_STYLE = """
.tally { display: flex; flex-wrap: wrap; gap: .5rem; margin: 0 0 1rem; }
td.claim { width: 40%; } td.claim a { color: var(--soft); font-size: .92em; white-space: nowrap; }
td details summary { display: -webkit-box; -webkit-line-clamp: 2; -webkit-box-orient: vertical;
  overflow: hidden; cursor: pointer; }
td details[open] summary { -webkit-line-clamp: none; }
td details p { color: var(--soft); margin: .3rem 0; }
figure { margin: .5rem 0 0; } img { width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .92rem; max-width: 52rem; }
@media (max-width: 42rem) {
  tr { display: block; padding: .6rem 0; border-bottom: 1px solid var(--line); }
  td, td.claim { display: block; width: auto; border: 0; padding: .1rem 0; }
  .scroll { overflow-x: auto; }
  .scroll img { min-width: 44rem; }
}
"""


@dataclass(frozen=True)
class Section:
    """One picture of the report."""

    name: str  # also that of its files
    title: str
    caption: str
    svg: bytes


def _badge(verdict: str, text: str = "") -> str:
    mark, ink, paper = _BADGES[verdict]
    look = f'class="badge" style="color:{ink};background:{paper}"'
    return f"<span {look}>{mark} {escape(text or verdict)}</span>"


def _row(judgement: Judgement) -> str:
    claim = judgement.claim
    return (
        f'<tr id="{claim.name}"><td>{_badge(judgement.verdict)}</td>'
        f'<td class="claim">{escape(claim.text)}'
        f' <a href="#{claim.figure}" title="see the picture">{escape(claim.where)}</a></td>'
        f"<td><details><summary>{escape(judgement.measured)}</summary>"
        f"<p>Rule: {escape(claim.rule_text)}.</p></details></td></tr>"
    )


def _figure(section: Section) -> str:
    data = base64.b64encode(section.svg).decode()
    return (
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2><figure><div class="scroll">'
        f'<img alt="{escape(section.title)}" src="data:image/svg+xml;base64,{data}"></div>'
        f"<figcaption>{escape(section.caption)}</figcaption></figure></section>"
    )


def render(judgements: Sequence[Judgement], sections: Sequence[Section], lead: str) -> str:
    """Return the page: a row for each claim, the pictures, and a line on how it was made."""
    count: Counter[str] = Counter(judgement.verdict for judgement in judgements)
    tally = "".join(_badge(name, f"{count[name]} {name}") for name in _BADGES if count[name])
    rows = "\n".join(_row(judgement) for judgement in judgements)
    pictures = "\n".join(_figure(section) for section in sections)
    body = f"""<h1>Learning rates under distribution shift: what held</h1>
<p class="lead">Every claim of <em>Learning Rate Schedules in the Presence of Distribution
Shift</em> (Fahrbach, Javanmard, Mirrokni and Worah, ICML 2023), judged by a rule from runs made
here. {escape(lead)}</p>
<div class="tally">{tally}</div>
<table><tbody>
{rows}
</tbody></table>
{pictures}"""
    return document("driftrate: the paper, reproduced", _STYLE, body)
