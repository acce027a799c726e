"""A race on the screen: the table so far, and the time left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from driftrate.race.cell import Cell, Result
from driftrate.race.leaderboard import Leaderboard
from driftrate.race.words import BY_ROW, duration, figures

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_SECONDS_BETWEEN_TABLES = 2.0
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
    placings = board.placings()
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
    """The table and a bar, live in a terminal, silent elsewhere or if not to `show`."""

    def __init__(
        self, cells: Sequence[Cell], rows: Mapping[str, int], jobs: int, show: bool
    ) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        self._cells, self._rows, self._jobs = cells, rows, jobs
        self._done: dict[Cell, Result] = {}
        parts = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "{task.fields[left]}")
        self._bar = Progress("cells", *parts)
        self._task = self._bar.add_task("", total=len(cells), left="")
        self._table: RenderableType = ""
        self._due = 0.0
        self._live = Live(get_renderable=self._render, refresh_per_second=2) if show else None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def advance(self, cell: Cell, result: Result) -> bool:
        """Note a finished cell; True if it is time for a new table."""
        self._done[cell] = result
        self._bar.update(self._task, completed=len(self._done))
        return monotonic() >= self._due

    def draw(self, board: Leaderboard) -> None:
        """Show a new table."""
        begin = monotonic()
        if self._live is not None:
            height = self._live.console.height
            self._table = table(board, max(5, min(_MOST_ROWS, height - 5)))
            self._bar.update(self._task, left=self._left())
        # A large table takes long to make, and must not slow the race down.
        now = monotonic()
        self._due = now + max(_SECONDS_BETWEEN_TABLES, 30 * (now - begin))

    def _left(self) -> str:
        todo = [cell for cell in self._cells if cell not in self._done]
        seconds = seconds_left(todo, self._rows, self._done) / self._jobs
        if not todo or math.isnan(seconds):
            return ""
        minutes, rest = divmod(round(seconds), 60)
        return f"about {minutes} min {rest} s left"

    def _render(self) -> RenderableType:
        from rich.console import Group

        return Group(self._table, self._bar)
