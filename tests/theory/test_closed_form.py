"""Lemma 3.6: the optimal rate without shift, both regimes, and the printed formulas' failures."""

from math import ceil, floor, inf, isnan, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftrate import theory

# No deadline on shared machines, and the same cases every time.
CALM = settings(deadline=None, derandomize=True, max_examples=50)

starts = st.floats(1e-3, 1e3)
slopes = st.floats(0.01, 5.0)
noises = st.floats(1e-3, 10.0)


def printed_switch(v0, a, b):
    """τ_* as the lemma prints it; `math.log` refuses what is undefined."""
    return max(log((1 - a) * (v0 * (2 - a) / b - 1)) / (2 - a), 0.0)


def printed_constant(v0, a, b):
    return a * log((1 - a) / b) + 1 - a - printed_switch(v0, a, b)


def integrate(v0, a, b, horizon, steps=400):
    """The ODE itself, under the optimal policy; d = 1, ν = 2/a, σ² = 2b/a."""
    nu, sigma = 2.0 / a, np.sqrt(2.0 * b / a)

    def policy(_, v):
        return float(theory.optimal_policy(v, dim=1, noise_std=sigma, batch_density=nu))

    return theory.upper_process(
        v0,
        policy,
        dim=1,
        noise_std=sigma,
        horizon=horizon,
        steps=steps,
        batch_density=nu,
        speed=0.0,
    )


@settings(CALM, max_examples=15)
@given(starts, slopes, noises)
def test_closed_form_against_the_integrated_equation(v0, a, b):
    times, v = integrate(v0, a, b, horizon=4.0)
    np.testing.assert_allclose(theory.no_shift(times, v0, a, b).second, v, rtol=1e-5)


@CALM
@given(starts, slopes, noises, st.floats(0, 1e6))
def test_closed_form_solves_the_equation(v0, a, b, tau):
    """The slope by central difference, at any time; the rate is the optimal one."""
    h = 1e-4 * (1 + tau)
    low, mid, high = theory.no_shift([max(tau - h, 0.0), tau, tau + h], v0, a, b).second
    z = theory.no_shift(tau, v0, a, b).rate
    assert z == pytest.approx(min(1.0, mid / (a * mid + b)), rel=1e-9)
    slope = (a * z * z - 2 * z) * mid + b * z * z
    assert (high - low) / (h + min(h, tau)) == pytest.approx(slope, rel=2e-3)


@CALM
@given(starts, slopes, noises)
def test_the_rate_leaves_the_cap_at_the_switch_time(v0, a, b):
    at = theory.switch_time(v0, a, b)
    if at > 0:
        assert theory.no_shift(at, v0, a, b).second == pytest.approx(b / (1 - a), rel=1e-9)
        assert theory.no_shift(at * 0.999, v0, a, b).rate == 1.0
        assert theory.no_shift(at * 1.001 + 1e-6, v0, a, b).rate < 1.0
    else:
        assert theory.no_shift(0.0, v0, a, b).rate <= 1.0
        assert theory.no_shift(0.0, v0, a, b).second == pytest.approx(v0)


@CALM
@given(starts, st.floats(1.0, 50.0), noises, st.floats(0, 100))
def test_the_cap_never_binds_for_a_of_one_or_more(v0, a, b, tau):
    assert theory.switch_time(v0, a, b) == 0.0
    assert theory.no_shift(tau, v0, a, b).rate < 1.0 / a


@CALM
@given(starts, slopes, noises)
def test_tail(v0, a, b):
    """The ratio to b/(τ + C) is exactly 1 + a (v/b) ln(1/v), and so tends to 1."""
    times = np.array([1e6, 1e9, 1e12])
    exact, tail = theory.no_shift(times, v0, a, b), theory.tail(times, v0, a, b)
    ratio = exact.second / tail.second
    np.testing.assert_allclose(
        ratio, 1 - a * exact.second / b * np.log(exact.second), rtol=1e-9, atol=0
    )
    # ln(1/v) <= ln(2τ/b) from then on, which is below 40 here, and v/b is about 1/τ.
    assert np.all(np.abs(ratio - 1) <= 50 * a / times)
    assert np.all(np.abs(exact.rate / tail.rate - 1) <= 50 * a / times)


