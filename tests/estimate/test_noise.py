"""Signal and noise from parts of a batch."""

from __future__ import annotations

from itertools import permutations
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from driftrate.errors import SignalError
from driftrate.estimate import from_parts, variance_from_parts, variance_from_samples

numbers = st.floats(-1e3, 1e3)
shapes = st.tuples(st.integers(2, 6), st.integers(1, 3), st.integers(1, 5))


@settings(max_examples=60, deadline=None)
@given(arrays(float, shapes, elements=numbers))
def test_from_parts_is_the_mean_over_all_pairs(parts):
    k = len(parts)
    got = from_parts(parts)
    pairs = [np.sum(parts[i] * parts[j], axis=-1) for i, j in permutations(range(k), 2)]
    apart = [np.sum((parts[i] - parts[j]) ** 2, axis=-1) for i, j in permutations(range(k), 2)]
    scale = 1e-12 * np.abs(parts).max() ** 2 * parts.shape[-1] + 1e-300
    np.testing.assert_allclose(got.cross, np.mean(pairs, axis=0), rtol=1e-9, atol=scale)
    # Σ_i ‖g_i - ḡ‖² is Σ_{i≠j} ‖g_i - g_j‖²/(2k).
    want = np.sum(apart, axis=0) / (2 * k) / (k * (k - 1))
    np.testing.assert_allclose(got.spread, want, rtol=1e-9, atol=scale)
    np.testing.assert_allclose(got.grad_sq, got.cross + got.spread, rtol=1e-9, atol=scale)
    assert got.parts == k
    assert got.cross.shape == parts.shape[1:-1]
    assert (got.spread >= 0.0).all()


@settings(max_examples=60, deadline=None)
@given(arrays(float, (2, 4), elements=numbers))
def test_two_halves_have_a_quarter_of_their_squared_distance(halves):
    want = np.sum((halves[0] - halves[1]) ** 2) / 4.0
    assert from_parts(halves).spread == pytest.approx(want, rel=1e-9, abs=1e-300)


def test_the_spread_survives_parts_that_almost_agree():
    # The difference of the squares, 4e16 each, would be right to no digit at all.
    got = from_parts(np.array([[1e8 + 1.0, 1e8], [1e8 - 1.0, 1e8]]))
    assert got.spread == 1.0


@pytest.mark.parametrize("k", [2, 5])
def test_cross_and_spread_are_unbiased(k):
    rng = np.random.default_rng(k)
    gradient, scale, draws = np.array([0.3, -0.2, 0.0, 0.1]), np.array([1.0, 2.0, 0.5, 0.1]), 20_000
    parts = gradient + scale * rng.standard_normal((k, draws, 4))
    got = from_parts(parts)
    for values, want in [(got.cross, gradient @ gradient), (got.spread, scale @ scale / k)]:
        assert abs(values.mean() - want) < 4.0 * values.std() / sqrt(draws)
    # Without the correction the squared norm of the mean is far off.
    assert got.grad_sq.mean() > 5.0 * (gradient @ gradient)


def test_the_variance_of_a_sample_is_unbiased_from_samples_and_from_parts():
    """In linear regression it is (d + 1)‖δ‖² + σ² d, the paper's drift of the error."""
    rng = np.random.default_rng(7)
    draws, batch, dim, noise = 3_000, 12, 3, 0.5
    delta = np.array([1.0, -0.5, 0.25])
    x = rng.standard_normal((batch, draws, dim))
    residual = x @ delta - noise * rng.standard_normal((batch, draws))
    gradients = residual[..., None] * x
    want = (dim + 1) * delta @ delta + noise**2 * dim
    by_parts = {k: gradients.reshape(k, batch // k, draws, dim).mean(axis=1) for k in (2, 4)}
    for values in [
        variance_from_samples(gradients),
        variance_from_parts(by_parts[2], batch),
        variance_from_parts(by_parts[4], batch),
    ]:
        assert values.shape == (draws,)
        assert abs(values.mean() - want) < 4.0 * values.std() / sqrt(draws)


@settings(max_examples=60, deadline=None)
@given(arrays(float, st.tuples(st.integers(2, 6), st.integers(1, 4)), elements=numbers))
def test_parts_of_one_sample_each_are_the_samples(gradients):
    got = variance_from_parts(gradients, len(gradients))
    assert got == pytest.approx(variance_from_samples(gradients), rel=1e-9, abs=1e-300)
    want = gradients.var(axis=0, ddof=1).sum()
    assert got == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_torch_gives_the_same_numbers_and_half_precision_does_not_overflow():
    parts = np.random.default_rng(0).standard_normal((3, 2, 5))
    ours, theirs = from_parts(parts), from_parts(torch.asarray(parts))
    for name in ("cross", "spread", "grad_sq"):
        np.testing.assert_allclose(
            getattr(theirs, name).numpy(), getattr(ours, name), rtol=1e-12, atol=1e-15
        )
    for dtype in (torch.float16, torch.bfloat16):
        coarse = from_parts(torch.full((2, 4), 1024.0, dtype=dtype))
        assert coarse.cross.dtype == torch.float32
        assert float(coarse.cross) == 4 * 1024.0**2
    assert from_parts(torch.empty((2, 3), device="meta")).cross.shape == ()


@pytest.mark.parametrize("function", [from_parts, variance_from_samples])
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (np.ones((1, 3)), r"at least 2 .* shape \(1, 3\)"),
        (np.ones(3), r"shape \(3,\)"),
        (np.ones((2, 3), dtype=int), "int64"),
        ([[1.0], [2.0]], "got list: stack them first"),
    ],
)
def test_gradients_that_cannot_be_compared_are_refused(function, bad, says):
    with pytest.raises(SignalError, match=says):
        function(bad)


@pytest.mark.parametrize("batch_size", [1, 0, -4, float("nan")])
def test_a_batch_smaller_than_its_parts_is_refused(batch_size):
    with pytest.raises(SignalError, match="at least the number of parts, 2"):
        variance_from_parts(np.ones((2, 3)), batch_size)
