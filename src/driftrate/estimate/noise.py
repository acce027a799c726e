"""The noise of a gradient, from gradients of parts of the batch."""

from __future__ import annotations

from numbers import Real
from typing import Any

from array_api_compat import array_namespace, is_array_api_obj

from driftrate.errors import SignalError
from driftrate.schedules.base import Array, Signal


def from_parts(gradients: Array) -> Signal:
    r"""Measure signal and noise from the gradients of independent parts of one batch.

    Let g_1, ..., g_k be the mean gradients of k parts of equal size, ḡ their mean. Independent
    noises have an inner product of mean 0, so with ∇ = E g_i

        cross  = Σ_{i≠j} ⟨g_i, g_j⟩ / (k (k - 1)),   E cross  = ‖∇‖²,
        spread = Σ_i ‖g_i - ḡ‖² / (k (k - 1)),       E spread = E‖ḡ - ∇‖²,

    and cross = ‖ḡ‖² - spread, which costs O(k d) and no k × k products; for two halves the
    spread is ‖g_1 - g_2‖²/4. The spread is a sum of squared differences: as a difference of
    squares it would be lost in rounding where the parts agree.

    All three numbers add up over blocks of coordinates: for the tensors of a network, sum them.

    Args:
        gradients: Array (k, ..., d) of any library, k >= 2 parts first and coordinates last; axes
            between are kept (seeds). Half precision is widened to float32 before squaring.

    Returns:
        A `Signal` with `parts`, `cross`, `spread` and `grad_sq` (the squared norm of ḡ); add the
        rest with `_replace(batch_size=...)`.

    Example:
        >>> import numpy as np
        >>> signal = from_parts(np.array([[3.0, 1.0], [1.0, 1.0]]))
        >>> print(signal.cross, signal.spread, signal.grad_sq)
        4.0 1.0 5.0

    Reference:
        McCandlish, Kaplan, Amodei et al. (2018), "An empirical model of large-batch training",
        arXiv:1812.06162, appendix A.1.
    """
    xp, parts = _checked("from_parts", "parts", gradients)
    count = parts.shape[0]
    mean = xp.mean(parts, axis=0)
    grad_sq = xp.sum(mean * mean, axis=-1)
    spread = _deviations(xp, parts, mean) / (count * (count - 1.0))
    return Signal(grad_sq=grad_sq, parts=count, cross=grad_sq - spread, spread=spread)


def variance_from_samples(gradients: Array) -> Array:
    r"""Measure the variance of one sample's gradient from per-sample gradients.

    σ² = Σ_i ‖g_i - ḡ‖² / (n - 1), unbiased for E‖∇ℓ(θ, z) - E∇ℓ(θ, z)‖². Its root is the
    `noise_std` of `ConvexRate` and `NonconvexRate`; the noise of a batch of B is σ²/B.

    Args:
        gradients: Array (n, ..., d), n >= 2 independent samples first and coordinates last.

    Returns:
        σ², of the shape between the first and the last axis.

    Example:
        >>> import numpy as np
        >>> print(variance_from_samples(np.array([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]])))
        1.0

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), assumption (i) of Theorem 4.2.
    """
    xp, samples = _checked("variance_from_samples", "samples", gradients)
    return _deviations(xp, samples, xp.mean(samples, axis=0)) / (samples.shape[0] - 1.0)


def variance_from_parts(gradients: Array, batch_size: Array) -> Array:
    r"""Measure the variance of one sample's gradient from the gradients of parts of a batch.

    The mean of B samples has the noise σ²/B, which the parts' `spread` measures: σ² = B · spread,
    unbiased. Two halves suffice; more parts have less sampling error.

    Args:
        gradients: Array (k, ..., d), the mean gradients of k >= 2 parts of equal size.
        batch_size: B, the number of samples in all parts together.

    Returns:
        σ², of the shape between the first and the last axis.

    Example:
        >>> import numpy as np
        >>> print(variance_from_parts(np.array([[3.0, 1.0], [1.0, 1.0]]), batch_size=64))
        64.0
    """
    signal = from_parts(gradients)
    if isinstance(batch_size, Real) and not float(batch_size) >= signal.parts:
        want = f"batch_size must be at least the number of parts, {signal.parts}"
        raise SignalError(f"variance_from_parts: {want}, got {batch_size!r}")
    return signal.spread * batch_size


def _checked(function: str, first: str, gradients: Array) -> tuple[Any, Array]:
    """Return the library and the gradients in at least single precision."""
    if not is_array_api_obj(gradients):
        want, got = f"an array ({first}, ..., coordinates)", type(gradients).__name__
        raise SignalError(f"{function}: gradients must be {want}, got {got}: stack them first")
    xp = array_namespace(gradients)
    if gradients.ndim < 2 or gradients.shape[0] < 2:
        raise SignalError(
            f"{function}: gradients must have at least 2 {first} on the first axis and coordinates"
            f" on the last, got shape {tuple(gradients.shape)}"
        )
    if not xp.isdtype(gradients.dtype, "real floating"):
        raise SignalError(f"{function}: gradients must be real floats, got {gradients.dtype}")
    if xp.finfo(gradients.dtype).bits < 32:
        gradients = xp.astype(gradients, xp.float32)
    return xp, gradients


def _deviations(xp: Any, gradients: Array, mean: Array) -> Array:
    """Return Σ_i ‖g_i - ḡ‖²."""
    apart = gradients - mean
    return xp.sum(xp.sum(apart * apart, axis=-1), axis=0)
