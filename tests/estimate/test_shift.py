"""The shift seen through the learner's steps: the paper's average, and the one without its slip."""

from __future__ import annotations

from math import isfinite, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import driftrate as dr
from driftrate.errors import ConfigError, MissingSignal, SignalError
from driftrate.estimate import DebiasedShift, Estimated, ShiftEMA, from_parts

DIM, BATCH, SEEDS = 16, 32, 64


def sgd(rule, *, steps, seed, speed=0.0, walk=0.0, error=0.0):
    """Online linear regression, x ~ N(0, I), label noise 1, one model a seed, all at once.

    `rule` is a schedule, or an estimator that watches SGD at rate 0.1. Returns the rates, the
    estimates and the spreads, (steps, SEEDS) each.
    """
    rng = np.random.default_rng(seed)
    direction = np.zeros(DIM)
    direction[0] = speed
    theta, target = np.zeros((SEEDS, DIM)), np.full((SEEDS, DIM), error / sqrt(DIM))
    state, length = rule.init(like=np.zeros(SEEDS)), np.zeros(SEEDS)
    record = []
    for _ in range(steps):
        target = target + direction + walk / sqrt(DIM) * rng.standard_normal((SEEDS, DIM))
        x = rng.standard_normal((2, SEEDS, BATCH // 2, DIM))
        residual = np.einsum("pnbd,nd->pnb", x, theta - target) - rng.standard_normal(x.shape[:3])
        halves = np.einsum("pnb,pnbd->pnd", residual, x) / (BATCH // 2)
        signal = from_parts(halves)._replace(batch_size=BATCH, step_length=length)
        value, state = rule.update(state, signal)
        known = isinstance(rule, dr.Schedule)
        rate = value if known else np.full(SEEDS, 0.1)
        record.append((rate, state["estimator"]["estimate"] if known else value, signal.spread))
        move = rate[:, None] * halves.mean(axis=0)
        theta, length = theta - move, np.linalg.norm(move, axis=-1)
    return np.array(record).transpose(1, 0, 2)


def linear(estimator):
    return Estimated(
        dr.LinearRate(dim=DIM, noise_std=1.0, max_rate=0.5, initial_error=1.0), estimator
    )


def moves(**nature):
    """The debiased squared moves themselves, at a constant rate: mean and standard error."""

    class Bare(DebiasedShift):
        def _step(self, xp, state, signal):
            _, new = super()._step(xp, state, signal)
            return new["mean"], new

    values = sgd(Bare(beta=0.0), steps=500, **nature)[1][100:].mean(axis=0)
    return values.mean(), values.std(ddof=1) / sqrt(SEEDS)


# At standstill


def test_the_papers_estimate_pins_the_rate_at_its_cap_at_standstill():
    rates, estimates, _ = sgd(linear(ShiftEMA()), steps=400, seed=1, error=1.0)
    assert (rates[100:] == 0.5).all()
    # The truth is 0; the estimate is the length of a step of pure noise, 0.5 √(d σ²/B) and more.
    assert estimates[100:].mean() > 0.5 * sqrt(DIM / BATCH)


def test_the_debiased_estimate_falls_to_zero_at_standstill_and_the_rate_with_it():
    rates, estimates, _ = sgd(linear(DebiasedShift()), steps=800, seed=1, error=1.0)
    assert rates[-200:].mean() < 0.1 * 0.5
    assert estimates[-200:].mean() < 0.01
    quarters = rates.mean(axis=1).reshape(4, -1).mean(axis=1)
    assert (np.diff(quarters) < 0.0).all()


def test_subtracting_the_noise_of_the_step_alone_is_not_enough():
    # What the noise displaced comes back as signal and is taken for shift.
    half = sgd(linear(DebiasedShift(beta=0.99, curvature=0.0)), steps=800, seed=1, error=1.0)[0]
    full = sgd(linear(DebiasedShift(beta=0.99)), steps=800, seed=1, error=1.0)[0]
    assert half[-200:].mean() > 10.0 * full[-200:].mean()


# The moments that the docstring states, within four standard errors


def test_the_debiased_move_has_mean_zero_at_standstill():
    mean, error = moves(seed=2)
    assert abs(mean) < 4.0 * error
    # The way back of the learner's own noise, which would be left otherwise, is far outside that.
    assert error < 0.1 * (0.1**2 * (DIM / BATCH) * 0.1 / 1.9)


@pytest.mark.parametrize("speed", [0.02, 0.05])
def test_the_debiased_move_is_the_squared_shift_at_constant_velocity(speed):
    mean, error = moves(seed=3, speed=speed)
    assert abs(mean - speed**2) < 4.0 * error
    assert 4.0 * error < 0.5 * speed**2


def test_the_debiased_move_is_the_share_of_a_random_walk_that_is_followed():
    mean, error = moves(seed=4, walk=0.2)
    want = 0.2**2 * 0.1 / 1.9
    assert abs(mean - want) < 4.0 * error
    assert 4.0 * error < 0.5 * want


def test_a_drift_is_tracked_within_the_derived_factor():
    """For an average X of mean γ² and deviation s, γ² <= E max(0, X) <= γ² + s/2.

    The product of two half-batch gradients has the deviation 2 (spread + ‖∇‖²)/√d or less, the
    average η² √((1 - β)/(1 + β)) times it: the root mean square of the estimate is within the
    factor √(1 + s/(2γ²)) of γ.
    """
    speed, rule = 0.05, DebiasedShift()
    _, estimates, spreads = sgd(rule, steps=500, seed=5, speed=speed)
    squares = (estimates[100:] ** 2).mean(axis=0)
    slack = 4.0 * squares.std(ddof=1) / sqrt(SEEDS)
    shrink = sqrt((1.0 - rule.beta) / (1.0 + rule.beta))
    noise = spreads[100:].mean()
    deviation = 0.1**2 * shrink * 2.0 * (noise + (speed / 0.1) ** 2 + 0.1 * noise) / sqrt(DIM)
    factor = sqrt(1.0 + deviation / (2.0 * speed**2))
    assert factor < 1.2
    assert speed**2 - slack < squares.mean() < (factor * speed) ** 2 + slack


def test_a_drift_is_tracked_within_a_factor_two_when_the_rate_follows_the_estimate():
    _, estimates, _ = sgd(linear(DebiasedShift()), steps=800, seed=6, speed=0.02)
    assert 0.01 < estimates[200:].mean() < 0.04
    _, crude, _ = sgd(linear(ShiftEMA()), steps=400, seed=6, speed=0.02)
    assert crude[100:].mean() > 10.0 * 0.02


# The formulas

signals = st.lists(
    st.tuples(st.floats(0.0, 10.0), st.floats(1e-3, 10.0), st.floats(0.0, 10.0)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(signals, st.floats(0.0, 0.99), st.floats(0.0, 3.0))
def test_debiased_is_its_formula(rows, beta, curvature):
    rule = DebiasedShift(beta=beta, curvature=curvature)
    state, own, squared = rule.init(), 0.0, []
    for t, (step, grad_sq, spread) in enumerate(rows):
        value, state = rule.update(
            state, dr.Signal(step_length=step, grad_sq=grad_sq, spread=spread)
        )
        if t > 0:
            _, before, noise = rows[t - 1]
            rate = step / sqrt(before)
            gain = min(1.0, rate * curvature)
            squared.append(step**2 * (1.0 - noise / before) - gain**2 * own)
            own = (1.0 - gain) ** 2 * own + rate**2 * noise
        weights = [beta ** (len(squared) - 1 - s) for s in range(len(squared))]
        top = sum(w * m for w, m in zip(weights, squared, strict=True))
        size = sum(w * abs(m) for w, m in zip(weights, squared, strict=True))
        want = max(0.0, top / sum(weights)) if squared else 0.0
        assert value**2 == pytest.approx(want, rel=1e-9, abs=1e-9 * size + 1e-300)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20), st.floats(0.0, 0.99))
def test_ema_is_its_formula(steps, beta):
    rule = ShiftEMA(beta=beta)
    state = rule.init()
    for step in steps:
        value, state = rule.update(state, dr.Signal(step_length=step))
    n = len(steps)
    want = sum((1.0 - beta) * beta ** (n - 1 - t) * step for t, step in enumerate(steps))
    assert value == pytest.approx(want, rel=1e-9, abs=1e-300)
    assert 0.0 <= value <= max(steps) * (1.0 + 1e-12)


extreme = st.floats(0.0, 1e300) | st.sampled_from([0.0, 5e-324, 1e-300, 1e300])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(extreme, extreme, extreme), min_size=1, max_size=8),
    st.sampled_from([0.0, 1.0, 1e18]),
)
def test_debiased_is_finite_and_not_negative_whatever_comes(rows, curvature):
    rule = DebiasedShift(curvature=curvature)
    state = rule.init()
    single = rule.init(like=np.zeros(1, dtype=np.float32))
    for row in rows:
        value, state = rule.update(state, dr.Signal(**dict(zip(rule.signals, row, strict=True))))
        assert isfinite(value)
        assert value >= 0.0
        small = [np.asarray([min(x, 1e38)], dtype=np.float32) for x in row]
        rough, single = rule.update(
            single, dr.Signal(**dict(zip(rule.signals, small, strict=True)))
        )
        assert rough.dtype == np.float32
        assert np.isfinite(rough).all()
        assert (rough >= 0.0).all()


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(0.01, 10.0), st.floats(0.0, 0.95), st.integers(2, 30))
def test_debiased_has_no_pull_towards_its_start(step, grad_sq, share, steps):
    rule = DebiasedShift(curvature=0.0)
    state = rule.init()
    signal = dr.Signal(step_length=step, grad_sq=grad_sq, spread=(1.0 - share) * grad_sq)
    for _ in range(steps):
        value, state = rule.update(state, signal)
    assert value == pytest.approx(step * sqrt(share), rel=1e-6, abs=1e-6 * step)


