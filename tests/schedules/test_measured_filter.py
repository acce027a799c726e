"""The filter of the measured rate against textbook Kalman filters and multiple models.

Bar-Shalom, Li and Kirubarajan (2001), Estimation with Applications to Tracking and Navigation:
section 5.2 for the Kalman filter, 11.6.6 for interacting multiple models.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import betaln

from driftrate.schedules import _scalars
from driftrate.schedules.measured.filter import Bank, Jump, log_beta
from driftrate.schedules.measured.tuning import TUNING

# Student's t is all but normal, no moments of a jump are held back, no variance is inflated.
TEXTBOOK = replace(TUNING, product_freedom=1e7, unlikely=1e-30, inflation=1.0)
MODELS = 8


def bank_of(seed, tuning=TEXTBOOK):
    """A filter whose hypotheses differ in everything, with none of its guards near."""
    rng = np.random.default_rng(seed)
    level_var, trail_var = rng.uniform(0.02, 0.08, MODELS), rng.uniform(0.05, 0.2, MODELS)
    correlation = rng.uniform(-0.8, 0.8, MODELS)
    state = {
        "level": rng.uniform(1.0, 2.0, MODELS),
        "trail": rng.uniform(-0.5, 1.0, MODELS),
        "level_var": level_var,
        "trail_var": trail_var,
        "cov": correlation * np.sqrt(level_var * trail_var),
        "weight": rng.dirichlet(np.ones(MODELS)),
        "additive": rng.uniform(0.3, 1.0, MODELS),
    }
    return Bank.read(_scalars, state, tuning)


def moments(bank):
    """The means (models, 2) and covariances (models, 2, 2) of (v, c)."""
    mean = np.stack([bank.level, bank.trail], axis=-1)
    rows = [[bank.level_var, bank.cov], [bank.cov, bank.trail_var]]
    return mean, np.moveaxis(np.array(rows), -1, 0)


def kalman(mean, covariance, h, r, y):
    """The textbook's correction of each model by y = h·state + noise; with its likelihood."""
    h, r = np.broadcast_to(h, mean.shape), np.broadcast_to(r, mean.shape[:1])
    means, covariances, likelihoods = [], [], []
    for m, p, row, noise in zip(mean, covariance, h, r, strict=True):
        s = row @ p @ row + noise
        gain = p @ row / s
        means.append(m + gain * (y - row @ m))
        covariances.append((np.eye(2) - np.outer(gain, row)) @ p)
        likelihoods.append(stats.norm.pdf(y, row @ m, np.sqrt(s)))
    return np.array(means), np.array(covariances), np.array(likelihoods)


def transitions(tuning, rest):
    """The chances of going from one hypothesis (row) to another (column)."""
    drifts = MODELS - 2
    share = tuning.drift_prior / drifts
    prior = np.array([1.0 - tuning.drift_prior] + drifts * [share] + [0.0])
    switch = tuning.switch_chance * (tuning.patience / (tuning.patience + rest)) ** 2
    matrix = (1.0 - switch) * np.eye(MODELS) + switch * prior
    matrix[-1] = (1.0 - tuning.jump_lasts) * prior
    matrix[-1, -1] = tuning.jump_lasts
    return matrix


def interact(mean, covariance, weight, matrix):
    """The textbook's mixing: each model starts from the mixture of those that lead to it."""
    after = weight @ matrix
    shares = matrix * weight[:, None] / after  # of model i in the mixture of model j
    mixed = shares.T @ mean
    apart = mean[:, None] - mixed  # (from, to, 2)
    spread = covariance[:, None] + apart[..., :, None] * apart[..., None, :]
    return mixed, np.einsum("ij,ijkl->jkl", shares, spread), after


def check(bank, mean, covariance, rtol=1e-9):
    found = moments(bank)
    np.testing.assert_allclose(found[0], mean, rtol=rtol)
    np.testing.assert_allclose(found[1], covariance, rtol=rtol)


