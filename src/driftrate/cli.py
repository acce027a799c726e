"""The command line: `driftrate reproduce` and `driftrate race`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from importlib.util import find_spec
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from signal import SIGTERM, signal
from typing import Annotated, Any, get_type_hints

from driftrate._terminal import tell
from driftrate._version import __version__
from driftrate.errors import DriftrateError, needs
from driftrate.race.settings import Race

try:
    import typer
except ImportError as missing:
    sys.exit(f"driftrate: the command line needs {missing.name}: pip install 'driftrate[paper]'")

# The extra of each command, and what it imports only when hours have passed.
_NEEDED = {
    "reproduce": ("paper", ("rich", "pyarrow", "scipy", "matplotlib", "joblib")),
    "race": ("race", ("rich", "pyarrow", "scipy", "joblib", "threadpoolctl")),
}
app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"driftrate {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Learning rates that follow the shift in the data."""


@contextmanager
def _plainly(command: str) -> Iterator[None]:
    """End with one line, not a traceback, where the user can do something about it."""
    extra, packages = _NEEDED[command]
    try:
        with _terminable(), needs(command, extra):
            _find(packages)
            yield
    except DriftrateError as error:
        tell(f"driftrate: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as stop:
        # A terminal shows ^C where the cursor was.
        begin = "\n" if sys.stderr.isatty() else ""
        print(f"{begin}driftrate: stopped; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from stop


def _find(packages: Sequence[str]) -> None:
    """Raise `ModuleNotFoundError` for the first of these that is not installed; import none."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


@contextmanager
def _terminable() -> Iterator[None]:
    """Take SIGTERM, which a machine sends that shuts down, for Ctrl-C."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal(SIGTERM, stop)
    try:
        yield
    finally:
        signal(SIGTERM, before)


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
    with _plainly("reproduce"):
        from driftrate.paper.base import Context
        from driftrate.paper.reproduce import reproduce as run

        context = Context(seeds=seeds, data=None if data is None else str(data))
        judgements = run(figures or [], out, context, jobs=jobs)
    tell(*(f"{judgement.verdict:>16}  {judgement.claim.text}" for judgement in judgements))
    tell("", out / "index.html")


def _options_of(record: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of a record as its options, and the record in their place.

    Their help is what the record's docstring says. A field without a default is the argument of the
    command, which the record itself may require; a sequence with one is an option that takes its
    values with commas between.
    """
    kinds, texts = get_type_hints(record), _texts(record)
    lists = {one.name for one in fields(record) if one.default == ()}

    def parameter(one: Field[Any]) -> Parameter:
        kind, default, text = kinds[one.name], one.default, texts.get(one.name)
        flags = [one.metadata["flag"]] if "flag" in one.metadata else []
        info: Any = typer.Option(*flags, help=text)
        if default is MISSING:
            kind, default, info = list[str] | None, None, typer.Argument(help=text)
        elif one.name in lists:
            kind, default = str, ""
        return Parameter(
            one.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
        )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            told = {one.name: given.pop(one.name) for one in fields(record)}
            told |= {
                one.name: told[one.name] or [] for one in fields(record) if one.default is MISSING
            }
            for name in lists:
                told[name] = [value.strip() for value in told[name].split(",") if value.strip()]
            with _plainly(command.__name__):
                command(record(**told), **given)

        others = list(signature(command, eval_str=True).parameters.values())[1:]
        run.__signature__ = Signature([*map(parameter, fields(record)), *others])  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _texts(record: type[Any]) -> dict[str, str]:
    """Return what the docstrings of a record and its bases say of each field."""
    found = {}
    for one in record.__mro__:
        told = cleandoc(one.__doc__ or "").partition("Args:\n")[2]
        for name, text in re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", told, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found


@app.command()
@_options_of(Race)
def race(
    settings: Race,
    *,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("out/race"),
    check: Annotated[
        bool, typer.Option("--check", help="Read the streams, say what was read, and stop.")
    ] = False,
) -> None:
    """Race methods on your streams and write a page with one table."""
    from driftrate.race.advice import advise
    from driftrate.race.run import check as read
    from driftrate.race.run import race as run
    from driftrate.race.words import none_through, not_played, overall, verdict

    if check:
        tell(*read(settings))
        return
    board = run(settings, out)
    nothing = none_through(board)
    lines = [nothing] if nothing else overall(board)
    if not lines:
        for name in board.streams:
            lines += [advise(board, name, settings.batch).text, *verdict(board, name)]
    lines += not_played(board.unplayed)
    tell("", *lines)
    if board.streams:
        tell("", out / "index.html")
    if board.unplayed or nothing:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
