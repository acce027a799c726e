"""Threads over blocks of seeds: the same numbers whatever their count, and one law for all."""

import os
import signal
import threading

import numpy as np
import pytest

import driftrate as dr
from driftrate.errors import ConfigError
from driftrate.learners import Ball, HedgedSGD
from driftrate.schedules.base import Schedule
from driftrate.simulation import GreedyRate, Record, blocks, simulate
from driftrate.streams import (
    LazyPath,
    LinearStream,
    LogisticStream,
    LowRank,
    PoissonStream,
    Runaway,
    bursty,
    standstill,
)

SEEDS, STEPS = 43, 13


@pytest.fixture
def cut_small(monkeypatch):
    """Cut runs that are small enough for a test into several blocks."""
    monkeypatch.setattr(blocks, "_NUMBERS", 1)


def streams():
    path = bursty(3, STEPS, size=0.3, every=4, start=0.3)
    factor = LowRank([1.0, 0.5, 2.0], np.eye(3)[:, :2])
    return {
        "linear": LinearStream(path, 8, 0.5),
        "coloured": LinearStream(path, 8, 0.5, covariance=factor),
        "soft": LogisticStream(path, 8, 0.5),
        "bernoulli": LogisticStream(path, 8, 0.0, labels="bernoulli", covariance=factor),
        "poisson": PoissonStream(path, 8),
        "runaway": LinearStream(Runaway([1.0, 0.0, 0.0], 0.05, STEPS), 8, 0.5),
    }


def same(one, other):
    for name, value in vars(one).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, getattr(other, name), err_msg=name)
            assert value.flags.c_contiguous, name


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("method", ["exact", "direct"])
@pytest.mark.parametrize("name", streams())
def test_the_numbers_do_not_depend_on_the_threads(name, method):
    rules = [
        dr.LinearRate(dim=3, noise_std=0.5, initial_error=1.0, max_rate=0.1),
        dr.MeasuredRate(max_rate=0.1),
        GreedyRate(),
        HedgedSGD(),
    ]
    start = np.linspace(-0.1, 0.1, SEEDS * 3).reshape(SEEDS, 3)
    options = {"method": method, "start": start, "project": Ball(2.0)}
    options["record"] = Record(every=4, weights=True, terms=name != "runaway")
    alone = simulate(streams()[name], rules, SEEDS, threads=1, **options)
    for threads in (2, 5, None):
        shared = simulate(streams()[name], rules, SEEDS, threads=threads, **options)
        for one, other in zip(alone, shared, strict=True):
            same(one, other)
    assert alone[0].weights.shape == (SEEDS, 4, 3)
    # Every seed of every block has draws of its own.
    assert len(np.unique(alone[0].regret[:, -1])) == SEEDS


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("method", ["exact", "direct"])
def test_blocks_have_the_law_of_the_whole(method, monkeypatch):
    stream, rate = LinearStream(bursty(3, 40, size=0.7, every=7), 8, 0.5), dr.ConstantRate(0.3)
    cut = simulate(stream, rate, seeds=2000, method=method)
    monkeypatch.setattr(blocks, "_NUMBERS", 10**12)
    whole = simulate(stream, rate, seeds=2000, method=method, seed=1)
    error = np.sqrt((cut.total.var() + whole.total.var()) / 2000)
    assert abs(cut.total.mean() - whole.total.mean()) < 5 * error
    # Blocks with the same generator would repeat each other.
    assert len(np.unique(cut.total)) == 2000
    neighbours = np.corrcoef(cut.total[:-8], cut.total[8:])[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(2000)


def test_a_small_run_is_one_block_with_the_generator_of_the_seed():
    assert blocks.cut(32, 1024) == [slice(0, 32)]
    run = simulate(LinearStream(standstill(1, 1), 1, 0.0), dr.ConstantRate(1.0), seeds=4, seed=5)
    generator = np.random.Generator(np.random.SFC64(5))
    # Without noise in one dimension the first draw, a chi-square, is the whole gradient.
    chi = 2 * generator.standard_gamma(0.5, 4)
    np.testing.assert_allclose(run.final_weights[:, 0], chi, rtol=1e-12)


@pytest.mark.parametrize(("seeds", "numbers"), [(1, 1e9), (3, 1e9), (1000, 8192), (64, 65536)])
def test_cuts_cover_the_seeds_once(seeds, numbers):
    cuts = blocks.cut(seeds, numbers)
    assert [i for cut in cuts for i in range(seeds)[cut]] == list(range(seeds))
    sizes = [cut.stop - cut.start for cut in cuts]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(seeds, 8)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_ctrl_c_ends_all_blocks_after_the_same_step(threads):
    sent = []

    def row(step):
        if step == 30 and not sent:
            sent.append(1)
            # As from the keyboard: the main thread takes it, whichever thread is at work.
            os.kill(os.getpid(), signal.SIGINT)
        return np.full(2, float(step))

    stream = LinearStream(LazyPath(row, 4000, 2), 4, 0.1)
    before = signal.getsignal(signal.SIGINT)
    run = simulate(stream, dr.ConstantRate(0.1), seeds=40, threads=threads)
    done = int(run.step[-1])
    assert 31 <= done < 4000
    assert run.regret.shape == (40, done)
    assert signal.getsignal(signal.SIGINT) is before
    # Nothing but Ctrl-C may differ from a run of that length.
    whole = LinearStream(LazyPath(row, done, 2), 4, 0.1)
    same(run, simulate(whole, dr.ConstantRate(0.1), seeds=40, threads=1))


class Broken(Schedule):
    """Fails at its third step, in whichever thread that is."""

    signals = ()

    def _start(self):
        return {"rate": 0.0, "count": 0}

    def _step(self, xp, state, signal):
        if xp.any(state["count"] >= 2):
            raise ZeroDivisionError("broken")
        return state["rate"], {"rate": state["rate"], "count": state["count"] + 1}

    @classmethod
    def example(cls):
        return cls()


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_error_in_a_thread_is_raised_and_no_thread_stays(threads):
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="broken"):
        simulate(LinearStream(standstill(2, 50), 4), Broken(), seeds=40, threads=threads)
    assert threading.active_count() == before


@pytest.mark.usefixtures("cut_small")
def test_progress_counts_what_all_blocks_have_done():
    done = []
    engines = [Counter(), Counter(), Counter()]
    assert blocks.run(engines, 10, 2, done.append)
    assert done[-1] == 10
    assert done == sorted(done)
    assert [engine.done for engine in engines] == [10, 10, 10]


class Counter:
    """A block that only counts."""

    done, turn = 0, 4

    def run(self, until, stop):
        self.done = until


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads must be an integer >= 1"),
        ({"threads": 1.5}, "threads must be an integer >= 1"),
        ({"threads": 2, "backend": "torch"}, r"use torch\.set_num_threads"),
    ],
)
def test_bad_threads_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        simulate(LinearStream(standstill(2, 5), 3), dr.ConstantRate(0.1), **options)
