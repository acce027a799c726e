"""Student's law, mixtures of it, and how sure they were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from driftrate.learners import densities

quickly = settings(max_examples=50, deadline=None)
SCALES = st.floats(1e-6, 1e6)


@quickly
@given(z=st.floats(-1e4, 1e4), scale=SCALES)
def test_it_is_students_law_with_five_degrees(z, scale):
    away = np.array(z * scale)
    law = stats.t(5, scale=scale)
    assert densities.log_density(away, np.array(scale)) == pytest.approx(law.logpdf(away))
    assert densities.below(away, np.array(scale)) == pytest.approx(law.cdf(away), abs=1e-14)


def test_surprise_has_mean_one_at_the_right_scale():
    z = stats.t(5).rvs(200_000, random_state=0)
    for scale, sign in ((1.0, 0), (0.8, 1), (1.25, -1)):
        found = densities.surprise((z / scale) ** 2)
        error = found.std() / len(z) ** 0.5
        if sign:
            assert sign * (found.mean() - 1.0) > 10 * error
        else:
            assert abs(found.mean() - 1.0) < 4 * error


@quickly
@given(
    centre=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    scale=st.lists(st.floats(0.01, 10), min_size=3, max_size=3),
    chance=st.floats(1e-4, 0.5),
)
def test_quantiles_invert_the_mixture(centre, scale, chance):
    shares = np.array([0.5, 0.3, 0.2])
    centre, scale = np.array(centre)[:, None], np.array(scale)[:, None]
    chances = np.array([chance, 1.0 - chance])
    found = densities.quantiles(centre, scale, shares, chances)
    again = [float(shares @ densities.below(one - centre, scale)[:, 0]) for one in found]
    assert again == pytest.approx(chances.tolist(), abs=1e-9)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.99])
def test_intervals_of_a_mixture_that_is_right_are_left_as_they_are(coverage):
    rng = np.random.default_rng(0)
    y = stats.t(5).rvs(100_000, random_state=rng)
    one = np.ones((1, len(y)))
    found = densities.halvings(0.0 * one, one, np.ones(1), y)
    assert found.min() >= 0
    counts = densities.tally(found, np.ones(len(y)))
    assert counts.sum() == len(y)
    error = (coverage * (1 - coverage) / len(y)) ** 0.5
    # A bin is a tenth of a halving wide, within which the chance is interpolated.
    assert densities.outside(counts, coverage) == pytest.approx(1 - coverage, abs=4 * error + 0.001)


def test_intervals_of_one_that_is_too_sure_grow():
    y = 3.0 * stats.t(5).rvs(20_000, random_state=0)
    one = np.ones((1, len(y)))
    counts = densities.tally(densities.halvings(0.0 * one, one, np.ones(1), y), np.ones(len(y)))
    left = densities.outside(counts, 0.9)
    assert left < 0.02
    half = densities.quantiles(one[:, :1], one[:, :1], np.ones(1), np.array([1 - left / 2])) - 1.0
    assert float(half[0, 0]) == pytest.approx(3.0 * stats.t(5).ppf(0.95), rel=0.1)


def test_what_no_law_allows_falls_into_the_last_bin():
    one = np.ones((1, 3))
    found = densities.halvings(0.0 * one, one, np.ones(1), np.array([0.0, 1e9, -1e100]))
    assert found.tolist() == [0.0, 16.0, 16.0]
    assert densities.tally(found, np.ones(3))[-1] == 2.0
