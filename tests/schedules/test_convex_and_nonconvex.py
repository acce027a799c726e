"""The two rules that minimise a bound, where their printed formulas lose all digits."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import driftrate as dr
from driftrate.errors import ConfigError

getcontext().prec = 60
BATCHES = st.sampled_from([1, 2, 64, 10**4, 10**9])
NOISES = st.sampled_from([0.0, 1e-9, 0.1, 1.0, 1e4])
CURVES = st.sampled_from([1e-12, 0.25, 1.0, 1e6])
SHIFTS = st.sampled_from([0.0, 1e-12, 0.1, 1.0, 1e6])


def printed_threshold(b, smooth, noise, batch):
    """The paper's τ, with sixty digits."""
    b, smooth, share = Decimal(b), Decimal(smooth), Decimal(noise) ** 2 / Decimal(batch)
    return float(((b * smooth) ** 2 + 4 * share * b).sqrt() - b * smooth) / float(2 * share)


def printed_nonconvex(b, smooth, noise, batch):
    b, share = Decimal(b), Decimal(noise) ** 2 / Decimal(batch)
    return float(((b * b + 2 * share * b).sqrt() - b) / (Decimal(smooth) * share))


class TestConvex:
    @settings(max_examples=200, deadline=None)
    @given(
        smooth=st.floats(0.01, 10.0), noise=st.floats(0.01, 10.0), diameter=st.floats(0.1, 10.0),
        batch=st.integers(1, 1000), shift=st.floats(0.0, 5.0), last=st.floats(0.001, 1.0),
    )  # fmt: skip
    def test_minimises_its_bound(self, smooth, noise, diameter, batch, shift, last):
        rate = dr.ConvexRate(smooth, noise, diameter)
        last = last / smooth
        eta, _ = rate.update({"rate": last}, dr.Signal(batch_size=batch, shift=shift))

        def bound(x):
            a, before = 2 * x - smooth * x * x, 2 * last - smooth * last**2
            return (
                diameter**2 * max(1 / a - 1 / before, 0)
                + noise**2 / batch * x * x / a
                + (shift**2 + 2 * diameter * shift) / a
            )

        grid = minimize_scalar(
            bound, bounds=(1e-9 / smooth, 1 / smooth), method="bounded", options={"xatol": 1e-12}
        )
        assert bound(max(eta, 1e-9 / smooth)) <= grid.fun * (1 + 1e-6)

    @settings(max_examples=100, deadline=None)
    @given(noise=st.floats(1e-8, 10.0), shift=st.floats(1e-6, 5.0), batch=st.integers(1, 10**9))
    def test_is_the_printed_formula_without_its_cancellation(self, noise, shift, batch):
        rate = dr.ConvexRate(0.5, noise, 3.0)
        first, _ = rate.update(rate.init(), dr.Signal(batch_size=batch, shift=shift))
        high = printed_threshold((Decimal(shift) + 3) ** 2, 0.5, noise, batch)
        assert first == pytest.approx(high, rel=1e-12)
        floor, _ = rate.update({"rate": 1e-300}, dr.Signal(batch_size=batch, shift=shift))
        low = printed_threshold(Decimal(shift) ** 2 + 6 * Decimal(shift), 0.5, noise, batch)
        assert floor == pytest.approx(low, rel=1e-12)

    def test_between_the_thresholds_nothing_moves(self):
        rate = dr.ConvexRate(1.0, 4.0, 2.0)
        eta, state = rate.update({"rate": 0.3}, dr.Signal(batch_size=16, shift=1e-4))
        assert eta == 0.3
        assert rate.update(state, dr.Signal(batch_size=16, shift=2e-4))[0] == 0.3

    def test_on_the_paper_s_logistic_setting_it_is_a_constant(self):
        """σ² = d/4, L = 1/4, D = d, B = 256: always within one percent of 1/L = 4."""
        for dim in (2, 32, 1024):
            rate = dr.ConvexRate(0.25, math.sqrt(dim / 4), float(dim))
            state = rate.init()
            for shift in (0.0, 1.0, 0.0, 10.0, 0.0):
                eta, state = rate.update(state, dr.Signal(batch_size=256, shift=shift))
                assert 3.96 < eta <= 4.0

    @settings(max_examples=200, deadline=None)
    @given(
        smooth=CURVES, noise=NOISES, diameter=st.sampled_from([1e-9, 1.0, 1e6]),
        rows=st.lists(st.tuples(BATCHES, SHIFTS), min_size=1, max_size=6),
    )  # fmt: skip
    def test_finite_in_range_never_nan(self, smooth, noise, diameter, rows):
        rate = dr.ConvexRate(smooth, noise, diameter)
        for library in (None, np.zeros((), np.float32)):
            state = rate.init(like=library)
            for batch, shift in rows:
                eta, state = rate.update(state, dr.Signal(batch_size=batch, shift=shift))
                assert math.isfinite(eta)
                assert 0 < eta <= (1 / smooth) * (1 + 1e-6)