class TestKalman:
    def test_a_product_with_the_trail(self):
        bank, y, r = bank_of(1), 0.4, 0.3
        mean, covariance, likelihood = kalman(*moments(bank), [0.0, 1.0], r, y)
        new = bank.correct_trail(y, r, 1.0)
        check(new, mean, covariance)
        posterior = bank.weight * likelihood
        np.testing.assert_allclose(new.weight, posterior / posterior.sum(), rtol=1e-5)

    def test_a_product_of_parts(self):
        bank, y = bank_of(2), 1.3
        r = np.linspace(0.1, 0.5, MODELS)
        mean, covariance, likelihood = kalman(*moments(bank), [1.0, 0.0], r, y)
        new = bank.correct_level(y, r, 1.0)
        check(new, mean, covariance)
        posterior = bank.weight * likelihood
        np.testing.assert_allclose(new.weight, posterior / posterior.sum(), rtol=1e-5)

    def test_a_loud_batch_is_observed_in_units_of_its_loudness(self):
        """y = scale·(v + noise): the same as an observation of scale·v in the textbook."""
        bank, y, r = bank_of(3), 2.1, 0.2
        scale = np.linspace(1.2, 1.8, MODELS)
        row = np.stack([scale, 0.0 * scale], axis=-1)
        mean, covariance, likelihood = kalman(*moments(bank), row, r * scale**2, y)
        new = bank.correct_level(y, r, scale)
        check(new, mean, covariance)
        posterior = bank.weight * likelihood
        np.testing.assert_allclose(new.weight, posterior / posterior.sum(), rtol=1e-5)

    def test_the_square_is_a_linearised_observation(self):
        bank, y, kappa, freedom = bank_of(4), 3.0, 0.4, 20.0
        noise = bank.noise(kappa)
        expected, slope = bank.level + noise, 1.0 + kappa
        # Its mean is slope·v + s: that the observation y - s is of slope·v.
        variance = 2.0 * expected**2 / freedom
        means, covariances = [], []
        for j in range(MODELS):
            one = [part[j : j + 1] for part in moments(bank)]
            at = kalman(*one, [slope, 0.0], variance[j], y - bank.additive[j])
            means.append(at[0][0])
            covariances.append(at[1][0])
        new, *_ = bank.correct_square(y, noise, slope, freedom, 12.0, 0.0)
        check(new, np.array(means), np.array(covariances))

    def test_observations_add_their_precisions(self):
        """Of a level that stays, the posterior is known: 1/P = 1/P₀ + n/r."""
        bank, r = bank_of(5)._replace(cov=np.zeros(MODELS)), 0.5
        values = 1.5 + 0.3 * np.random.default_rng(0).standard_normal(30)
        new = bank
        for y in values:
            new = new.correct_level(y, r, 1.0)
        precision = 1.0 / bank.level_var + 30 / r
        mean = (bank.level / bank.level_var + values.sum() / r) / precision
        np.testing.assert_allclose(new.level_var, 1.0 / precision, rtol=1e-9)
        np.testing.assert_allclose(new.level, mean, rtol=1e-9)
        np.testing.assert_allclose(new.trail, bank.trail)

    def test_an_impossible_observation_leaves_a_valid_filter(self):
        new = bank_of(6, TUNING).correct_level(-1e6, 1e-6, 1.0)
        assert (new.level > 0.0).all()
        assert (np.linalg.eigvalsh(moments(new)[1]) > 0.0).all()


class TestLikelihoods:
    def test_products_have_student_s(self):
        bank, y, r = bank_of(7, TUNING), 6.0, 0.3
        scale = np.sqrt(bank.level_var + r)
        posterior = bank.weight * stats.t.pdf(y, 3, bank.level, scale)
        new = bank.correct_level(y, r, 1.0)
        np.testing.assert_allclose(new.weight, posterior / posterior.sum(), rtol=1e-9)

    @pytest.mark.parametrize("thin", [0.0, 0.3, 1.0])
    def test_the_square_has_an_f_law_with_a_thin_or_a_heavy_tail(self, thin):
        bank, y, kappa, freedom, tail = bank_of(8, TUNING), 5.0, 0.4, 20.0, 6.0
        noise = bank.noise(kappa)
        ratio = y / (bank.level + noise)
        # As variable as the square and as what is not known of its mean.
        unsure = bank.level_var * ((1.0 + kappa) / (bank.level + noise)) ** 2
        upper = 2.0 / (2.0 / freedom + unsure)
        laws = {b: ratio * stats.f.pdf(ratio, upper, 2.0 * b) for b in (tail, TUNING.thin_tail)}
        heavy = (1.0 - thin) * bank.weight * laws[tail]
        light = thin * bank.weight * laws[TUNING.thin_tail]
        new, likelihood, after = bank.correct_square(y, noise, 1.0 + kappa, freedom, tail, thin)
        total = (heavy + light).sum()
        # Stirling's series in the normalizer is good to 2e-5.
        np.testing.assert_allclose(new.weight, (heavy + light) / total, rtol=1e-4)
        # A jump's factor is e^x, and its chance is per unit of x.
        np.testing.assert_allclose(likelihood, total, rtol=1e-4)
        np.testing.assert_allclose(after, light.sum() / total, rtol=1e-4)

    @given(a=st.floats(0.1, 1e5), b=st.sampled_from([6.0, 12.0, 24.0]))
    def test_the_normalizer_of_the_square_s_law(self, a, b):
        # Stirling's series is cut after 1/(12x), x >= 6: what is left is below 1/(360·6³).
        assert log_beta(np, np.float64(a), b) == pytest.approx(betaln(a, b), abs=2e-5)


