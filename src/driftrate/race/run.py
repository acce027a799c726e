"""A whole race in one call: play what is missing, show it as it comes, write the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import monotonic

import driftrate
from driftrate._html import unfinished, write_whole, writing
from driftrate._terminal import tell
from driftrate.race.cell import Cell, Result
from driftrate.race.contestants import contestants
from driftrate.race.drift import compare
from driftrate.race.engine import check_engine, run
from driftrate.race.figures import spread
from driftrate.race.intake import Intake, intake
from driftrate.race.leaderboard import Leaderboard, Row
from driftrate.race.page import render_race
from driftrate.race.page_now import Facts
from driftrate.race.plan import Plan, make_plan
from driftrate.race.reading_page import reading_section
from driftrate.race.reading_words import at_start, lines
from driftrate.race.screen import Screen
from driftrate.race.settings import Race
from driftrate.race.shelf import PAGE, links, mark, put_aside
from driftrate.race.store import CellStore
from driftrate.race.words import not_played

_SECONDS_BETWEEN_PAGES = 20.0


def race(settings: Race, out: Path, show: bool = True) -> Leaderboard:
    """Run a race, write its table as JSON, Parquet and a page, and return it.

    The files are `leaderboard.json`, `leaderboard.parquet`, `reading.json`, which says how every
    stream was read, and `index.html`; those of another race move to `races/`, with a link from the
    page (`driftrate.race.shelf`). Finished cells are kept in `race.sqlite`, and only what is
    missing there is played: a race that was stopped goes on where it was.

    Args:
        settings: What to race, and how.
        out: The folder to write to.
        show: Show the table and the time left.

    Raises:
        DriftrateError: The settings do not fit, or the folder cannot be written.
    """
    check_engine(settings.engine, settings.scheduler)
    plan = make_plan(settings, contestants())
    read = intakes(plan)
    if show:
        tell(*at_start(read))
    rows = {spec: source.rows for spec, source in plan.sources.items()}
    cells = [*plan.cells, *plan.checks]
    results: dict[Cell, Result] = {}

    def board_of(results: Mapping[Cell, Result]) -> Leaderboard:
        raced = {cell: result for cell, result in results.items() if not cell.shuffle}
        shown, names = spread(raced, plan)
        return Leaderboard(shown, plan.contestants, names)

    def publish() -> Leaderboard:
        board = board_of(results)
        if board.streams:
            with writing(out, "no cell is played twice"):
                _write(out, board, settings, plan, read, results)
        return board

    screen = Screen(cells, rows, settings.jobs, show, board_of)
    with CellStore(out / "race.sqlite") as store, screen:
        written = monotonic()
        how = {name: getattr(settings, name) for name in ("jobs", "limit", "engine", "scheduler")}
        finished = run(cells, store, say=screen.say, at_once=screen.at_once, **how)
        dropped = 0
        try:
            for cell, result in finished:
                if store.dropped > dropped:
                    dropped = store.dropped
                    rows_were = "1 row was" if dropped == 1 else f"{dropped} rows were"
                    screen.say(f"store {store.path}: {rows_were} damaged, and played again")
                results[cell] = result
                screen.advance(cell, result)
                if monotonic() - written > _SECONDS_BETWEEN_PAGES:
                    publish()
                    written = monotonic()
        finally:
            finished.close()
            board = publish()
    return board


def check(settings: Race) -> list[str]:
    """Return what a race would read, in lines, without playing anything.

    Raises:
        DriftrateError: The settings do not fit, or a stream cannot be read.
    """
    found = intakes(make_plan(settings, contestants()))
    return [line for one in found for line in lines(one, whole=True)]


def intakes(plan: Plan) -> list[Intake]:
    """Return what was read of every stream of a plan."""
    return [intake(spec, one, plan.readings[spec]) for spec, one in plan.sources.items()]


# What a row of the leaderboard says of its stream; reading.json has the columns too.
_TOLD = ("rows", "played", "unplayed", "target", "task", "model", "loss", "scale", "warnings")


def _write(
    out: Path,
    board: Leaderboard,
    settings: Race,
    plan: Plan,
    read: list[Intake],
    results: Mapping[Cell, Result],
) -> None:
    others = links(put_aside(out, settings))
    rows = [asdict(row) for row in (*board.rows, *board.unplayed)]
    told = {plan.names[one.spec]: asdict(one) for one in read}
    short = {name: {key: one[key] for key in _TOLD} for name, one in told.items()}
    said = [{**row, "reading": short.get(str(row["stream"]))} for row in rows]
    write_whole(out / "leaderboard.json", json.dumps(said, indent=1) + "\n")
    write_whole(out / "reading.json", json.dumps([*told.values()], indent=1) + "\n")
    with unfinished(out / "leaderboard.parquet") as piece:
        _write_parquet(piece, rows)
    done = sum(one["status"] != "not played" for one in results.values())
    count = len(plan.cells) + len(plan.checks)
    part = "" if done == count else f"Not finished: {done} of {count} cells. "
    part += "".join(f"{line} " for line in not_played(board.unplayed))
    seeds = f"{settings.seeds} seed{'s' * (settings.seeds != 1)}"
    late = f"labels {settings.delay:,} rows late, " if settings.delay else ""
    lead = f"{part}Batches of {settings.batch}, {late}{seeds}, driftrate {driftrate.__version__}."
    around = {"reading": reading_section(read), "mark": mark(settings), "others": others}
    write_whole(out / PAGE, render_race(board, lead, plan.absent, _facts(plan, results), **around))


def _facts(plan: Plan, results: Mapping[Cell, Result]) -> dict[str, Facts]:
    """Return what is known of each stream, and of each of its figures, by name."""
    found: dict[str, Facts] = {}
    for spec, name in plan.names.items():
        source = plan.sources[spec]
        figures = () if source.protocol is None else source.protocol.figures
        facts = Facts(source.task, source.model, source.batch, compare(spec, results))
        found |= dict.fromkeys([f"{name}: {one}" for one in figures] or [name], facts)
    return found


def _write_parquet(path: Path, rows: list[dict[str, object]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64()}
    kinds["float | None"] = pa.float64()
    # Told beforehand, so that a column without a value has its type all the same.
    columns = {key: kinds.get(kind, pa.string()) for key, kind in Row.__annotations__.items()}
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(columns)), path)
