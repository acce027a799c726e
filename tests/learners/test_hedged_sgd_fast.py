"""The fast twin of the pool takes the steps of the readable one."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from driftrate.errors import StateError
from driftrate.learners import HedgedSGD
from driftrate.learners.hedged_sgd_fast import FastHedgedSGD


@pytest.mark.parametrize("copies", [3, 10])
@pytest.mark.parametrize("flat", [False, True])
def test_the_twins_agree(copies, flat):
    """Jumps, outliers, batches that are not finite, copies that diverge, a loss without bend."""
    rng = np.random.default_rng(copies)
    rule = HedgedSGD(copies=copies)
    slow = rule.init(np.zeros(5))
    fast = FastHedgedSGD(rule, rule.init(np.zeros(5)))
    restarts = 0
    for step in range(600):
        points = rule.members(slow)
        np.testing.assert_allclose(fast.points, points, rtol=1e-9, atol=1e-11)
        x = rng.standard_normal((8, 5)) * (20.0 if 300 <= step < 310 else 1.0)
        y = x @ np.full(5, 1.0 if step % 200 < 100 else -3.0) + 0.3 * rng.standard_normal(8)
        if step in (50, 51, 52):
            y = y * (1e9 if step < 52 else np.nan)
        residual = points @ x.T - y
        slopes = np.sign(residual) if flat else residual
        each = (np.abs(residual) if flat else 0.5 * residual**2).mean(axis=-1)
        gradients = slopes @ x / 8
        if step in (100, 400):
            gradients[1] = each[2] = np.inf
        slow = rule.update(slow, each, gradients)
        fast.update(each, gradients)
        restarts += np.array_equal(slow["weights"][0], slow["mixture"])
        for name, value in fast.state.items():
            np.testing.assert_allclose(
                value, slow[name], rtol=1e-8, atol=1e-11, err_msg=f"{name} at {step}"
            )
        fast = FastHedgedSGD(rule, slow)  # differences of rounding must not add up
    assert restarts > 1
    assert set(fast.state) == set(slow)


def test_the_twins_agree_on_a_long_way():
    """Rounding does not add up: a thousand steps apart, no state handed over."""
    rng, rule = np.random.default_rng(1), HedgedSGD()
    slow = rule.init(np.zeros(4))
    fast = FastHedgedSGD(rule, slow)
    target, found, expected = np.ones(4), [], []
    for step in range(1000):
        target = -target if step % 250 == 249 else target + 0.02 * rng.standard_normal(4)
        x = rng.standard_normal((8, 4))
        y = x @ target + 0.3 * rng.standard_normal(8)
        residual = rule.members(slow) @ x.T - y
        slow = rule.update(slow, 0.5 * (residual**2).mean(axis=-1), residual @ x / 8)
        residual = fast.points @ x.T - y
        fast.update(0.5 * (residual**2).mean(axis=-1), residual @ x / 8)
        found.append([*fast.points[0], fast.rate])
        expected.append([*slow["mixture"], slow["rate"]])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    losses=arrays.arrays(np.float64, (4, 12), elements=st.floats(allow_nan=True, width=64)),
    gradients=arrays.arrays(np.float64, (4, 12, 2), elements=st.floats(allow_nan=True, width=64)),
)
def test_whatever_comes_the_fast_pool_stays_sound(losses, gradients):
    rule = HedgedSGD()
    pool = FastHedgedSGD(rule, rule.init(np.array([0.3, -0.2])))
    for loss, gradient in zip(losses, gradients, strict=True):
        pool.update(loss, gradient.copy())
        assert np.isfinite(pool.points[:-1]).all()
        assert np.isfinite(pool.shares).all()
        assert abs(pool.shares.sum() - 1) < 1e-9


def test_it_resumes_bit_by_bit_and_refuses_another_version():
    rng, rule = np.random.default_rng(2), HedgedSGD()
    pool = FastHedgedSGD(rule, rule.init(np.zeros(3)))
    for step in range(60):
        if step in (0, 1, 30):
            pool = pickle.loads(pickle.dumps(pool))
            other = FastHedgedSGD(rule, rule.load(json.loads(json.dumps(rule.dump(pool.state)))))
        x = rng.standard_normal((8, 3))
        for one in (pool, other):
            residual = one.points @ x.T - x[:, 0]
            one.update(0.5 * (residual**2).mean(axis=-1), residual @ x / 8)
    for name, leaf in pool.state.items():
        np.testing.assert_array_equal(other.state[name], leaf)
    with pytest.raises(StateError, match="version 99; this driftrate reads version 1"):
        pool.__setstate__(pool.__getstate__() | {"version": 99})
