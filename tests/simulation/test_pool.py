"""A pool in the simulator: the joint law of its gradients, and runs of HedgedSGD."""

import itertools

import numpy as np
import pytest
from scipy import stats

from driftrate.learners import Ball, HedgedSGD
from driftrate.schedules import ConstantRate
from driftrate.simulation import simulate
from driftrate.simulation.pool import DirectPoolSampler, ExactPoolSampler
from driftrate.streams import (
    Diagonal,
    LinearStream,
    LogisticStream,
    LowRank,
    PoissonStream,
    Runaway,
    bursty,
    random_walk,
    standstill,
)
from driftrate.streams.backend import NumpyBackend

DRAWS = 6000
POINTS = {
    "apart": lambda dim: np.linspace(-0.6, 0.7, 3 * dim).reshape(3, dim) ** 3,
    "equal": lambda dim: np.full((3, dim), 0.2),
    "near": lambda dim: 0.1 + 1e-6 * np.eye(3, dim),
    "many": lambda dim: np.sin(np.arange(7 * dim)).reshape(7, dim) / 2,
}


def stream_of(kind, dim, batch):
    path = np.tile(np.linspace(0.8, -0.3, dim), (1, 1))
    if kind == "linear":
        return LinearStream(path, batch, 0.7)
    if kind == "coloured":
        return LinearStream(path, batch, 0.3, covariance=Diagonal(np.linspace(0.3, 1.5, dim)))
    if kind == "lowrank":
        factor = 0.5 * np.random.default_rng(5).standard_normal((dim, 2))
        return LogisticStream(path, batch, covariance=LowRank(np.linspace(0.2, 0.8, dim), factor))
    if kind == "logistic":
        return LogisticStream(path, batch, 0.8)
    return PoissonStream(0.3 * path, batch)


def drawn(sampler, stream, points, seed):
    """Return draws of all losses and gradients as columns."""
    backend = NumpyBackend(seed, "float64")
    target = stream.target(0, backend)
    tiled = np.tile(points, (DRAWS, 1, 1))
    sample = sampler(stream, backend).draw(target, tiled)
    return np.concatenate([sample.losses, sample.gradients.reshape(DRAWS, -1)], axis=1)


@pytest.mark.parametrize("kind", ["linear", "coloured", "logistic", "lowrank", "poisson"])
@pytest.mark.parametrize(("dim", "batch"), [(12, 5), (12, 1), (2, 6)])
@pytest.mark.parametrize("place", POINTS)
def test_the_joint_law_is_that_of_drawn_batches(kind, dim, batch, place):
    stream, points = stream_of(kind, dim, batch), POINTS[place](dim)
    a = drawn(ExactPoolSampler, stream, points, seed=1)
    b = drawn(DirectPoolSampler, stream, points, seed=2)
    # Means, and covariances of all pairs of 12 columns: losses and gradients of several points.
    columns = np.unique(np.linspace(0, a.shape[1] - 1, 12).astype(int))
    a, b = a[:, columns], b[:, columns]
    pairs = list(itertools.combinations_with_replacement(range(len(columns)), 2))

    def moments(x):
        c = x - x.mean(axis=0)
        return np.column_stack([x, *[c[:, i] * c[:, j] for i, j in pairs]])

    ma, mb = moments(a), moments(b)
    error = np.sqrt((ma.var(axis=0) + mb.var(axis=0)) / DRAWS) + 1e-12
    assert (np.abs(ma.mean(axis=0) - mb.mean(axis=0)) / error).max() < 5.0
    p = [stats.ks_2samp(a[:, i], b[:, i]).pvalue for i in range(len(columns))]
    assert min(p) > 1e-5


def test_differences_of_near_points_keep_their_digits():
    stream = LinearStream(np.ones((1, 30)), 8, 0.1)
    centre, u = np.zeros(30), np.eye(30)[3]
    points = np.stack([centre, centre + 1e-6 * u])
    backend = NumpyBackend(0, "float64")
    tiled = np.tile(points, (4000, 1, 1))
    sample = ExactPoolSampler(stream, backend).draw(stream.target(0, backend), tiled)
    bent = (sample.gradients[:, 1] - sample.gradients[:, 0]) / 1e-6
    # H u of a Wishart matrix: E<Hu, u> = 1, E‖Hu‖² = 1 + (d + 1)/B.
    assert (bent @ u).mean() == pytest.approx(1.0, abs=0.05)
    assert (bent**2).sum(axis=1).mean() == pytest.approx(1 + 31 / 8, rel=0.05)


