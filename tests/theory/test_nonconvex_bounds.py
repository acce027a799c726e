"""Theorem 5.1: the non-convex bound, corrected; and what is false about the printed ones."""

import numpy as np
import pytest

import driftrate as dr
from driftrate import theory

SIGMA, BATCH = 1.5, 4


def loss(theta, centre):
    """A landscape of hills and wells, 1-smooth, nowhere negative."""
    return 0.1 + np.sum(1.0 - np.cos(theta - centre), axis=-1)


def slope(theta, centre):
    return np.sin(theta - centre)


def wander(rate, *, seeds, steps, dim, reach, rng):
    """SGD with a rate from the expected loss; nature moves the wells so that the loss rises."""
    theta, centre = np.full((seeds, dim), 1.0), np.zeros((seeds, dim))
    state = rate.init(like=np.zeros(seeds))
    out = {name: [] for name in ("rates", "losses", "point", "sup", "regrets")}
    moved = np.zeros(seeds)
    for _ in range(steps):
        here = loss(theta, centre)
        eta, state = rate.update(
            state, dr.Signal(batch_size=float(BATCH), loss=here, loss_shift=moved)
        )
        grad = slope(theta, centre)
        drawn = grad + SIGMA / np.sqrt(BATCH * dim) * rng.standard_normal((seeds, dim))
        after = theta - eta[:, None] * drawn
        there = centre - reach * np.sign(slope(after, centre))
        moved = np.abs(loss(after, there) - loss(after, centre))
        out["rates"].append(eta)
        out["losses"].append(here)
        out["point"].append(moved)
        out["sup"].append(np.full(seeds, dim * 2 * np.sin(reach / 2)))
        out["regrets"].append(np.sum(grad**2, axis=-1))
        theta, centre = after, there
    return {name: np.stack(value, axis=-1) for name, value in out.items()}


def bound_of(run, shifts):
    return theory.nonconvex_upper(
        run["rates"],
        batch_sizes=BATCH,
        losses=run["losses"],
        loss_shifts=shifts,
        smoothness=1.0,
        noise_std=SIGMA,
    )


@pytest.mark.parametrize("reach", [0.0, 0.05, 0.5])
def test_bound_holds_at_every_horizon(above, reach):
    """With the shift at θ_{t+1}, which the proof uses, and so with the supremum too."""
    run = wander(
        dr.NonconvexRate(smoothness=1.0, noise_std=SIGMA),
        seeds=1000,
        steps=60,
        dim=2,
        reach=reach,
        rng=np.random.default_rng(0),
    )
    for shifts in (run["point"], run["sup"]):
        bound = bound_of(run, shifts)
        assert above(np.cumsum(bound.per_step - run["regrets"], axis=-1))
    assert np.all(run["point"] <= run["sup"] + 1e-12)


def descent(rates, start, offset=0.0, climb=0.0):
    """Noiseless SGD on (θ - c)²/2 + offset; each step nature lifts the loss at θ by `climb`."""
    error, losses, regrets = start, [], []
    for eta in rates:
        losses.append(0.5 * error**2 + offset)
        regrets.append(error**2)
        error *= 1 - eta
        error = np.sqrt(error**2 + 2 * climb)
    return np.array(losses), np.array(regrets)


def test_the_bound_is_tight():
    """Quadratics with curvature L attain it, up to the last loss that it drops."""
    rates = np.full(200, 0.3)
    losses, regrets = descent(rates, 1.0, climb=0.1)
    bound = theory.nonconvex_upper(
        rates, batch_sizes=1, losses=losses, loss_shifts=0.1, smoothness=1.0, noise_std=0.0
    )
    last, _ = descent(np.append(rates, 0.3), 1.0, climb=0.1)
    dropped = 2 * last[-1] / theory.upper_weight(0.3, 1.0)
    assert bound.total - dropped == pytest.approx(regrets.sum())


