"""Theorem 3.2: the moments of the SDE; and the exact moments of SGD."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from driftrate import theory

# No deadline on shared machines, and the same cases every time.
CALM = settings(deadline=None, derandomize=True, max_examples=50)


def rate(tau):
    return 0.5 + 0.4 * np.cos(tau)


def target(tau):
    return np.array([np.sin(tau), tau / 2, 0.0])


def velocity(tau):
    return np.array([np.cos(tau), 0.5, 0.0])


START = np.array([1.0, -1.0, 0.5])


def test_moments_against_monte_carlo(zero):
    """Within 4 standard errors plus the scheme's bias, which its own recursion measures."""
    steps, horizon = 240, 1.5
    h = horizon / steps
    dw = theory.brownian(np.random.default_rng(0), horizon=horizon, steps=steps, shape=(4000, 3))
    x = theory.sde_paths(
        START, dw, horizon=horizon, rate=rate, batch_density=2.0, target=target, noise_std=0.7
    )
    ode = theory.moment_ode(
        START,
        START @ START,
        horizon=horizon,
        steps=steps,
        rate=rate,
        batch_density=2.0,
        velocity=velocity,
        noise_std=0.7,
    )
    times = h * np.arange(steps + 1)
    scheme = theory.discrete_moments(
        START,
        START @ START,
        rates=h * rate(times[:-1]),
        batch_sizes=h * 2.0,
        moves=np.diff([target(tau) for tau in times], axis=0),
        noise_std=0.7,
    )
    for k in (steps // 3, steps):
        assert zero(x[k] - ode.mean[k], bias=np.abs(scheme.mean[k] - ode.mean[k]))
        bias = abs(scheme.second[k] - ode.second[k])
        assert bias < 0.02 * ode.second[k]
        assert zero(np.sum(x[k] ** 2, axis=-1) - ode.second[k], bias=bias)


def test_integration_has_order_four():
    """Against the solution of the linear equations with constant coefficients."""
    a = 3 * 0.8**2 / 4 - 2 * 0.8
    b = 0.8**2 / 4 * 2
    exact = (2.0 + b / a) * np.exp(2 * a) - b / a
    gaps = []
    for steps in (8, 16, 32, 64):
        out = theory.moment_ode(
            [1.0, 1.0],
            2.0,
            horizon=2.0,
            steps=steps,
            rate=0.8,
            batch_density=4.0,
            velocity=0.0,
            noise_std=1.0,
        )
        gaps.append(abs(out.second[-1] - exact))
    orders = -np.diff(np.log2(gaps))
    assert np.all(np.abs(orders - 4.0) < 0.2)


def test_a_switch_on_the_grid_keeps_the_order():
    gaps = []
    for steps in (8, 16, 32):
        out = theory.moment_ode(
            [1.0],
            1.0,
            horizon=2.0,
            steps=steps,
            rate=lambda tau: 1.0 if tau < 1.0 else 0.25,
            batch_density=1e12,
            velocity=0.0,
            noise_std=0.0,
        )
        gaps.append(abs(out.second[-1] - np.exp(-2.5)))
    assert np.all(-np.diff(np.log2(gaps)) > 3.5)


def test_discrete_moments_against_drawn_batches(gradient, zero):
    """Real SGD, batches drawn: no normal approximation and no SDE in between."""
    rng = np.random.default_rng(1)
    steps, batch, seeds = 15, 2, 20_000
    rates = np.linspace(0.3, 0.05, steps)
    moves = 0.3 * rng.standard_normal((steps, 3))
    exact = theory.discrete_moments(
        START, START @ START, rates=rates, batch_sizes=batch, moves=moves, noise_std=0.7
    )
    error = np.tile(START, (seeds, 1))
    for t in range(steps):
        error = error - rates[t] * gradient(rng, error, batch, 0.7) - moves[t]
        if t in {0, 4, steps - 1}:
            assert zero(error - exact.mean[t + 1])
            assert zero(np.sum(error**2, axis=-1) - exact.second[t + 1])


def test_gradient_second_moment_against_drawn_batches(gradient, zero):
    error = np.tile([1.0, -2.0, 0.5, 0.0], (40_000, 1))
    drawn = gradient(np.random.default_rng(2), error, 3, 0.7)
    exact = theory.gradient_second_moment(5.25, dim=4, noise_std=0.7, batch_size=3)
    assert zero(np.sum(drawn**2, axis=-1) - exact)


@CALM
@given(
    st.integers(1, 4).flatmap(lambda d: arrays(float, (2, d), elements=st.floats(-3, 3))),
    st.floats(0, 1),
    st.floats(0.5, 20),
    st.floats(0, 3),
    st.floats(0, 5),
)
def test_upper_process_is_above(pair, zeta, nu, sigma, extra):
    """|⟨m, Y'⟩| <= ‖Y'‖ √v, so the upper process dominates for every direction of the shift."""
    mean, drift = pair
    second = mean @ mean + extra + 1e-3
    common = {"horizon": 1.0, "steps": 40, "batch_density": nu, "noise_std": sigma}
    low = theory.moment_ode(mean, second, rate=zeta, velocity=drift, **common)
    _, high = theory.upper_process(
        second, lambda *_: zeta, dim=mean.size, speed=np.linalg.norm(drift), **common
    )
    assert np.all(low.second <= high * (1 + 1e-6) + 1e-9)


def test_upper_process_is_tight_when_the_target_flees():
    """Equality: no noise, and a shift opposite to the error."""
    common = {"horizon": 1.0, "steps": 200, "batch_density": 1e15, "noise_std": 0.0}
    low = theory.moment_ode([1.0, 0.0], 1.0, rate=0.5, velocity=[-0.7, 0.0], **common)
    _, high = theory.upper_process(1.0, lambda *_: 0.5, dim=2, speed=0.7, **common)
    np.testing.assert_allclose(low.second, high, rtol=1e-6)


def test_an_aligned_shift_lowers_the_error():
    """The text calls the bound tight when Y' is aligned with m; it is so when opposite to it."""
    common = {"horizon": 0.5, "steps": 100, "rate": 0.5, "batch_density": 1e15, "noise_std": 0.0}
    along, still, against = (
        theory.moment_ode([1.0], 1.0, velocity=[y], **common).second[-1] for y in (0.7, 0.0, -0.7)
    )
    assert along < still < against


def test_upper_process_has_two_solutions_from_zero():
    """From ever smaller starts it tends to ‖Y'‖²τ², not to the other solution, 0."""
    ends = [
        theory.upper_process(
            start,
            lambda *_: 0.0,
            dim=1,
            noise_std=1.0,
            horizon=1.0,
            steps=2000,
            batch_density=1.0,
            speed=1.0,
        )[1][-1]
        for start in (1e-4, 1e-6)
    ]
    assert ends == pytest.approx([(1 + 1e-2) ** 2, (1 + 1e-3) ** 2], rel=1e-2)


def test_upper_process_refuses_zero():
    with pytest.raises(ValueError, match="initial_second must be finite numbers > 0, got 0"):
        theory.upper_process(
            0.0,
            lambda *_: 0.0,
            dim=1,
            noise_std=1.0,
            horizon=1.0,
            steps=1,
            batch_density=1.0,
            speed=1.0,
        )
