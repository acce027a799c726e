"""The history of quick figures: what is worse is seen, what is noise is not, the page is of now."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks" / "history"


def loaded(name):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def history():
    return loaded("history_compare")


@pytest.fixture(scope="module")
def drawn():
    return loaded("history_page")


def entry(history, value, error=0.01, kind="regret", commit="ab12", accepted=None, **machine):
    one = {"name": "it", "over": "that", "kind": kind, "value": value, "error": error}
    one |= {"accepted": accepted} if accepted else {}
    return history.Entry(commit, "2026-01-01", "0.1.0", machine, {"it": one})


@pytest.mark.parametrize(
    ("before", "after", "error", "kind", "seen"),
    [
        (1.0, 1.05, 0.01, "regret", True),
        (1.0, 1.05, 0.02, "regret", False),  # three errors of the difference are 0.085
        (1.0, 0.5, 0.01, "regret", False),
        (1.0, 1.15, 0.001, "speed", False),  # a machine is not that steady
        (1.0, 1.3, 0.001, "speed", True),
        (1.0, 1.3, 0.1, "speed", False),
        (1.0, 1.0005, 0.0, "regret", False),  # rounding of another machine
    ],
)
def test_worse_is_more_than_the_error_bar(history, before, after, error, kind, seen):
    pair = entry(history, before, error, kind), entry(history, after, error, kind)
    assert bool(history.worse(pair)) == seen


def test_speeds_of_two_machines_are_not_compared(history):
    def said(kind):
        one, other = (entry(history, v, 0.01, kind, cpu=v) for v in (1.0, 2.0))
        return history.worse([one, other])

    assert said("speed") == []
    assert said("regret") == ["it: 2.000 ± 0.010 in ab12, 1.000 ± 0.010 in ab12, the one before"]


def test_a_speed_is_compared_across_what_another_machine_measured_between(history):
    values = [("old", 1.0, "a"), ("between", 9.0, "b"), ("new", 1.5, "a")]
    entries = [entry(history, v, 0.01, "speed", c, cpu=cpu) for c, v, cpu in values]
    (said,) = history.worse(entries)
    assert said.endswith("in old, the one before")


def test_many_small_losses_are_seen_together(history):
    """Each is within what a speed may differ by; the sum of them is not."""
    values = [1.1, 1.0, 1.15, 1.3]
    entries = [
        entry(history, v, 0.001, "speed", commit) for v, commit in zip(values, "abcd", strict=True)
    ]
    assert [history.worse(entries[:i]) for i in (2, 3)] == [[], []]
    assert history.worse(entries) == ["it: 1.300 ± 0.001 in d, 1.000 ± 0.001 in b, the best"]


def test_both_the_best_and_the_one_before_are_told(history):
    values = [1.0, 1.5, 2.5]
    entries = [entry(history, v, commit=commit) for v, commit in zip(values, "abc", strict=True)]
    assert [one.rpartition(", ")[2] for one in history.worse(entries)] == [
        "the best",
        "the one before",
    ]


def test_a_loss_that_is_accepted_is_where_comparing_begins(history):
    best, dearer = entry(history, 1.0), entry(history, 2.0, accepted="it does more")
    assert history.worse([best, dearer]) == []
    assert history.worse([best, dearer, entry(history, 2.0)]) == []
    assert history.worse([best, dearer, entry(history, 2.5)]) != []


def test_a_figure_that_is_new_or_of_another_yardstick_is_not_worse(history):
    new = entry(history, 9.0)
    old = entry(history, 1.0)
    assert history.worse([old._replace(measures={}), new]) == []
    old.measures["it"]["over"] = "another"
    assert history.worse([old, new]) == []


@pytest.mark.parametrize(
    ("values", "error", "marks"),
    [
        ((21.0, 28.0), 0.5, [20, 22, 24, 26, 28]),
        ((0.572, 0.5721), 0.0, [0.56, 0.565, 0.57, 0.575, 0.58, 0.585]),
        ((1.0,), 0.2, [0.6, 0.8, 1.0, 1.2, 1.4]),
    ],
)
def test_an_axis_fits_its_figures(drawn, values, error, marks):
    low, high, found = drawn.axis([{"value": one, "error": error} for one in values])
    assert found == pytest.approx(marks)
    assert low < min(values) - 2 * error
    assert high > max(values) + 2 * error
    whole = max(values) - min(values) + 4 * error
    assert high - low <= max(1.2 * whole, 0.06 * max(values))


def test_the_page_is_drawn_from_what_was_measured(history, drawn):
    entries = history.read(FOLDER)
    assert (ROOT / "docs" / "history.md").read_text() == drawn.page(entries)


def test_commits_are_in_the_order_of_their_moments(history, tmp_path):
    """Also of two time zones."""
    moments = ["2026-03-01T01:00:00+09:00", "2026-02-28T20:00:00+00:00"]
    for name, moment in zip("ab", reversed(moments), strict=True):
        told = {"commit": name, "committed": moment, "version": "", "machine": {}, "measures": []}
        (tmp_path / f"{name}.json").write_text(json.dumps(told))
    assert [one.committed for one in history.read(tmp_path)] == moments


def test_every_figure_has_a_picture_of_all_its_commits(history, drawn):
    entries = history.read(FOLDER)
    drawings = re.findall(r"<svg.*?</svg>", drawn.page(entries))
    assert len(drawings) == len(entries[-1].measures)
    for drawing, name in zip(drawings, entries[-1].measures, strict=True):
        known = sum(name in one.measures for one in entries)
        assert len(list(ET.fromstring(drawing).iter("circle"))) == known


def test_files_say_which_commit_and_no_paths():
    for path in FOLDER.glob("*.json"):
        told = json.loads(path.read_text())
        assert path.stem == f"{told['committed'][:10]}-{told['commit']}"
        assert not re.search(r'"[^"]*(?:/home|/root|/work|/tmp|\\\\)', path.read_text())
