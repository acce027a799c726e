"""The page of the paper, from a finished reproduction: its figures, small, and every verdict.

make reproduce && python docs/_site/verdicts.py out
"""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from itertools import groupby
from pathlib import Path

from PIL import Image

from driftrate.paper.reproduce import load

DOCS = Path(__file__).parent.parent
WIDEST, COLOURS = 1500, 96
MARKS = {"holds": "yes", "holds in part": "part", "does not hold": "no"}
HEAD = """---
hide: [toc]
---

# The paper, run

[*Learning Rate Schedules in the Presence of Distribution Shift*][paper] (Fahrbach, Javanmard,
Mirrokni and Worah, ICML 2023; [arXiv 2303.15634][arxiv]), with every figure drawn anew and every
claim judged by what the runs measured.
Of {total} claims {holds} hold, {part} hold in part and {no} do not. What is proved is on two other
pages: [every statement, with a verdict and a test](statements.md), and [the slips](errata.md).
This page is written by

    make reproduce
    python docs/_site/verdicts.py out

[paper]: https://proceedings.mlr.press/v202/fahrbach23a.html
[arxiv]: https://arxiv.org/abs/2303.15634
"""


def shrink(source: Path, target: Path) -> None:
    """Write a picture with fewer pixels and colours."""
    with Image.open(source) as whole:
        picture = whole.convert("RGB")
    if picture.width > WIDEST:
        height = round(picture.height * WIDEST / picture.width)
        picture = picture.resize((WIDEST, height), Image.Resampling.LANCZOS)
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


def page(out: Path) -> str:
    """Return the page, and shrink the pictures into docs/images."""
    rows = json.loads((out / "verdicts.json").read_text(encoding="utf-8"))
    verdicts = [row["verdict"] for row in rows]
    counts = {short: verdicts.count(mark) for mark, short in MARKS.items()}
    head = HEAD.format(total=len(rows), holds=counts["yes"], part=counts["part"], no=counts["no"])
    lines = [head]
    cells = re.search(r"Cells: ([^<]*)", (out / "index.html").read_text(encoding="utf-8"))
    for picture, group in groupby(rows, key=lambda row: str(row["picture"])):
        name = Path(picture).stem
        module = load(name)
        caption = module.CAPTION
        if name == "figure6" and cells:
            caption += f" Cells: {unescape(cells[1]).strip()}"
        shrink(out / f"{name}.png", DOCS / "images" / f"paper_{name}.png")
        image = f"images/paper_{name}.png"
        title = f"Figure {name[-1]}: {module.TITLE}" if name != "statements" else module.TITLE
        lines += [f"## {title}", "", f"[![{module.TITLE}]({image})]({image})", ""]
        lines += [
            f"{caption}\n{{ .caption }}",
            "",
            "| claim | verdict | measured |",
            "|---|---|---|",
        ]
        for row in group:
            mark = f'<span class="verdict {MARKS[row["verdict"]]}">{row["verdict"]}</span>'
            measured = row["measured"].replace("|", "\\|")
            lines.append(f"| {row['claim']} | {mark} | {measured} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    (DOCS / "paper.md").write_text(page(Path(sys.argv[1])), encoding="utf-8")