def test_negative_moves_cancel_positive_ones_before_the_root():
    rule = DebiasedShift(beta=0.5, curvature=0.0)
    state = rule.init()
    values = []
    for spread in [2.0, 0.0, 0.0, 2.0, 0.0]:
        value, state = rule.update(state, dr.Signal(step_length=1.0, grad_sq=1.0, spread=spread))
        values.append(value)
    # Moves of -1, +1, +1, -1: the averages over weights 1/2, 1/4, ... are -1, 1/3, 5/7, -1/5.
    assert values == pytest.approx([0.0, 0.0, sqrt(1 / 3), sqrt(5 / 7), 0.0])


def test_a_learner_at_rest_without_noise_reads_zero_and_forgets():
    rule = DebiasedShift()
    state = rule.init()
    for step in [0.0, 1.0] + [0.0] * 50:
        grad_sq = 1.0 if step == 0.0 and state["weight"] == 0.0 else 0.0
        value, state = rule.update(state, dr.Signal(step_length=step, grad_sq=grad_sq, spread=0.0))
    assert value < 0.1


# Refusals


@pytest.mark.parametrize("rule", [ShiftEMA, DebiasedShift])
@pytest.mark.parametrize("beta", [-0.1, 1.0, 1.5, float("nan"), "0.9", True])
def test_a_bad_beta_is_refused(rule, beta):
    with pytest.raises(ConfigError, match=r"beta must be"):
        rule(beta=beta)


