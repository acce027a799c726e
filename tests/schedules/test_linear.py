"""Algorithm 1 in its three forms."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.optimize import brentq, minimize_scalar

import driftrate as dr
from driftrate.errors import ConfigError

FORMS = ("exact", "flow", "euler")
DIMS = st.sampled_from([1, 2, 16, 1000, 10**9])
BATCHES = st.sampled_from([1, 2, 64, 10**4, 10**9])
NOISES = st.sampled_from([0.0, 1e-6, 0.1, 1.0, 1e3])
CAPS = st.sampled_from([None, 1e-3, 0.1, 0.5, 1.0, 10.0])
ERRORS = st.sampled_from([0.0, 1e-300, 1e-12, 1.0, 1e6, 1e18])


def paper_loop(v, batches, shifts, dim, noise_std, cap, kappa):
    """Algorithm 1 as printed, but for the start of v."""
    rates = []
    for B, gamma in zip(batches, shifts, strict=True):
        for _ in range(math.ceil(1 / kappa)):
            r = min(v * B / ((dim + 1) * v + noise_std**2 * dim), cap)
            v = (
                v
                + kappa * ((dim + 1) / B * r**2 - 2 * r) * v
                + kappa * noise_std**2 * dim / B * r**2
                + 2 * kappa * gamma * math.sqrt(v)
            )
        rates.append(min(v * B / ((dim + 1) * v + noise_std**2 * dim), cap))
    return rates


def rates_of(rate, batches, shifts):
    state, rates = rate.init(), []
    for B, gamma in zip(batches, shifts, strict=True):
        eta, state = rate.update(state, dr.Signal(batch_size=B, shift=gamma))
        rates.append(eta)
    return rates


def flow_by_scipy(v, a, s, cap, gamma):
    def slope(_, u):
        r = min(u[0] ** 2 / (a * u[0] ** 2 + s), cap)
        return [gamma - r * (1 - a * r / 2) * u[0] + s * r * r / (2 * u[0])]

    found = solve_ivp(
        slope, (0, 1), [math.sqrt(v)], method="DOP853", rtol=1e-11, atol=1e-14, max_step=0.02
    )
    return found.y[0, -1] ** 2


class TestEuler:
    @pytest.mark.parametrize("kappa", [1.0, 0.6, 0.25, 0.1])
    def test_is_the_printed_loop_step_for_step(self, kappa):
        rng = np.random.default_rng(0)
        batches = rng.integers(1, 300, 200).tolist()
        shifts = np.where(np.arange(200) % 40 == 0, 2.0, 0.05).tolist()
        rate = dr.LinearRate(10, 2.0, 0.3, initial_error=1.0, form="euler", kappa=kappa)
        ours = rates_of(rate, batches, shifts)
        theirs = paper_loop(1.0, batches, shifts, 10, 2.0, 0.3, kappa)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)

    def test_as_printed_it_never_moves(self):
        rate = dr.LinearRate(100, 2.0, 0.1, initial_error=0.0, form="euler")
        assert rates_of(rate, [100] * 50, [1.0] * 50) == [0.0] * 50

    def test_a_coarse_step_turns_the_printed_loop_to_nan_and_not_ours(self):
        batches, shifts = [100] * 5, [0.0] * 5
        with pytest.raises(ValueError, match="math domain"):
            paper_loop(1.0, batches, [0.1] * 5, 2, 0.1, 5.0, 1.0)
        rate = dr.LinearRate(2, 0.1, 5.0, initial_error=1.0, form="euler", kappa=1.0)
        assert all(math.isfinite(eta) for eta in rates_of(rate, batches, shifts))

    def test_converges_to_the_flow_at_first_order(self):
        """Halving kappa halves the distance to the flow: the slope of log error is 1."""
        batches, shifts = [50] * 60, [1.0 if t % 20 == 5 else 0.02 for t in range(60)]
        flow = rates_of(
            dr.LinearRate(10, 1.0, 0.4, initial_error=5.0, form="flow"), batches, shifts
        )
        steps = [16, 32, 64, 128]
        errors = []
        for n in steps:
            rate = dr.LinearRate(10, 1.0, 0.4, initial_error=5.0, form="euler", kappa=1 / n)
            errors.append(np.abs(np.subtract(rates_of(rate, batches, shifts), flow)).max())
        slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
        assert slope == pytest.approx(-1.0, abs=0.1)

    def test_an_uneven_kappa_integrates_too_much_time(self):
        """ceil(1/0.6) * 0.6 = 1.2: as printed, each step runs a fifth too long."""
        printed = dr.LinearRate(10, 1.0, 0.05, initial_error=5.0, form="euler", kappa=0.6)
        whole = dr.LinearRate(10, 1.0, 0.05, initial_error=5.0, form="euler", kappa=0.5)
        signal = dr.Signal(batch_size=1000, shift=0.0)
        fall = [
            math.log(rate.update(rate.init(), signal)[1]["v"] / 5.0) for rate in (printed, whole)
        ]
        assert fall[0] / fall[1] == pytest.approx(1.2, abs=0.01)


class TestFlow:
    @settings(max_examples=150, deadline=None)
    @given(
        dim=st.integers(1, 2000),
        batch=st.floats(1, 5000),
        noise=st.floats(0.05, 5.0),
        cap=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
        error=st.floats(1e-4, 1e4),
        gamma=st.sampled_from([0.0, 1e-3, 0.03, 0.3, 2.0]),
    )
    def test_agrees_with_an_adaptive_integrator(self, dim, batch, noise, cap, error, gamma):
        rate = dr.LinearRate(dim, noise, cap, initial_error=error, form="flow")
        _, state = rate.update(rate.init(), dr.Signal(batch_size=batch, shift=gamma))
        truth = flow_by_scipy(error, (dim + 1) / batch, noise**2 * dim / batch, cap, gamma)
        assert state["v"] == pytest.approx(truth, rel=1e-4)

    @settings(max_examples=100, deadline=None)
    @given(
        a=st.floats(0.01, 3.0),
        s=st.floats(0.01, 3.0),
        cap=st.sampled_from([0.05, 0.3, 1.0]),
        v=st.floats(0.01, 50.0),
    )
    def test_without_shift_it_is_the_lemma(self, a, s, cap, v):
        """Exponential above cap S/(1 - cap A), then A ln(1/v) + S/v grows by the time left."""
        batch = 100.0
        dim = max(1, round(a * batch - 1))
        noise = math.sqrt(s * batch / dim)
        a, s = (dim + 1) / batch, noise**2 * dim / batch
        left, end = 1.0, v
        if cap * a < 1 and v > (edge := cap * s / (1 - cap * a)):
            rest = cap * s / (2 - cap * a)
            pace = cap * (2 - cap * a)
            left = 1 - min(1.0, math.log((v - rest) / (edge - rest)) / pace)
            end = max(edge, rest + (v - rest) * math.exp(-pace))
        if left > 0:

            def clock(x):
                return a * math.log(1 / x) + s / x

            start = clock(end)
            end = brentq(lambda x: clock(x) - start - left, end * 1e-6, end, xtol=1e-15)
        rate = dr.LinearRate(dim, noise, cap, initial_error=v, form="flow")
        _, state = rate.update(rate.init(), dr.Signal(batch_size=batch, shift=0.0))
        assert state["v"] == pytest.approx(end, rel=1e-5)

    def test_jump_and_contraction_act_together(self):
        """Neither order of splitting gives the steady rate of the joint flow."""
        shift, batch = 0.02, 256
        joint = dr.LinearRate(2, 1.0, 1.0, form="flow", initial_error=1.0)
        assert rates_of(joint, [batch] * 300, [shift] * 300)[-1] == pytest.approx(0.588, abs=1e-3)
        split = dr.LinearRate(2, 1.0, 1.0, form="flow", initial_error=1.0)
        state = split.init()
        for _ in range(300):
            eta, state = split.update(state, dr.Signal(batch_size=batch, shift=0.0))
            state = {**state, "v": (math.sqrt(state["v"]) + shift) ** 2}
        assert eta == pytest.approx(0.443, abs=1e-3)


class TestExact:
    @settings(max_examples=100, deadline=None)
    @given(
        dim=st.integers(1, 500),
        batch=st.integers(1, 500),
        noise=st.floats(0.1, 5.0),
        error=st.floats(0.01, 100.0),
        cap=st.sampled_from([None, 0.01, 0.2]),
    )
    def test_minimises_the_next_error(self, dim, batch, noise, error, cap):
        rate = dr.LinearRate(dim, noise, cap, initial_error=error)
        eta, state = rate.update(rate.init(), dr.Signal(batch_size=batch, shift=0.0))

        def after(x):
            return error * (1 - 2 * x) + x * x * (
                error + ((dim + 1) * error + noise**2 * dim) / batch
            )

        best = minimize_scalar(
            after, bounds=(0.0, cap or 1.0), method="bounded", options={"xatol": 1e-10}
        )
        assert state["v"] == pytest.approx(after(eta), rel=1e-12)
        assert state["v"] <= best.fun * (1 + 1e-9)

    def test_v_bounds_the_squared_error_of_a_runaway(self):
        """A certificate: the mean over seeds stays below v, whatever nature does."""
        dim, batch, noise, seeds, steps = 8, 4, 1.0, 4000, 60
        rng = np.random.default_rng(7)
        rate = dr.LinearRate(dim, noise, initial_error=4.0)
        state = rate.init()
        error = np.zeros((seeds, dim))
        error[:, 0] = 2.0
        for step in range(steps):
            shift = 0.5 if step % 20 == 0 else 0.05
            length = np.linalg.norm(error, axis=1, keepdims=True)
            error += shift * error / length  # nature runs away from the learner
            eta, state = rate.update(state, dr.Signal(batch_size=batch, shift=shift))
            x = rng.standard_normal((seeds, batch, dim))
            residual = np.einsum("sbd,sd->sb", x, error) - noise * rng.standard_normal(
                (seeds, batch)
            )
            error -= eta * np.einsum("sbd,sb->sd", x, residual) / batch
            square = (error**2).sum(1)
            assert square.mean() <= state["v"] + 4 * square.std() / math.sqrt(seeds)
        assert square.mean() > 0.5 * state["v"]  # and is not idle: within a factor of two

    def test_needs_no_cap(self):
        rate = dr.LinearRate(1, 0.0, initial_error=1e6)
        assert rates_of(rate, [10**9], [0.0])[0] < 1.0

    def test_rises_at_a_jump_and_falls_after_it(self):
        rates = rates_of(
            dr.LinearRate(100, 2.0, initial_error=1.0), [100] * 80, [0.0] * 40 + [5.0] + [0.0] * 39
        )
        assert rates[40] > 3 * rates[39]
        assert all(a > b for a, b in pairwise(rates[40:]))


class TestEdges:
    @settings(max_examples=200, deadline=None)
    @given(
        form=st.sampled_from(FORMS), dim=DIMS, noise=NOISES, cap=CAPS, error=ERRORS,
        batches=st.lists(BATCHES, min_size=8, max_size=8), jump=st.integers(0, 7),
        size=st.sampled_from([0.0, 1e-9, 1.0, 1e6]),
    )  # fmt: skip
    def test_finite_in_range_never_nan(self, form, dim, noise, cap, error, batches, jump, size):
        rate = dr.LinearRate(dim, noise, cap, initial_error=error, form=form)
        shifts = [size if t == jump else 0.0 for t in range(8)]
        for library in (None, np.zeros((), np.float32)):
            state = rate.init(like=library)
            for batch, shift in zip(batches, shifts, strict=True):
                eta, state = rate.update(state, dr.Signal(batch_size=batch, shift=shift))
                assert math.isfinite(eta)
                assert math.isfinite(state["v"])
                assert state["v"] >= 0
                assert 0 <= eta <= (math.inf if cap is None else np.float32(cap))

    def test_rest_for_ever(self):
        """A hundred thousand steps without shift: v decays as 1/t and never underflows into NaN."""
        rate = dr.LinearRate(10, 1.0)
        state = rate.init()
        signal = dr.Signal(batch_size=10, shift=0.0)
        for _ in range(10**5):
            eta, state = rate.update(state, signal)
        assert eta * 10**5 == pytest.approx(1.0, rel=0.01)

    def test_without_noise_v_underflows_quietly(self):
        rate = dr.LinearRate(1, 0.0, initial_error=1.0)
        rates = rates_of(rate, [100] * 1000, [0.0] * 1000)
        assert rates[-1] == pytest.approx(100 / 102)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "LinearRate.dim must be an integer >= 1, got 0"),
        ({"dim": 2.5}, "dim must be an integer >= 1, got 2.5"),
        ({"noise_std": -1.0}, "noise_std must be a finite number >= 0, got -1.0"),
        ({"noise_std": "a"}, "noise_std must be .* got 'a'"),
        ({"max_rate": 0.0}, "max_rate must be a finite number > 0, got 0.0"),
        ({"initial_error": math.nan}, "initial_error must be .* got nan"),
        ({"form": "heun"}, "form must be one of 'exact', 'flow', 'euler', got 'heun'"),
        ({"kappa": 1.5}, "kappa must be a finite number > 0 and <= 1, got 1.5"),
    ],
)
def test_bad_constants(options, message):
    with pytest.raises(ConfigError, match=message):
        dr.LinearRate(**{"dim": 2, "noise_std": 1.0, **options})
