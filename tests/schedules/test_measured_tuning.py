"""The record of tuned numbers: each is read, and replaced in one place."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import driftrate as dr
from driftrate.schedules.measured.tuning import TUNING

FORMS = [{}, {"mode": "sequence"}, {"relative": True}]
# Where nine tenths of a number would say nothing.
OTHERS = {
    "drifts": 5,
    "heavy_tail": 6.6,  # 6 is the least
    "outlier": 10.0,  # one batch is 10^14 times too loud
}


def rows(steps, rate):
    """SGD towards a target that jumps, then rests; two outliers and one loud batch."""
    rng = np.random.default_rng(0)
    dim = 4
    theta, trail = np.ones(dim), np.zeros(dim)
    for step in range(steps):
        if step in (30, 60):
            theta = theta + 3.0 * rng.standard_normal(dim)
        halves = theta + 0.7 * rng.standard_normal((2, dim))
        halves *= {3: 6.0, 50: 1e7, 51: 1e7}.get(step, 1.0)
        found, gradient = dr.estimate.from_parts(halves), halves.mean(axis=0)
        yield {
            "batch_size": 16.0,
            "dim": None if step % 2 else 2000.0,
            "parts": 2.0,
            "cross": float(found.cross),
            "spread": float(found.spread),
            "grad_sq": float(found.grad_sq),
            "trail": float(gradient @ trail),
        }
        trail = 0.9 * trail + gradient
        if step not in (50, 51):
            theta = theta - rate * gradient


# Of curvature 1; and of none, for the weights do not move.
STREAMS = [[*rows(90, 0.3)], [*rows(30, 0.0)]]


def states(rule, stream):
    state = rule.init()
    yield state
    for row in stream:
        given = {name: row[name] for name in rule.signals}
        _, state = rule.update(state, dr.Signal(**given))
        yield state


def differ(one, other):
    return any(
        not np.array_equal(a[key], b[key])
        for stream in STREAMS
        for a, b in zip(states(one, stream), states(other, stream), strict=True)
        for key in a
    )


def variant(**numbers):
    class Variant(dr.MeasuredRate):
        tuning = replace(TUNING, **numbers)

    return Variant


@pytest.mark.parametrize("name", [field.name for field in fields(TUNING)])
def test_every_number_is_read_from_the_record(name):
    changed = variant(**{name: OTHERS.get(name, 0.9 * getattr(TUNING, name))})
    assert any(differ(dr.MeasuredRate(**form), changed(**form)) for form in FORMS)


def test_a_variant_is_a_schedule_of_its_own():
    rule = variant(first_step=0.25)
    row = {name: STREAMS[0][0][name] for name in dr.MeasuredRate().signals}
    usual, _ = dr.MeasuredRate().update(dr.MeasuredRate().init(), dr.Signal(**row))
    bold, _ = rule().update(rule().init(), dr.Signal(**row))
    assert bold == pytest.approx(2.0 * usual)
    assert rule() != dr.MeasuredRate()
    assert dr.MeasuredRate.tuning is TUNING


def test_the_page_tells_how_many_there_are():
    page = Path(__file__).parents[2] / "docs" / "measured_how.md"
    assert f"There were 53, and {len(fields(TUNING))} are left." in page.read_text()
    assert len(fields(TUNING)) <= 25
