"""The auxiliary lemmas: Stein (D.1), Itô (D.2), and the growth of the SDE (A.1)."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from driftrate import theory

# No deadline on shared machines, and the same cases every time.
CALM = settings(deadline=None, derandomize=True, max_examples=50)


def gauss(dim, order):
    """Nodes and weights that integrate polynomials below degree 2·order against N(0, I)."""
    points, weights = np.polynomial.hermite_e.hermegauss(order)
    weights = weights / weights.sum()
    nodes = np.array(list(product(points, repeat=dim)))
    return nodes, np.array([np.prod(w) for w in product(weights, repeat=dim)])


@CALM
@given(st.integers(1, 4).flatmap(lambda d: arrays(float, d, elements=st.floats(-5, 5))))
def test_stein(u):
    """Lemma D.1, by a quadrature that is exact for its degree (4)."""
    x, weights = gauss(u.size, 3)
    moved = x * (x @ u)[:, None] - u
    left = np.einsum("n,ni,nj->ij", weights, moved, moved)
    np.testing.assert_allclose(left, (u @ u) * np.eye(u.size) + np.outer(u, u), atol=1e-9)


def test_noise_of_sgd_has_the_covariance_of_the_sde(gradient, zero):
    """Lemma D.1 at work: (‖X‖² + σ²) I + XXᵀ, per sample, from drawn batches."""
    error = np.array([1.0, -0.5, 0.0])
    drawn = gradient(np.random.default_rng(0), np.tile(error, (40_000, 1)), 1, 0.7) - error
    exact = (error @ error + 0.49) * np.eye(3) + np.outer(error, error)
    assert zero(np.einsum("ni,nj->nij", drawn, drawn) - exact)


def test_ito():
    """Lemma D.2 for φ = e^-t sin⟨k, x⟩ + ‖x‖²: a short step has its drift and its spread."""
    k, x, sigma, zeta, nu = np.array([1.0, -2.0]), np.array([0.6, 0.3]), 0.8, 0.7, 3.0
    scale = x @ x + sigma**2
    drift = -zeta * x - np.array([0.4, 0.1])
    root = zeta / np.sqrt(nu) * theory.apply_root(np.tile(x, (2, 1)), scale, np.eye(2)).T

    def phi(t, y):
        return np.exp(-t) * np.sin(y @ k) + np.sum(y * y, axis=-1)

    slope = np.cos(x @ k) * k + 2 * x
    bend = -np.sin(x @ k) * np.outer(k, k) + 2 * np.eye(2)
    f = -np.sin(x @ k) + slope @ drift + 0.5 * np.trace(root.T @ bend @ root)
    g = slope @ root
    nodes, weights = gauss(2, 8)
    gaps = []
    for h in (1e-2, 5e-3, 2.5e-3):
        change = phi(h, x + h * drift + np.sqrt(h) * nodes @ root.T) - phi(0.0, x)
        mean, square = weights @ change / h, weights @ change**2 / h
        gaps.append([abs(mean - f), abs(square - g @ g)])
    # What is left is of first order in h.
    np.testing.assert_allclose(np.diff(np.log2(gaps), axis=0), -1.0, atol=0.1)


def test_ito_gives_the_slope_of_the_second_moment():
    """The drift of ‖X‖² is that of Theorem 3.2: the trace is (d + 1)‖X‖² + dσ²."""
    x, sigma = np.array([0.6, 0.3, -1.0]), 0.8
    scale = x @ x + sigma**2
    root = theory.apply_root(np.tile(x, (3, 1)), scale, np.eye(3))
    assert np.trace(root @ root.T) == pytest.approx(4 * (x @ x) + 3 * sigma**2)


def growth(horizon, *, size, sigma, dim, u):
    """The bound that the proof of Lemma A.1 ends with."""
    reach = np.sqrt(dim) + u
    grow = np.exp((3 * horizon + 24 * reach**2) * size**2 * horizon / 2)
    return size * (np.sqrt(27) + np.sqrt(12 * horizon) * sigma * reach) * grow


@pytest.mark.parametrize("u", [0.1, 0.5, 1.0])
def test_growth_of_the_sde(u):
    """Lemma A.1 as its proof ends: exceeded with chance at most e^-u² (far less, in fact)."""
    horizon, size = 0.5, 1.0
    dw = theory.brownian(np.random.default_rng(1), horizon=horizon, steps=200, shape=(2000, 2))
    x = theory.sde_paths(
        [1.0, 0.0],
        dw,
        horizon=horizon,
        rate=1.0,
        batch_density=1.0,
        target=lambda tau: [np.sin(tau), 0.0],
        noise_std=1.0,
    )
    sup = np.linalg.norm(x, axis=-1).max(axis=0)
    over = np.mean(sup > growth(horizon, size=size, sigma=1.0, dim=2, u=u))
    chance = np.exp(-(u**2))
    assert over <= chance + 4 * np.sqrt(chance * (1 - chance) / sup.size)


@pytest.mark.parametrize("constant", [1.0, 10.0, 100.0])
def test_printed_growth_bound_is_false_for_short_times(constant):
    """C √T (√d + u) exp(...) tends to 0 with T, but the sup is at least ‖X_0‖; no C helps."""
    horizon = 1e-3 / constant**2
    printed = constant * np.sqrt(horizon) * (1 + 0.5)
    printed *= np.exp(constant * (horizon**2 + 1.5**2 * horizon))
    assert printed < 1.0  # ‖X_0‖ = K = 1 is allowed
    assert growth(horizon, size=1.0, sigma=1.0, dim=1, u=0.5) > 1.0


def test_printed_modulus_of_continuity_lacks_a_logarithm():
    """The largest move over any of the 1/ε steps is √(2ε ln(1/ε)), not C√ε (Lévy).

    d = 1, ζ/√ν = 1, σ = 1 and X near 0, so that the SDE is Brownian motion up to small terms.
    """
    sizes = np.array([2**6, 2**10, 2**14, 2**18])
    dw = theory.brownian(np.random.default_rng(2), horizon=1.0, steps=2**18, shape=(16,))
    moves = [np.abs(theory.coarsen(dw, int(2**18 // n))).max(axis=0) for n in sizes]
    ratios = np.array(moves) * np.sqrt(sizes)[:, None]
    rise = ratios[-1] - ratios[0]
    assert rise.mean() > 4 * rise.std() / np.sqrt(rise.size)
    # The mean of the largest of n tends to √(2 ln n) slowly, from below.
    np.testing.assert_allclose(ratios.mean(axis=1), np.sqrt(2 * np.log(sizes)), rtol=0.2)
