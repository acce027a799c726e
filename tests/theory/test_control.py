"""Theorem 3.3: the optimal policy of the control problem."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftrate import theory
from driftrate.errors import ConfigError

# No deadline on shared machines, and the same cases every time.
CALM = settings(deadline=None, derandomize=True, max_examples=50)

PROBLEM = {"dim": 3, "noise_std": 0.8}


def density(tau):
    return 4.0 + 2.0 * np.sin(3 * tau)


def speed(tau):
    return 0.6 if tau < 0.7 else 0.1


def best(tau, v):
    return float(theory.optimal_policy(v, batch_density=density(tau), **PROBLEM))


def solve(start, policy, steps=200):
    return theory.upper_process(
        start, policy, horizon=2.0, steps=steps, batch_density=density, speed=speed, **PROBLEM
    )


def cost(start, policy, steps=200):
    return np.trapezoid(*solve(start, policy, steps)[::-1])


def program(steps):
    return theory.value_function(
        np.geomspace(0.02, 12.0, 160),
        horizon=2.0,
        steps=steps,
        batch_density=density,
        speed=speed,
        rates=np.linspace(0.0, 1.0, 201),
        **PROBLEM,
    )


def test_dynamic_programming_finds_the_policy():
    """Backward induction that knows nothing of the formula ends at it, to its rates' spacing."""
    out = program(100)
    for tau, row in zip(out.times[:-1], out.policy, strict=True):
        exact = theory.optimal_policy(out.grid, batch_density=density(tau), **PROBLEM)
        assert np.abs(row - exact).max() <= 0.5 / 200 + 1e-12


def test_value_function_is_the_cost_of_the_policy():
    """Up to its error of first order in the step, measured by halving it."""
    coarse, fine = program(100), program(200)
    for start in (0.1, 0.5, 2.0, 8.0):
        low, high = (np.interp(start, out.grid, out.cost[0]) for out in (coarse, fine))
        error = 2 * abs(low - high) + 1e-3 * high  # and the grid's own, of second order
        assert abs(2 * high - low - cost(start, best)) <= error


def test_value_rises_with_the_state():
    """The proof takes this for granted (∂V/∂z > 0)."""
    assert np.all(np.diff(program(60).cost[:-1], axis=1) > 0)


pieces = st.lists(st.floats(-1, 1), min_size=8, max_size=8)


@settings(CALM, max_examples=15)
@given(pieces, st.floats(0.05, 10))
def test_no_perturbed_policy_is_better(shifts, start):
    """Neither in cost, nor at any single time: the optimal path is below every other."""

    def perturbed(tau, v):
        return float(np.clip(best(tau, v) + shifts[int(tau * 4) % 8], 0.0, 1.0))

    _, optimal = solve(start, best)
    _, other = solve(start, perturbed)
    assert np.all(optimal <= other * (1 + 1e-4))
    assert np.trapezoid(optimal) <= np.trapezoid(other) * (1 + 1e-5)


@settings(CALM, max_examples=15)
@given(st.lists(st.floats(0, 1), min_size=8, max_size=8), st.floats(0.05, 10))
def test_no_open_loop_policy_is_better(rates, start):
    assert cost(start, best) <= cost(start, lambda tau, _: rates[int(tau * 4) % 8]) * (1 + 1e-5)


def test_a_real_perturbation_costs_more():
    assert cost(1.0, lambda tau, v: 0.8 * best(tau, v)) > 1.001 * cost(1.0, best)


@CALM
@given(
    st.floats(0, 1e3),
    st.integers(1, 1000),
    st.floats(0, 10),
    st.floats(1e-2, 1e3),
    st.floats(0, 1),
)
def test_policy_minimises_the_slope(v, dim, sigma, nu, other):
    def slope(z):
        return ((dim + 1) * z * z / nu - 2 * z) * v + z * z / nu * sigma**2 * dim

    z = float(theory.optimal_policy(v, dim=dim, noise_std=sigma, batch_density=nu))
    assert 0.0 <= z <= 1.0
    assert slope(z) <= slope(other) + 1e-9 * (abs(slope(other)) + v)


def test_policy_without_noise_is_its_limit():
    assert theory.optimal_policy(0.0, dim=3, noise_std=0.0, batch_density=2.0) == 0.5
    near = theory.optimal_policy(1.0, dim=3, noise_std=1e-9, batch_density=2.0)
    assert near == pytest.approx(0.5)


def test_optimal_for_the_upper_process_is_not_optimal_for_sgd():
    """A target that flips between two points: standing still beats the rate made for fleeing."""
    steps = 200
    moves = np.zeros((steps, 2))
    moves[:, 0] = 2.0 * (-1.0) ** np.arange(steps + 1)[1:]
    regrets = []
    for scale in (0.0, 1.0):
        v, rates = 1.0, []
        for _ in range(steps):
            rate = v * 64 / ((64 + 3) * v + 2)
            rates.append(scale * rate)
            v = (np.sqrt((1 - rate) * v) + 2.0) ** 2
        out = theory.discrete_moments(
            [-1.0, 0.0], 1.0, rates=rates, batch_sizes=64, moves=moves, noise_std=1.0
        )
        regrets.append(out.second.sum() / 2)
    assert regrets[0] < 0.5 * regrets[1]


def test_a_step_that_is_too_long_is_refused():
    with pytest.raises(ConfigError, match="steps must exceed 4"):
        program(4)


def test_a_grid_that_does_not_increase_is_refused():
    with pytest.raises(ConfigError, match="grid must increase"):
        theory.value_function(
            [1.0, 1.0],
            horizon=1.0,
            steps=10,
            batch_density=1.0,
            speed=0.0,
            rates=[0.0, 1.0],
            **PROBLEM,
        )
