"""Whole runs: exact against direct, lists against single runs, thinning, signals, bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import driftrate as dr
from driftrate.learners import Ball, Box
from driftrate.schedules.base import Schedule
from driftrate.simulation import GreedyRate, Record, Run, simulate
from driftrate.streams import (
    Diagonal,
    JumpWhenSettled,
    LazyPath,
    LinearStream,
    LogisticStream,
    LowRank,
    PoissonStream,
    Runaway,
    bursty,
    random_walk,
    spiral,
    spiral_row,
    standstill,
)

SIGNALS = (
    "batch_size",
    "shift",
    "loss",
    "loss_shift",
    "step_length",
    "grad_sq",
    "parts",
    "cross",
    "spread",
)


class Probe(Schedule):
    """Keeps what it is shown and returns a constant rate."""

    def __init__(self, *signals, rate=0.1):
        self._signals, self._rate, self.seen = signals, rate, []

    @property
    def signals(self):
        return self._signals

    def _start(self):
        return {"rate": 0.0}

    def _step(self, xp, state, signal):
        self.seen.append(signal)
        rate = xp.full_like(state["rate"], self._rate)
        return rate, {"rate": rate}

    @classmethod
    def example(cls):
        return cls()


def streams():
    covariance = [Diagonal([1.0, 0.5 + 0.01 * t, 2.0]) for t in range(40)]
    sizes = np.tile([4, 8], 20)
    path = bursty(3, 40, size=0.7, every=7)
    return {
        "linear": LinearStream(path, 8, 0.5),
        "covariate shift": LinearStream(path, sizes, 0.5, covariance=covariance),
        "soft": LogisticStream(path, 8, 0.5),
        "bernoulli": LogisticStream(
            path, sizes, 0.0, labels="bernoulli", covariance=LowRank([1, 1, 1], np.eye(3)[:, :1])
        ),
        "poisson": PoissonStream(bursty(3, 40, size=0.2, every=7, start=0.3), 8),
        "runaway": LinearStream(Runaway([1.0, 0.0, 0.0], 0.05, 40), 8, 0.5),
        "settled": LogisticStream(JumpWhenSettled([1.0, 0.0, 0.0], 1.0, 0.4, 40), 8, 0.5),
    }


@pytest.mark.parametrize("name", streams())
def test_whole_runs_agree_in_mean_and_variance(name):
    stream = streams()[name]
    rate = 0.05 if name == "poisson" else 0.3
    runs = [
        simulate(stream, dr.ConstantRate(rate), seeds=500, seed=i, method=method)
        for i, method in enumerate(("exact", "direct"))
    ]
    for view in (lambda r: r.total, lambda r: r.gradient_regret[:, -1], lambda r: r.final_distance):
        a, b = (view(run) for run in runs)
        error = np.sqrt((a.var() + b.var()) / 500)
        assert abs(a.mean() - b.mean()) < 5 * error
        # Variances: their own standard error, from the fourth moments.
        squares = [(x - x.mean()) ** 2 for x in (a, b)]
        error = np.sqrt(sum(s.var() for s in squares) / 500)
        assert abs(squares[0].mean() - squares[1].mean()) < 5 * error


@pytest.mark.parametrize("method", ["exact", "direct"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_runs_agree_with_numpy(method, dtype):
    pytest.importorskip("torch")
    for name in ("linear", "covariate shift", "soft", "bernoulli", "poisson", "runaway"):
        stream = streams()[name]
        probes = [Probe("batch_size", "shift", "loss", "cross", "spread", rate=0.05)] * 2
        a, b = (
            simulate(
                stream,
                probe,
                seeds=300,
                seed=3,
                method=method,
                dtype=dtype,
                backend=backend,
                parts=4,
            )
            for probe, backend in zip(probes, ("numpy", "torch"), strict=True)
        )
        error = np.sqrt((a.total.var() + b.total.var()) / 300)
        assert abs(a.total.mean() - b.total.mean()) < 5 * error
        if not stream.nature.adaptive:
            np.testing.assert_allclose(a.shift, b.shift, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", streams())
@pytest.mark.parametrize("method", ["exact", "direct"])
def test_a_list_gives_what_single_runs_give(name, method):
    stream = streams()[name]
    rules = [
        dr.ConstantRate(0.1),
        Probe("cross", "spread"),
        dr.ConstantRate(0.02),
        Probe("loss", "grad_sq", "step_length"),
        GreedyRate(),
    ]
    together = simulate(stream, rules, seeds=4, seed=5, method=method)
    for rule, run in zip(rules, together, strict=True):
        alone = simulate(stream, rule, seeds=4, seed=5, method=method)
        np.testing.assert_allclose(run.regret, alone.regret, rtol=1e-10)
        assert run.name == rule.name


def test_runs_repeat_and_seeds_differ():
    stream = streams()["soft"]
    a, b, c = (simulate(stream, dr.ConstantRate(0.1), seeds=3, seed=s) for s in (7, 7, 8))
    np.testing.assert_array_equal(a.regret, b.regret)
    assert not np.any(a.regret[:, -1] == c.regret[:, -1])
    assert len(set(a.regret[:, -1])) == 3


@given(every=st.integers(1, 50))
@settings(max_examples=15, deadline=None)
def test_thinned_sums_are_exact(every):
    stream = streams()["linear"]
    whole = simulate(stream, dr.ConstantRate(0.2), seeds=2)
    thin = simulate(stream, dr.ConstantRate(0.2), seeds=2, record=Record(every=every))
    assert thin.step[-1] == 40
    assert np.all(np.diff(thin.step[:-1]) == every)
    for name in ("regret", "step_regret", "gradient_regret", "rates", "distance", "shift"):
        np.testing.assert_array_equal(getattr(thin, name), getattr(whole, name)[:, thin.step - 1])
    np.testing.assert_array_equal(thin.batch_size, whole.batch_size[thin.step - 1])


@pytest.mark.parametrize("method", ["exact", "direct"])
def test_signals_are_what_they_say(method):
    stream = streams()["soft"]
    probe = Probe(*SIGNALS)
    run = simulate(
        stream, probe, seeds=2, method=method, record=Record(weights=True), project=Ball(0.9)
    )
    oracle = [stream.standing(np.zeros(3), t).target.oracle for t in range(40)]
    weights = run.weights
    assert np.all(np.linalg.norm(weights, axis=-1) <= 0.9 + 1e-12)
    for t, seen in enumerate(probe.seen):
        assert seen.batch_size[0] == 8
        assert seen.parts[0] == 2
        now = stream.standing(weights[:, t], t)
        np.testing.assert_allclose(run.step_regret[:, t], now.regret, atol=1e-13)
        np.testing.assert_allclose(run.distance[:, t] ** 2, now.distance_sq, atol=1e-13)
        if t == 0:
            assert seen.shift[0] == seen.step_length[0] == seen.loss_shift[0] == 0
            continue
        np.testing.assert_allclose(
            seen.shift, np.linalg.norm(oracle[t] - oracle[t - 1]), atol=1e-13
        )
        step = np.linalg.norm(weights[:, t] - weights[:, t - 1], axis=-1)
        np.testing.assert_allclose(seen.step_length, step, atol=1e-13)
        change = np.abs(now.expected_loss - stream.standing(weights[:, t], t - 1).expected_loss)
        np.testing.assert_allclose(seen.loss_shift, change, atol=1e-12)
        # The parts' mean is the gradient: ‖g‖² = ((k - 1) cross + Σ‖g_j‖²/k)/k = cross + spread.
        np.testing.assert_allclose(seen.grad_sq, seen.cross + seen.spread, rtol=1e-9)


@pytest.mark.parametrize("name", ["linear", "covariate shift", "soft"])
def test_a_step_goes_along_the_gradient_that_is_measured(name):
    probe = Probe("grad_sq", "step_length", rate=0.25)
    simulate(streams()[name], probe, seeds=3)
    for before, after in zip(probe.seen, probe.seen[1:], strict=False):
        np.testing.assert_allclose(after.step_length, 0.25 * np.sqrt(before.grad_sq), rtol=1e-9)


def test_projection_on_a_box_keeps_weights_inside():
    run = simulate(
        streams()["linear"],
        dr.ConstantRate(0.9),
        seeds=3,
        project=Box(-0.2, 0.3),
        record=Record(weights=True),
    )
    assert run.weights[:, 1:].min() >= -0.2 - 1e-12
    assert run.weights.max() <= 0.3 + 1e-12


def test_adaptive_nature_flees_at_its_speed():
    run = simulate(streams()["runaway"], dr.ConstantRate(0.2), seeds=3)
    np.testing.assert_allclose(run.shift[:, 1:], 0.05, rtol=1e-9)
    resting = simulate(LinearStream(standstill(3, 40), 8, 0.5), dr.ConstantRate(0.2), seeds=3)
    assert run.total.mean() > resting.total.mean()


def test_a_lazy_path_is_the_same_path():
    lazy = LazyPath(lambda t: spiral_row(6, 50, t, hold=5), 50, 6)
    for kind in (LinearStream, LogisticStream):
        a, b = (
            simulate(kind(p, 4), dr.ConstantRate(0.1), seeds=2)
            for p in (lazy, spiral(6, 50, hold=5))
        )
        np.testing.assert_allclose(a.regret, b.regret, rtol=1e-9)


def test_float32_follows_float64():
    stream = LinearStream(random_walk(20, 300), 16, 0.3)
    a, b = (
        simulate(stream, dr.LinearRate(dim=20, noise_std=0.3), seeds=200, dtype=d, seed=i)
        for i, d in enumerate(("float32", "float64"))
    )
    assert a.final_weights.dtype == np.float32
    assert abs(a.total.mean() / b.total.mean() - 1) < 0.05


def test_the_linear_error_follows_its_recursion():
    # E‖δ‖² ← (1 - 2η) v + η² E‖g‖², in closed form for a resting target.
    dim, batch, sigma, eta = 10, 5, 0.8, 0.15
    stream = LinearStream(standstill(dim, 60), batch, sigma)
    run = simulate(stream, dr.ConstantRate(eta), seeds=4000)
    v = 1.0
    for t in range(60):
        square = run.distance[:, t] ** 2
        assert abs(square.mean() - v) < 5 * square.std() / np.sqrt(4000) + 1e-12
        v = (1 - 2 * eta) * v + eta**2 * (v + ((dim + 1) * v + sigma**2 * dim) / batch)


def test_greedy_is_the_closed_form():
    dim, batch, sigma = 10, 5, 0.8
    run = simulate(LinearStream(standstill(dim, 30), batch, sigma), GreedyRate(), seeds=3)
    v = run.distance**2
    np.testing.assert_allclose(
        run.rates, v * batch / ((batch + dim + 1) * v + sigma**2 * dim), rtol=1e-10
    )


def test_bounds_lie_on_their_sides():
    stream = LinearStream(bursty(5, 150, size=0.5, every=20), 8, 0.4)
    run = simulate(stream, dr.ConstantRate(0.2), seeds=2000, record=Record(terms=True))
    upper, lower = run.upper_bound(1.0).total, run.lower_bound(1.0, 1.0).total
    regret = run.total
    # With identity covariance the lower bound is an equality and the upper one exactly twice it.
    gap = lower - regret
    assert abs(gap.mean()) < 5 * gap.std() / np.sqrt(2000)
    np.testing.assert_allclose(upper, 2 * lower, rtol=1e-9)
    bound = run.gradient_bound(1.0).total
    assert bound.mean() > run.gradient_regret[:, -1].mean()


def test_parquet_brings_back_every_bit(tmp_path):
    pytest.importorskip("pyarrow")
    run = simulate(
        streams()["soft"],
        dr.ConstantRate(0.1),
        seeds=3,
        dtype="float32",
        record=Record(every=7, weights=True, terms=True),
    )
    run.to_parquet(tmp_path / "run.parquet")
    back = Run.from_parquet(tmp_path / "run.parquet")
    for name, value in vars(run).items():
        other = getattr(back, name)
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, other)
            assert value.dtype == other.dtype, name
        elif name == "terms":
            for key, column in vars(value).items():
                np.testing.assert_array_equal(column, getattr(other, key))
        else:
            assert value == other


def test_plot_draws_regret_and_rates():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    figure = simulate(streams()["linear"], dr.ConstantRate(0.1), seeds=3).plot()
    assert [axis.get_ylabel() for axis in figure.axes] == ["cumulative regret", "rate"]
    matplotlib.pyplot.close(figure)
