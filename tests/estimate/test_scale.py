from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftrate.estimate import RunningScale
from driftrate.estimate.scale import CLIP, TOLERANCE


@given(
    st.integers(0, 2**32 - 1),
    st.floats(-6, 6),
    st.lists(st.integers(1, 20), min_size=1, max_size=12),
    st.booleans(),
)
def test_mean_and_variance_are_those_of_all_rows(seed, level, sizes, centred):
    rng = np.random.default_rng(seed)
    scale, seen, counts = RunningScale(3, centred, clip=1e50), [], []
    for size in sizes:
        x = 10.0**level * (1.0 + rng.standard_normal((size, 3)))
        x[rng.random(x.shape) < 0.1] = np.nan
        weight = rng.integers(1, 4, size).astype(float)
        scale.update(x, weight)
        seen.append(x)
        counts.append(weight)
        rows, weights = np.concatenate(seen), np.concatenate(counts)
        there = ~np.isnan(rows)
        share = np.where(there, weights[:, None], 0.0)
        share /= np.maximum(share.sum(axis=0), 1.0)
        filled = np.where(there, rows, 0.0)
        mean = (share * filled).sum(axis=0) if centred else np.zeros(3)
        variance = (share * (filled - mean) ** 2).sum(axis=0)
        np.testing.assert_allclose(scale.mean, mean, rtol=1e-9, atol=1e-9 * 10.0**level)
        np.testing.assert_allclose(scale.variance, variance, rtol=1e-9, atol=1e-18 * 100.0**level)
        # The units are never far from what they follow.
        varied = scale.now.inverse > 0
        off = np.log((np.sqrt(variance) * scale.now.inverse)[varied])
        assert np.abs(off).max(initial=0.0) <= np.log(1.0 + TOLERANCE) + 1e-9
        assert (np.abs(scale.now.centre - mean) * scale.now.inverse).max() <= TOLERANCE + 1e-9


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_moves_carry_every_row_into_the_units_of_now(seed, centred):
    rng = np.random.default_rng(seed)
    scale = RunningScale(4, centred, clip=1e50)
    past, z = np.zeros((0, 4)), np.zeros((0, 4))
    for step in range(30):
        x = rng.standard_normal((4, 4)) * 1.1**step + 0.1 * step * centred
        x[:, 2] = 3.0 * centred if step < 9 else x[:, 2]  # varies late
        x[:, 3] = 5.0 * centred  # never
        moved = scale.update(x)
        if moved is not None:
            z = moved[0] * z + moved[1]
        past, z = np.concatenate([past, x]), np.concatenate([z, scale.now(x)])
        np.testing.assert_allclose(z, scale.now(past), rtol=1e-9, atol=1e-9)
    assert scale.now.inverse[3] == 0.0


def test_moves_become_rare():
    rows, scale = np.random.default_rng(0).standard_normal((2000, 4, 8)) + 7.0, RunningScale(8)
    moves = [step for step, x in enumerate(rows) if scale.update(x) is not None]
    assert len(moves) < 60
    assert moves[-1] < 1900


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("when", [300, 3000])
def test_one_value_of_a_billion_moves_the_scale_by_percents(rows, when):
    rng, scale = np.random.default_rng(0), RunningScale(2)
    for start in range(0, 6000, rows):
        x = rng.standard_normal((rows, 2)) + 5.0
        if start <= when < start + rows:
            before = 1.0 / scale.now.inverse[0]
            x[0, 0] = 1e9
        scale.update(x)
        if start <= when < start + rows:
            # One row in n at 10 deviations adds 100/n of the variance, and may overshoot by 5 %.
            limit = np.sqrt(1.0 + CLIP**2 / when) * (1.0 + TOLERANCE) ** 2
            assert before / limit <= 1.0 / scale.now.inverse[0] <= before * limit
            assert scale.now(x)[0, 0] == pytest.approx(CLIP, rel=0.2)
    np.testing.assert_allclose(1.0 / scale.now.inverse, 1.0, atol=0.1)


def test_an_outlier_in_the_first_block_is_told_by_the_median():
    x = np.random.default_rng(0).standard_normal((16, 2))
    x[3, 1] = 1e9
    scale = RunningScale(2)
    scale.update(x)
    assert 1.0 / scale.now.inverse[1] < 10.0
    assert np.abs(scale.now(x)[:, 1]).max() <= 1.1 * CLIP


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_growth_is_followed(rows):
    """A change of units is no outlier: what the deviation of all rows says is known at once."""
    rng, scale, half = np.random.default_rng(0), RunningScale(1), 4000
    for start in range(0, half + 400, rows):
        scale.update(rng.standard_normal((rows, 1)) * (1.0 if start < half else 1000.0))
    # 400 squares of normal numbers are known to 7 %, their root to 4 %.
    expected = 1000.0 * np.sqrt(400 / (half + 400))
    assert 1.0 / scale.now.inverse[0] == pytest.approx(expected, rel=0.25)


def test_an_outlier_among_rows_that_grow_does_not_set_the_scale():
    rng, scale = np.random.default_rng(0), RunningScale(1)
    for start in range(0, 4000, 16):
        x = rng.standard_normal((16, 1)) * (1.0 if start < 2000 else 1000.0)
        if start == 2000:
            x[5] = 1e9
        scale.update(x)
    assert 1.0 / scale.now.inverse[0] == pytest.approx(1000.0 / np.sqrt(2.0), rel=0.1)


def test_a_rare_word_is_no_outlier():
    scale, x = RunningScale(1), np.zeros((10_000, 1))
    x[[4000, 6000, 8000, 9999]] = 1.0
    for row in x:
        scale.update(row[None])
    assert scale.variance[0] == pytest.approx(4e-4, rel=1e-3)
    z = scale.now(np.array([[0.0], [1.0]]))[:, 0]
    assert z[1] - z[0] == pytest.approx(1.0 / 0.02, rel=0.06)


@pytest.mark.parametrize("value", [0.1, 1.7e9, -3e-7, 1e100])
def test_what_does_not_vary_is_not_measured(value):
    scale = RunningScale(1)
    for rows in (1, 7, 16):
        scale.update(np.full((rows, 1), value))
    assert scale.now.inverse[0] == 0.0
    assert scale.now(np.array([[value], [np.inf]])).tolist() == [[0.0], [0.0]]
    scale.update(np.array([[value * (1.0 + 1e-9)]]))  # a clock of nanoseconds varies
    assert scale.now.inverse[0] > 0


def test_a_column_that_was_missing_until_now_was_its_mean():
    scale, rng = RunningScale(2), np.random.default_rng(0)
    x = rng.standard_normal((8, 2)) + 50.0
    x[:, 1] = np.nan
    scale.update(x)
    assert scale.now(x)[:, 1].tolist() == [0.0] * 8
    a, b = scale.update(rng.standard_normal((8, 2)) + 50.0)
    assert (a[1], b[1]) == (1.0, 0.0)
    assert scale.now.centre[1] == pytest.approx(50.0, abs=1.0)


def test_more_columns_are_as_if_they_had_been_zero():
    rng = np.random.default_rng(0)
    narrow, wide = RunningScale(2), RunningScale(4)
    for step in range(40):
        x = rng.standard_normal((2, 4))
        if step < 20:
            x[:, 2:] = 0.0
            narrow.update(x[:, :2])
        else:
            if step == 20:
                narrow.widen(4)
            narrow.update(x)
        wide.update(x)
    for one, other in zip(narrow.now, wide.now, strict=True):
        np.testing.assert_array_equal(one, other)
