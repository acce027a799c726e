"""The straight-line code that stands for a rule on Python floats does what the rule says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import driftrate as dr
from driftrate.schedules import _scalars, _unrolled
from driftrate.schedules.base import map_state

USUAL = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))
EXTREME = st.one_of(USUAL, st.sampled_from([1e-300, 1e-18, 1e-6, 1e6, 1e16, 1e150]))
LEAST = {"batch_size": 1e-3, "parts": 2.0, "dim": 1e-3}
EACH_CASE = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def signals(sizes):
    """Draw three steps of numbers for all fields, and what of the optional ones is missing."""
    numbers = st.tuples(*[sizes] * len(dr.Signal._fields))
    missing = st.one_of(st.just("none"), st.just("all"), st.sampled_from(dr.Signal._fields))
    return st.lists(st.tuples(numbers, st.integers(0), missing), min_size=3, max_size=3)


def signal(rate, signed, drawn):
    """Return the signal of one step."""
    numbers, signs, missing = drawn
    row = {}
    for place, (name, value) in enumerate(zip(dr.Signal._fields, numbers, strict=True)):
        left_out = name in rate.optional and missing in ("all", name)
        if name in rate.signals and not left_out:
            sign = -1.0 if name in signed and signs >> place & 1 else 1.0
            row[name] = sign * max(value, LEAST.get(name, 0.0))
    return dr.Signal(**row)


def leaves(state):
    """Return the leaves of a state, as arrays, by their paths."""
    found = {}

    def walk(node, path):
        for key, leaf in node.items():
            if isinstance(leaf, dict):
                walk(leaf, f"{path}.{key}")
            else:
                found[f"{path}.{key}"] = np.asarray(leaf, dtype=float)

    walk(state, "")
    return found


def kinds(state):
    """Return the types of a state's leaves, and the shapes of its arrays."""
    return map_state(lambda leaf: (type(leaf), np.shape(leaf)), state)


def both(rate, state, told):
    """Take a step as it is written, and the straight-line one."""
    with np.errstate(all="ignore"):
        return rate._step(_scalars, state, told), _unrolled.step(rate, state, told)


def after(rate, rows, steps):
    state = rate.init()
    for row in rows[:steps]:
        told = dr.Signal(**{name: row[name] for name in rate.signals})
        state = rate._step(_scalars, state, told)[1]
    return state


@EACH_CASE
@given(steps=st.integers(0, 12), drawn=signals(USUAL))
def test_a_step_is_the_readable_one(rate, rows, signed, steps, drawn):
    state = after(rate, rows, steps)
    for one in drawn:
        (eta, new), (value, unrolled) = both(rate, state, signal(rate, signed, one))
        assert kinds(unrolled) == kinds(new)
        assert math.isclose(value, eta, rel_tol=1e-12)
        old, here, there = leaves(state), leaves(new), leaves(unrolled)
        for path, leaf in here.items():
            # Of a variance little may be left; it is as exact as what it was taken from.
            scale = max(np.max(np.abs(leaf)), np.max(np.abs(old[path])))
            np.testing.assert_allclose(there[path], leaf, rtol=0, atol=1e-6 * scale, err_msg=path)
        state = new


@EACH_CASE
@given(steps=st.integers(0, 12), drawn=signals(EXTREME))
def test_what_is_extreme_gives_the_same_rate(rate, rows, signed, steps, drawn):
    state = after(rate, rows, steps)
    for one in drawn:
        (eta, new), (value, unrolled) = both(rate, state, signal(rate, signed, one))
        assert kinds(unrolled) == kinds(new)
        assert math.isclose(value, eta, rel_tol=1e-9)
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves(unrolled).values())
        state = unrolled


def test_every_rule_with_vectors_is_unrolled(rate):
    vectors = any(leaf.ndim for leaf in leaves(rate.init()).values())
    assert rate._heavy or not vectors


def test_a_step_that_python_cannot_take_is_taken_as_written():
    """NumPy divides by 0, Python's numbers raise."""

    class Steep(dr.LongHorizonRate):
        signals, _heavy = ("loss",), True

        def _start(self):
            return {"rate": 0.0, "rows": np.ones(2)}

        def _step(self, xp, state, signal):
            rows = 1.0 / (signal.loss * state["rows"])
            return 2.0 * signal.loss, {"rate": 2.0 * signal.loss, "rows": rows}

    rate = Steep()
    told = dr.Signal(loss=0.0)
    with pytest.raises(ZeroDivisionError):
        _unrolled._compiled(rate, ("loss",))(rate.init(), told)
    with np.errstate(divide="ignore"):
        value, state = rate.update(rate.init(), told)
    assert value == 0.0
    assert np.all(np.isinf(state["rows"]))


def test_a_first_gradient_of_0_changes_nothing():
    rate = dr.MeasuredRate(mode="sequence")
    state = rate.init()
    eta, new = rate.update(state, dr.Signal(grad_sq=0.0))
    assert eta == 0.0
    assert all(np.array_equal(leaf, state[name]) for name, leaf in new.items())


def test_subclasses_have_code_of_their_own():
    class Shy(dr.MeasuredRate):
        tuning = dr.MeasuredRate.tuning.__class__(first_step=0.01)

    signal = dr.Signal(cross=1.0, spread=1.0)
    bold = dr.MeasuredRate()
    assert Shy().update(Shy().init(), signal)[0] < 0.1 * bold.update(bold.init(), signal)[0]
