from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftrate.adapters._history import POINTS, History
from driftrate.adapters._pool import ShiftedPool
from driftrate.errors import ConfigError, StateError
from driftrate.estimate import RunningScale

PRIOR = 0.1  # of the member that never forgets, each weight's variance in units of the noise


def growing(seed, steps=60, rows=8, dim=4, factor=100.0):
    """Features whose deviation and mean grow, and one that varies late."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(dim)
    for step in range(steps):
        size = factor ** (step / steps)
        x = size * (rng.standard_normal((rows, dim)) + np.arange(dim))
        x[:, 0] = 2.0 if step < steps // 3 else x[:, 0] / size
        yield x, x @ weights / size + 50.0 + 0.1 * rng.standard_normal(rows)


def unclipped(count, intercept):
    """Pools for which nothing is an outlier."""
    pools = [ShiftedPool(4, intercept=intercept) for _ in range(count)]
    for pool in pools:
        pool.scale = RunningScale(1 + 4, centred=intercept, clip=1e50)
    return pools


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_the_member_that_never_forgets_is_ridge_regression(seed, intercept):
    """While scales grow a hundredfold; the prior is that of the units at the start."""
    (pool, late), seen, targets, first = unclipped(2, intercept), [], [], None
    for x, y in growing(seed):
        pool.learn(x, y)
        seen.append(x)
        targets.append(y)
        if first is None:
            first, level = pool.now.scale, pool.now.level
    x, y = np.concatenate(seen), np.concatenate(targets)
    # The feature that varies late has its prior in the units in which it first does.
    for before, after in zip(seen[:21], targets[:21], strict=True):
        late.learn(before, after)
    centre, inverse = first.centre.copy(), first.inverse.copy()
    if intercept:
        assert inverse[0] == 0.0
        inverse[0] = late.now.scale.inverse[0]
    z = np.column_stack([np.full(len(x), float(intercept)), (x - centre) * inverse])
    theta = np.linalg.solve(z.T @ z + np.eye(5) / PRIOR, z.T @ (y - level))
    new = x[-40:] + np.random.default_rng(seed).standard_normal((40, 4))
    expected = np.column_stack([np.full(40, float(intercept)), (new - centre) * inverse]) @ theta
    own = pool.now.features(new) @ pool.now.state["weights"][0, 0] + pool.now.level
    np.testing.assert_allclose(own, expected + level, rtol=1e-8)
    ratio = first.inverse[1:] / pool.now.scale.inverse[1:]
    assert ratio.min() > 10.0  # of the mean square so far; the rows grew a hundredfold


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.floats(-100, 100))
def test_forecasts_scale_and_shift_with_the_targets(seed, power, shift):
    scale = 10.0**power
    one, other = ShiftedPool(4), ShiftedPool(4)
    for x, y in growing(seed, factor=3.0):
        one.learn(x, y)
        other.learn(x, scale * (y + shift))
        np.testing.assert_allclose(
            other.now.means(x), scale * (one.now.means(x) + shift), rtol=1e-6, atol=1e-6 * scale
        )
    np.testing.assert_allclose(
        other.now.interval(x, 0.8),
        scale * (one.now.interval(x, 0.8) + shift),
        rtol=1e-6,
        atol=1e-6 * scale,
    )


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.floats(-10, 10))
def test_units_of_features_do_not_matter(seed, power, shift):
    one, other = ShiftedPool(4), ShiftedPool(4)
    for x, y in growing(seed, factor=3.0):
        moved = 10.0**power * (x + shift)
        one.learn(x, y)
        other.learn(moved, y)
    np.testing.assert_allclose(other.now.means(moved), one.now.means(x), rtol=1e-5)


def test_weights_in_raw_units_forecast():
    pool = ShiftedPool(4)
    for x, y in growing(0):
        pool.learn(x, y)
    weights, first = pool.now.linear()
    x = x.mean(axis=0) + 0.1 * (x - x.mean(axis=0))  # no member is far off there, and left out
    np.testing.assert_allclose(x @ weights[0] + first[0], pool.now.means(x), rtol=1e-9)


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_a_row_counts_as_often_as_its_weight(classes):
    rng, one, other = np.random.default_rng(0), ShiftedPool(3, classes), ShiftedPool(3, classes)
    for _ in range(20):
        x, often = rng.standard_normal((5, 3)), np.array([1, 2, 1, 2, 1])
        y = rng.integers(0, classes, 5) if classes else rng.standard_normal(5)
        one.learn(x, y, often.astype(float))
        other.learn(np.repeat(x, often, axis=0), np.repeat(y, often))
        np.testing.assert_allclose(
            one.now.scores(x) if classes else one.now.means(x),
            other.now.scores(x) if classes else other.now.means(x),
            rtol=1e-6,
            atol=1e-9,
        )
        assert one.now.memory() == pytest.approx(other.now.memory())


def learned(rows, classes=None, seed=0, steps=200, spoil=()):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((3, classes or 1))
    pool, errors = ShiftedPool(3, classes), []
    for step in range(steps):
        x = rng.standard_normal((rows, 3)) * [1.0, 100.0, 0.01] + 3.0
        scores = ((x - 3.0) / [1.0, 100.0, 0.01]) @ truth
        y = scores.argmax(axis=1) if classes else scores[:, 0] + 0.1 * rng.standard_normal(rows)
        if step:
            found = pool.now.chances(x).argmax(axis=1) if classes else pool.now.means(x)
            errors.append(np.mean(found != y) if classes else np.mean((found - y) ** 2))
        if step in spoil:
            x[0, 1] = 1e9
        pool.learn(x, y)
    return pool, np.array(errors)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("classes", [None, 3])
def test_one_value_of_a_billion_does_not_ruin_the_model(rows, classes):
    _, clean = learned(rows, classes)
    _, spoilt = learned(rows, classes, spoil={100})
    assert (clean[:100] == spoilt[:100]).all()
    assert clean[150:].mean() < (0.25 if classes else 0.1)
    assert spoilt[150:].mean() < 2.0 * clean[150:].mean() + 0.02


@pytest.mark.parametrize("rows", [1, 16])
def test_a_target_that_begins_to_vary_is_followed(rows):
    rng, pool = np.random.default_rng(0), ShiftedPool(2)
    for step in range(120):
        x = rng.standard_normal((rows, 2))
        y = np.full(rows, 7.0) if step < 40 else x @ [1.0, -1.0] + 7.0
        pool.learn(x, y)
        if step < 40:
            np.testing.assert_allclose(pool.now.means(x), 7.0)
    low, high = pool.now.interval(x, 0.9).T
    np.testing.assert_allclose(pool.now.means(x), y, atol=0.2)
    assert ((high - low) < 2.0).all()
    # The target is exact, and the intervals say so of it; means are further off than its members.
    assert ((low <= y) & (y <= high)).mean() > 0.5


@pytest.mark.parametrize("classes", [None, 2, 4])
def test_resume_is_bitwise_and_copies_are_apart(classes):
    pool, _ = learned(8, classes, steps=30)
    twins = [pickle.loads(pickle.dumps(pool)), copy.deepcopy(pool)]
    still, rng = pickle.loads(pickle.dumps(pool)), np.random.default_rng(1)
    for _ in range(30):
        x = rng.standard_normal((8, 3)) * 50.0
        y = rng.integers(0, classes, 8) if classes else rng.standard_normal(8)
        for one in (pool, *twins):
            one.learn(x, y)
    for twin in twins:
        for name, value in pool.now.state.items():
            assert np.array_equal(twin.now.state[name], value, equal_nan=True)
        assert np.array_equal(twin.history.points, pool.history.points)
    assert still.steps == 30


def test_what_predicts_is_never_written_to():
    pool, _ = learned(8, steps=30)
    now, x = pool.now, np.ones((5, 3))
    before = pickle.dumps(now)
    pool.learn(50.0 * np.random.default_rng(0).standard_normal((8, 3)), np.arange(8.0))
    pool.widen(5)
    pool.notify_shift("reset", 0.5)
    assert pickle.dumps(now) == before
    assert np.isfinite(now.means(x)).all()


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_a_shift_that_is_told_makes_unsure(classes):
    pool, _ = learned(8, classes, steps=100)
    x = np.random.default_rng(5).standard_normal((6, 3)) + 3.0

    def forecasts():
        return pool.now.means(x) if classes is None else pool.now.linear()[0]

    before, memory = forecasts(), pool.now.memory()
    pool.notify_shift("keep", 0.5)
    assert pool.now.memory() == memory
    pool.notify_shift("decay", 0.25)
    assert pool.now.memory() <= 0.25 * pool.rows
    if classes is None:
        wide = np.diff(pool.now.interval(x, 0.9))
    pool.notify_shift("reset", 0.5)
    assert pool.now.memory() == 0.0
    if classes is None:
        assert (np.diff(pool.now.interval(x, 0.9)) > wide).all()
    np.testing.assert_array_equal(forecasts(), before)
    with pytest.raises(ConfigError, match="keep, decay or reset"):
        pool.notify_shift("forget", 0.5)


def test_missing_values_are_the_mean():
    rng, holes, filled = np.random.default_rng(0), ShiftedPool(2), ShiftedPool(2)
    for step in range(50):
        x = rng.standard_normal((8, 2))
        y = x[:, 0] + 0.1 * rng.standard_normal(8)
        if step:
            x[0, 1] = np.nan
        holes.learn(x, y)
        filled.learn(np.where(np.isnan(x), 0.0, x), y)
    np.testing.assert_allclose(holes.now.means(x), filled.now.means(np.nan_to_num(x)), atol=0.05)
    gone = holes.now.means(np.array([[np.nan, 0.0]]))
    np.testing.assert_allclose(gone, y.mean(), atol=0.6)


def test_history_is_thinned():
    history = History()
    for step in range(100_000):
        if history.due():
            history.add(float(step), 2.0 * step)
    rows, memory = history.points.T
    assert POINTS // 2 <= len(rows) <= POINTS
    assert len(set(np.diff(rows))) == 1
    assert rows[0] == 0.0
    assert rows[-1] > 99_000
    np.testing.assert_array_equal(memory, 2.0 * rows)


def test_a_pool_of_another_version_is_refused():
    pool = ShiftedPool(1)
    with pytest.raises(StateError, match=r"version \(9, 9\); this driftrate reads version"):
        pool.__setstate__({**pool.__getstate__(), "version": (9, 9)})
