"""The command line: `driftrate reproduce` and `driftrate race`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from driftrate.errors import DriftrateError

try:
    import typer
    from rich.console import Console
except ImportError as missing:
    sys.exit(f"driftrate: the command line needs {missing.name}: pip install 'driftrate[paper]'")

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def main() -> None:
    """Learning rates that follow the shift in the data."""


@contextmanager
def _plainly() -> Iterator[None]:
    """End with one line instead of a traceback where the user can do something about it."""
    try:
        yield
    except DriftrateError as error:
        print(f"driftrate: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as stop:
        print("driftrate: stopped; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from stop


@app.command()
def reproduce(
    figures: Annotated[
        list[str] | None, typer.Argument(help="figure1 ... figure6, statements; all if none.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("out"),
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of each experiment.")] = 32,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that compute at once.")] = 2,
    data: Annotated[
        Path | None, typer.Option(help="The cells of Figure 6: scVelo's .h5ad, or a CSV.")
    ] = None,
) -> None:
    """Run every experiment of the paper and write a page with a verdict on each claim."""
    from driftrate.paper.base import Context
    from driftrate.paper.reproduce import reproduce as run

    context = Context(seeds=seeds, data=None if data is None else str(data))
    with _plainly():
        judgements = run(figures or [], out, context, jobs=jobs)
    console = Console()
    for judgement in judgements:
        console.print(f"{judgement.verdict:>16}  {judgement.claim.text}", highlight=False)
    console.print(f"\n{out / 'index.html'}")


@app.command()
def race(
    streams: Annotated[
        list[str],
        typer.Argument(
            help="CSV or Parquet files, river:NAME, openml:NAME, cytometry, or for example "
            "synthetic:spiral,dim=128,hold=8."
        ),
    ],
    target: Annotated[str | None, typer.Option(help="The target column of the files.")] = None,
    time: Annotated[str | None, typer.Option(help="The column to sort the files by.")] = None,
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between; all that are installed if none.")
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(help="linear, logistic, softmax or mlp; the linear one that fits if none."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows in a batch.")] = 16,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each method.")] = 1,
    grid: Annotated[
        bool,
        typer.Option(
            "--grid/--defaults-only", help="Also run each method on a small grid of settings."
        ),
    ] = True,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("out/race"),
    engine: Annotated[str, typer.Option(help="local or dask.")] = "local",
    scheduler: Annotated[
        str | None, typer.Option(help="The address of a Dask scheduler, host:port.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells that are played at once.")] = 2,
    limit: Annotated[
        float, typer.Option(min=0, help="Seconds that one method may take on one stream.")
    ] = 600.0,
) -> None:
    """Race methods on your streams and write a page with one table."""
    from driftrate.race.race import Race
    from driftrate.race.race import race as run
    from driftrate.race.words import overall, verdict

    chosen = [name.strip() for name in methods.split(",") if name.strip()]
    settings = Race(
        streams, target, time, chosen, model, batch, seeds, grid, engine, scheduler, jobs, limit
    )
    with _plainly():
        board = run(settings, out)
    console = Console()
    lines = overall(board) or verdict(board, board.streams[0])
    console.print("\n" + "\n".join(lines), highlight=False, markup=False)
    console.print(f"\n{out / 'index.html'}")


if __name__ == "__main__":
    app()
