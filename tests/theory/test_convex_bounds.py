"""Theorems 4.2 and 4.7: upper and lower bounds on the convex regret, against adaptive nature."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftrate import theory
from driftrate.errors import ConfigError

# No deadline on shared machines, and the same cases every time.
CALM = settings(deadline=None, derandomize=True, max_examples=50)


def upper(run, batch, smoothness):
    return theory.convex_upper(
        run.rates,
        batch_sizes=batch,
        distances=run.distances,
        shifts=run.shifts,
        cross=run.cross,
        smoothness=smoothness,
        noise_std=run.deviations,
    )


def lower(run, batch, smoothness, strong):
    return theory.convex_lower(
        run.rates,
        batch_sizes=batch,
        distances=run.distances,
        shifts=run.shifts,
        cross=run.cross,
        smoothness=smoothness,
        strong_convexity=strong,
        noise_std=run.deviations,
    )


SPECTRA = [(2.0, 1.0, 0.5), (1.0, 1.0, 1.0, 1.0), (4.0,)]


@pytest.mark.parametrize("spectrum", [*SPECTRA, (2.0, 0.5, 0.0)])
@pytest.mark.parametrize("reach", [0.3, 1.0, 1.6])
def test_upper_bound_holds_at_every_horizon(chase, above, spectrum, reach):
    """Nature flees, the rate is adapted; also with a flat direction, and with rates beyond 1/L."""
    smooth = max(spectrum)
    run = chase(
        np.random.default_rng(0),
        spectrum=spectrum,
        seeds=1500,
        steps=20,
        batch=40,
        noise_std=0.5,
        largest=reach / smooth,
        speed=0.2,
    )
    assert reach <= 1.0 or (run.rates * smooth > 1.0).any()
    bound = upper(run, 40, smooth)
    assert above(np.cumsum(bound.per_step - run.regrets, axis=-1))
    np.testing.assert_allclose(bound.total, np.cumsum(bound.per_step, axis=-1)[:, -1])


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_lower_bound_holds_at_every_horizon(chase, above, spectrum):
    smooth, strong = max(spectrum), min(spectrum)
    run = chase(
        np.random.default_rng(1),
        spectrum=spectrum,
        seeds=1500,
        steps=20,
        batch=40,
        noise_std=0.5,
        largest=1.0 / smooth,
        speed=0.2,
    )
    assert above(np.cumsum(run.regrets - lower(run, 40, smooth, strong).per_step, axis=-1))


def test_bounds_are_equalities_for_identity_covariance(chase, zero):
    """L = μ = 1: the lower bound is the regret, the upper one twice it."""
    run = chase(
        np.random.default_rng(2),
        spectrum=(1.0, 1.0, 1.0),
        seeds=2000,
        steps=20,
        batch=40,
        noise_std=0.5,
        largest=0.9,
        speed=0.2,
    )
    low = lower(run, 40, 1.0, 1.0)
    assert zero(np.cumsum(low.per_step - run.regrets, axis=-1))
    np.testing.assert_allclose(upper(run, 40, 1.0).total, 2.0 * low.total)


def test_projected_runs_obey_both_forms(chase, above):
    """θ and θ* in a ball; the form with D_max is the larger one on every single run."""
    spectrum, radius, batch = (2.0, 1.0, 0.5), 1.0, 4
    run = chase(
        np.random.default_rng(3),
        spectrum=spectrum,
        seeds=1500,
        steps=20,
        batch=batch,
        noise_std=0.5,
        largest=0.5,
        speed=0.2,
        radius=radius,
    )
    sigma = run.deviations.max()
    path = theory.convex_upper(
        run.rates,
        batch_sizes=batch,
        distances=run.distances,
        shifts=run.shifts,
        cross=run.cross,
        smoothness=2.0,
        noise_std=sigma,
    )
    wide = theory.convex_upper_diameter(
        run.rates,
        batch_sizes=batch,
        shifts=run.shifts,
        smoothness=2.0,
        noise_std=sigma,
        diameter=2 * radius,
    )
    assert above(np.cumsum(path.per_step - run.regrets, axis=-1))
    assert np.all(path.total <= wide.total + 1e-9)
    assert above(np.cumsum(wide.per_step - run.regrets, axis=-1))


@CALM
@given(st.floats(1e-6, 1), st.floats(1e-3, 1e3), st.floats(1e-3, 1))
def test_ratio_of_the_bounds(reach, smooth, share):
    """a'/a is between 1 + L/μ and 2L/μ for η <= 1/L."""
    strong = smooth * share
    ratio = theory.lower_weight(reach / smooth, smooth, strong)
    ratio = ratio / theory.upper_weight(reach / smooth, smooth)
    assert (1 + 1 / share) * (1 - 1e-9) <= ratio <= 2 / share * (1 + 1e-9)


