"""The history of quick figures: what is worse is seen, what is noise is not, the page is of now."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks" / "history"


@pytest.fixture(scope="module")
def history():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import history_page

        return history_page
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def entry(history, value, error=0.01, kind="regret", **machine):
    one = {"name": "it", "over": "that", "kind": kind, "value": value, "error": error}
    return history.Entry("ab12", "2026-01-01", "0.1.0", machine, {"it": one})


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
    assert bool(history.worse(*pair)) == seen


def test_speeds_of_two_machines_are_not_compared(history):
    def said(kind):
        one, other = (entry(history, v, 0.01, kind, cpu=v) for v in (1.0, 2.0))
        return history.worse(one, other)

    assert said("speed") == []
    assert said("regret") == ["it: 2.000 ± 0.010 in ab12, 1.000 ± 0.010 in ab12"]


def test_a_figure_that_is_new_is_not_worse(history):
    old = entry(history, 1.0)._replace(measures={})
    assert history.worse(old, entry(history, 9.0)) == []


def test_the_page_is_drawn_from_what_was_measured(history):
    entries = history.read(FOLDER)
    assert (ROOT / "docs" / "history.md").read_text() == history.page(entries)


def test_commits_are_in_the_order_of_their_moments(history, tmp_path):
    """Also of two time zones."""
    moments = ["2026-03-01T01:00:00+09:00", "2026-02-28T20:00:00+00:00"]
    for name, moment in zip("ab", reversed(moments), strict=True):
        told = {"commit": name, "committed": moment, "version": "", "machine": {}, "measures": []}
        (tmp_path / f"{name}.json").write_text(json.dumps(told))
    assert [one.committed for one in history.read(tmp_path)] == moments


def test_every_figure_has_a_picture_of_all_its_commits(history):
    entries = history.read(FOLDER)
    drawings = re.findall(r"<svg.*?</svg>", history.page(entries))
    assert len(drawings) == len(entries[-1].measures)
    for drawing, name in zip(drawings, entries[-1].measures, strict=True):
        known = sum(name in one.measures for one in entries)
        assert len(list(ET.fromstring(drawing).iter("circle"))) == known


def test_files_say_which_commit_and_no_paths():
    for path in FOLDER.glob("*.json"):
        told = json.loads(path.read_text())
        assert path.stem == f"{told['committed'][:10]}-{told['commit']}"
        assert not re.search(r'"[^"]*(?:/home|/root|/work|/tmp|\\\\)', path.read_text())
