"""A race on the screen: the table so far, and the time left; in a file, a line now and then."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import numpy as np

from driftrate._terminal import printable, tell
from driftrate.race.cell import Cell, Result
from driftrate.race.leaderboard import Leaderboard
from driftrate.race.words import BY_ROW, duration, figures

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_TABLES = 2.0
_SECONDS_BETWEEN_LINES = 5.0
# A large table takes long to make, and must neither slow the race down nor stand still.
_TIMES_ITS_COST = 30
_MOST_SECONDS_BETWEEN_TABLES = 10.0
_MOST_ROWS = 30


def seconds_left(
    todo: Sequence[Cell], rows: Mapping[str, int], done: Mapping[Cell, Result]
) -> float:
    """Estimate the computing time of cells from those that are done.

    The time of a cell is its method's mean time per row so far, times the rows of its stream; a
    method without a finished cell counts as an average one. NaN if nothing is done.
    """
    paces: dict[str, list[float]] = {}
    for cell, result in done.items():
        if result["steps"]:
            pace = result["seconds_per_step"] * result["steps"] / rows[cell.stream]
            paces.setdefault(cell.method, []).append(pace)
    typical = {method: float(np.mean(found)) for method, found in paces.items()}
    average = float(np.mean(list(typical.values()))) if typical else math.nan
    return sum(typical.get(cell.method, average) * rows[cell.stream] for cell in todo)


def table(board: Leaderboard, most: int = _MOST_ROWS) -> Table:
    """Return the placings so far as a table for a terminal."""
    from rich.table import Table

    one_stream = len(board.streams) == 1
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("", "method", "mean rank", "loss" if one_stream else "streams", "a step"):
        shown.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
    losses = {row.method: row for row in board.of(board.streams[0])}
    # Untested: the tests are of the page, and scipy takes seconds to import on a busy machine.
    placings = board.placings(tested=False)
    for place, one in enumerate(placings[:most], 1):
        if one_stream:
            row = losses[one.method]
            last = figures(row.loss) if row.status == "ok" else row.status
        else:
            last = f"{one.streams}" + (f" ({one.marked} without result)" if one.marked else "")
        style, took = "bold blue" if one.ours else "", duration(one.seconds_per_step)
        name = f"{one.method} {BY_ROW}" if one.by_row else one.method
        shown.add_row(f"{place}", name, f"{one.mean_rank:.1f}", last, took, style=style)
    if len(placings) > most:
        shown.add_row("", f"... and {len(placings) - most} more", "", "", "")
    return shown


class Screen:
    """The table and a bar, live in a terminal; elsewhere a line every few seconds.

    A thread of its own looks at what is done, so that the screen moves while the race waits.

    Args:
        cells: What is raced.
        rows: How many rows each stream has.
        jobs: How many cells are played at once, until `at_once` says otherwise.
        show: Whether to show anything.
        board: Makes a table of what is done.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        rows: Mapping[str, int],
        jobs: int,
        show: bool,
        board: Callable[[Mapping[Cell, Result]], Leaderboard],
    ) -> None:
        self._cells, self._rows, self._jobs = cells, rows, jobs
        self._show, self._board = show, board
        self._done: dict[Cell, Result] = {}
        self._face: _Face | None = None
        self._ended = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Screen:
        if self._show:
            from rich.console import Console

            console = Console()
            moves = console.is_terminal and not console.is_dumb_terminal
            self._face = (_Live if moves else _Lines)(console, len(self._cells))
            self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._face is not None:
            self._ended.set()
            self._watching.join()
            self._draw(self._face)
            self._face.end()

    def advance(self, cell: Cell, result: Result) -> None:
        """Note a finished cell."""
        self._done[cell] = result

    def say(self, line: str) -> None:
        """Show a line above the table, where it stays."""
        if self._face is not None:
            self._face.say(line)

    def at_once(self, count: int) -> None:
        """Note that so many cells are played at once from now on."""
        self._jobs = count

    def _watch(self) -> None:
        assert self._face is not None
        due, drawn = 0.0, 0
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            begin = monotonic()
            self._face.count(len(self._done))
            if begin >= due and (len(self._done) > drawn or not self._face.moves):
                drawn = len(self._done)
                self._draw(self._face)
                pause = min(_TIMES_ITS_COST * (monotonic() - begin), _MOST_SECONDS_BETWEEN_TABLES)
                due = monotonic() + max(self._face.pause, pause)

    def _draw(self, face: _Face) -> None:
        done = dict(self._done)
        face.count(len(done))
        face.draw(self._board(done), self._left(done))

    def _left(self, done: Mapping[Cell, Result]) -> str:
        todo = [cell for cell in self._cells if cell not in done]
        seconds = seconds_left(todo, self._rows, done) / self._jobs
        if not todo or math.isnan(seconds):
            return ""
        return f"about {_minutes(seconds)} left"


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


class _Face(Protocol):
    """What a screen shows; `moves` is whether by itself, `pause` the seconds between two tables."""

    moves: bool
    pause: float

    def count(self, done: int) -> None:
        """Show how many cells are done."""

    def draw(self, board: Leaderboard, left: str) -> None:
        """Show a new table and the time left."""

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def end(self) -> None:
        """Leave what is shown, and the cursor on a line of its own."""


class _Live:
    """The table over a bar, drawn again in its place."""

    moves = True
    pause = _SECONDS_BETWEEN_TABLES

    def __init__(self, console: Console, total: int) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        parts = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "{task.fields[left]}")
        self._bar = Progress("cells", *parts, console=console)
        self._task = self._bar.add_task("", total=total, left="")
        self._table: RenderableType = "The first methods are on their way."
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=2)
        self._live.start()

    def count(self, done: int) -> None:
        self._bar.update(self._task, completed=done)

    def draw(self, board: Leaderboard, left: str) -> None:
        self._bar.update(self._task, left=left)
        if board.streams:
            height = self._live.console.height
            self._table = table(board, max(5, min(_MOST_ROWS, height - 5)))

    def say(self, line: str) -> None:
        self._live.console.print(printable(line), highlight=False, markup=False)

    def end(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group

        return Group(self._table, self._bar)


class _Lines:
    """A line every few seconds, and the table at the end: for files and other programs."""

    moves = False
    pause = _SECONDS_BETWEEN_LINES

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._begin, self._done = monotonic(), 0
        self._board: Leaderboard | None = None

    def count(self, done: int) -> None:
        self._done = done

    def draw(self, board: Leaderboard, left: str) -> None:
        self._board = board
        parts = [
            f"{self._done:,} of {self._total:,} cells in {_minutes(monotonic() - self._begin)}"
        ]
        self.say(", ".join([*parts, *filter(None, [left]), *_leads(board)]))

    def say(self, line: str) -> None:
        tell(line)

    def end(self) -> None:
        if self._board is not None and self._board.streams:
            self._console.print(table(self._board))


def _leads(board: Leaderboard) -> list[str]:
    if not board.streams:
        return []
    first = board.placings(tested=False)[0]
    if len(board.streams) == 1:
        (loss,) = (row.loss for row in board.of(board.streams[0]) if row.method == first.method)
        return [] if loss is None else [f"{first.method} leads with {figures(loss)}"]
    return [f"{first.method} leads with a mean rank of {first.mean_rank:.1f}"]
