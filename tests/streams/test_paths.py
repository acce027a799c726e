"""Paths against the paper's formulas, natures against their definitions, bad input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftrate.errors import ConfigError
from driftrate.streams import (
    Diagonal,
    JumpWhenSettled,
    LazyPath,
    LinearStream,
    LogisticStream,
    LowRank,
    PoissonStream,
    Runaway,
    bursty,
    concatenate,
    random_walk,
    shifts,
    smooth,
    spiral,
    spiral_row,
    standstill,
    warmup_spiral,
)


@given(
    dim=st.integers(1, 7),
    steps=st.integers(1, 40),
    hold=st.integers(1, 12),
    frequency=st.floats(0.5, 6),
)
def test_the_spiral_is_the_papers(dim, steps, hold, frequency):
    path = spiral(dim, steps, start=1.0, end=-1.0, frequency=frequency, hold=hold)
    radius, alpha = np.linspace(1, -1, steps), np.linspace(0, 1, steps)
    for t in range(1, steps + 1):
        s = min(int(np.ceil(t / hold)) * hold, steps) - 1
        for i in range(1, dim + 1):
            angle = np.ceil(i / 2) * 2 * frequency * np.pi * alpha[s]
            wave = np.cos(angle) if i % 2 else np.sin(angle)
            assert path[t - 1, i - 1] == pytest.approx(radius[s] ** 3 * wave, abs=1e-12)
    np.testing.assert_array_equal(
        path[steps // 2], spiral_row(dim, steps, steps // 2, 1, -1, frequency, hold)
    )


def test_warmup_spiral_turns_clockwise():
    path = warmup_spiral(jumps=17, hold=100)
    corners = path[::100]
    assert path.shape == (1700, 2)
    assert corners[0].tolist() == [1.0, 0.0]
    turns = corners[:-1, 0] * corners[1:, 1] - corners[:-1, 1] * corners[1:, 0]
    assert np.all(turns < 0)
    assert np.count_nonzero(shifts(path)) == 16


def test_shifts_of_the_kinds():
    assert np.all(shifts(standstill(3, 9)) == 0)
    np.testing.assert_allclose(shifts(random_walk(3, 9, size=0.2)), 0.2)
    np.testing.assert_allclose(shifts(smooth(3, 9, exponent=0.7)), np.arange(1.0, 9) ** -0.7)
    jumps = shifts(bursty(3, 20, size=2.0, every=6))
    assert np.flatnonzero(jumps).tolist() == [5, 11, 17]
    np.testing.assert_allclose(jumps[[5, 11, 17]], 2.0)


def test_shifts_in_blocks_are_the_same():
    path = random_walk(70_000, 40, size=0.5)
    np.testing.assert_allclose(shifts(path), 0.5)


def test_concatenation_has_no_seam():
    path = concatenate([standstill(2, 5), spiral(2, 5, hold=2), random_walk(2, 5, size=0.1)])
    assert path.shape == (15, 2)
    moves = shifts(path)
    assert moves[4] == moves[9] == 0


def test_starts_are_lengths_or_positions():
    assert np.linalg.norm(standstill(4, 2, start=3.0)[0]) == 3.0
    assert random_walk(2, 3, start=[1.0, 2.0])[0].tolist() == [1.0, 2.0]
    with pytest.raises(ConfigError, match="start must be a number or a vector of 2"):
        bursty(2, 3, start=[1.0, 2.0, 3.0])


def test_natures_that_see_the_learner():
    weights = np.array([[[0.0, 0.0], [1.0, 0.0], [1.0, 0.1]]])
    runaway = Runaway([1.0, 0.0], [0.5, 0.25], 3)
    first = runaway.position(0, None, weights)
    assert first.tolist() == [[[1.0, 0.0]] * 3]
    second = runaway.position(1, first, weights)
    np.testing.assert_allclose(np.linalg.norm(second - first, axis=-1), 0.5)
    # Where learner and target coincide it runs along the first axis.
    np.testing.assert_allclose(second[0], [[1.5, 0], [1.5, 0], [1, -0.5]])
    settled = JumpWhenSettled([1.0, 0.0], size=2.0, radius=0.5, steps=3)
    moved = np.linalg.norm(settled.position(1, first, weights) - first, axis=-1)
    np.testing.assert_allclose(moved, [[0.0, 2.0, 2.0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearStream(np.array([[1.0], [np.nan]])), "NaN or infinity at step 1"),
        (lambda: LinearStream(np.array([[np.inf]])), "path must be finite"),
        (lambda: LinearStream(np.zeros(3)), r"path must have shape \(steps, dim\), got \(3,\)"),
        (lambda: LinearStream(np.zeros((0, 3))), "path must have shape"),
        (lambda: LinearStream(np.zeros((5, 2)), batch_size=0), "batch_size must be integers >= 1"),
        (lambda: LinearStream(np.zeros((5, 2)), batch_size=2.5), "batch_size must be integers"),
        (lambda: LinearStream(np.zeros((5, 2)), batch_size=[1, 2]), r"one per step \(5\)"),
        (lambda: LinearStream(np.zeros((5, 2)), noise_std=-1.0), "noise_std must be"),
        (lambda: LinearStream(np.zeros((5, 2)), noise_std=np.nan), "noise_std must be"),
        (lambda: LinearStream(np.zeros((5, 2)), covariance=Diagonal([1.0])), "of dimension 2"),
        (lambda: LinearStream(np.zeros((5, 2)), covariance=[Diagonal([1, 1])]), "one per step"),
        (lambda: LinearStream(np.zeros((5, 2)), covariance=lambda t: None), "got None"),
        (lambda: LogisticStream(np.zeros((5, 2)), labels="hard"), "'soft' or 'bernoulli'"),
        (lambda: PoissonStream(np.full((5, 2), 9.0)), "scale the path by 0.314 or less"),
        (lambda: Diagonal([1.0, -1.0]), "variances must be >= 0"),
        (lambda: Diagonal([[1.0]]), "finite array of 1 axes"),
        (lambda: LowRank([1.0, 1.0], np.ones((3, 1))), "factor must have 2 rows"),
        (lambda: Runaway([np.nan], 1.0, 3), "start must be a finite vector"),
        (lambda: Runaway([1.0], [1.0, 2.0, 3.0], 3), "speed must be a number or an array of 2"),
        (lambda: Runaway([1.0], -1.0, 3), "speed must be finite and >= 0"),
        (lambda: JumpWhenSettled([1.0], -1.0, 1.0, 3), "size and radius"),
        (lambda: spiral(0, 5), "dim must be an integer >= 1, got 0"),
        (lambda: spiral(2, 5, hold=0), "hold must be an integer >= 1"),
        (lambda: concatenate([]), "concatenate needs paths of one dimension"),
        (lambda: LazyPath(lambda t: np.zeros(3), 4, 2).position(0, None, None), "vector of 2"),
        (lambda: LazyPath(lambda t: np.array([np.nan]), 4, 1).position(0, None, None), "NaN"),
        (
            lambda: LinearStream(np.zeros((5, 2))).standing(np.zeros(3), 0),
            r"weights must have shape \(..., 2\)",
        ),
        (
            lambda: LinearStream(Runaway([1.0], 1.0, 3)).standing(np.zeros(1), 0),
            "known only in a simulation",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_covariances_are_what_they_say():
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((3, 2))
    low_rank = LowRank([1.0, 2.0, 0.5], factor)
    sigma = np.diag([1.0, 2.0, 0.5]) + factor @ factor.T
    vectors = rng.standard_normal((4, 3))
    np.testing.assert_allclose(low_rank.colour(low_rank.whiten(vectors)), vectors @ sigma)
    assert low_rank.trace() == pytest.approx(np.trace(sigma))
    assert low_rank.size == 5