@CALM
@given(starts, slopes, noises)
def test_printed_formulas_where_they_are_right(v0, a, b):
    """a < 1 and ṽ_0 >= b/(1 - a)."""
    if a < 0.99 and v0 * (1 - a) >= b * 1.0001:
        assert theory.switch_time(v0, a, b) == pytest.approx(printed_switch(v0, a, b), abs=1e-9)
        exact = theory.tail_constant(v0, a, b)
        assert exact == pytest.approx(printed_constant(v0, a, b), abs=1e-8)


@pytest.mark.parametrize(("v0", "a"), [(0.1, 0.1), (5.0, 1.0), (5.0, 1.5)])
def test_printed_switch_time_is_undefined(v0, a):
    """For ṽ_0 <= b/(2 - a), and for 1 <= a < 2, it takes the logarithm of a number <= 0."""
    with pytest.raises(ValueError, match=r"math domain error|expected a positive"):
        printed_switch(v0, a, 0.3)
    assert theory.switch_time(v0, a, 0.3) == 0.0


def test_printed_switch_time_divides_by_zero_at_two():
    with pytest.raises((ZeroDivisionError, ValueError)):
        printed_switch(5.0, 2.0, 0.3)
    assert theory.switch_time(5.0, 2.0, 0.3) == 0.0


def test_printed_constant_is_wrong_below_the_threshold():
    """a = 0.1, b = 0.3, ṽ_0 = 0.2 < b/(1 - a): 1.01 is printed, 1.66 is right."""
    v0, a, b = 0.2, 0.1, 0.3
    assert printed_constant(v0, a, b) == pytest.approx(1.0099, abs=1e-4)
    assert theory.tail_constant(v0, a, b) == pytest.approx(1.6609, abs=1e-4)
    _, v = integrate(v0, a, b, horizon=10.0)
    assert a * log(1 / v[-1]) + b / v[-1] == pytest.approx(10.0 + 1.6609, abs=1e-3)


def test_printed_step_count_is_one_too_many():
    """η_t = ε for t <= ⌊τ_*/ε⌋; at the printed ⌈τ_*/ε⌉ the rate is already below."""
    eps, v0, a, b = 0.1, 1.0, 0.1, 0.3
    steps = theory.switch_time(v0, a, b) / eps
    assert theory.no_shift(eps * floor(steps), v0, a, b).rate == 1.0
    assert theory.no_shift(eps * ceil(steps), v0, a, b).rate < 1.0


def test_without_noise_there_is_no_tail():
    """σ = 0: the error falls exponentially, so the printed limits are 0/0 or false."""
    assert theory.switch_time(2.0, 0.5, 0.0) == inf
    assert isnan(theory.tail_constant(2.0, 0.5, 0.0))
    out = theory.no_shift([3.0, 1e6], 2.0, 0.5, 0.0)
    assert out.second[0] == pytest.approx(2.0 * np.exp(-1.5 * 3.0))
    assert out.rate.tolist() == [1.0, 1.0]
    out = theory.no_shift([3.0, 1e6], 2.0, 4.0, 0.0)
    assert out.second[0] == pytest.approx(2.0 * np.exp(-3.0 / 4.0))
    assert out.rate.tolist() == [0.25, 0.25]


@CALM
@given(st.floats(1e-200, 1e200), st.floats(1e-12, 1e12), st.floats(1e-200, 1e200))
def test_extreme_constants_stay_finite(v0, a, b):
    out = theory.no_shift([0.0, 1e-9, 1.0, 1e9], v0, a, b)
    assert np.all(np.isfinite(out.second) & (out.second >= 0))
    assert np.all((out.rate >= 0) & (out.rate <= 1))
    assert np.all(np.diff(out.second) <= 1e-9 * out.second[:-1])
