"""The digest of code: it changes with what determines a result, and with nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from driftrate import _digest as digest
from driftrate.race import contestants, engine
from driftrate.race.plan import make_plan
from driftrate.race.store import Store

WHO = ("sgd", "river linear", "kalman forgetting", "HedgedSGD", "MeasuredRate")
STREAM = "synthetic:walk,dim=2,steps=20"


def forget():
    for one in (digest._digest, digest._read):
        one.cache_clear()


def digests():
    """Return the digests of today's files: a process reads them once."""
    forget()
    return {name: digest.digest(contestants()[name]) for name in WHO}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a copy of the library, and the digests of what is in it."""
    copy = tmp_path_factory.mktemp("code") / "driftrate"
    shutil.copytree(digest._ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "_ROOT", copy)
        return copy, digests()


@pytest.fixture
def edit(library, monkeypatch):
    """Return a function that edits a file of the copy, and says whose digests that changes."""
    copy, before = library
    monkeypatch.setattr(digest, "_ROOT", copy)
    kept = {}

    def edit(file, change):
        kept.setdefault(file, (copy / file).read_text())
        (copy / file).write_text(change(kept[file]))
        after = digests()
        return {name for name in WHO if before[name] != after[name]}

    yield edit
    for file, text in kept.items():
        (copy / file).write_text(text)
    forget()


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
        ("race/contestants/_module.py", ["sgd"]),
        ("race/contestants/filters.py", ["kalman forgetting"]),
        ("learners/hedged_sgd.py", ["HedgedSGD"]),
        ("learners/hedged_sgd_fast.py", ["HedgedSGD"]),
        ("learners/mixer.py", ["HedgedSGD"]),
        ("schedules/measured/rate.py", ["MeasuredRate"]),
        ("schedules/measured/filter.py", ["MeasuredRate"]),
        ("estimate/smoothness.py", ["MeasuredRate"]),
    ],
)
def test_an_edit_changes_those_that_run_it(edit, file, whose):
    assert edit(file, add) == set(whose)


@pytest.mark.parametrize(
    "file",
    [
        "cli.py", "errors.py", "race/race.py", "race/page.py", "race/leaderboard.py",
        "race/significance.py", "race/store.py", "race/engine.py", "race/child.py", "race/plan.py",
        "race/contestants/__init__.py", "paper/claims.py", "torch.py",
    ],
)  # fmt: skip
def test_what_only_plans_stores_or_shows_does_not_count(edit, file):
    assert edit(file, add) == set()


def test_words_and_layout_do_not_count(edit):
    changes = [
        lambda text: f"# A comment.\n\n\n{text}",
        lambda text: text.replace('"""', '"""Said better. ', 1),
        lambda text: text.replace("(self, ", "(\n        self, "),
    ]
    for change in changes:
        assert edit("learners/hedged_sgd.py", change) == set()


def test_another_version_of_a_package_counts_for_those_that_need_it(monkeypatch):
    before = digests()
    real = digest.version

    def newer(package):
        monkeypatch.setattr(digest, "version", lambda one: "99" if one == package else real(one))
        after = digests()
        return {name for name in WHO if before[name] != after[name]}

    assert newer("river") == {"river linear"}
    assert newer("torch") == {"sgd"}
    assert newer("numpy") == set(WHO)
    assert newer("plotly") == set()
    monkeypatch.undo()
    forget()


def test_processes_agree():
    script = (
        "from driftrate.race import contestants; from driftrate._digest import digest;"
        f"print(*(digest(contestants()[name]) for name in {WHO!r}))"
    )
    for seed in "1", "2":  # of hashes of strings, and with them the order of sets
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        call = [sys.executable, "-c", script]
        said = subprocess.run(call, capture_output=True, text=True, check=True, env=environment)
        assert said.stdout.split() == list(digests().values())


def test_an_edited_rule_is_played_again_and_the_others_are_not(edit, tmp_path):
    methods = ["HedgedSGD", "kalman forgetting"]

    def cells():
        return make_plan([STREAM], contestants(), methods=methods, grid=False).cells

    first = cells()
    with Store(tmp_path / "race.sqlite") as store:
        assert {result["status"] for _, result in engine.run(first, store, jobs=1)} == {"ok"}
        edit("learners/hedged_sgd.py", add)
        missing = [cell for cell in cells() if store.get(cell) is None]
    assert [cell.method for cell in missing] == ["HedgedSGD"]
    assert len(first) == 2
