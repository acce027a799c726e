"""The rates of today against the code that people use, and the wrappers around any schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftrate as dr
from driftrate.errors import ConfigError


def rates_of(rate, steps, **signal):
    state, rates = rate.init(), []
    for _ in range(steps):
        eta, state = rate.update(state, dr.Signal(**signal))
        rates.append(eta)
    return rates


class TestBaselines:
    @pytest.mark.parametrize(("period", "growth"), [(7, 1), (5, 2), (1, 3)])
    def test_cosine_restarts_are_those_of_torch(self, period, growth):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
        peer = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
            optimizer, T_0=period, T_mult=growth, eta_min=0.01
        )
        theirs = []
        for _ in range(100):
            theirs.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            peer.step()
        ours = rates_of(dr.CosineRestartRate(0.4, period, growth, low=0.01), 100)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)

    @given(rate=st.floats(1e-6, 10.0), decay=st.floats(0.0, 10.0))
    def test_inverse_time(self, rate, decay):
        rates = rates_of(dr.InverseTimeRate(rate, decay), 20)
        np.testing.assert_allclose(rates, rate / (1 + decay * np.arange(20)))

    @given(rate=st.floats(1e-6, 10.0))
    def test_inverse_square_root(self, rate):
        np.testing.assert_allclose(
            rates_of(dr.InverseSqrtRate(rate), 20), rate / np.sqrt(np.arange(1, 21))
        )

    @given(
        path=st.floats(0.0, 1e3), horizon=st.integers(1, 10**6), diameter=st.floats(0.01, 100.0),
        bound=st.floats(0.01, 100.0), other=st.floats(0.1, 10.0),
    )  # fmt: skip
    def test_path_length_minimises_its_bound(self, path, horizon, diameter, bound, other):
        rate = rates_of(dr.PathLengthRate(path, horizon, diameter, bound), 1)[0]

        def regret(eta):
            return (diameter**2 + 2 * diameter * path) / (2 * eta) + eta * bound**2 * horizon / 2

        assert regret(rate) <= regret(rate * other) * (1 + 1e-12)

    def test_restarts_come_every_block(self):
        rate = dr.RestartedRate(variation=10.0, horizon=1250, diameter=1.0, gradient_bound=2.0)
        assert rate.block == 25
        rates = np.array(rates_of(rate, 75)).reshape(3, 25)
        np.testing.assert_allclose(rates, np.tile(0.5 / np.sqrt(np.arange(1, 26)), (3, 1)))

    @given(mu=st.floats(0.01, 1.0), ratio=st.floats(1.0, 100.0), other=st.floats(0.1, 10.0))
    def test_inexact_contracts_fastest(self, mu, ratio, other):
        smooth = mu * ratio
        eta = rates_of(dr.InexactRate(smooth, mu), 1)[0]

        def worst(x):
            return max(abs(1 - x * smooth), abs(1 - x * mu))

        assert worst(eta) <= worst(eta * other) + 1e-12

    def test_counters_do_not_overflow(self):
        rate = dr.InverseTimeRate(1.0)
        state = {"rate": 0.1, "count": 2**31 - 2}
        for _ in range(3):
            eta, state = rate.update(state, dr.Signal())
        assert state["count"] == 2**31 - 1
        assert eta > 0
        cosine = dr.CosineRestartRate(1.0, period=2**29, growth=4)
        _, state = cosine.update({"rate": 1.0, "position": 2**29 - 1, "period": 2**29}, dr.Signal())
        assert state["period"] == 2**29

    @pytest.mark.parametrize(
        "make",
        [
            lambda: dr.ConstantRate(-1.0),
            lambda: dr.InverseTimeRate(0.0),
            lambda: dr.InverseSqrtRate("fast"),
            lambda: dr.CosineRestartRate(0.1, period=0),
            lambda: dr.CosineRestartRate(0.1, period=5, growth=0),
            lambda: dr.CosineRestartRate(0.1, period=5, low=0.2),
            lambda: dr.PathLengthRate(-1.0, 10, 1.0, 1.0),
            lambda: dr.RestartedRate(0.0, 10, 1.0, 1.0),
            lambda: dr.InexactRate(1.0, 2.0),
        ],
    )
    def test_bad_constants(self, make):
        with pytest.raises(ConfigError):
            make()


class TestClip:
    @given(low=st.floats(0.0, 1.0), width=st.floats(0.0, 1.0))
    def test_stays_inside(self, low, width):
        rates = rates_of(dr.Clip(dr.InverseTimeRate(2.0), min=low, max=low + width), 30)
        assert all(low <= eta <= low + width for eta in rates)

    def test_inner_state_is_not_clipped(self):
        inner = rates_of(dr.InverseTimeRate(2.0), 30)
        clipped = rates_of(dr.Clip(dr.InverseTimeRate(2.0), max=0.5), 30)
        assert clipped == [min(eta, 0.5) for eta in inner]


class TestWarmup:
    def test_ramps_then_leaves_alone(self):
        assert rates_of(dr.Warmup(dr.ConstantRate(1.0), steps=4), 6) == [0.25, 0.5, 0.75, 1, 1, 1]


class TestKnownShifts:
    def test_restart(self):
        rates = rates_of(dr.KnownShifts(dr.InverseTimeRate(1.0), times=[4, 6]), 8)
        assert rates == [1, 1 / 2, 1 / 3, 1, 1 / 2, 1, 1 / 2, 1 / 3]

    def test_restart_on_arrays(self):
        rate = dr.KnownShifts(dr.InverseTimeRate(1.0), times=[3])
        state, rates = rate.init(like=torch.zeros(2)), []
        for _ in range(4):
            eta, state = rate.update(state, dr.Signal())
            rates.append(eta[1].item())
        assert rates == [1, 0.5, 1, 0.5]

    def test_size_is_a_shift_on_top(self):
        inner = dr.LinearRate(10, 1.0, initial_error=1.0)
        told = rates_of(dr.KnownShifts(inner, times=[5], size=3.0), 8, batch_size=8, shift=0.1)
        state, rates = inner.init(), []
        for step in range(1, 9):
            shift = 3.1 if step == 5 else 0.1
            eta, state = inner.update(state, dr.Signal(batch_size=8, shift=shift))
            rates.append(eta)
        np.testing.assert_allclose(told, rates, rtol=1e-15)

    def test_times_are_normalised(self):
        a = dr.KnownShifts(dr.ConstantRate(1.0), times=[9, 3, 3])
        assert a.times == (3, 9)
        assert hash(a) == hash(dr.KnownShifts(dr.ConstantRate(1.0), times=(3, 9)))

    @pytest.mark.parametrize("times", [[0], [1.5], ["1"], 3.5, [True]])
    def test_bad_times(self, times):
        with pytest.raises(ConfigError, match="step numbers >= 1"):
            dr.KnownShifts(dr.ConstantRate(1.0), times=times)

    def test_size_needs_a_schedule_that_listens(self):
        with pytest.raises(ConfigError, match="reads `shift`"):
            dr.KnownShifts(dr.ConstantRate(1.0), times=[3], size=1.0)


@pytest.mark.parametrize("wrapper", [dr.Clip, dr.Warmup, dr.KnownShifts])
def test_wrappers_take_schedules_only(wrapper):
    with pytest.raises(ConfigError, match=r"must be a Schedule, got 0\.1"):
        wrapper(0.1)


def test_names_tell_what_is_inside():
    assert dr.Clip(dr.Warmup(dr.ConstantRate(1.0))).name == "Clip(Warmup(ConstantRate))"
    rate = dr.Clip(dr.ConstantRate(1.0))
    saved = rate.dump(rate.init())
    with pytest.raises(dr.errors.StateError, match=r"Clip\(ConstantRate\), not of Clip\(Inv"):
        dr.Clip(dr.InverseTimeRate(1.0)).load(saved)


def test_registry_lists_every_public_schedule():
    public = {
        name
        for name in dr.__all__
        if isinstance(thing := getattr(dr, name), type)
        and issubclass(thing, dr.Schedule)
        and thing is not dr.Schedule
    }
    assert set(dr.schedules.base.registry()) == public