class TestNonconvex:
    @settings(max_examples=200, deadline=None)
    @given(
        smooth=st.floats(0.01, 10.0), noise=st.floats(0.01, 10.0), batch=st.integers(1, 1000),
        loss=st.floats(0.001, 5.0), shift=st.floats(0.0, 5.0),
    )  # fmt: skip
    def test_minimises_its_bound(self, smooth, noise, batch, loss, shift):
        rate = dr.NonconvexRate(smooth, noise)
        signal = dr.Signal(batch_size=batch, loss=loss, loss_shift=shift)
        eta, _ = rate.update(rate.init(), signal)

        def bound(x):
            a = 2 * x - smooth * x * x
            return 2 * (loss + shift) / a + smooth * noise**2 / batch * x * x / a

        grid = minimize_scalar(
            bound, bounds=(1e-9 / smooth, 1 / smooth), method="bounded", options={"xatol": 1e-12}
        )
        assert bound(eta) <= grid.fun * (1 + 1e-6)

    @settings(max_examples=100, deadline=None)
    @given(noise=st.floats(1e-8, 10.0), loss=st.floats(1e-6, 5.0), batch=st.integers(1, 10**9))
    def test_is_the_printed_formula_without_its_cancellation(self, noise, loss, batch):
        rate = dr.NonconvexRate(2.0, noise)
        eta, _ = rate.update(rate.init(), dr.Signal(batch_size=batch, loss=loss, loss_shift=0.5))
        printed = printed_nonconvex(2 * (Decimal(loss) + Decimal("0.5")), 2.0, noise, batch)
        assert eta == pytest.approx(printed, rel=1e-12)

    @settings(max_examples=200, deadline=None)
    @given(smooth=CURVES, noise=NOISES, batch=BATCHES, loss=SHIFTS, shift=SHIFTS)
    def test_finite_in_range_never_nan(self, smooth, noise, batch, loss, shift):
        rate = dr.NonconvexRate(smooth, noise)
        signal = dr.Signal(batch_size=batch, loss=loss, loss_shift=shift)
        for library in (None, np.zeros((), np.float32)):
            eta, _ = rate.update(rate.init(like=library), signal)
            assert math.isfinite(eta)
            assert 0 <= eta <= (1 / smooth) * (1 + 1e-6)

    def test_without_noise_it_is_one_over_smoothness(self):
        rate = dr.NonconvexRate(4.0, 0.0)
        for loss in (0.0, 1.0):
            signal = dr.Signal(batch_size=8, loss=loss, loss_shift=0.0)
            assert rate.update(rate.init(), signal)[0] == 0.25


@pytest.mark.parametrize(
    "make",
    [
        lambda: dr.ConvexRate(0.0, 1.0, 1.0),
        lambda: dr.ConvexRate(1.0, -1.0, 1.0),
        lambda: dr.ConvexRate(1.0, 1.0, 0.0),
        lambda: dr.ConvexRate(1.0, 1.0, math.inf),
        lambda: dr.NonconvexRate(math.nan, 1.0),
        lambda: dr.NonconvexRate(1.0, True),
    ],
)
def test_bad_constants(make):
    with pytest.raises(ConfigError, match="must be a finite number"):
        make()
