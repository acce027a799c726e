"""The smoothness from secants, robustly, and in closed form."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from driftrate.errors import ConfigError, SignalError
from driftrate.estimate import RunningSmoothness, linear_smoothness, logistic_smoothness, secant

SCALES = np.sqrt(np.array([4.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.1]))


def regression(steps, batch, seed):
    """SGD on a linear regression of covariance diag(SCALES²): secants within and across batches."""
    rng = np.random.default_rng(seed)
    target, theta = np.ones(8), np.zeros(8)

    def draw():
        x = rng.standard_normal((batch, 8)) * SCALES
        y = x @ target + rng.standard_normal(batch)
        return lambda at: x.T @ (x @ at - y) / batch

    within, across = [], []
    gradient = draw()
    for _ in range(steps):
        old, before = theta, gradient(theta)
        theta = theta - 0.05 * before
        within.append(secant(theta, gradient(theta), old, before))
        gradient = draw()
        across.append(secant(theta, gradient(theta), old, before))
    return np.array(within), np.array(across)


def test_a_secant_over_two_batches_along_a_step_finds_the_rate_not_the_curvature():
    """L + N/(v + N)/η: why an attached rate, with a gradient a batch, cannot measure L so."""
    rng = np.random.default_rng(0)
    curvature, noise, eta, d = 0.5, 2.0, 0.1, 200
    error = rng.standard_normal((20_000, d)) * 0.3
    first = curvature * error + noise * rng.standard_normal(error.shape)
    step = -eta * first
    second = curvature * (error + step) + noise * rng.standard_normal(error.shape)
    measured = np.sum((second - first) * step) / np.sum(step * step)
    signal, rest = (curvature * 0.3) ** 2, noise**2
    expected = curvature + rest / (signal + rest) / eta
    # A sum of 4·10^6 products: its relative error is 1/2000 or so.
    assert measured == pytest.approx(expected, rel=3e-3)
    assert 1.0 / measured < eta


def run(rule, values):
    state = rule.init()
    estimates = []
    for value in values:
        estimate, state = rule.update(state, value)
        estimates.append(estimate)
    return estimates


def test_on_the_same_batch_the_secants_find_the_smoothness_and_across_batches_the_noise():
    batch = 256
    within, across = regression(400, batch, seed=0)
    truth = SCALES[0] ** 2
    # A batch's own covariance exceeds the true one by (1 + √(r/B))² or so, r = trace/λ the
    # effective dimension; three deviations of a chi-square more for the largest of 400 batches.
    highest = truth * (
        (1.0 + np.sqrt((SCALES @ SCALES) / truth / batch)) ** 2 + 3 * np.sqrt(2 / batch)
    )
    estimate = run(RunningSmoothness(), within)[-1]
    assert 0.5 * truth < estimate < highest
    assert within.max() < highest
    # Across batches the noise of two gradients is divided by the length 0.05‖g‖ of a step: about
    # √2/0.05 where noise dominates.
    settled = across[200:]
    assert np.median(settled) > 4.0 * truth
    assert run(RunningSmoothness(), across)[-1] > 8.0 * truth


@settings(max_examples=60, deadline=None)
@given(
    arrays(float, 5, elements=st.floats(0.01, 100.0)),
    arrays(float, 5, elements=st.floats(-10, 10)),
    arrays(float, 5, elements=st.floats(-10, 10)),
)
def test_a_secant_of_a_quadratic_is_between_its_curvatures(curvature, new, old):
    value = secant(new, curvature * new, old, curvature * old)
    if np.linalg.norm(new - old) > 1e-6:
        assert curvature.min() * (1 - 1e-6) <= value <= curvature.max() * (1 + 1e-6)


def test_a_secant_lost_in_rounding_is_zero_and_nan_is_not_hidden():
    theta, gradient = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    assert secant(theta, gradient, theta, gradient) == 0.0
    nudged = theta * (1.0 + 1e-15)
    assert secant(nudged, gradient + 1.0, theta, gradient) == 0.0
    assert secant(theta + 1.0, gradient * (1.0 + 1e-15), theta, gradient) == 0.0
    assert np.isnan(secant(theta, gradient * np.nan, theta + 1.0, gradient))
    pair = secant(*(np.stack([a, b]) for a, b in [(theta, theta + 1), (gradient, gradient)] * 2))
    assert pair.shape == (2,)
    got = secant(*(torch.asarray(a) for a in (theta, gradient, theta + 1.0, gradient + 2.0)))
    assert float(got) == pytest.approx(2.0)


positive = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(positive, st.sampled_from([1.0, 0.9]))
def test_the_running_maximum_is_its_formula(values, memory):
    got = run(RunningSmoothness(memory=memory), values)
    want = 0.0
    for t in range(len(values)):
        seen = values[max(0, t - 2) : t + 1]
        middle = median(seen) if len(seen) != 2 else min(seen)
        want = middle if t < 3 else max(memory * want, middle)
        assert got[t] == want


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.0, 10.0), min_size=3, max_size=30), st.data())
def test_one_outlier_never_enters(values, data):
    at = data.draw(st.integers(1, len(values)))
    spoiled = [*values[:at], 1e9, *values[at:]]
    assert max(run(RunningSmoothness(), spoiled)) <= 10.0
    # Two in a row are believed.
    if at >= 2:
        assert max(run(RunningSmoothness(), [*values[:at], 1e9, 1e9, *values[at:]])) == 1e9


def test_an_outlier_at_the_very_start_is_forgotten_with_the_next():
    assert run(RunningSmoothness(), [1e9, 2.0, 3.0, 2.0]) == [1e9, 2.0, 3.0, pytest.approx(2.997)]


@settings(max_examples=60, deadline=None)
@given(positive, st.lists(st.integers(0, 20), max_size=5))
def test_zeros_are_passed_over(values, places):
    spaced = list(values)
    for place in places:
        spaced.insert(min(place, len(spaced)), 0.0)
    assert run(RunningSmoothness(), spaced)[-1] == run(RunningSmoothness(), values)[-1] or (
        spaced[-1] == 0.0
    )
    state_a = state_b = RunningSmoothness().init()
    for value in spaced:
        _, state_a = RunningSmoothness().update(state_a, value)
    for value in values:
        _, state_b = RunningSmoothness().update(state_b, value)
    assert state_a == state_b


def test_it_forgets_when_the_loss_grows_flatter():
    assert run(RunningSmoothness(memory=0.99), [8.0] * 5 + [1.0] * 300)[-1] == 1.0
    assert run(RunningSmoothness(memory=1.0), [8.0] * 5 + [1.0] * 300)[-1] == 8.0


@pytest.mark.parametrize("shape", [(50, 6), (5, 12), (40, 1), (1, 3)])
def test_the_closed_forms_are_the_largest_eigenvalue(shape):
    x = np.random.default_rng(3).standard_normal(shape) * np.linspace(2.0, 1.0, shape[1])
    want = np.linalg.eigvalsh(x.T @ x / shape[0])[-1]
    assert linear_smoothness(x) == pytest.approx(want, rel=1e-6)
    assert logistic_smoothness(x) == pytest.approx(want / 4.0, rel=1e-6)
    assert float(linear_smoothness(torch.asarray(x))) == pytest.approx(want, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    arrays(float, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(-1e3, 1e3)),
    st.sampled_from([50, 200]),
)
def test_power_iteration_never_exceeds_and_falls_short_by_its_bound_at_most(x, iterations):
    want = np.linalg.eigvalsh(x.T @ x / len(x))[-1]
    got = linear_smoothness(x, iterations)
    assert got <= want * (1.0 + 1e-9) + 1e-250
    # With a share c² of the start along the eigenvector the shortfall is ln(1/c²)/(2k) or so: this
    # allows c² = e^-40, less than rounding leaves.
    assert got >= want * (1.0 - 20.0 / iterations) * (1.0 - 1e-9) - 1e-250


def test_the_logistic_bound_holds_at_any_weights_and_is_met_at_zero():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((80, 4))
    bound = logistic_smoothness(x)
    for scale in (0.0, 0.1, 1.0, 10.0):
        p = 1.0 / (1.0 + np.exp(-x @ (scale * rng.standard_normal(4))))
        curvature = np.linalg.eigvalsh(x.T @ ((p * (1.0 - p))[:, None] * x) / 80)[-1]
        assert curvature <= bound * (1.0 + 1e-9)
        if scale == 0.0:
            assert curvature == pytest.approx(bound, rel=1e-6)


def test_stacked_features_give_one_value_each_and_zeros_give_zero():
    x = np.random.default_rng(6).standard_normal((3, 10, 2))
    x[1] = 0.0
    got = linear_smoothness(x)
    assert got.shape == (3,)
    assert got[1] == 0.0
    assert got[2] == pytest.approx(linear_smoothness(x[2]))


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((0, 3)), [[1.0]], np.ones((2, 2), dtype=int)])
def test_features_that_are_no_table_of_floats_are_refused(bad):
    with pytest.raises(SignalError, match="linear_smoothness: features must be"):
        linear_smoothness(bad)


@pytest.mark.parametrize("bad", [0, 1.5, True])
def test_a_bad_number_of_iterations_is_refused(bad):
    with pytest.raises(SignalError, match="iterations"):
        linear_smoothness(np.ones((2, 2)), bad)


@pytest.mark.parametrize("memory", [0.0, 1.1, float("nan"), None])
def test_a_bad_memory_is_refused(memory):
    with pytest.raises(ConfigError, match=r"RunningSmoothness\.memory"):
        RunningSmoothness(memory=memory)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "2", True, None])
def test_a_bad_secant_is_refused(value):
    rule = RunningSmoothness()
    with pytest.raises(SignalError, match="RunningSmoothness: the secant must be a finite number"):
        rule.update(rule.init(), value)
    with pytest.raises(SignalError, match="secant"):
        rule.update(rule.init(like=np.zeros(2)), value)