class TestMixing:
    @pytest.mark.parametrize("rest", [0.0, 50.0])
    def test_interacting_multiple_models(self, rest):
        bank = bank_of(9)
        matrix = transitions(TEXTBOOK, rest)
        mean, covariance, weight = interact(*moments(bank), bank.weight, matrix)
        new = bank.mix(rest)
        check(new, mean, covariance)
        np.testing.assert_allclose(new.weight, weight, rtol=1e-9)
        noise = (matrix * bank.weight[:, None] / weight).T @ bank.additive
        np.testing.assert_allclose(new.additive, noise, rtol=1e-9)

    def test_a_sliver_of_a_jump_leaves_moments_as_they_are(self):
        """The weights are the textbook's; the moments those without what the jump would bring."""
        far = bank_of(10, TUNING)
        weight = np.array([0.999 - 6e-4, *[1e-4] * 6, 1e-3])
        level = np.where(np.arange(MODELS) == 7, 500.0, far.level)
        far = far._replace(weight=weight, level=level)
        matrix = transitions(TUNING, 0.0)
        new = far.mix(0.0)
        np.testing.assert_allclose(new.weight, weight @ matrix, rtol=1e-9)
        settled = weight[:7] / weight[:7].sum()
        without = interact(*(part[:7] for part in moments(far)), settled, matrix[:7, :7])
        assert new.level_var[0] < 10.0 * without[1][0, 0, 0]
        with_it = interact(*moments(far), weight, matrix)
        assert with_it[1][0, 0, 0] > 100.0 * without[1][0, 0, 0]

    def test_one_cycle(self):
        """Mix, predict without a step, correct: the textbook's, model by model."""
        bank, y, r, rest = bank_of(11), 1.4, 0.3, 10.0
        unit, dim, keep, length, kappa = 2.0, 16.0, 0.9, 3.0, 0.4
        mean, covariance, weight = interact(
            *moments(bank), bank.weight, transitions(TEXTBOOK, rest)
        )
        f = np.array([[1.0, 0.0], [1.0, keep]])
        level, additive = mean[:, 0], bank.mix(rest).additive
        rates = np.array([0.0, *np.geomspace(TEXTBOOK.slowest, TEXTBOOK.fastest, MODELS - 2), 0.0])
        q = rates**2 / (1.0 - rates) * unit  # a random walk: ‖∇ + δ‖², E‖δ‖² = q
        own = np.zeros_like(covariance)
        own[:, 0, 0] = 4.0 * level * q / dim + 2.0 * q**2 / dim
        own[:, 1, 1] = level * (kappa * level + additive) / dim + q * length / dim
        mean = mean @ f.T + np.stack([q, 0.0 * q], axis=-1)
        covariance = f @ covariance @ f.T + own
        mean, covariance, likelihood = kalman(mean, covariance, [1.0, 0.0], r, y)
        new = bank.mix(rest).predict(0.0, 1.0, kappa, unit, dim, keep, 0.0, length)
        new = new.correct_level(y, r, 1.0)
        check(new, mean, covariance)
        posterior = weight * likelihood
        np.testing.assert_allclose(new.weight, posterior / posterior.sum(), rtol=1e-5)

    def test_a_jump_is_merged_with_the_last_hypothesis(self):
        bank, rest, likelihood = bank_of(12), 100.0, 0.02
        jump = Jump(level=3.0, variance=0.5, evidence=0.7)
        new = bank.mix_jump(jump, likelihood, rest, None, 0.1, 0.4)
        # Bayes: after as many steps of rest as the patience, a chance is a fourth.
        prior = 0.7 * TEXTBOOK.jump_chance / 4.0
        chance = prior / (prior + (1.0 - prior) * likelihood)
        old = np.append((1.0 - chance) * bank.weight, chance)
        np.testing.assert_allclose(new.weight[:7], old[:7], rtol=1e-9)
        np.testing.assert_allclose(new.weight[7], old[7] + old[8], rtol=1e-9)
        for name in ("level", "trail", "level_var", "trail_var", "cov", "additive"):
            np.testing.assert_array_equal(getattr(new, name)[:7], getattr(bank, name)[:7])
        share = old[7:] / old[7:].sum()
        mean = share @ [bank.level[7], 3.0]
        second = share @ [bank.level_var[7] + bank.level[7] ** 2, 0.5 + 9.0]
        np.testing.assert_allclose(new.level[7], mean, rtol=1e-9)
        np.testing.assert_allclose(new.level_var[7], second - mean**2, rtol=1e-9)


