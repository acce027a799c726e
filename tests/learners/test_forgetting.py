"""The algebra of forgetting filters: dense, joint and in blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftrate.learners import forgetting

quickly = settings(max_examples=30, deadline=None)
PRIOR = np.array([0.1, 10.0])
SEEDS = st.integers(0, 2**32 - 1)


def seen(rng, dim, outputs=1, joint=False, rows=30):
    """Return information that some rows have left."""
    info = forgetting.start(dim, outputs, PRIOR, joint=joint)
    x = rng.standard_normal((rows, dim))
    slope = np.zeros((2, outputs, rows))
    if forgetting.joint(info):
        chances = rng.dirichlet(np.ones(outputs), (2, rows))
        return forgetting.step_joint(info, x, slope, chances, np.ones(rows))[1]
    return forgetting.step(info, x, slope, np.ones(rows), forgetting.gains(info, x))[1]


@quickly
@given(seed=SEEDS, dim=st.integers(1, 8), rows=st.integers(1, 12))
def test_a_step_on_numbers_is_ridge_regression(seed, dim, rows):
    rng = np.random.default_rng(seed)
    x, residual = rng.standard_normal((rows, dim)), rng.standard_normal((2, 1, rows))
    weight = rng.uniform(0.0, 2.0, rows)
    info = forgetting.start(dim, 1, PRIOR, joint=False)
    found = forgetting.gains(info, x)
    moved, after = forgetting.step(info, x, residual * weight, weight, found)
    for k, prior in enumerate(PRIOR):
        matrix = np.eye(dim) / prior + (x.T * weight) @ x
        np.testing.assert_allclose(after[k, 0, 0], matrix, rtol=1e-12, atol=1e-12)
        want = np.linalg.solve(matrix, x.T @ (weight * residual[k, 0]))
        np.testing.assert_allclose(moved[k, 0], want, rtol=1e-8, atol=1e-10)
        spread = np.einsum("nd,nd->n", x, x) * prior
        np.testing.assert_allclose(np.diagonal(found[1][k, 0]), spread, rtol=1e-10)


@quickly
@given(seed=SEEDS, outputs=st.integers(3, 5), dim=st.integers(1, 4))
def test_a_joint_step_is_newtons(seed, outputs, dim):
    rng = np.random.default_rng(seed)
    x, chances = rng.standard_normal((6, dim)), rng.dirichlet(np.full(outputs, 5.0), (2, 6))
    chances = np.maximum(chances, forgetting.LEAST)
    chances /= chances.sum(axis=-1, keepdims=True)
    weight, slope = rng.uniform(0.5, 2.0, 6), rng.standard_normal((2, outputs, 6))
    info = forgetting.start(dim, outputs, PRIOR, joint=True)
    moved, after = forgetting.step_joint(info, x, slope, chances, weight)
    for k, prior in enumerate(PRIOR):
        hessian = np.eye(outputs * dim) / prior
        for row, p, w in zip(x, chances[k], weight, strict=True):
            hessian += w * np.kron(np.diag(p) - np.outer(p, p), np.outer(row, row))
        np.testing.assert_allclose(after[k], hessian, rtol=1e-9, atol=1e-9)
        want = np.linalg.solve(hessian, (slope[k] @ x).reshape(-1))
        np.testing.assert_allclose(moved[k].reshape(-1), want, rtol=1e-7, atol=1e-9)


@quickly
@given(seed=SEEDS, joint=st.booleans())
def test_what_is_forgotten_keeps_no_negative_eigenvalue_and_ends_at_the_prior(seed, joint):
    rng = np.random.default_rng(seed)
    info = seen(rng, 4, 3, joint=joint)
    keep = rng.uniform(0.0, 1.0, (2, 4))
    once = forgetting.forget(info, keep, PRIOR)
    matrices = once.reshape(-1, *once.shape[-2:])
    assert np.linalg.eigvalsh(matrices).min() > 0
    for _ in range(3000):
        info = forgetting.forget(info, np.minimum(keep, 0.99), PRIOR)
    start = forgetting.start(4, 3, PRIOR, joint=joint)
    np.testing.assert_allclose(info, start, rtol=1e-9, atol=1e-9)


@quickly
@given(seed=SEEDS, joint=st.booleans())
def test_moved_features_move_the_information_as_a_matrix_would(seed, joint):
    rng = np.random.default_rng(seed)
    info = seen(rng, 4, 3, joint=joint)
    scale = np.concatenate([[1.0], rng.uniform(0.01, 100.0, 3)])
    shift = np.concatenate([[0.0], rng.standard_normal(3)])
    matrix = np.diag(scale)
    matrix[:, 0] += shift
    found = forgetting.transform(info, scale, shift)
    if joint:
        matrix = np.kron(np.eye(3), matrix)
    np.testing.assert_allclose(found, matrix @ info @ matrix.T, rtol=1e-9, atol=1e-9)


def test_blocks_share_the_residual():
    """They would each correct it, and overshoot by their number, if they did not."""
    rng = np.random.default_rng(0)
    dim = forgetting.LARGEST + 60
    info = forgetting.start(dim, 1, PRIOR, joint=False)
    assert info.shape[2] > 1
    x = rng.standard_normal((4, dim))
    residual = np.broadcast_to(x @ rng.standard_normal(dim), (2, 1, 4))
    moved, _ = forgetting.step(info, x, residual, np.ones(4), forgetting.gains(info, x))
    left = residual[:, 0] - moved[:, 0] @ x.T
    # What ridge regression with all features leaves: blocks are independent at the start.
    for k, prior in enumerate(PRIOR):
        want = np.linalg.solve(np.eye(4) + prior * x @ x.T, residual[k, 0])
        np.testing.assert_allclose(left[k], want, rtol=1e-8)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((1, 3), (1, 5)),
        ((1, 3), (3, 5)),
        ((3, 3), (5, 4)),
        ((1, 490), (1, 520)),
        ((3, 150), (3, 180)),
        ((1, 260), (3, 260)),
        ((3, 700), (4, 900)),
    ],
)
def test_wider_information_keeps_what_was_known(old, new):
    rng = np.random.default_rng(0)
    info = seen(rng, old[1], old[0], joint=old[0] > 1)
    wide = forgetting.widen(info, old, new, PRIOR)
    fresh = forgetting.start(new[1], new[0], PRIOR, joint=new[0] > 1)
    assert wide.shape == fresh.shape
    smallest = np.linalg.eigvalsh(wide.reshape(-1, *wide.shape[-2:])).min()
    assert smallest > 0.99 / PRIOR.max()
    # The first weights of the first output are in one matrix in every form, and keep what they had.
    if old[0] > 1 or new[0] == 1:
        corner = np.s_[0, :3, :3]
        had = info.reshape(2, -1, info.shape[-1])[:, :3, :3]
        np.testing.assert_array_equal(wide.reshape(2, -1, wide.shape[-1])[:, :3, :3][0], had[0])
        assert not np.array_equal(had[corner], fresh.reshape(2, -1, fresh.shape[-1])[corner])


def test_two_scores_say_what_one_said():
    rng = np.random.default_rng(0)
    info = seen(rng, 3)
    wide = forgetting.widen(info, (1, 3), (3, 3), PRIOR)
    v = rng.standard_normal(3)
    pair = np.concatenate([-v, v, 0 * v])
    for k, prior in enumerate(PRIOR):
        one = v @ (info[k, 0, 0] - np.eye(3) / prior) @ v
        two = pair @ (wide[k] - np.eye(9) / prior) @ pair
        # Scores -s/2 and s/2 differ by s where v makes them differ by 2s.
        assert two == pytest.approx(4.0 * one)


def test_a_matrix_that_rounding_made_singular_is_solved():
    matrix = np.array([[1e18, 1e18], [1e18, 1e18]])
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.solve(matrix, np.ones((2, 1)))
    assert np.isfinite(forgetting.solve(matrix, np.ones((2, 1)))).all()
