"""The code behind a cell: its hash changes for those that run it, and for nobody else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from driftrate.race import Race, contestants, engine
from driftrate.race.code import code_of
from driftrate.race.plan import make_plan
from driftrate.race.store import CellStore

WHO = (
    "sgd", "river linear", "kalman forgetting", "HedgedFilter", "HedgedSGD", "MeasuredRate",
    "ConvexRate",
)  # fmt: skip
STREAM = "synthetic:walk,dim=2,steps=20"


def codes():
    return {name: code_of(contestants()[name]) for name in WHO}


@pytest.fixture
def changed(edit):
    """Return a function that edits a file, and says whose code that changes."""
    before = codes()

    def changed(file, change):
        edit(file, change)
        after = codes()
        return {name for name in WHO if before[name] != after[name]}

    return changed


def add(text):
    """Return code with one more line."""
    return text + "\n_NEW = 1\n"


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        ("race/play.py", WHO),
        ("race/models.py", WHO),
        ("race/sources.py", WHO),
        ("race/_synthetic.py", WHO),
        ("race/contestants/base.py", WHO),
        ("streams/paths.py", WHO),
        ("data/_columns.py", WHO),
        ("race/contestants/_module.py", ["sgd", "MeasuredRate"]),
        ("race/contestants/filters.py", ["kalman forgetting"]),
        ("race/contestants/estimated.py", ["ConvexRate"]),
        ("learners/hedged_sgd.py", ["HedgedSGD"]),
        ("learners/hedged_sgd_fast.py", ["HedgedSGD"]),
        ("learners/mixer.py", ["HedgedFilter", "HedgedSGD"]),
        ("learners/forgetting.py", ["HedgedFilter"]),
        ("schedules/measured/rate.py", ["MeasuredRate", "ConvexRate"]),
        ("schedules/measured/filter.py", ["MeasuredRate", "ConvexRate"]),
        ("adapters/torch/attach.py", ["MeasuredRate"]),
        ("adapters/_observe/choice.py", ["MeasuredRate"]),
        ("estimate/smoothness.py", ["MeasuredRate", "ConvexRate"]),
    ],
)
def test_an_edit_changes_those_that_run_it(changed, file, whose):
    assert changed(file, add) == set(whose)


@pytest.mark.parametrize(
    "file",
    [
        "cli.py", "errors.py", "_digest.py", "race/code.py", "race/run.py", "race/settings.py",
        "race/page.py", "race/leaderboard.py",
        "race/significance.py", "race/store.py", "race/engine.py", "race/child.py", "race/plan.py",
        "race/contestants/__init__.py", "paper/claims.py", "optax.py",
    ],
)  # fmt: skip
def test_what_only_plans_stores_or_shows_does_not_count(changed, file):
    assert changed(file, add) == set()


def test_another_version_of_a_package_counts_for_those_that_need_it(newer):
    before = codes()

    def whose(package):
        newer(package)
        return {name for name, code in codes().items() if code != before[name]}

    assert whose("river") == {"river linear"}
    assert whose("torch") == {"sgd", "MeasuredRate"}
    assert whose("numpy") == set(WHO)
    assert whose("plotly") == set()


def test_processes_agree():
    script = (
        "from driftrate.race import contestants; from driftrate.race.code import code_of;"
        f"print(*(code_of(contestants()[name]) for name in {WHO!r}))"
    )
    for seed in "1", "2":  # of hashes of strings, and with them the order of sets
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        call = [sys.executable, "-c", script]
        said = subprocess.run(call, capture_output=True, text=True, check=True, env=environment)
        assert said.stdout.split() == list(codes().values())


def test_an_edited_rule_is_played_again_and_the_others_are_not(edit, tmp_path):
    methods = ["HedgedSGD", "kalman forgetting"]

    def cells():
        return make_plan(Race([STREAM], methods=methods, grid=False), contestants()).cells

    first = cells()
    with CellStore(tmp_path / "race.sqlite") as store:
        assert {result["status"] for _, result in engine.run(first, store, jobs=1)} == {"ok"}
        edit("learners/hedged_sgd.py", add)
        missing = [cell for cell in cells() if store.get(cell) is None]
    assert [cell.method for cell in missing] == ["HedgedSGD"]
    assert len(first) == 2
