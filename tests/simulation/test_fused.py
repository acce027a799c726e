"""The fused kernel against the engine: the same numbers give the same run, and they are normal.

`make check` runs the kernel in Triton's interpreter: TRITON_INTERPRET=1 must stand in the
environment before Python starts. `make gpu` has the tests on a device, in test_fused_on_gpu.py.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import philox
import pytest
from scipy import stats

import driftrate as dr
from driftrate.learners import Ball
from driftrate.schedules.base import Schedule
from driftrate.simulation import Record, blocks, fused, simulate
from driftrate.simulation.engine import Engine
from driftrate.simulation.run import COLUMNS
from driftrate.streams import (
    Diagonal,
    LazyPath,
    LinearStream,
    LogisticStream,
    PoissonStream,
    Runaway,
    bursty,
    random_walk,
    standstill,
)
from driftrate.streams.backend import NumpyBackend, TorchBackend

interpreted = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1" or not importlib.util.find_spec("triton"),
        reason="needs triton, and TRITON_INTERPRET=1 before Python starts",
    ),
]
SEED, DRAWS = 2**40 + 3, 40_000


def test_philox_gives_the_words_that_its_authors_publish():
    # kat_vectors of Random123, philox4x32 with 10 rounds.
    zeros = [hex(int(word)) for word in philox.words(0, (0, 0, 0, 0))]
    assert zeros == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    ones = philox.words(2**64 - 1, (2**32 - 1,) * 4)
    assert [hex(int(word)) for word in ones] == [
        "0x408f276d",
        "0x41c83b0e",
        "0xa20bc7c6",
        "0x6d5451fd",
    ]


def test_the_normals_are_normal_and_apart():
    a = philox.coordinates(SEED, 0, DRAWS // 8, 8, 4).ravel()
    assert stats.kstest(a, "norm").pvalue > 1e-3
    n = np.array(philox.four(SEED, (np.arange(DRAWS), 5, 7, philox.SAMPLE)))
    assert np.abs(np.cov(n) - np.eye(4)).max() < 5 * np.sqrt(2 / DRAWS)
    squares = np.corrcoef(n**2)  # the two of a pair share a radius
    assert np.abs(squares - np.eye(4)).max() < 5 / np.sqrt(DRAWS)
    # Steps, seeds and uses have numbers of their own.
    others = [(np.arange(DRAWS), *rest) for rest in ((6, 7, 2), (5, 8, 2), (5, 7, 1))]
    for other in others:
        assert abs(np.corrcoef(n[0], philox.four(SEED, other)[0])[0, 1]) < 5 / np.sqrt(DRAWS)
    chances = philox.chances(SEED, 3, 100, 401).ravel()
    assert stats.kstest(chances, "uniform").pvalue > 1e-3


class Scripted(NumpyBackend):
    """Draws what the kernel is to draw: Philox for vectors and samples, torch for the scalars."""

    def __init__(self, dtype, engine, quarter):
        super().__init__(0, dtype)
        self._torch = TorchBackend(SEED, "float32", None)
        self._seeds, self._turn = engine.error.shape[1], engine.turn
        self._sizes, self._quarter = engine.stream.batch_sizes, quarter
        self._logistic = isinstance(engine.stream, LogisticStream)
        self._step = -1

    def _begin(self):
        """Draw a launch's scalars at its first step."""
        self._step += 1
        if self._step % self._turn == 0:
            sizes = self._sizes[self._step : self._step + self._turn]
            self._normal = self._torch.scalar_normal(len(sizes), self._seeds).numpy()
            if self._logistic:
                return
            if len(set(sizes.tolist())) == 1:
                chi = self._torch.chisquare(float(sizes[0]), len(sizes), self._seeds).numpy()
            else:
                chi = [self._torch.chisquare(float(b), self._seeds).numpy() for b in sizes]
            self._chi = np.asarray(chi)

    def chisquare(self, freedom, *shape):
        self._begin()
        return self._chi[self._step % self._turn].reshape(shape)

    def scalar_normal(self, *shape):
        return self._normal[self._step % self._turn].reshape(shape)

    def uniform(self, *shape):
        return philox.chances(SEED, self._step, self._seeds, shape[-1]).reshape(shape)

    def fill_normal(self, out):
        if out.ndim == 4:  # the samples come first of all in a step
            self._begin()
            drawn = philox.samples(SEED, self._step, self._seeds, out.shape[-1])
        else:
            drawn = philox.coordinates(SEED, self._step, *out.shape, self._quarter)
        out[...] = drawn.reshape(out.shape)