def test_a_bad_curvature_is_refused():
    with pytest.raises(ConfigError, match=r"DebiasedShift\.curvature"):
        DebiasedShift(curvature=-1.0)


@pytest.mark.parametrize("field", ["step_length", "grad_sq", "spread"])
def test_a_missing_or_bad_signal_is_named(field):
    rule = DebiasedShift()
    good = dr.Signal(step_length=1.0, grad_sq=1.0, spread=0.5)
    with pytest.raises(MissingSignal, match=field):
        rule.update(rule.init(), good._replace(**{field: None}))
    with pytest.raises(SignalError, match=rf"{field}.*nan"):
        rule.update(rule.init(), good._replace(**{field: float("nan")}))
    with pytest.raises(SignalError, match=rf"{field}.*-1"):
        rule.update(rule.init(), good._replace(**{field: -1.0}))


def test_the_wrapper_refuses_what_it_cannot_feed():
    with pytest.raises(ConfigError, match="must be an Estimator"):
        Estimated(dr.LinearRate(dim=2, noise_std=1.0), "ema")
    with pytest.raises(ConfigError, match="provides 'shift'"):
        Estimated(dr.ConstantRate(0.1), DebiasedShift())
    wrapped = linear(DebiasedShift())
    assert wrapped.signals == ("batch_size", "step_length", "grad_sq", "spread")
