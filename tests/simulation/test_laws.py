"""The exact sampler against drawn batches: streams, covariances, batch sizes, special points."""

import itertools

import numpy as np
import pytest
from scipy import stats

from driftrate.simulation.direct import DirectSampler
from driftrate.simulation.exact import ExactSampler
from driftrate.streams import Diagonal, LinearStream, LogisticStream, LowRank, PoissonStream
from driftrate.streams.backend import NumpyBackend
from driftrate.streams.target import Standing

DRAWS = 6000
MEASURES = frozenset({"loss", "grad_sq"})

STREAMS = {
    "linear": lambda path, batch, sigma: LinearStream(path, batch, 0.7, covariance=sigma),
    "noiseless": lambda path, batch, sigma: LinearStream(path, batch, 0.0, covariance=sigma),
    "soft": lambda path, batch, sigma: LogisticStream(path, batch, 0.8, covariance=sigma),
    "bernoulli": lambda path, batch, sigma: LogisticStream(
        path, batch, 0.0, labels="bernoulli", covariance=sigma
    ),
    "poisson": lambda path, batch, sigma: PoissonStream(0.3 * path, batch, covariance=sigma),
}


def covariances(dim):
    rng = np.random.default_rng(5)
    return {
        "identity": None,
        "diagonal": Diagonal(np.linspace(0.3, 1.5, dim)),
        "lowrank": LowRank(np.linspace(0.2, 0.8, dim), 0.5 * rng.standard_normal((dim, 2))),
    }


def points(oracle, scale):
    generic = np.linspace(0.9, -0.4, len(oracle)) * scale
    return {
        "generic": generic,
        "oracle": oracle,
        "origin": 0 * oracle,
        "collinear": -0.6 * oracle,
    }


def sampled(sampler, stream, weights, parts, draws, seed, needs=MEASURES):
    """Return draws of (gradient, loss, ‖g‖², cross, spread) as columns."""
    backend = NumpyBackend(seed, "float64")
    target = stream.target(0, backend)
    error = np.tile(weights - target.oracle, (1, draws, 1))
    standing = Standing(stream, target, backend, error)
    sample = sampler(stream, backend, needs, parts).draw(standing)
    gradient = sample.gradient
    vectors = gradient.vectors(error) if hasattr(gradient, "truth") else gradient.vectors
    extra = [sample.loss, sample.grad_sq] + ([sample.cross, sample.spread] if parts > 1 else [])
    return np.column_stack([vectors[0], *[column[0] for column in extra]])


def worst_score(a, b):
    """Return the largest |difference of means| in standard errors, first and second moments."""

    def moments(x):
        centred = x - x.mean(axis=0)
        products = [
            centred[:, i] * centred[:, j]
            for i, j in itertools.combinations_with_replacement(range(x.shape[1]), 2)
        ]
        return np.column_stack([x, *products])

    ma, mb = moments(a), moments(b)
    error = np.sqrt(ma.var(axis=0) / len(a) + mb.var(axis=0) / len(b))
    gap = np.abs(ma.mean(axis=0) - mb.mean(axis=0))
    small = error <= 1e-12 * (1 + np.abs(ma.mean(axis=0)))
    assert np.all(gap[small] < 1e-9 * (1 + np.abs(ma.mean(axis=0)[small])))
    return (gap[~small] / error[~small]).max(initial=0.0)


def smallest_p(a, b, dim, direction):
    """Return the smallest Kolmogorov-Smirnov p of norms, projections, measurements; their count."""
    columns = [
        (np.linalg.norm(a[:, :dim], axis=1), np.linalg.norm(b[:, :dim], axis=1)),
        (a[:, :dim] @ direction, b[:, :dim] @ direction),
        (a[:, 0], b[:, 0]),
        (a[:, dim - 1], b[:, dim - 1]),
        *[(a[:, i], b[:, i]) for i in range(dim, a.shape[1])],
    ]
    # Poisson residuals are 0 with positive chance: rounding must not spread that atom.
    rounded = [(x.round(9), y.round(9)) for x, y in columns]
    ps = [stats.ks_2samp(x, y).pvalue for x, y in rounded if np.ptp(x) > 0]
    return min(ps, default=1.0), max(len(ps), 1)


CASES = [
    (name, sigma, dim, batch, parts)
    for name in STREAMS
    for sigma in ("identity", "diagonal", "lowrank")
    for dim, batch, parts in [(1, 1, 1), (2, 2, 1), (4, 8, 1), (1, 2, 2), (2, 4, 2), (4, 8, 4)]
]


@pytest.mark.parametrize(("name", "sigma", "dim", "batch", "parts"), CASES)
def test_exact_and_direct_have_one_law(name, sigma, dim, batch, parts):
    truth = np.linspace(-0.5, 1.0, dim) if dim > 1 else np.array([0.8])
    stream = STREAMS[name](truth[None], batch, covariances(dim)[sigma])
    oracle = stream.target(0, NumpyBackend(0, "float64")).oracle
    for where, weights in points(oracle, 0.3 if name == "poisson" else 1.0).items():
        seed = 100 * dim + 10 * batch + parts
        exact = sampled(ExactSampler, stream, weights, parts, DRAWS, seed)
        direct = sampled(DirectSampler, stream, weights, parts, DRAWS, seed + 1)
        assert worst_score(exact, direct) < 5, where
        direction = weights - oracle if np.any(weights != oracle) else np.eye(dim)[0]
        p, tests = smallest_p(exact, direct, dim, direction)
        assert p * tests * len(CASES) * 4 > 0.01, where
        standing = stream.standing(weights, 0)
        # The same draws against what the stream says without drawing.
        for drawn in (exact, direct):
            gap = drawn[:, :dim].mean(axis=0) - standing.gradient
            assert np.all(np.abs(gap) <= 5 * drawn[:, :dim].std(axis=0) / np.sqrt(DRAWS) + 1e-12)
            for column, mean in (
                (dim, standing.expected_loss),
                (dim + 1, standing.batch_gradient_sq),
            ):
                gap = drawn[:, column].mean() - mean
                assert abs(gap) <= 5 * drawn[:, column].std() / np.sqrt(DRAWS) + 1e-12, (
                    where,
                    column,
                )
            if parts > 1:
                noise = standing.batch_gradient_sq - standing.gradient_sq
                for column, mean in (
                    (dim + 2, standing.gradient_sq),
                    (dim + 3, noise),
                ):
                    gap = drawn[:, column].mean() - mean
                    assert abs(gap) <= 5 * drawn[:, column].std() / np.sqrt(DRAWS) + 1e-12
