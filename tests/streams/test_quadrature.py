"""Expected losses against independent integration at every norm; the oracle is the minimiser."""

import itertools

import array_api_compat.numpy as xp
import numpy as np
import pytest
from scipy import integrate, optimize, special

from driftrate.streams import Diagonal, LinearStream, LogisticStream, PoissonStream
from driftrate.streams.quadrature import (
    logistic_moments,
    logistic_shrinkage,
    plane_rule,
    poisson_entropy,
)

WIDTHS = np.logspace(-3, 3, 25)


def normal_mean(f, scale):
    """Return E f(Z) by adaptive integration, cut where f(Z) with Z ~ scale can bend."""
    cuts = np.unique(
        np.clip([0, 0.3 / scale, 1 / scale, 5 / scale, 20 / scale, 60 / scale, 40], 0, 40)
    )

    def density(z):
        return np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)

    return sum(
        integrate.quad(
            lambda z: density(z) * (f(z) + f(-z)), a, b, epsabs=1e-14, epsrel=1e-12, limit=400
        )[0]
        for a, b in itertools.pairwise(cuts)
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_logistic_moments_at_any_norm(width):
    potential, curvature = logistic_moments(xp, np.asarray(width**2))
    assert potential == pytest.approx(
        normal_mean(lambda z: np.logaddexp(0, width * z), width), abs=1e-10
    )
    slope = normal_mean(lambda z: special.expit(width * z) * special.expit(-width * z), width)
    assert curvature == pytest.approx(slope, abs=1e-11)


def test_logistic_moments_beyond_any_norm():
    potential, curvature = logistic_moments(xp, np.asarray([1e12]))
    limit = (1e6 + np.pi**2 / 6e6) / np.sqrt(2 * np.pi)
    assert potential[0] == pytest.approx(limit, rel=1e-14)
    assert curvature[0] == pytest.approx(1e-6 / np.sqrt(2 * np.pi), rel=1e-9)


@pytest.mark.parametrize("norm", [1e-3, 0.1, 1.0, 16.0, 1e3])
def test_expected_loss_of_noisy_labels_at_any_norm(norm):
    # ℓ̄(θ) by integrating log(1 + e^p) - y p over two dimensions, without Stein's identity.
    truth, noise = np.array([1.2, 0.0]), 0.9
    theta = norm * np.array([0.6, 0.8])
    stream = LogisticStream(truth[None], 4, noise)
    z, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()
    # E[y p]: p = 0.6 norm x_1 + 0.8 norm x_2 and y depends on x_1 and ε alone.
    label = np.sum(
        w[:, None]
        * w[None]
        * special.expit(1.2 * z[:, None] + noise * z[None])
        * 0.6
        * norm
        * z[:, None]
    )
    expected = normal_mean(lambda x: np.logaddexp(0, norm * x), norm) - label
    standing = stream.standing(theta, 0)
    assert standing.expected_loss == pytest.approx(expected, abs=1e-8)
    oracle = stream.standing(standing.target.oracle, 0)
    assert standing.regret == pytest.approx(expected - float(oracle.expected_loss), abs=1e-8)


@pytest.mark.parametrize("signal", [1e-3, 0.3, 1.0, 5.0, 1e3])
@pytest.mark.parametrize("noise", [1e-2, 0.1, 1.0, 4.0])
def test_shrinkage_solves_its_equation(signal, noise):
    total = signal**2 + noise**2
    c = logistic_shrinkage(xp, np.asarray(signal**2), np.asarray(total))
    left = c * logistic_moments(xp, np.asarray(c**2 * signal**2))[1]
    assert left == pytest.approx(logistic_moments(xp, np.asarray(total))[1], rel=1e-12)
    assert 0 < c <= 1


@pytest.mark.parametrize("covariance", [None, Diagonal([0.5, 2.0, 1.0])])
@pytest.mark.parametrize("kind", ["linear", "soft", "bernoulli", "poisson"])
def test_the_oracle_minimises_the_expected_loss(kind, covariance):
    truth = np.array([[0.8, -0.5, 0.3]])
    stream = {
        "linear": lambda: LinearStream(truth, 4, 0.5, covariance=covariance),
        "soft": lambda: LogisticStream(truth, 4, 1.5, covariance=covariance),
        "bernoulli": lambda: LogisticStream(truth, 4, 0.0, "bernoulli", covariance=covariance),
        "poisson": lambda: PoissonStream(truth, 4, covariance=covariance),
    }[kind]()
    found = optimize.minimize(
        lambda theta: float(stream.standing(theta, 0).expected_loss), np.zeros(3), tol=1e-12
    )
    oracle = stream.standing(truth[0], 0).target.oracle
    np.testing.assert_allclose(found.x, oracle, atol=2e-5)
    assert stream.standing(oracle, 0).regret == pytest.approx(0.0, abs=1e-14)
    assert stream.standing(oracle, 0).gradient_sq == pytest.approx(0.0, abs=1e-20)
    if kind == "soft":
        assert np.linalg.norm(oracle) < 0.8 * np.linalg.norm(truth)


@pytest.mark.parametrize("covariance", [None, Diagonal([0.5, 2.0, 1.0])])
@pytest.mark.parametrize("kind", [LinearStream, LogisticStream, PoissonStream])
def test_gradients_are_slopes_of_the_expected_loss(kind, covariance):
    stream = kind(np.array([[0.8, -0.5, 0.3]]), 4, covariance=covariance)
    theta, h = np.array([-0.2, 0.4, 0.9]), 1e-5
    slope = [
        float(
            stream.standing(theta + h * e, 0).expected_loss
            - stream.standing(theta - h * e, 0).expected_loss
        )
        / (2 * h)
        for e in np.eye(3)
    ]
    standing = stream.standing(theta, 0)
    np.testing.assert_allclose(standing.gradient, slope, atol=1e-8)
    assert standing.gradient_sq == pytest.approx(np.dot(slope, slope), rel=1e-7)
    assert standing.descent == pytest.approx(
        np.dot(slope, theta - standing.target.oracle), rel=1e-7
    )


def test_regret_near_the_oracle_is_the_quadratic_form():
    truth = np.array([[0.5, -0.5]])
    for stream in (LogisticStream(truth, 4, 0.5), PoissonStream(truth, 4)):
        oracle = stream.standing(truth[0], 0).target.oracle
        for size in (1e-3, 1e-5):
            h = size * np.array([1.0, 2.0])
            ahead, behind = (float(stream.standing(oracle + s * h, 0).regret) for s in (1, -1))
            step = stream.standing(oracle + h, 0).gradient
            assert (ahead + behind) / 2 == pytest.approx(0.5 * step @ h, rel=1e-3, abs=1e-15)


def test_second_moment_of_the_logistic_residual_by_integration():
    truth, theta, noise = np.array([0.9, 0.0]), np.array([1.5, -2.0]), 0.7
    z, w = np.polynomial.hermite_e.hermegauss(60)
    w = w / w.sum()
    x1, x2, e = np.meshgrid(z, z, z, indexing="ij")
    weight = w[:, None, None] * w[None, :, None] * w[None, None, :]
    prediction = special.expit(1.5 * x1 - 2.0 * x2)
    chance = special.expit(0.9 * x1 + noise * e)
    square = {"soft": (prediction - chance) ** 2}
    square["bernoulli"] = prediction**2 - 2 * prediction * chance + chance
    for labels, values in square.items():
        stream = LogisticStream(truth[None], 4, noise, labels)
        expected = np.sum(weight * values * (x1**2 + x2**2))
        assert stream.second_moment(stream.standing(theta, 0)) == pytest.approx(expected, rel=1e-5)


def test_poisson_entropy_against_the_sum():
    k = np.arange(1, 3000.0)
    for width in (0.0, 0.5, 1.5, 3.0):

        def inner(z, width=width):
            m = np.exp(width * z)
            logs = k * np.log(m) - m - special.gammaln(k + 1)
            return float(np.sum(np.exp(logs) * k * np.log(k)) - m)

        z, w = np.polynomial.hermite_e.hermegauss(40)
        keep = width * z < 7  # the sum ends at 3000; the rest of the rule weighs nothing
        expected = np.sum((w / w.sum())[keep] * [inner(x) for x in z[keep]])
        tail = np.exp(width * z[~keep]) * (width * z[~keep] - 1) + 0.5
        expected += np.sum((w / w.sum())[~keep] * tail)
        assert poisson_entropy(xp, np.asarray(width**2)) == pytest.approx(expected, rel=1e-7)


def test_the_plane_rule_adds_up():
    q1, q2, w = plane_rule(xp, np.asarray(0.0))
    assert np.sum(w) == pytest.approx(1.0, abs=1e-12)
    assert np.sum(w * q1**4) == pytest.approx(3.0, abs=1e-10)
    assert np.sum(w * q1 * q2) == pytest.approx(0.0, abs=1e-12)