def test_the_squares_of_the_main_text_are_false():
    """a² for a makes the bound negative where the loss has a floor; a regret is not."""
    rates = np.full(200, 0.3)
    losses, regrets = descent(rates, 1.0, offset=0.5)
    a = theory.upper_weight(rates, 1.0)
    printed = 2 * losses[0] / a[0] ** 2 + np.sum(2 * losses[1:] * (1 / a[1:] - 1 / a[:-1] ** 2))
    right = theory.nonconvex_upper(
        rates, batch_sizes=1, losses=losses, loss_shifts=0.0, smoothness=1.0, noise_std=0.0
    )
    assert printed < 0 < regrets.sum() <= right.total


def test_the_single_shift_of_the_appendix_is_false():
    """γ_t for 2γ_t loses half of the regret of a target that keeps rising away."""
    rates = np.full(200, 0.3)
    losses, regrets = descent(rates, 1.0, climb=0.1)
    bound = theory.nonconvex_upper(
        rates, batch_sizes=1, losses=losses, loss_shifts=0.1, smoothness=1.0, noise_std=0.0
    )
    assert regrets.sum() <= bound.total
    assert bound.total - bound.shift.sum() / 2 < 0.7 * regrets.sum()


def test_the_weight_of_the_appendix_vanishes():
    """Its a_t = η - Lη² is called positive for η <= 1/L; at 1/L it is 0. The one it uses is 1/L."""
    eta, smooth = 0.25, 4.0
    assert eta - smooth * eta**2 == 0.0
    assert theory.upper_weight(eta, smooth) == 0.25


def test_projection_falsifies_the_bound():
    """Θ = {1}: the gradient of θ²/2 stays 1 for ever, the bound does not grow."""
    steps = 100
    bound = theory.nonconvex_upper(
        np.full(steps, 0.5),
        batch_sizes=1,
        losses=np.full(steps, 0.5),
        loss_shifts=0.0,
        smoothness=1.0,
        noise_std=0.0,
    )
    assert bound.total < 0.05 * steps


@pytest.mark.parametrize("own", [False, True])
def test_feeding_the_loss_of_the_same_batch_breaks_the_bound(above, own):
    """The rate then depends on the noise it multiplies; with the expected loss the bound holds.

    ℓ(θ, z) = (θ - z)²/2, z = ±3 with chance 0.1, else 0: no shift, L = 1, σ² = 0.9.
    """
    rng, seeds, steps, variance = np.random.default_rng(1), 400, 300, 0.9
    rate = dr.NonconvexRate(smoothness=1.0, noise_std=np.sqrt(variance))
    theta, state = np.full(seeds, 0.1), rate.init(like=np.zeros(seeds))
    rates, losses, regrets = [], [], []
    for _ in range(steps):
        z = 3.0 * rng.choice([-1, 1], seeds) * (rng.random(seeds) < 0.1)
        expected = 0.5 * theta**2 + 0.5 * variance
        # A floor keeps the rate off 0, by which the bound divides.
        seen = np.maximum(0.5 * (theta - z) ** 2, 1e-4) if own else expected
        eta, state = rate.update(state, dr.Signal(batch_size=1.0, loss=seen, loss_shift=0.0))
        rates.append(eta)
        losses.append(expected)
        regrets.append(theta**2)
        theta = theta - eta * (theta - z)
    bound = theory.nonconvex_upper(
        np.stack(rates, axis=-1),
        batch_sizes=1,
        losses=np.stack(losses, axis=-1),
        loss_shifts=0.0,
        smoothness=1.0,
        noise_std=np.sqrt(variance),
    )
    spare = bound.total - np.sum(regrets, axis=0)
    if own:
        assert above(-spare - 0.2 * np.sum(regrets, axis=0))
    else:
        assert above(spare)


def test_the_supremum_of_the_shift_is_infinite_for_regression():
    """|‖θ - a‖² - ‖θ - b‖²|/2 grows with θ; at the learner's own weights it is finite."""
    theta = np.array([1.0, 1e3, 1e6, 1e9])
    gaps = np.abs(0.5 * theta**2 - 0.5 * (theta - 0.1) ** 2)
    assert np.all(gaps[1:] / gaps[:-1] > 500)
