"""The running scale that withstands single rows and forgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftrate.estimate import RobustScale


def run(x, batch=16, **options):
    """Return all rows but those of the first batch, each on the scale of those before."""
    scale, found = RobustScale(x.shape[1], **options), []
    for start in range(0, len(x), batch):
        found.append(scale(x[start : start + batch]))
        scale.update(x[start : start + batch])
    return np.concatenate(found[1:])


def normal(rows=4000, columns=1, seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, size=(rows, columns))


@pytest.mark.parametrize("batch", [1, 7, 16, 256])
def test_a_standing_stream_is_on_its_scale(batch):
    z = run(normal(columns=8), batch)[256:]
    # The scale is known from min(rows before, 2048) rows: to 1/√(2·256) at worst, in each column.
    assert np.abs(z.mean(axis=0)).max() < 5 / 256**0.5
    assert np.abs(z.std(axis=0) - 1).max() < 5 / 512**0.5


def test_the_update_is_the_formula_where_nothing_is_far_out():
    x = normal(rows=48)
    scale = RobustScale(1, memory=24)
    scale.update(x[:16])
    m, s = scale._centre[0], scale._deviation[0]
    for start in (16, 32):
        apart = x[start : start + 16, 0] - m
        assert np.abs(apart).max() < 5 * s
        a = 16 / (16 + min(start, 24))
        m, s = (
            m + a * apart.mean(),
            ((1 - a) * s**2 + a * (apart**2).mean() - a**2 * apart.mean() ** 2) ** 0.5,
        )
        scale.update(x[start : start + 16])
        np.testing.assert_allclose(scale._centre[0], m, rtol=1e-12)
        np.testing.assert_allclose(scale._deviation[0], s, rtol=1e-12)


@given(
    st.integers(0, 2**32 - 1), st.integers(-300, 300), st.booleans(), st.sampled_from([1, 5, 16])
)
def test_the_unit_does_not_matter(seed, power, negative, batch):
    rng = np.random.default_rng(seed)
    x = rng.standard_t(2, size=(96, 2)).round(1) + [0.0, 8.0] * (rng.random((96, 1)) < 0.5)
    x[rng.random(x.shape) < 0.1] = np.nan
    unit = (-1.0 if negative else 1.0) * 2.0**power
    # Lower medians are not those of the negative: there, signs alone must agree.
    one, other = run(x, batch), run(unit * x, batch)
    if negative:
        assert np.isfinite(other).all()
    else:
        np.testing.assert_array_equal(one, other)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e3, 1e9, 1e200, -1e308]), st.integers(64, 200))
def test_one_absurd_row_changes_little(seed, value, place):
    x = normal(rows=256, seed=seed)
    spoilt = x.copy()
    spoilt[place] = value
    clean, found = run(x), run(spoilt)
    clean, found = (np.delete(z, place - 16, axis=0) for z in (clean, found))
    # It counts as 5 deviations in at least 64 rows: s grows by √(1 + 24/80) at most.
    assert np.abs(found).max() < 1.3 * np.abs(clean).max() + 0.3
    np.testing.assert_allclose(found, clean, atol=0.2 * np.abs(clean).max())


def test_a_lasting_move_begins_anew():
    x = normal()
    x[2000:] = 1e6 + 10 * x[2000:]
    z = run(x)[2000 - 16 :]
    assert np.abs(z[:16]).min() > 1e3  # not clipped
    assert np.abs(z[32:]).max() < 7
    assert abs(z[64:].std() - 1) < 0.1


def test_a_growing_stream_stays_in_reach():
    steps = np.arange(4000.0)[:, None]
    z = run(np.exp(0.05 * steps) * (1 + 0.1 * normal()))
    assert np.isfinite(z).all()
    assert np.abs(z).max() < 50


def test_it_forgets():
    x = normal(rows=20_000)
    x[10_000:] = 3 + (x[10_000:] - 3) / 4  # not so far out that it begins anew
    z = run(x)[-2000:]
    # After 8,000 rows of a memory of 2,048 (1 - 1/2048)^8000 = 2 % of the old variance is left.
    assert abs(z.std() - (1 + 15 * 0.02) ** -0.5) < 0.05


def test_columns_of_two_values_keep_the_scale_of_all_rows():
    x = (np.random.default_rng(0).random((3000, 2)) < [0.3, 0.002]) * 7.0
    x[1000:1100] = 7.0  # a lasting state
    scale = RobustScale(2)
    scale.update(x)
    np.testing.assert_allclose(scale(x), (x - x.mean(axis=0)) / x.std(axis=0), atol=1e-9)


def test_constant_missing_and_absent():
    x = np.full((64, 3), 5.1)
    x[:, 1] = np.nan
    x[:, 2] = [np.nan, 5.1] * 32
    scale = RobustScale(3, clip=5.0)
    assert (scale(x) != 0).any()  # nothing is known yet: the sign
    scale.update(x)
    assert (scale(x) == 0).all()
    assert scale(np.array([[6.0, 6.0, -6.0]])).tolist() == [[1.0, 1.0, -1.0]]


def test_features_are_clipped_and_nothing_else_changes():
    x = normal()
    np.testing.assert_array_equal(run(x, clip=2.0), np.clip(run(x), -2, 2))