def test_ratio_meets_both_ends():
    weights = theory.lower_weight([1e-9, 0.25], 4.0, 1.0) / theory.upper_weight([1e-9, 0.25], 4.0)
    np.testing.assert_allclose(weights, [5.0, 8.0], rtol=1e-6)


@CALM
@given(st.integers(1, 30), st.integers(0, 2**31))
def test_predator_and_prey_rearrangement(steps, seed):
    """Σ(D_t² - D_{t+1}²)/a_t telescopes as the text after Theorem 4.7 says."""
    rng = np.random.default_rng(seed)
    rates, dist = rng.uniform(0.01, 0.9, steps), rng.uniform(0, 5, steps + 1)
    bound = theory.convex_upper(
        rates,
        batch_sizes=1,
        distances=dist,
        shifts=0.0,
        cross=0.0,
        smoothness=1.0,
        noise_std=0.0,
    )
    inverse = 1 / theory.upper_weight(rates, 1.0)
    other = dist[0] ** 2 * inverse[0] - dist[-1] ** 2 * inverse[-1]
    other += np.sum(dist[1:-1] ** 2 * np.diff(inverse))
    assert bound.approach.sum() == pytest.approx(other, rel=1e-9, abs=1e-6)


def still(steps, distance, noise_std, rate=0.5, batch=1):
    """The terms of a run in which neither the learner nor the target moves."""
    return {
        "rates": np.full(steps, rate),
        "batch_sizes": batch,
        "distances": np.full(steps + 1, distance),
        "shifts": 0.0,
        "cross": 0.0,
        "smoothness": 1.0,
        "noise_std": noise_std,
    }


def test_target_outside_the_set_falsifies_the_upper_bound():
    """The "alternative" Assumption (iii): Θ = {0}, θ* = 10, loss (θ - 10)²/2, no noise."""
    steps = 100
    regret = 50.0 * steps
    assert theory.convex_upper(**still(steps, 10.0, 0.0)).total == 0.0
    wide = theory.convex_upper_diameter(
        np.full(steps, 0.5),
        batch_sizes=1,
        shifts=0.0,
        smoothness=1.0,
        noise_std=0.0,
        diameter=10.0,
    )
    assert wide.total < 0.05 * regret


def test_projection_falsifies_the_lower_bound():
    """Θ = {θ*}: the regret is 0, the noise is real, and the bound is positive."""
    assert theory.convex_lower(strong_convexity=1.0, **still(10, 0.0, 1.0)).total > 1.0


def test_a_mere_bound_on_the_noise_falsifies_the_lower_bound():
    """Start at θ*, no noise at all: σ = 1 is a valid bound on it, the regret 0, the bound not.

    The numbers are those of the projected case; only the reason why nothing moves is another.
    """
    dist = np.zeros(11)  # θ_1 = θ* and every gradient is 0
    bound = theory.convex_lower(
        np.full(10, 0.5),
        batch_sizes=1,
        distances=dist,
        shifts=0.0,
        cross=0.0,
        smoothness=1.0,
        strong_convexity=1.0,
        noise_std=1.0,
    )
    assert bound.total > 0.0


