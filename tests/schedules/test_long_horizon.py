"""The rate that serves in the long run: where it settles, how it starts, what it does not heed."""

from __future__ import annotations

import math

import numpy as np
import pytest

import driftrate as dr
from driftrate.errors import ConfigError, MissingSignal
from driftrate.schedules.base import HORIZON


def walk(curvature, drift, noise, steps, seed, rate=None):
    """SGD on a quadratic whose target walks at random; return its rates and excess losses."""
    rng = np.random.default_rng(seed)
    d = len(curvature)
    weights = rng.standard_normal(d)
    target, average = np.zeros(d), weights.copy()
    schedule = dr.LongHorizonRate()
    state, rates, losses = schedule.init(), [], []
    for step in range(steps):
        target += math.sqrt(drift) * rng.standard_normal(d)
        error = weights - target
        gradient = curvature * error + noise * rng.standard_normal(d)
        losses.append(0.5 * float(curvature @ error**2))
        ahead = weights - average
        average += ahead / HORIZON
        if rate is None:
            # From 0.02; a reach of 0 later means that no step is too long.
            told = {"weights_sq": 1.0, "reach": 0.0 if step else 1.25}
            eta, state = schedule.update(state, dr.Signal(lead=float(gradient @ ahead), **told))
        else:
            eta = rate
        rates.append(eta)
        weights = weights - eta * gradient
    return np.array(rates), np.array(losses)


class TestRate:
    @pytest.mark.parametrize("spread", [1.0, 100.0])
    def test_it_settles_where_a_constant_rate_serves_best(self, spread):
        """Of one curvature or of many: one step's optimum would be too small by far then."""
        curvature = np.geomspace(1.0 / spread, 1.0, 30)
        run = [walk(curvature, 1e-3, 0.5, 6000, seed) for seed in range(3)]
        found = np.mean([losses[2000:].mean() for _, losses in run])
        grid = {
            rate: np.mean(
                [walk(curvature, 1e-3, 0.5, 6000, s, rate)[1][2000:].mean() for s in range(3)]
            )
            for rate in 0.02 * 2.0 ** np.arange(-2, 5)
        }
        best = min(grid, key=grid.get)
        assert best not in (min(grid), max(grid))
        rate = np.mean([np.exp(np.log(rates[2000:]).mean()) for rates, _ in run])
        assert best / 2.0 < rate < 2.0 * best
        assert found < 1.1 * grid[best]

    def test_it_falls_at_rest_and_rises_while_there_is_a_way_to_go(self):
        rates, _ = walk(np.ones(30), 0.0, 1.0, 3000, 0)
        assert rates[-1] < 0.3 * rates[100]
        rates, _ = walk(np.ones(30), 1.0, 0.1, 200, 0)
        assert rates[-1] > 5.0 * rates[0]

    def test_one_outlier_moves_it_by_three_deviations(self):
        schedule, told = dr.LongHorizonRate(), {"weights_sq": 1.0, "reach": 0.0}
        state = schedule.init()
        for step in range(500):
            lead = 0.1 if step % 2 else -0.1
            before, state = schedule.update(state, dr.Signal(lead=lead, **told))
        after, _ = schedule.update(state, dr.Signal(lead=-1e12, **told))
        assert after / before == pytest.approx(math.exp(0.01 * 3.0))

    @pytest.mark.parametrize(
        ("factor", "pull"), [(math.e, 0.25), (1 / math.e, 0.125), (1e4, 0.054)]
    )
    def test_a_factor_is_pulled_back_to_1_and_less_where_it_is_far(self, factor, pull):
        """By so many deviations: the rate was chosen, but perhaps far too low."""
        schedule = dr.LongHorizonRate(relative=True)
        state = schedule.init() | {"level": factor, "square": 1.0, "seen": 1.0, "count": 10**6}
        after, _ = schedule.update(state, dr.Signal(lead=0.0))
        assert abs(math.log(after / factor)) == pytest.approx(0.01 * pull, rel=0.01)
        assert abs(math.log(after)) < abs(math.log(factor))


class TestStart:
    @pytest.mark.parametrize(
        ("weights_sq", "reach", "first"),
        [(100.0, 5.0, 0.05), (100.0, 0.1, 0.2), (0.0, 5.0, 0.2), (100.0, 0.0, 0.2)],
        ids=["2.5 % of the weights", "a small gradient", "no weights", "no gradient"],
    )
    def test_a_rate(self, weights_sq, reach, first):
        rate = dr.LongHorizonRate()
        signal = dr.Signal(lead=0.0, weights_sq=weights_sq, reach=reach)
        assert rate.update(rate.init(), signal)[0] == pytest.approx(first)

    @pytest.mark.parametrize(("reach", "first"), [(0.1, 1.0), (5.0, 0.05)])
    def test_a_factor(self, reach, first):
        rate = dr.LongHorizonRate(relative=True)
        signal = dr.Signal(lead=0.0, weights_sq=100.0, reach=reach)
        assert rate.update(rate.init(), signal)[0] == pytest.approx(first)
        assert rate.update(rate.init(), dr.Signal(lead=0.0))[0] == 1.0

    def test_no_step_of_a_rate_is_longer_than_3_percent_of_the_weights(self):
        rate = dr.LongHorizonRate()
        state = rate.init()
        usual = {"weights_sq": 100.0, "reach": 1.0}
        for lead in [0.0] + 40 * [-1.0]:
            eta, state = rate.update(state, dr.Signal(lead=lead, **usual))
        assert eta == pytest.approx(0.3)
        loud, after = rate.update(state, dr.Signal(lead=-1.0, weights_sq=100.0, reach=10.0))
        assert loud == pytest.approx(0.03)
        assert after["level"] > 0.3  # one loud batch is not the end of the rate


def test_what_it_must_be_told():
    with pytest.raises(ConfigError, match="relative must be True or False"):
        dr.LongHorizonRate(relative=1)
    rate = dr.LongHorizonRate()
    with pytest.raises(MissingSignal, match="lead"):
        rate.update(rate.init(), dr.Signal())
    with pytest.raises(MissingSignal, match="weights_sq"):
        rate.update(rate.init(), dr.Signal(lead=0.0))


@pytest.mark.parametrize(
    ("schedule", "form"),
    [
        (dr.MeasuredRate(), dr.LongHorizonRate()),
        (dr.MeasuredRate(max_rate=1.0), dr.MeasuredRate(max_rate=1.0, mode="sequence")),
        (dr.MeasuredRate(relative=True), dr.MeasuredRate(relative=True, mode="sequence")),
        (dr.MeasuredRate(lagged=True), dr.MeasuredRate(lagged=True, mode="sequence")),
        (dr.Clip(dr.MeasuredRate(), max=0.1), dr.Clip(dr.LongHorizonRate(), max=0.1)),
    ],
)
def test_where_the_loop_shows_the_weights_it_is_the_form_of_measured_rate(schedule, form):
    assert schedule.reading(("grad_sq", "trail", "lead", "weights_sq", "reach")) == form
