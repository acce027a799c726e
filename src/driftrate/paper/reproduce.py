"""The whole paper in one call: compute what is missing, draw, judge, write."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import driftrate
from driftrate._html import unfinished, write_whole, writing
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
    begin, judgements = perf_counter(), list[Judgement]()
    sections, tables = dict[str, Section](), dict[str, Tables]()
    kept = "no piece is computed twice"
    with _progress(sum(map(len, plan.values())), show) as progress, writing(out, kept):
        for name, module in figures.items():
            todo = [piece for piece in plan[name] if not store.has(name, piece)]
            while store.damaged and show:
                print(f"piece {store.damaged.pop()} was damaged, and is computed again")
            progress(description=name, advance=len(plan[name]) - len(todo))
            for _ in _compute(store, name, todo, jobs):
                progress(advance=1)
            tables[name] = {piece.name: store.read(name, piece) for piece in plan[name]}
            sections[name] = _picture(name, module, tables[name], out)
            judgements = [judge(claim, tables) for claim in CLAIMS if claim.figure in tables]
            rows = json.dumps([one.row() for one in judgements], indent=2, ensure_ascii=False)
            write_whole(out / "verdicts.json", rows + "\n")
            seconds = f"{perf_counter() - begin:.0f} s"
            lead = f"driftrate {driftrate.__version__}, {context.seeds} seeds, {seconds}."
            pictures = [sections[name] for name in sorted(sections)]
            write_whole(out / "index.html", render(judgements, pictures, lead))
    return judgements


def _compute(store: PieceStore, figure: str, pieces: list[Piece], jobs: int) -> Iterator[Any]:
    if jobs == 1 or len(pieces) < 2:
        for piece in pieces:
            store.compute(figure, piece)
            yield
        return
    from joblib import Parallel, delayed

    # One thread per process: more would compete for the same cores. What lies in the working folder
    # is data, and no module for them.
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    with _environment(OMP_NUM_THREADS=threads, PYTHONSAFEPATH="1"):
        parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        yield from parallel(delayed(store.compute)(figure, piece) for piece in pieces)


@contextmanager
def _environment(**told: str) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def _picture(name: str, module: Figure, tables: Tables, out: Path) -> Section:
    from matplotlib import rc_context, rcdefaults, rcParams

    svg = out / f"{name}.svg"
    with rc_context():
        rcdefaults()  # a matplotlibrc beside the data could have LaTeX run
        # A fixed salt and no date: the same runs give the same bytes.
        rcParams.update({"svg.hashsalt": name, "svg.fonttype": "none"})
        picture = module.draw(tables)
        with unfinished(out / f"{name}.png") as part:
            picture.savefig(part, format="png", dpi=150)
        with unfinished(svg) as part:
            picture.savefig(part, format="svg", metadata={"Date": None})
    caption = module.CAPTION
    if "source" in tables:
        caption += f" Cells: {tables['source']['source'][0].as_py()}."
    return Section(name, module.TITLE, caption, svg.read_bytes())


@contextmanager
def _progress(total: int, show: bool) -> Iterator[Callable[..., None]]:
    """Show a bar with the time left, or nothing; yield what moves it on."""
    from rich import progress as rich

    texts = rich.TextColumn("{task.description:<11}"), rich.TextColumn("left")
    done = rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn()
    columns = texts[0], *done, texts[1], rich.TimeRemainingColumn()
    with rich.Progress(*columns, disable=not show) as bar:
        yield partial(bar.update, bar.add_task("", total=total))
