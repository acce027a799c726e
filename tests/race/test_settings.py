"""The options of a race: one record, which the command line and the cells are made of."""

from __future__ import annotations

from dataclasses import fields

import pytest
from typer.testing import CliRunner

from driftrate.cli import app
from driftrate.errors import ConfigError
from driftrate.race import Cell, Race, Reading, contestants, run
from driftrate.race.plan import make_plan


@pytest.fixture
def told(monkeypatch):
    """Return a function that gives the command arguments, and returns what it would race."""

    def told(*arguments):
        caught = []
        monkeypatch.setattr(run, "race", lambda settings, out: caught.append((settings, out)))
        CliRunner().invoke(app, ["race", *arguments])
        return caught[0]

    return told


def test_every_field_is_an_option_with_a_help():
    said = " ".join(CliRunner().invoke(app, ["race", "--help"]).stdout.split())
    for one in fields(Race):
        assert f" {one.name}... " in said or f" --{one.name} " in said
    for text in ("Rows in a batch.", "synthetic:spiral,dim=128,hold=8.", "host:port."):
        assert text in said


def test_without_options_the_command_has_the_records_defaults(told):
    settings, out = told("a.csv")
    assert settings == Race(["a.csv"], methods=[])
    assert str(out) == "out/race"


def test_options_become_fields(told):
    arguments = ["--target", "y", "--batch", "8", "--methods", "sgd, adam", "--defaults-only"]
    settings, out = told("a.csv", "b.csv", *arguments, "--limit", "2.5", "--out", "here")
    chosen = ["sgd", "adam"]
    assert settings == Race(
        ["a.csv", "b.csv"], target="y", batch=8, methods=chosen, grid=False, limit=2.5
    )
    assert str(out) == "here"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"batch": 0}, "batch must be an integer >= 1, got 0"),
        ({"seeds": 0}, "seeds must be an integer >= 1, got 0"),
        ({"jobs": -1}, "jobs must be an integer >= 1, got -1"),
        ({"rows": 0}, "rows must be an integer >= 1, got 0"),
        ({"limit": -1.0}, "limit must be a number of seconds >= 0, got -1.0"),
    ],
)
def test_a_bad_value_is_one_line_here_and_there(option, says):
    with pytest.raises(ConfigError, match=says):
        Race(["a.csv"], **option)
    ((name, value),) = option.items()
    done = CliRunner().invoke(app, ["race", "a.csv", f"--{name}", str(value)])
    assert done.exit_code == 2
    assert done.stderr == f"driftrate: {says}\n"


def test_no_stream():
    with pytest.raises(ConfigError, match="no stream given"):
        Race([])


def test_cells_hold_the_reading_with_columns_for_files_alone(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "".join(f"{i},{i % 7}.5\n" for i in range(40)))
    race = Race([str(path), "synthetic:walk,steps=5"], target="y", batch=4, methods=["ader"])
    cells = {cell.stream: cell for cell in make_plan(race, contestants()).cells}
    file, drawn = cells[str(path)], cells["synthetic:walk,steps=5"]
    assert (file.target, file.model, file.batch) == ("y", "linear", 4)
    assert (drawn.target, drawn.model, drawn.batch) == (None, "linear", 4)
    assert {one.name for one in fields(Reading)} < {one.name for one in fields(Cell)}