class TestPrediction:
    def test_the_prior_s_covariance_goes_through_the_derivative_of_the_mean(self):
        bank, step = bank_of(13), 1e-6
        bank = bank._replace(cov=0.2 * bank.cov)  # far from the largest correlation
        arguments = (0.3, 4.0, 0.4, 1.0, 16.0, 0.9, 0.2, 3.0)

        def mean(level, trail):
            moved = bank._replace(level=bank.level + level, trail=bank.trail + trail)
            return moments(moved.predict(*arguments))[0]

        columns = [(mean(*d) - mean(*-d)) / (2.0 * step) for d in step * np.eye(2)]
        f = np.stack(columns, axis=-1)
        wider = bank._replace(
            level_var=2.0 * bank.level_var, trail_var=3.0 * bank.trail_var, cov=1.5 * bank.cov
        )
        more = moments(wider)[1] - moments(bank)[1]
        grown = moments(wider.predict(*arguments))[1] - moments(bank.predict(*arguments))[1]
        np.testing.assert_allclose(grown, f @ more @ np.swapaxes(f, 1, 2), rtol=1e-6)

    @pytest.mark.parametrize("gain", [0.2, 0.7])
    def test_a_step_of_sgd_has_the_predicted_moments(self, gain):
        """∇' = (1 - ηL)∇ - ηL ξ + δ in D coordinates, by drawing ξ and the drift δ."""
        rng = np.random.default_rng(14)
        dim, noise, unit, keep = 8, 1.5, 2.0, 0.9
        model = 6  # the fastest drift
        q = TEXTBOOK.drift_variances[model] * unit
        gradient, trail = rng.standard_normal(dim), rng.standard_normal(dim)
        v, c = gradient @ gradient, gradient @ trail
        xi = rng.standard_normal((200_000, dim)) * np.sqrt(noise / dim)
        delta = rng.standard_normal(xi.shape) * np.sqrt(q / dim)
        new_trail = keep * trail + gradient + xi
        after = (1.0 - gain) * gradient - gain * xi + delta
        level = np.vecdot(after, after)
        fall = gain * np.vecdot(gradient + xi, new_trail)  # it was seen
        product = np.vecdot(after, new_trail) + fall
        rows = {"level": v, "trail": c, "level_var": 0.0, "trail_var": 0.0, "cov": 0.0}
        rows |= {"additive": noise, "weight": 1.0 / MODELS}
        rows = {name: np.full(MODELS, value) for name, value in rows.items()}
        bank = Bank.read(_scalars, rows, TEXTBOOK)
        length = np.vecdot(new_trail, new_trail).mean()
        # No part of the noise falls with the signal, and the batch is as loud as expected.
        new = bank.predict(gain, v + noise, 0.0, unit, float(dim), keep, 0.0, length)
        assert new.level[model] == pytest.approx(level.mean(), rel=0.01)
        assert new.level_var[model] == pytest.approx(level.var(), rel=0.02)
        assert new.trail[model] == pytest.approx(product.mean(), rel=0.01)
        assert new.trail_var[model] == pytest.approx(product.var(), rel=0.02)
        # At rest there is no δ.
        still = (1.0 - gain) * gradient - gain * xi
        level = np.vecdot(still, still)
        assert new.level[0] == pytest.approx(level.mean(), rel=0.01)
        assert new.level_var[0] == pytest.approx(level.var(), rel=0.02)
        if gain < 0.5:
            # The filter leaves out a factor 1 - ηL; at longer steps its guard binds.
            shared = np.cov(level, xi @ gradient)[0, 1]
            assert new.cov[model] == pytest.approx(shared / (1.0 - gain), rel=0.03)
