"""A whole race in one call: play what is missing, show it as it comes, write the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

import driftrate
from driftrate._html import unfinished, write_whole
from driftrate.errors import DataError
from driftrate.race.cell import Cell, Result
from driftrate.race.contestants import contestants
from driftrate.race.engine import check_engine, run
from driftrate.race.leaderboard import Leaderboard, Row
from driftrate.race.page import render_race
from driftrate.race.plan import Plan, make_plan
from driftrate.race.screen import Screen
from driftrate.race.store import Store

_SECONDS_BETWEEN_PAGES = 20.0


@dataclass(frozen=True)
class Race:
    """What to race, and how.

    Args:
        streams: Files, or names such as `synthetic:spiral`.
        target: The target column of the files.
        time: The time column of the files.
        methods: The methods; all that are installed if empty.
        model: The model; the linear one that fits the target if None.
        batch: Rows in a batch.
        seeds: Seeds of each method and setting.
        grid: Whether to run the grids beside the defaults.
        engine: `local` or `dask`.
        scheduler: The address of a Dask scheduler.
        jobs: How many cells to play at once.
        limit: The time limit of a cell in seconds; None for no limit.
    """

    streams: Sequence[str]
    target: str | None = None
    time: str | None = None
    methods: Sequence[str] = ()
    model: str | None = None
    batch: int = 16
    seeds: int = 1
    grid: bool = True
    engine: str = "local"
    scheduler: str | None = None
    jobs: int = 2
    limit: float | None = 600.0


def race(settings: Race, out: Path, show: bool = True) -> Leaderboard:
    """Run a race and write `leaderboard.json`, `leaderboard.parquet` and `index.html`.

    Finished cells are kept in `out/race.sqlite`, and only what is missing there is played: a race
    that was stopped goes on where it was.

    Args:
        settings: What to race, and how.
        out: The folder to write to.
        show: Show the table and the time left.

    Returns:
        The table.

    Raises:
        DriftrateError: The settings do not fit, or the folder cannot be written.
    """
    check_engine(settings.engine, settings.scheduler)
    plan = make_plan(
        settings.streams,
        contestants(),
        target=settings.target,
        time=settings.time,
        methods=settings.methods,
        model=settings.model,
        batch=settings.batch,
        seeds=settings.seeds,
        grid=settings.grid,
    )
    rows = {spec: source.rows for spec, source in plan.sources.items()}
    results: dict[Cell, Result] = {}

    def publish(screen: Screen, write: bool) -> Leaderboard:
        board = Leaderboard(results, plan.contestants, plan.names)
        if board.streams:
            screen.draw(board)
        if board.streams and write:
            try:
                _write(out, board, settings, plan, len(results))
            except OSError as error:
                raise DataError(
                    f"cannot write to {out}: {error.strerror}; run again to go on"
                ) from error
        return board

    with (
        Store(out / "race.sqlite") as store,
        Screen(plan.cells, rows, settings.jobs, show) as screen,
    ):
        written = monotonic()
        finished = run(
            plan.cells,
            store,
            jobs=settings.jobs,
            limit=settings.limit,
            engine=settings.engine,
            scheduler=settings.scheduler,
        )
        try:
            for cell, result in finished:
                results[cell] = result
                if screen.advance(cell, result):
                    due = monotonic() - written > _SECONDS_BETWEEN_PAGES
                    publish(screen, write=due)
                    written = monotonic() if due else written
        finally:
            finished.close()
            board = publish(screen, write=True)
    return board


def _write(out: Path, board: Leaderboard, settings: Race, plan: Plan, done: int) -> None:
    write_whole(out / "leaderboard.json", json.dumps(_plain(board), indent=1) + "\n")
    _write_parquet(out / "leaderboard.parquet", board)
    part = "" if done == len(plan.cells) else f"Not finished: {done} of {len(plan.cells)} cells. "
    lead = (
        f"{part}Batches of {settings.batch}, {settings.seeds} seed{'s' * (settings.seeds != 1)}, "
        f"driftrate {driftrate.__version__}."
    )
    write_whole(out / "index.html", render_race(board, lead, plan.absent))


def _plain(board: Leaderboard) -> list[dict[str, object]]:
    return [asdict(row) for row in board.rows]


def _write_parquet(path: Path, board: Leaderboard) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"str": pa.string(), "bool": pa.bool_(), "int": pa.int64()}
    # Told beforehand, so that a column without a value has its type all the same.
    schema = pa.schema(
        {
            name: kinds.get(
                str(kind), pa.string() if kind in ("Column", "Status") else pa.float64()
            )
            for name, kind in Row.__annotations__.items()
        }
    )
    with unfinished(path) as part:
        pq.write_table(pa.Table.from_pylist(_plain(board), schema=schema), part)