def test_the_lower_bound_of_the_appendix_is_false():
    """Its last display divides D²_{t+1} by a'_{t+1}; one noiseless step with a larger next rate."""
    rates, dist = np.array([0.1, 1.0]), np.array([1.0, 0.9])
    weights = theory.lower_weight(rates, 1.0, 1.0)
    regret = 0.5 * dist[0] ** 2
    assert dist[0] ** 2 / weights[0] - dist[1] ** 2 / weights[1] > 4 * regret
    right = theory.convex_lower(
        rates[:1],
        batch_sizes=1,
        distances=dist,
        shifts=0.0,
        cross=0.0,
        smoothness=1.0,
        strong_convexity=1.0,
        noise_std=0.0,
    )
    assert right.total == pytest.approx(regret)


def test_one_sample_of_regression_is_not_strongly_convex():
    """The Hessian xxᵀ of one sample's loss has rank 1; that of the expected loss is I."""
    x = np.random.default_rng(4).standard_normal(3)
    assert np.linalg.eigvalsh(np.outer(x, x))[0] == pytest.approx(0.0, abs=1e-12)


def test_regression_noise_has_no_bound():
    """Assumption 4.1 (i) cannot hold on R^d: the variance of the gradient grows with the error."""
    noise = [
        theory.gradient_second_moment(v, dim=2, noise_std=1.0, batch_size=1) - v
        for v in (0.0, 1e2, 1e4)
    ]
    assert noise == pytest.approx([2.0, 302.0, 30002.0])


def test_distances_need_one_entry_more():
    with pytest.raises(ConfigError, match="one entry more than the 2 rates"):
        theory.convex_upper(
            [0.1, 0.1],
            batch_sizes=1,
            distances=[1.0, 1.0],
            shifts=0.0,
            cross=0.0,
            smoothness=1.0,
            noise_std=0.0,
        )


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_upper_bound_holds_with_a_larger_weight(chase, above, spectrum):
    """Not in the paper: for η <= 1/L the weight may be 2η, which is up to twice a_t."""
    smooth = max(spectrum)
    run = chase(
        np.random.default_rng(5),
        spectrum=spectrum,
        seeds=1500,
        steps=20,
        batch=40,
        noise_std=0.5,
        largest=1.0 / smooth,
        speed=0.2,
    )
    weight = theory.upper_weight(run.rates, smooth) / (2 * run.rates)
    sharp = upper(run, 40, smooth).per_step * weight
    assert above(np.cumsum(sharp - run.regrets, axis=-1))


@CALM
@given(st.integers(1, 20), st.integers(0, 2**31), st.sampled_from([0.0, 0.5]))
def test_the_diameter_form_is_never_below_the_path_form(steps, seed, size):
    """For any distances, shifts and rates that a ball of diameter 2 allows."""
    rng = np.random.default_rng(seed)
    gamma = size * rng.uniform(0, 1, steps)
    common = {"batch_sizes": 2, "shifts": gamma, "smoothness": 1.0, "noise_std": 0.3}
    rates = rng.uniform(0.01, 1.0, steps)
    path = theory.convex_upper(
        rates,
        distances=rng.uniform(0, 2, steps + 1),
        cross=gamma * rng.uniform(-2, 2, steps),
        **common,
    )
    wide = theory.convex_upper_diameter(rates, diameter=2.0, **common)
    assert path.total <= wide.total * (1 + 1e-12)


def test_the_diameter_form_is_tight_at_standstill():
    """No noise, no shift, D_1 = D_max, rate 1 = 1/L: regret D²/2 in one step, bound D²."""
    wide = theory.convex_upper_diameter(
        [1.0, 1.0],
        batch_sizes=1,
        shifts=0.0,
        smoothness=1.0,
        noise_std=0.0,
        diameter=3.0,
    )
    assert wide.per_step.tolist() == [9.0, 0.0]
