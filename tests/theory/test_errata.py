"""Slips of the paper outside its theorems: Algorithm 1, the remarks, the experiments."""

from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import driftrate as dr
from driftrate import theory

# No deadline on shared machines, and the same cases every time.
CALM = settings(deadline=None, derandomize=True, max_examples=50)


def printed_loop(v, *, cap, kappa, dim, noise_std, batch, shift):
    """One pass of Algorithm 1's inner loop, letter for letter; returns v."""
    for _ in range(ceil(1 / kappa)):
        weight = (dim + 1) * v + noise_std**2 * dim
        r = min(v * batch / weight, cap)
        v = (
            v
            + kappa * ((dim + 1) / batch * r**2 - 2 * r) * v
            + kappa * noise_std**2 * dim / batch * r**2
            + 2 * kappa * shift * sqrt(v)
        )
    return v


def test_algorithm_1_never_leaves_zero():
    """v ← 0 as printed: the rate is 0 for ever, whatever the shift."""
    v = 0.0
    for _ in range(100):
        v = printed_loop(v, cap=0.1, kappa=0.1, dim=5, noise_std=1.0, batch=10, shift=3.0)
    assert v == 0.0
    rate = dr.LinearRate(dim=5, noise_std=1.0, max_rate=0.1, initial_error=0.0, form="euler")
    eta, _ = rate.update(rate.init(), dr.Signal(batch_size=10, shift=3.0))
    assert eta == 0.0


def test_guess_the_initial_error_high():
    """At standstill: too low a guess costs many times the regret, too high a few percent."""

    def regret(guess):
        rate = dr.LinearRate(dim=128, noise_std=1.0, initial_error=guess)
        state, rates = rate.init(), []
        for _ in range(400):
            eta, state = rate.update(state, dr.Signal(batch_size=64, shift=0.0))
            rates.append(eta)
        out = theory.discrete_moments(
            np.full(128, sqrt(0.5)), 64.0, rates=rates, batch_sizes=64, moves=0.0, noise_std=1.0
        )
        return out.second.sum()

    assert regret(1e-2) > 20 * regret(64.0)
    assert regret(1e6) < 1.2 * regret(64.0)


def test_inner_loop_integrates_more_than_one_step():
    """⌈1/κ⌉ κ = 1.2 for κ = 0.6: shift and contraction both count 1.2 times."""
    common = {"cap": 1e-9, "dim": 5, "noise_std": 1.0, "batch": 10, "shift": 1e-6}
    over = printed_loop(1.0, kappa=0.6, **common) - 1.0
    right = printed_loop(1.0, kappa=0.5, **common) - 1.0
    assert over / right == pytest.approx(1.2, rel=1e-6)


def test_a_coarse_inner_loop_turns_negative():
    """κ = 1 and a cap over 1/2: v < 0 after one step, and √v has no value in the next."""
    common = {"cap": 1.0, "kappa": 1.0, "dim": 1, "noise_std": 0.1, "batch": 100, "shift": 0.0}
    v = printed_loop(1.0, **common)
    assert v < 0
    with pytest.raises(ValueError, match=r"math domain error|nonnegative"):
        printed_loop(v, **common)


def test_a_coarse_inner_loop_misses_a_jump():
    """The shift alone takes v to (√v + γ)²; one Euler step from near 0 gives almost nothing."""
    common = {"cap": 1e-12, "dim": 1, "noise_std": 1.0, "batch": 1, "shift": 1.0}
    coarse = printed_loop(1e-8, kappa=1.0, **common)
    fine = printed_loop(1e-8, kappa=1e-4, **common)
    assert coarse < 1e-3
    assert 0.9 < fine < (sqrt(1e-8) + 1.0) ** 2


@CALM
@given(
    st.floats(1e-6, 1e6),
    st.integers(1, 1000),
    st.floats(0, 10),
    st.integers(1, 1000),
    st.floats(0, 1),
)
def test_the_exact_one_step_optimum_has_another_denominator(v, dim, sigma, batch, other):
    """B + d + 1 where the paper has d + 1: the SDE drops the square of the drift."""

    def after(eta):
        grad = theory.gradient_second_moment(v, dim=dim, noise_std=sigma, batch_size=batch)
        return (1 - 2 * eta) * v + eta**2 * grad

    best = v * batch / ((batch + dim + 1) * v + sigma**2 * dim)
    paper = v * batch / ((dim + 1) * v + sigma**2 * dim)
    assert best < 1.0
    assert after(best) <= after(other) * (1 + 1e-9)
    assert after(best) <= after(min(paper, 1.0)) * (1 + 1e-9)


def test_the_paper_s_rate_diverges_without_its_cap():
    """d = 1, B = 100: the printed rate is 50 where SGD is stable below 2/(1 + 2/B)."""
    grad = theory.gradient_second_moment(1.0, dim=1, noise_std=0.0, batch_size=100)
    assert (1 - 2 * 50.0) + 50.0**2 * grad > 2000


def test_certificate_against_a_fleeing_target(gradient, above):
    """The v of the exact form bounds E‖θ - θ*‖² even when nature runs away from the learner."""
    rng, dim, batch, seeds = np.random.default_rng(0), 4, 8, 4000
    error = np.tile([1.0, 0.0, 0.0, 0.0], (seeds, 1))
    v = 1.0
    for _ in range(40):
        eta = v * batch / ((batch + dim + 1) * v + dim)
        v *= 1 - eta
        error = error - eta * gradient(rng, error, batch, 1.0)
        error *= 1 + 0.3 / np.linalg.norm(error, axis=-1, keepdims=True)
        v = (sqrt(v) + 0.3) ** 2
        assert above(v - np.sum(error**2, axis=-1))


