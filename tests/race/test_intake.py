"""What is read of awkward files: the right thing, a warning, or one line that says what to do."""

from __future__ import annotations

import json
from dataclasses import replace

import awkward
import numpy as np
import pytest
from typer.testing import CliRunner

from driftrate.cli import app
from driftrate.race import Cell, Race, Reading, play, resolve
from driftrate.race.intake import intake
from driftrate.race.run import race


def check(*arguments):
    # One method, so that the plan of it takes no time.
    fixed = ["--methods", "ader", "--defaults-only", "--check"]
    return CliRunner().invoke(app, ["race", *map(str, arguments), *fixed])


@pytest.mark.parametrize("file", awkward.FILES, ids=lambda file: file.name)
def test_an_awkward_file_is_read_or_refused(file, tmp_path):
    done = check(file.write(tmp_path), *file.options)
    if file.error:
        assert done.exit_code == 2
        assert file.error in done.stderr
        assert done.stderr.count("\n") == 1
        return
    assert done.exit_code == 0, done.stderr
    for text in file.said:
        assert text in done.stdout
    for text in file.unsaid:
        assert text not in done.stdout


def test_there_are_forty_at_least():
    names = [file.name for file in awkward.FILES]
    assert len(set(names)) == len(names) >= 40


RACED = ("money.csv", "pandas.csv", "far_feature.csv", "shifted.csv", "zones.csv")


def named(name):
    return next(file for file in awkward.FILES if file.name == name)


def test_five_of_them_are_raced(tmp_path):
    paths = [str(named(name).write(tmp_path)) for name in RACED]
    settings = Race(paths, target="y", methods=["ader", "HedgedSGD"], grid=False)
    race(settings, tmp_path / "out", show=False)
    rows = json.loads((tmp_path / "out" / "leaderboard.json").read_text())
    assert {row["status"] for row in rows} == {"ok"}
    assert len(rows) == 2 * len(RACED)
    assert {row["reading"]["target"] for row in rows} == {"y"}
    told = json.loads((tmp_path / "out" / "reading.json").read_text())
    assert [one["spec"] for one in told] == paths
    assert told[0]["target"] == "y"
    assert told[1]["left_out"] == {"": "index: the name that pandas gives a row's number"}
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<h2>What was read</h2>" in page
    assert page.count("half the squared error, in the target&#x27;s deviations") == len(RACED)


@pytest.fixture
def loss(tmp_path):
    """Return a function that plays a method on columns, and returns its mean loss."""

    def loss(method="HedgedSGD", scale="robust", **columns):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.csv"
        path.write_text(awkward.table(**columns))
        reading = Reading(target="y", scale=scale)
        source = resolve(str(path), reading)
        common = {**vars(reading), "model": source.model}
        result = play(Cell(str(path), method, "default", 0, source.fingerprint, **common))
        assert result["status"] == "ok"
        return result["loss"]

    return loss


def test_money_is_the_number_it_is(loss):
    a, y = awkward.A, awkward.Y
    plain = loss(a=a, y=[f"{1000 + 100 * one:.2f}" for one in y])
    assert loss(a=a, y=awkward.MONEY) == plain


def test_an_index_costs_nothing(loss):
    columns = {"a": awkward.A, "b": awkward.B, "y": awkward.Y}
    assert loss(**{"": range(awkward.ROWS)}, **columns) == loss(**columns)


def test_one_absurd_row_does_not_spoil_the_scale(loss):
    a, b, y = awkward.A, awkward.B, awkward.Y
    clean, spoilt = loss(a=a, b=b, y=y), awkward.put(a, _200=1e9)
    # The row itself is predicted from a feature of 5 and not of 0.1, and learned from.
    assert loss(a=spoilt, b=b, y=y) < 2.0 * clean
    assert loss(scale="plain", a=spoilt, b=b, y=y) > 3.0 * clean  # so that the line above can fail


def test_a_shift_of_the_target_is_scored_as_large_as_it_is(loss):
    a, y = awkward.A, awkward.SHIFTED
    # 200 over a deviation of about 2.2, squared and halved: the first 16 rows at least.
    least = 16 * 0.5 * (200 / y[:200].std()) ** 2 / 384
    assert loss(a=a, y=y) > 0.9 * least
    assert loss(scale="plain", a=a, y=y) < 0.1 * least


def test_options_of_a_reading_make_other_cells(tmp_path):
    path = named("leak.csv").write(tmp_path)
    first = Cell(str(path), "ader", "default", 0, "", target="y")
    others = [
        replace(first, **{name: value})
        for name, value in {
            "task": "regression", "drop": "leak", "kind": "a=category", "sep": ",",
            "scale": "plain",
        }.items()
    ]  # fmt: skip
    assert len({cell.key() for cell in (first, *others)}) == 1 + len(others)
    usual, dropped, plain = (
        np.concatenate([batch.x for batch in resolve(str(path), one).batches()])
        for one in (
            Reading(target="y"),
            Reading(target="y", drop="leak"),
            Reading(target="y", scale="plain"),
        )
    )  # the batches that are kept of one are not those of another
    assert (usual.shape[1], dropped.shape[1]) == (3, 2)
    assert (usual != plain).any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--task", "rank"), "task must be one of classes, regression, got 'rank'"),
        (("--scale", "none"), "scale must be one of robust, plain, got 'none'"),
        (("--kind", "a"), "kind must be column=kind, with commas between, got 'a'"),
        (("--kind", "a=text"), "the kind of 'a' must be one of number, category, time"),
        (("--drop", "c"), "has no dropped column 'c'; it has a, b, y"),
        (("--drop", "y"), "a target or time cannot be dropped"),
        (("--drop", "a,b"), "no column besides target and time"),
        (("--sep", "::"), "sep must be one sign, or comma, semicolon, tab, bar, got '::'"),
        (("--model", "logistic", "--task", "regression"), "does not fit a target of numbers"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_line(options, said, tmp_path):
    done = check(named("plain.csv").write(tmp_path), "--target", "y", *options)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_check_plays_nothing(tmp_path):
    path = named("plain.csv").write(tmp_path)
    done = check(path, "--target", "y", "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert not (tmp_path / "out").exists()


def test_streams_that_are_no_files_are_told_too():
    done = check("synthetic:walk,steps=20", "--batch", "8")
    assert "synthetic:walk,steps=20: 160 rows read, 160 played" in done.stdout
    assert "as drawn: nothing is scaled" in done.stdout


def test_counts_add_up(tmp_path):
    path = named("missing_targets.csv").write(tmp_path)
    reading = Reading(target="y", rows=300)
    found = intake("s", resolve(str(path), reading), reading)
    assert found.rows == awkward.ROWS == found.played + sum(found.unplayed.values())
    assert found.unplayed["are beyond the first rows asked for"] == 97
    assert found.looked == found.played
