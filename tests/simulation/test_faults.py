"""Divergence, bad input, Ctrl-C, progress: what must not go wrong in silence."""

import signal
import sys
import threading

import numpy as np
import pytest

import driftrate as dr
from driftrate.errors import ConfigError, MissingDependency
from driftrate.schedules.base import Schedule
from driftrate.simulation import GreedyRate, simulate
from driftrate.streams import (
    Diagonal,
    LazyPath,
    LinearStream,
    LogisticStream,
    PoissonStream,
    bursty,
    standstill,
)


class Faulty(Schedule):
    """Returns NaN from a step on for the first seed."""

    signals = ("loss", "grad_sq")

    def _start(self):
        return {"rate": 0.0, "count": 0}

    def _step(self, xp, state, signal):
        bad = xp.arange(len(state["rate"])) == 0
        rate = xp.where(bad & (state["count"] >= 5), xp.nan, 0.1 + 0 * signal.loss)
        return rate, {"rate": state["rate"], "count": state["count"] + 1}

    @classmethod
    def example(cls):
        return cls()


@pytest.mark.parametrize("method", ["exact", "direct"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_rate_that_is_no_number_marks_its_seed(method, backend):
    stream = LinearStream(standstill(3, 20), 4, 0.1)
    with pytest.warns(
        RuntimeWarning, match=r"Faulty.*1 of 3 seeds.*step 6 with rate nan"
    ) as caught:
        run = simulate(stream, Faulty(), seeds=3, method=method, backend=backend)
    assert len(caught) == 1
    assert run.diverged_at.tolist() == [6, 0, 0]
    assert np.all(np.isinf(run.regret[0, 5:]))
    assert np.all(np.isfinite(run.regret[0, :5]))
    assert np.all(np.isfinite(run.regret[1:]))
    assert run.regret.shape == (3, 20)


@pytest.mark.parametrize("method", ["exact", "direct"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("stream", "rate"),
    [
        (LinearStream(standstill(3, 200), 4, 0.1), 1e4),
        (LinearStream(standstill(3, 200), 4, 0.1, covariance=Diagonal([1.0, 2.0, 3.0])), 1e4),
        (PoissonStream(standstill(3, 200), 4), 5.0),
    ],
)
def test_a_diverging_run_goes_on(stream, rate, method, backend, dtype):
    with pytest.warns(RuntimeWarning, match=r"ConstantRate\(.*4 of 4 seeds diverged.*with rate"):
        run = simulate(
            stream, dr.ConstantRate(rate), seeds=4, method=method, backend=backend, dtype=dtype
        )
    assert np.all(run.diverged_at > 0)
    for seed, step in enumerate(run.diverged_at):
        assert np.all(np.isinf(run.regret[seed, step - 1 :]))
        assert np.all(np.isfinite(run.regret[seed, : step - 1]))


def test_one_lane_may_diverge_without_the_others():
    stream = LinearStream(bursty(3, 200, every=9), 4, 0.1)
    probes = [dr.ConstantRate(1e4), dr.ConstantRate(0.1), Faulty()]
    with pytest.warns(RuntimeWarning) as caught:
        wild, calm, faulty = simulate(stream, probes, seeds=3)
    assert len(caught) == 2
    assert np.all(wild.diverged_at > 0)
    assert not calm.diverged_at.any()
    assert np.count_nonzero(faulty.diverged_at) == 1
    alone = simulate(stream, dr.ConstantRate(0.1), seeds=3)
    np.testing.assert_allclose(calm.regret, alone.regret, rtol=1e-10)


STREAM = LinearStream(standstill(2, 5), 3, 0.1)


class NeedsParts(Faulty):
    signals = ("cross",)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate(STREAM, dr.ConstantRate(0.1), seeds=0), "seeds must be an integer >= 1"),
        (lambda: simulate(STREAM, dr.ConstantRate(0.1), seeds=2.0), "seeds must be an integer"),
        (lambda: simulate(STREAM, []), "schedule must not be an empty list"),
        (
            lambda: simulate(STREAM, [0.1]),
            "schedule must be a Schedule or a list of them, got a float",
        ),
        (lambda: simulate(np.zeros((5, 2)), dr.ConstantRate(0.1)), "stream must be a Stream"),
        (lambda: simulate(STREAM, dr.ConstantRate(0.1), method="fast"), "'exact' or 'direct'"),
        (lambda: simulate(STREAM, dr.ConstantRate(0.1), backend="jax"), "'numpy' or 'torch'"),
        (lambda: simulate(STREAM, dr.ConstantRate(0.1), dtype="float16"), "dtype must be one of"),
        (lambda: simulate(STREAM, dr.ConstantRate(0.1), device="cuda"), "has no device"),
        (lambda: simulate(STREAM, dr.ConstantRate(0.1), start=np.zeros(3)), r"got shape \(3,\)"),
        (lambda: simulate(STREAM, dr.ConstantRate(0.1), start=np.nan), "start must be finite"),
        (
            lambda: simulate(STREAM, dr.ConstantRate(0.1), project=3.0),
            "project must be a Projection",
        ),
        (lambda: simulate(STREAM, dr.ConstantRate(0.1), record=3), "record must be a Record"),
        (lambda: dr.simulation.Record(every=0), "every must be an integer >= 1"),
        (
            lambda: simulate(STREAM, NeedsParts()),
            "parts=2 must divide every batch size, got 3 at step 1",
        ),
        (lambda: simulate(STREAM, NeedsParts(), parts=1), "parts must be an integer >= 2"),
        (
            lambda: simulate(STREAM, dr.ConstantRate(0.1)).upper_bound(1.0),
            "bounds need every step and its terms",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ConfigError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_ctrl_c_returns_what_is_done():
    def row(step):
        if step == 30:
            signal.raise_signal(signal.SIGINT)
        return np.ones(2)

    stream = LinearStream(LazyPath(row, 100, 2), 4, 0.1)
    before = signal.getsignal(signal.SIGINT)
    run = simulate(stream, dr.ConstantRate(0.1), seeds=2)
    assert run.step[-1] == 31
    assert run.regret.shape == (2, 31)
    assert signal.getsignal(signal.SIGINT) is before


def test_threads_may_simulate():
    out = []
    thread = threading.Thread(
        target=lambda: out.append(simulate(STREAM, dr.ConstantRate(0.1), seeds=2))
    )
    thread.start()
    thread.join()
    assert out[0].regret.shape == (2, 5)


def test_progress_and_its_missing_package(monkeypatch, capsys):
    run = simulate(STREAM, dr.ConstantRate(0.1), seeds=2, progress=True)
    assert run.regret.shape == (2, 5)
    assert "ConstantRate" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with pytest.raises(MissingDependency, match=r"pip install 'driftrate\[paper\]'"):
        simulate(STREAM, dr.ConstantRate(0.1), seeds=2, progress=True)


@pytest.mark.parametrize("module", ["pyarrow", "matplotlib.pyplot"])
def test_missing_packages_say_what_to_install(monkeypatch, module, tmp_path):
    run = simulate(STREAM, dr.ConstantRate(0.1), seeds=2)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=r"pip install 'driftrate\[paper\]'"):
        run.to_parquet(tmp_path / "x") if module == "pyarrow" else run.plot()


@pytest.mark.parametrize("method", ["exact", "direct"])
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("kind", [LinearStream, LogisticStream, PoissonStream])
def test_the_smallest_cases_run(kind, dim, method):
    for size in (1, 2):
        for start in (0.0, 0.5):  # 0.5 along the first axis is the target itself for dim 1
            stream = kind(standstill(dim, 30, start=0.5), size)
            run = simulate(
                stream, [dr.ConstantRate(0.05), GreedyRate()], seeds=3, start=start, method=method
            )
            assert all(np.all(np.isfinite(r.regret)) for r in run)


def test_at_rest_on_the_target_without_noise_nothing_moves():
    stream = LinearStream(standstill(4, 20), 3, 0.0)
    run = simulate(stream, dr.ConstantRate(0.5), seeds=2, start=np.eye(4)[0])
    assert np.all(run.regret == 0)