def test_exact_and_direct_runs_agree():
    stream = LinearStream(bursty(20, 200, every=60), 16, 0.3)
    runs = [simulate(stream, HedgedSGD(), seeds=48, method=m) for m in ("exact", "direct")]
    means = [run.total.mean() for run in runs]
    error = np.hypot(*[run.total.std() / np.sqrt(run.seeds) for run in runs])
    assert abs(means[0] - means[1]) < 4 * error
    assert runs[0].name == "HedgedSGD"
    assert runs[0].rates.shape == (48, 200)
    assert (runs[0].rates > 0).all()


@pytest.mark.parametrize(
    "stream",
    [
        LinearStream(random_walk(16, 600), 16, 1.0),
        LinearStream(standstill(16, 600), 16, 1.0),
        LogisticStream(bursty(8, 600, every=150), 64),
        LinearStream(Runaway(np.eye(8)[0], 0.02, 600), 16, 0.1),
    ],
    ids=["walk", "rest", "logistic", "runaway"],
)
def test_regret_is_near_the_best_constant_rate_in_hindsight(stream):
    rates = 2.0 ** np.arange(-7, 3 if isinstance(stream, LogisticStream) else 0, 0.5)
    fixed = simulate(stream, [ConstantRate(float(rate)) for rate in rates], seeds=8)
    best = min(run.total.mean() for run in fixed)
    assert simulate(stream, HedgedSGD(), seeds=8).total.mean() < 1.10 * best


@pytest.mark.slow
def test_it_comes_to_rest_and_is_not_deaf():
    path = standstill(2, 10_600)
    path[10_000:] += np.array([0.0, 1.0])
    # A drift as slow as this shows in no single gradient.
    path[10_300:] += 0.01 * np.arange(300)[:, None] * np.array([1.0, 0.0])
    run = simulate(LinearStream(path, 64, 1.0), HedgedSGD(), seeds=4)
    regret, rates = run.regret.mean(axis=0), run.rates.mean(axis=0)
    # The regret of the optimum, 1/t, grows as the logarithm: as much in every decade.
    assert regret[9_999] - regret[999] < 1.5 * (regret[999] - regret[99])
    assert rates[9_999] < 0.2 * rates[999]
    lost = run.regret[:, 10_299] - run.regret[:, 9_999]
    assert lost.max() < 6.0  # a jump of 1 costs 0.5 a step until it is followed
    fixed = simulate(LinearStream(path[10_299:] - path[10_299], 64, 1.0), ConstantRate(0.2), 4)
    assert regret[-1] - regret[10_299] < 1.5 * fixed.total.mean()


def test_a_pool_in_a_list_comes_out_as_alone():
    stream = LinearStream(random_walk(4, 50), 8)
    alone = simulate(stream, HedgedSGD(), seeds=3)
    fixed, pool = simulate(stream, [ConstantRate(0.1), HedgedSGD()], seeds=3)
    np.testing.assert_array_equal(pool.regret, alone.regret)
    np.testing.assert_array_equal(fixed.regret, simulate(stream, ConstantRate(0.1), 3).regret)


def test_a_projected_pool_stays_in_the_set():
    run = simulate(LinearStream(3 * np.ones((80, 4)), 8), HedgedSGD(), seeds=3, project=Ball(1.0))
    assert np.linalg.norm(run.final_weights, axis=-1).max() <= 1 + 1e-9


def test_float32_tensors_give_the_same_regret():
    pytest.importorskip("torch")
    stream = LinearStream(random_walk(6, 150), 16, 0.3)
    plain = simulate(stream, HedgedSGD(), seeds=32)
    tensors = simulate(stream, HedgedSGD(), seeds=32, backend="torch", dtype="float32")
    error = np.hypot(plain.total.std(), tensors.total.std()) / np.sqrt(32)
    assert abs(plain.total.mean() - tensors.total.mean()) < 4 * error