SIZES = np.array([5, 8, 1, 2, 6, 70])
CASES = {
    "moving": (LinearStream(bursty(3, 6, size=0.7, every=2), 8, 0.5), 4),
    "sizes": (LinearStream(random_walk(9, 6), SIZES, 0.5), 4),
    "resting": (LinearStream(standstill(21, 6), 4, 0.0), 8),
    "one": (LinearStream(random_walk(1, 6), 3, 0.2), 4),
    "soft": (LogisticStream(random_walk(9, 6), SIZES, 0.8), 4),
    "still": (LogisticStream(standstill(2, 6), 33, 0.0), 4),
    "bernoulli": (LogisticStream(bursty(5, 6, every=3), SIZES, 0.3, labels="bernoulli"), 4),
    "swept": (LinearStream(bursty(37, 6, size=0.7, every=2), 8, 0.5), 4),
    "swept logistic": (LogisticStream(random_walk(20, 6), 7, 0.8), 4),
}


class Kept(Schedule):
    """A schedule of one's own, which nobody has tested on plain floats."""

    signals = ()

    def _start(self):
        return {"rate": 0.1}

    def _step(self, xp, state, signal):
        return state["rate"], state

    @classmethod
    def example(cls):
        return cls()


def engines(name, rules, seeds, turn, monkeypatch):
    """Return a fused engine and the engine that is to do the same, after all their steps."""
    stream, quarter = CASES[name]
    if name.startswith("swept"):
        monkeypatch.setattr(fused._kernel(), "LARGEST", 16)
    start, record = np.linspace(-0.3, 0.4, seeds * stream.dim).reshape(seeds, -1), Record(every=4)
    options = {"seeds": seeds, "start": start, "record": record}
    one = fused.FusedEngine(
        stream, rules, TorchBackend(SEED, "float32", None), seed=SEED, **options
    )
    one.turn = turn
    other = Engine(
        stream,
        rules,
        Scripted("float64", one, quarter),
        exact=True,
        parts=2,
        project=None,
        **options,
    )
    for engine in (one, other):
        assert blocks.run([engine], stream.steps, 1, lambda done: None)
    return one, other


@pytest.mark.parametrize("name", [pytest.param(name, marks=interpreted) for name in CASES])
def test_the_kernel_takes_the_steps_of_the_engine(name, monkeypatch):
    dim = CASES[name][0].dim
    rules = [dr.ConstantRate(0.3), dr.LinearRate(dim=dim, noise_std=0.5, initial_error=1.0)]
    one, other = engines(name, rules, 2, 4, monkeypatch)
    assert one.ledger.kept == other.ledger.kept == [4, 6]
    np.testing.assert_allclose(one.error.numpy(), other.error, rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(one.last.oracle.numpy(), other.last.oracle, rtol=1e-6)
    for column in COLUMNS:
        np.testing.assert_allclose(
            one.ledger.column(column).numpy(),
            other.ledger.column(column),
            rtol=1e-3,
            atol=1e-6,
            err_msg=column,
        )


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="needs triton")
def test_the_kernel_compiles_for_a_device_that_is_not_here():
    script = Path(__file__).parents[2] / "benchmarks" / "roofline.py"
    # In a process of its own, because the interpreter is chosen when a kernel is read.
    place = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    out = subprocess.run(
        [sys.executable, script], check=True, stdout=subprocess.PIPE, text=True, env=place
    ).stdout
    shares = [int(share) for share in re.findall(r"(\d+)% of the raw rate", out)]
    assert len(shares) == 6
    assert min(shares) > 30  # what is wanted must at least be possible


def runs(stream, rule, **options):
    options = {"seeds": 2, "backend": "torch", "dtype": "float32", **options}
    return simulate(stream, rule, **options)


@pytest.fixture
def launches(monkeypatch):
    """Count the fused engines that are made."""
    made = []

    class Counted(fused.FusedEngine):
        def __init__(self, *args, **options):
            made.append(1)
            super().__init__(*args, **options)

    monkeypatch.setattr(sys.modules["driftrate.simulation.simulate"], "FusedEngine", Counted)
    return made


STREAM = LinearStream(standstill(3, 3), 4, 0.1)
RATE = dr.ConstantRate(0.1)


