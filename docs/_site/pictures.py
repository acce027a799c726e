"""Pictures of what stands in tables: mean ranks of the race, networks stream by stream.

python docs/_site/pictures.py
"""

from __future__ import annotations

import re
from pathlib import Path

from driftrate.paper import style

DOCS = Path(__file__).parent.parent
OURS, MIDDLE, OTHERS = style.COLOURS["exact form"], style.COLOURS["the paper's rule"], "#b9bfc7"
SHOWN = {
    "Hedged": OURS,
    "Pursuit": MIDDLE,
    "cocob": style.COLOURS["best constant rate"],
    "adam beta1 0.0 beta2 0.99 lr 0.003": style.COLOURS["rate 0"],
    "adam 0.003": OTHERS,
}


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def between(text: str, mark: str) -> list[list[str]]:
    """Return the rows of the first table after a mark, its head among them."""
    lines = text[text.index(mark) :].splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return [rows[0], *rows[2:]]


@style.styled
def ranks() -> None:
    """Draw the mean rank of every method on the ten real streams."""
    head, *rows = between((DOCS / "benchmark.md").read_text(encoding="utf-8"), "<!-- real -->")
    place = head.index("mean rank at default")
    found, ours = [], set()
    for row in rows:
        number = re.match(r"[\d.]+", row[place])
        if number:
            name = re.sub(r"\(.*?\)|[*†]", "", row[1]).strip()
            found.append((name, float(number[0])))
            ours |= {name} if row[1].startswith("**") else set()
    figure, ((axes,),) = style.canvas(1, 1, width=10, height=4.4)
    names, values = zip(*found, strict=True)
    colours = [OURS if name in ours else OTHERS for name in names]
    axes.bar(range(len(names)), values, color=colours, width=0.72)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7.5)
    for label in axes.get_xticklabels():
        if label.get_text() in ours:
            label.set(color=OURS, fontweight="bold")
    axes.grid(axis="x", visible=False)
    axes.set(title="mean rank on ten real streams, each method at its default (1 is best)")
    axes.margins(x=0.01)
    figure.savefig(DOCS / "images" / "race_ranks.png", dpi=130)


@style.styled
def networks() -> None:
    """Draw losses over the best Adam's, a held-out stream a row."""
    text = (DOCS / "networks.md").read_text(encoding="utf-8")
    head, *rows = between(text, "<!-- held-out-streams -->")
    figure, ((axes,),) = style.canvas(1, 1, width=10, height=4.2)
    streams = head[1:]
    table = {row[0]: [float(cell.split()[0]) for cell in row[1:]] for row in rows}
    order = sorted(range(len(streams)), key=lambda k: -table["Pursuit"][k])
    axes.axvline(1.0, color=style.INK, linewidth=1.0)
    for name, colour in SHOWN.items():
        values = [table[name][k] for k in order]
        size = 9 if name in {"Hedged", "Pursuit"} else 6
        axes.plot(values, range(len(order)), "o", color=colour, markersize=size, label=name)
    axes.set_yticks(range(len(order)), [streams[k] for k in order])
    axes.set(title="loss over that of the best of eighteen Adams in hindsight, held-out streams")
    axes.set_xlim(0.7, 2.3)
    figure.legend(loc="outside lower center", ncols=len(SHOWN))
    figure.savefig(DOCS / "images" / "networks_streams.png", dpi=130)


if __name__ == "__main__":
    ranks()
    networks()
