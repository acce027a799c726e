"""The whole paper in one call: compute what is missing, draw, judge, write."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import driftrate
from driftrate._html import write_whole
from driftrate.errors import ConfigError
from driftrate.paper.base import Context, Figure, Piece, Tables
from driftrate.paper.claim import Judgement, judge
from driftrate.paper.claims import CLAIMS
from driftrate.paper.page import Section, render
from driftrate.paper.store import PieceStore

# Cheap ones first: the first picture is there within seconds.
FIGURES = ("figure3", "figure2", "figure1", "figure4", "statements", "figure6", "figure5")


def load(name: str) -> Figure:
    """Return the module that makes a figure."""
    if name not in FIGURES:
        raise ConfigError(f"unknown figure {name!r}: choose from {', '.join(sorted(FIGURES))}")
    return cast(Figure, import_module(f"driftrate.paper.{name}"))


def reproduce(
    names: Sequence[str], out: Path, context: Context, jobs: int = 2, show: bool = True
) -> list[Judgement]:
    """Make figures, verdicts and the page.

    Finished pieces are kept in `out/runs` and found again: a run that was stopped goes on where it
    was, and one with nothing changed takes seconds.

    Args:
        names: The figures to make; all if empty.
        out: The folder to write to.
        context: Seeds and data.
        jobs: How many processes compute at once.
        show: Show progress.

    Returns:
        The verdicts on the claims that these figures decide.
    """
    figures = {name: load(name) for name in FIGURES if not names or name in names}
    for name in names:
        load(name)
    # Bad data is found here, before anything is written.
    plan = {name: module.pieces(context) for name, module in figures.items()}
    store = PieceStore(out / "runs", figures)
    begin = perf_counter()
    sections: dict[str, Section] = {}
    tables: dict[str, Tables] = {}
    judgements: list[Judgement] = []
    with _Progress(sum(map(len, plan.values())), show) as progress:
        for name, module in figures.items():
            progress.say(name)
            todo = [piece for piece in plan[name] if not store.has(name, piece)]
            progress.advance(len(plan[name]) - len(todo))
            for _ in _compute(store, name, todo, jobs):
                progress.advance(1)
            tables[name] = {piece.name: store.read(name, piece) for piece in plan[name]}
            drawing = store.drawing(name, plan[name])
            sections[name] = _picture(name, module, tables[name], out, drawing)
            judgements = [judge(claim, tables) for claim in CLAIMS if claim.figure in tables]
            _write(out, judgements, sections, context, perf_counter() - begin)
    return judgements


def _compute(store: PieceStore, figure: str, pieces: list[Piece], jobs: int) -> Iterator[Any]:
    if jobs == 1 or len(pieces) < 2:
        for piece in pieces:
            store.compute(figure, piece)
            yield
        return
    from joblib import Parallel, delayed

    # One thread per process: more would compete for the same cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    yield from parallel(delayed(store.compute)(figure, piece) for piece in pieces)


def _picture(name: str, module: Figure, tables: Tables, out: Path, drawing: Path) -> Section:
    """Draw a figure, unless the same one was drawn before."""
    png, svg = out / f"{name}.png", out / f"{name}.svg"
    if not (drawing.exists() and png.exists()):
        from matplotlib import rc_context

        picture = module.draw(tables)
        picture.savefig(png, dpi=150)
        for old in drawing.parent.glob("picture-*.svg"):
            old.unlink()
        # A fixed salt and no date: the same runs give the same bytes.
        with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
            picture.savefig(drawing, format="svg", metadata={"Date": None})
    svg.write_bytes(drawing.read_bytes())
    caption = module.CAPTION
    sources = tables.get("source")
    if sources is not None:
        caption += f" Cells: {sources['source'][0].as_py()}."
    return Section(name, module.TITLE, caption, svg.read_bytes())


def _write(
    out: Path,
    judgements: list[Judgement],
    sections: dict[str, Section],
    context: Context,
    seconds: float,
) -> None:
    rows = [judgement.row() for judgement in judgements]
    write_whole(out / "verdicts.json", json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    lead = f"driftrate {driftrate.__version__}, {context.seeds} seeds, {seconds:.0f} s."
    pictures = [sections[name] for name in sorted(sections)]
    write_whole(out / "index.html", render(judgements, pictures, lead))


class _Progress:
    """A bar with the time left, or nothing."""

    def __init__(self, total: int, show: bool) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            disable=not show,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.update(self._task, description=text)

    def advance(self, count: int) -> None:
        self._bar.advance(self._task, count)