@pytest.mark.parametrize(
    ("stream", "rule", "options", "taken"),
    [
        pytest.param(*case, marks=interpreted)
        for case in [
            (STREAM, RATE, {}, 1),
            (STREAM, [RATE, dr.LinearRate(dim=3, noise_std=0.1)], {}, 1),
            (STREAM, dr.schedules.Warmup(RATE, steps=2), {}, 1),
            (LogisticStream(standstill(3, 3), 4), RATE, {}, 1),
            (STREAM, [RATE, dr.MeasuredRate()], {"parts": 2}, 1),  # parts are another pass
            (STREAM, [RATE, dr.NonconvexRate.example()], {}, 0),  # a list shares its batches
            (STREAM, Kept(), {}, 0),
            (STREAM, dr.schedules.Warmup(Kept(), steps=2), {}, 0),
            (STREAM, RATE, {"dtype": "float64"}, 0),
            (STREAM, RATE, {"method": "direct"}, 0),
            (STREAM, RATE, {"project": Ball(1.0)}, 0),
            (STREAM, RATE, {"record": Record(weights=True)}, 0),
            (STREAM, RATE, {"record": Record(terms=True)}, 0),
            (PoissonStream(standstill(3, 3), 4), RATE, {}, 0),
            (LinearStream(standstill(3, 3), 4, covariance=Diagonal([1.0, 2, 3])), RATE, {}, 0),
            (LinearStream(LazyPath(lambda t: np.ones(3), 3, 3), 4), RATE, {}, 0),
            (LinearStream(Runaway([1.0, 0.0, 0.0], 0.1, 3), 4), RATE, {}, 0),
        ]
    ],
)
def test_the_kernel_takes_what_it_covers(stream, rule, options, taken, launches):
    runs(stream, rule, **options)
    assert len(launches) == taken


@pytest.mark.parametrize("wanting", [pytest.param("a compiler of C", marks=interpreted)])
def test_a_kernel_that_does_not_compile_is_done_without(wanting, monkeypatch):
    def fail(self):
        raise RuntimeError(f"cannot find {wanting}\nlong story")

    monkeypatch.setattr(fused.FusedEngine, "_compile", fail)
    with pytest.warns(RuntimeWarning, match=r"without its kernel.* cannot find a compiler of C$"):
        run = runs(STREAM, RATE)
    assert run.regret.shape == (2, 3)


@pytest.mark.filterwarnings("ignore:.*encountered in multiply")  # the interpreter is NumPy's
@pytest.mark.parametrize("wild", [pytest.param(1e30, marks=interpreted)])
def test_a_seed_that_diverges_is_marked(wild):
    with pytest.warns(RuntimeWarning, match=r"2 of 2 seeds diverged, the first at step 2 with"):
        run, calm = runs(LinearStream(standstill(3, 8), 4, 0.1), [dr.ConstantRate(wild), RATE])
    assert run.diverged_at.tolist() == [2, 2]
    assert np.all(np.isinf(run.regret[:, 1:]))
    assert np.all(np.isfinite(run.regret[:, :1]))
    assert np.all(run.rates[:, 1:] == 0)
    assert np.all(np.isfinite(calm.regret))


@pytest.mark.parametrize("seeds", [pytest.param(3, marks=interpreted)])
def test_a_seed_of_the_run_repeats_it_bit_by_bit(seeds):
    one, other, third = (runs(STREAM, RATE, seeds=seeds, seed=s) for s in (5, 5, -6))
    np.testing.assert_array_equal(one.final_weights, other.final_weights)
    assert np.all(one.final_weights != third.final_weights)
    assert len(np.unique(one.final_weights)) == one.final_weights.size


@pytest.mark.parametrize("seeds", [pytest.param(100, marks=interpreted)])
def test_the_law_is_that_of_drawn_batches(seeds):
    stream, start = LinearStream(np.array([[0.5, -1.0]]), 3, 0.7), np.array([0.2, 0.4])
    # A step of rate 1 shows the gradient itself.
    rate = dr.ConstantRate(1.0)
    one = runs(stream, rate, seeds=seeds, start=start).final_weights
    other = simulate(stream, rate, 20_000, start=start, method="direct").final_weights
    for i in range(2):
        assert stats.ks_2samp(one[:, i], other[:, i]).pvalue > 1e-3
