"""The command line: `driftrate reproduce`."""

from __future__ import annotations

import sys
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
    from driftrate.report.reproduce import reproduce as run

    context = Context(seeds=seeds, data=None if data is None else str(data))
    try:
        judgements = run(figures or [], out, context, jobs=jobs)
    except DriftrateError as error:
        sys.exit(f"driftrate: {error}")
    except KeyboardInterrupt:
        sys.exit("driftrate: stopped; the next run goes on from here")
    console = Console()
    for judgement in judgements:
        console.print(f"{judgement.verdict:>16}  {judgement.claim.text}", highlight=False)
    console.print(f"\n{out / 'index.html'}")


if __name__ == "__main__":
    app()
