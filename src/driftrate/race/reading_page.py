"""What was read, as a part of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from driftrate.race.intake import Intake
from driftrate.race.reading_words import column_words, columns_words, scale_words, target_words


def reading_section(found: Sequence[Intake]) -> str:
    """Return HTML on what was read of each stream, with warnings in sight and the rest folded."""
    return f"<h2>What was read</h2>{''.join(map(_stream, found))}" if found else ""


def _stream(one: Intake) -> str:
    warnings = "".join(f"<li>{escape(text)}</li>" for text in one.warnings)
    shown = f'<ul class="says">{warnings}</ul>' if warnings else ""
    unplayed = ", ".join(f"{count:,} {reason}" for reason, count in one.unplayed.items())
    rows = f"{one.rows:,} read, {one.played:,} played{f' ({unplayed})' if unplayed else ''}"
    pairs = [
        ("rows", rows),
        ("target", target_words(one)),
        ("model and loss", f"{one.model}; {one.loss}"),
        ("scale", scale_words(one)),
        ("order", one.order),
    ]
    if one.columns:
        pairs.append(("columns", columns_words(one)))
    pairs += [(f"column {name}", f"left out: {why}") for name, why in one.left_out.items()]
    for column in one.columns:
        said = column_words(column, one.looked)
        pairs.append((f"column {column.name}", f"{column.kind}{'; ' * bool(said)}{said}"))
    cells = "".join(f"<tr><td>{escape(a)}</td><td>{escape(b)}</td></tr>" for a, b in pairs)
    return (
        f"<details><summary>{escape(one.stream)}: {one.played:,} rows, {escape(one.model)}"
        f'</summary><div class="scroll"><table><tbody>{cells}</tbody></table></div></details>'
        f"{shown}"
    )
