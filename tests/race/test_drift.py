"""Whether a stream drifts: rows in drawn orders, the test of it, and the memory that serves."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from driftrate.race import Cell, Reading, contestants, play, resolve
from driftrate.race.drift import Drift, checks, compare, sentence
from driftrate.race.plan import make_plan
from driftrate.race.run import race
from driftrate.race.settings import Race
from driftrate.race.shuffled import head, shuffled

STILL = "synthetic:standstill,dim=3,steps=100,noise=0.5"
WALK = "synthetic:walk,dim=3,steps=100,noise=0.5,size=0.1"


def make(spec, method="HedgedSGD", seed=0, shuffle=0):
    return Cell(spec, method, "default", seed, spec, shuffle=shuffle, model="linear", batch=8)


def rows(source, seed=0):
    batches = list(source.batches(seed))
    assert len(batches) == source.steps
    return np.concatenate([np.column_stack([b.x, b.y, b.oracle, b.expected]) for b in batches])


class TestShuffled:
    def test_the_rows_are_the_same_and_the_head_stays(self):
        source = resolve(WALK, Reading(batch=8))
        own, drawn, other = rows(source), *(rows(shuffled(source, k)) for k in (1, 2))
        first = 8 * head(source.steps)
        assert 0.05 < first / len(own) < 0.15
        np.testing.assert_array_equal(drawn[:first], own[:first])
        assert not np.array_equal(drawn[first:], own[first:])
        assert not np.array_equal(drawn, other)
        for found in (drawn, other):  # each row whole, oracle and expected target with it
            assert sorted(map(tuple, found)) == sorted(map(tuple, own))
        np.testing.assert_array_equal(drawn, rows(shuffled(source, 1)))

    def test_a_shuffled_cell_is_another_cell(self):
        cell = make(WALK)
        assert cell.key() != replace(cell, shuffle=1).key() != replace(cell, shuffle=2).key()
        own, drawn = play(cell), play(replace(cell, shuffle=1))
        assert own["curve_steps"] == drawn["curve_steps"]
        place = own["curve_steps"].index(head(own["steps"]))
        assert own["loss_curve"][: place + 1] == drawn["loss_curve"][: place + 1]
        assert own["loss"] != drawn["loss"]


def found(spec, seed=0):
    cells = [make(spec, seed=seed, shuffle=k) for k in range(5)]
    results = {replace(cell, seed=0): play(cell) for cell in cells}
    (one,) = compare(spec, results)
    return one


class TestDrift:
    def test_keeps_its_level(self):
        """60 streams at rest at 0.05: 3 expected, 3 standard deviations above are 8."""
        p_values = [found(STILL, seed).p for seed in range(60)]
        assert sum(p <= 0.05 for p in p_values) <= 8
        assert np.median(p_values) > 0.25

    def test_sees_a_target_that_walks(self):
        one = found(WALK)
        assert one.p < 0.01
        assert one.share < -0.05  # what came last is worth more than what came at any time
        assert sentence([one]).startswith("It drifts: in 4 drawn orders of its rows the loss of")

    def test_after_the_head(self):
        """The loss is that of the steps after the head, from running means."""
        one = found(WALK)
        result = play(make(WALK))
        first = head(100)
        losses = np.diff(np.array(result["loss_curve"]) * np.arange(1, 101), prepend=0.0)
        assert one.own == pytest.approx(losses[first:].mean())

    def test_says_how_little(self):
        assert sentence([Drift("a", 1.0, (1.001, 0.999, 1.002, 0.998))]).startswith("No drift is")
        little = Drift("a", 1.005, (1.0001, 0.9999, 1.0001, 0.9999))
        assert sentence([little]).startswith("It drifts little: in 4 drawn orders")
        assert Drift("a", 1.0, (1.0, 1.0, 1.0, 1.0)).p == 1.0

    def test_waits_for_all_orders_and_leaves_out_what_failed(self):
        cells = [make(WALK, shuffle=k) for k in range(5)]
        results = {cell: play(cell) for cell in cells}
        assert compare(WALK, dict(list(results.items())[:4])) == []
        results[cells[2]] = {**results[cells[2]], "status": "diverged"}
        assert compare(WALK, results) == []


class TestPlan:
    def test_two_cheap_methods_at_their_defaults(self):
        race = Race([WALK], methods=["sgd", "adam", "HedgedSGD", "HedgedFilter"], seeds=2)
        plan = make_plan(race, contestants())
        assert {cell.shuffle for cell in plan.cells} == {0}
        assert [(cell.method, cell.shuffle, cell.seed) for cell in plan.checks] == [
            (name, k, 0) for name in ("HedgedFilter", "HedgedSGD") for k in (1, 2, 3, 4)
        ]
        assert {cell.setting for cell in plan.checks} == {"default"}
        assert make_plan(replace(race, drift=False), contestants()).checks == ()

    def test_neither_protocols_nor_short_streams(self):
        race = Race(["synthetic:walk,steps=49"], methods=["HedgedSGD"])
        assert make_plan(race, contestants()).checks == []
        source = resolve(WALK, Reading(batch=8))
        assert checks([make(WALK)], {WALK: source})
        assert checks([make(WALK)], {WALK: replace(source, rows=10**9)}) == []


def test_the_page_says_it_and_no_table_counts_it(tmp_path):
    settings = Race([WALK], methods=["HedgedSGD", "HedgedFilter"], grid=False, jobs=1)
    race(settings, tmp_path, show=False)
    text = (tmp_path / "index.html").read_text()
    assert (
        "It drifts: in 4 drawn orders of its rows the loss of HedgedFilter, from a tenth on, is"
        in text
    )
    assert "Rows that HedgedFilter believes in, dashed: all" in text
    assert "HedgedFilter believed in the last" in text
    assert len(json.loads((tmp_path / "leaderboard.json").read_text())) == 2


def test_the_memory_of_the_pool_is_a_curve():
    """It never counts more rows than there were, and forgets what no longer holds."""
    result = play(make(WALK, "HedgedFilter"))
    seen = 8 * np.array(result["curve_steps"])
    memory = np.array(result["memory_curve"])
    assert memory.shape == seen.shape
    assert np.all(memory <= seen * (1 + 1e-9))
    assert np.all(memory > 0)
    assert memory[-1] < 0.5 * seen[-1]
    still = np.array(play(make(STILL, "HedgedFilter"))["memory_curve"])
    assert still[-1] > memory[-1]
    assert play(make(WALK))["memory_curve"] == []
