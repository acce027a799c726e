"""The laws of the simulator on a device: the fused kernel and the samplers against drawn batches.

`make gpu` runs these with the machine's own torch; no other package is needed.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import driftrate as dr  # noqa: E402
from driftrate.simulation import Record, fused, simulate  # noqa: E402
from driftrate.streams import (  # noqa: E402
    Diagonal,
    LinearStream,
    LogisticStream,
    PoissonStream,
    bursty,
    random_walk,
    spiral,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
kernel = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="no Triton here")
DRAWS = 20_000
PATHS = {1: [[0.8]], 2: [[0.5, -1.0]], 5: [np.linspace(-0.5, 1.0, 5)]}
STREAMS = {
    "linear": lambda path, batch: LinearStream(path, batch, 0.7),
    "noiseless": lambda path, batch: LinearStream(path, batch, 0.0),
    "soft": lambda path, batch: LogisticStream(path, batch, 0.8),
    "bernoulli": lambda path, batch: LogisticStream(path, batch, 0.0, labels="bernoulli"),
    "coloured": lambda path, batch: LinearStream(
        path, batch, 0.7, covariance=Diagonal(np.linspace(0.3, 1.5, np.shape(path)[1]))
    ),
    "poisson": lambda path, batch: PoissonStream(0.3 * np.asarray(path), batch),
}
FUSED = ("linear", "noiseless", "soft", "bernoulli")


def apart(one, other):
    """Return the largest gap of two samples' distributions over what chance gives 1 in 10^6."""
    both = np.sort(np.concatenate([one, other]))
    shares = [np.searchsorted(np.sort(x), both, side="right") / len(x) for x in (one, other)]
    # Kolmogorov and Smirnov: P(gap > c sqrt(1/n + 1/m)) is at most about 2 exp(-2 c²).
    bound = np.sqrt(0.5 * np.log(2e6) * (1 / len(one) + 1 / len(other)))
    return np.abs(shares[0] - shares[1]).max() / bound


def gradients(stream, start, draws, **options):
    """Return gradients at a point: a step of rate 1 shows them."""
    run = simulate(stream, dr.ConstantRate(1.0), draws, start=start, **options)
    return (start - run.final_weights).astype(np.float64)


@pytest.mark.parametrize("dim", PATHS)
@pytest.mark.parametrize("batch", [1, 2, 9])
@pytest.mark.parametrize("name", STREAMS)
def test_one_step_has_the_law_of_drawn_batches(name, dim, batch):
    stream = STREAMS[name](np.asarray(PATHS[dim]), batch)
    device = {"backend": "torch", "device": "cuda", "dtype": "float32"}
    places = {"generic": np.linspace(0.3, -0.2, dim), "origin": np.zeros(dim)}
    for place, start in places.items():
        one = gradients(stream, start, DRAWS, **device)
        other = gradients(stream, start, DRAWS, seed=1, method="direct", **device)
        columns = [*zip(one.T, other.T, strict=True)]
        columns += [tuple(np.linalg.norm(x, axis=1) for x in (one, other))]
        columns += [tuple(x @ np.linspace(1.0, 0.5, dim) for x in (one, other))]
        for a, b in columns:
            # In float32 equal residuals of Poisson labels may differ in the last digits.
            assert apart(a.round(4), b.round(4)) < 1, place
        error = np.sqrt((one.var(axis=0) + other.var(axis=0)) / DRAWS) + 1e-6
        assert np.all(np.abs(one.mean(axis=0) - other.mean(axis=0)) < 5 * error), place


@kernel
@pytest.mark.parametrize("name", FUSED)
def test_the_kernel_is_what_runs(name, monkeypatch):
    made = []
    whole = fused.FusedEngine.run
    monkeypatch.setattr(
        fused.FusedEngine, "run", lambda self, *a: (made.append(1), whole(self, *a))[1]
    )
    stream = STREAMS[name](np.asarray(PATHS[2]), 3)
    simulate(stream, dr.ConstantRate(0.1), backend="torch", device="cuda", dtype="float32")
    assert made


@kernel
@pytest.mark.parametrize("dim", [3, 100, 1024, 8192, 16_384, 20_000])
@pytest.mark.parametrize("kind", [LinearStream, LogisticStream])
def test_whole_runs_agree_with_the_engine(kind, dim, monkeypatch):
    # Both forms of the kernel, at every size of its programs.
    path = bursty(dim, 40, size=0.7, every=7)
    stream = kind(path, np.tile([64, 33], 20), 0.5)
    rate, seeds = dr.ConstantRate(64 / (64 + dim) * 0.5), 200
    options = {"backend": "torch", "device": "cuda", "dtype": "float32"}
    one = simulate(stream, rate, seeds, record=Record(every=7), **options)
    monkeypatch.setattr(fused, "runs_on", lambda device: False)
    other = simulate(stream, rate, seeds, record=Record(every=7), seed=1, **options)
    np.testing.assert_array_equal(one.step, other.step)
    for view in (lambda r: r.total, lambda r: r.gradient_regret[:, -1], lambda r: r.final_distance):
        a, b = view(one), view(other)
        error = np.sqrt((a.var() + b.var()) / seeds)
        assert abs(a.mean() - b.mean()) < 5 * error + 1e-4 * abs(b.mean())
        assert apart(a, b) < 1


@kernel
def test_the_same_seed_gives_the_same_numbers():
    stream = LogisticStream(random_walk(50, 1100), 33, 0.3)  # three launches
    rates = [dr.ConstantRate(0.3), dr.LinearRate(dim=50, noise_std=0.3)]
    options = {"backend": "torch", "device": "cuda", "dtype": "float32"}
    one, other = (simulate(stream, rates, 64, seed=9, **options) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.regret, b.regret)
        np.testing.assert_array_equal(a.final_weights, b.final_weights)
    # A schedule of a list has the run that it has alone.
    alone = simulate(stream, rates[1], 64, seed=9, **options)
    np.testing.assert_array_equal(alone.final_weights, one[1].final_weights)


@kernel
def test_memory_stays_that_of_the_weights():
    dim, seeds, steps = 8192, 256, 1200
    stream = LinearStream(spiral(dim, steps, dtype="float32"), 64, 0.1)
    # Tests before this one may hold memory of their own.
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    options = {"backend": "torch", "device": "cuda", "dtype": "float32"}
    simulate(stream, dr.ConstantRate(1e-3), seeds, record=Record(every=100), **options)
    # Weights, and a launch's rows of the path, moves and numbers per seed.
    assert torch.cuda.max_memory_allocated() - before < 24 * seeds * dim * 4


@kernel
def test_nan_is_marked_and_the_others_go_on():
    stream = LinearStream(random_walk(8, 60), 4, 0.1)
    options = {"backend": "torch", "device": "cuda", "dtype": "float32"}
    with pytest.warns(RuntimeWarning, match="16 of 16 seeds diverged"):
        wild, calm = simulate(stream, [dr.ConstantRate(50.0), dr.ConstantRate(0.05)], 16, **options)
    assert np.all(np.isinf(wild.total))
    assert np.all(np.isfinite(calm.regret))