def test_the_estimated_shift_pins_the_rate_at_its_cap(gradient):
    """Remark 3.5 at standstill: the learner's own noisy steps count as shift, for ever."""
    rng, dim, batch, cap = np.random.default_rng(1), 16, 8, 0.25
    rate = dr.LinearRate(dim=dim, noise_std=1.0, max_rate=cap, initial_error=1.0, form="flow")
    state, known = rate.init(), rate.init()
    error, shift, rates = np.full((1, dim), 0.25), 0.0, []
    for _ in range(400):
        eta, state = rate.update(state, dr.Signal(batch_size=batch, shift=shift))
        truth, known = rate.update(known, dr.Signal(batch_size=batch, shift=0.0))
        step = eta * gradient(rng, error, batch, 1.0)
        error = error - step
        shift = 0.9 * shift + 0.1 * float(np.linalg.norm(step))
        rates.append(eta)
    assert np.mean(np.array(rates[50:]) >= 0.99 * cap) > 0.99
    assert truth < 0.02 * cap


def gauss_normal(order=80):
    points, weights = np.polynomial.hermite_e.hermegauss(order)
    return points, weights / weights.sum()


def sigmoid(x):
    return 0.5 * (1 + np.tanh(x / 2))


@pytest.mark.parametrize("deviation", [0.1, sqrt(0.1), 1.0])
def test_noise_inside_the_sigmoid_shrinks_the_minimiser(deviation):
    """y = sigmoid(xθ* + ε): at θ* the gradient of the expected loss is not 0, but pulls inwards."""
    x, w = gauss_normal()
    star = 3.0

    def gradient(theta):
        labels = sigmoid(x[:, None] * star + deviation * x[None, :]) @ w
        return w @ (x * (sigmoid(x * theta) - labels))

    low, high = 0.5 * star, star
    assert gradient(low) < 0 < gradient(high)
    for _ in range(60):
        mid = (low + high) / 2
        low, high = (mid, high) if gradient(mid) < 0 else (low, mid)
    assert low < star * (1 - 1e-2 * deviation**2)


def test_a_quarter_of_the_dimension_does_not_bound_the_logistic_noise():
    """σ² = d/4 needs residuals of at most 1/2; far from θ* they come near 1."""
    x, w = gauss_normal(120)
    dim, size = 16, 6.0
    residual = sigmoid(-size * x) - sigmoid(size * x)  # θ = -θ*
    second = w @ (residual**2 * (x**2 + dim - 1))
    variance = second - (w @ (residual * x)) ** 2
    assert variance > 2 * dim / 4


@pytest.mark.parametrize("dim", [2, 32, 1024])
@CALM
@given(steps=st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_the_logistic_setting_has_one_constant_rate(dim, steps):
    """σ² = d/4, L = 1/4, D_max = d, B = 256: between 3.96 and 4 = 1/L whatever the shift."""
    rate = dr.ConvexRate(smoothness=0.25, noise_std=sqrt(dim) / 2, diameter=float(dim))
    state = rate.init()
    for shift in steps:
        eta, state = rate.update(state, dr.Signal(batch_size=256, shift=shift))
        assert 3.96 < eta <= 4.0


def spiral(dim, *, steps=2000, hold=8, turns=4):
    t = np.ceil(np.arange(1, steps + 1) / hold).astype(int) * hold - 1
    radius, alpha = np.linspace(1, -1, steps)[t] ** 3, np.linspace(0, 1, steps)[t]
    i = np.arange(1, dim + 1)
    angle = np.ceil(i / 2) * 2 * turns * np.pi * alpha[:, None]
    return radius[:, None] * np.where(i % 2 == 1, np.cos(angle), np.sin(angle))


def test_the_spiral_is_not_linearly_independent():
    """With hold 8 it has 250 distinct points, so at most 250 independent components."""
    assert np.linalg.matrix_rank(spiral(64)) == 64
    assert np.linalg.matrix_rank(spiral(256)) <= 250
    assert np.linalg.matrix_rank(spiral(512)) <= 250


def test_the_spiral_outruns_everyone_in_high_dimension():
    """A jump is about √2 ‖θ*‖ long: the next target is orthogonal to the last."""
    path = spiral(1024)[::8]
    jump = np.linalg.norm(np.diff(path, axis=0), axis=1)
    size = np.linalg.norm(path[:-1], axis=1)
    assert np.median(jump / size) == pytest.approx(sqrt(2), rel=0.05)


def test_the_constant_of_proposition_3_1_does_not_integrate():
    """From "with chance 1 - e^-u²" to expectations: e^{C₂u²T} beats e^-u² once C₂T >= 1."""
    u = np.linspace(0, 12, 2000)
    tails = [np.trapezoid(np.exp(c * u**2 - u**2), u) for c in (0.5, 1.5)]
    assert tails[0] < 2
    assert tails[1] > 1e20


def test_two_mixtures_disagree_with_the_order_in_the_text():
    """Text: (ductal, alpha, beta, delta), and P_1 is ductal only; but its 1 stands last."""
    order, first = ("ductal", "alpha", "beta", "delta"), (0.0, 0.0, 0.0, 1.0)
    assert order[first.index(1.0)] != "ductal"
