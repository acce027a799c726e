"""The smoothness L of the loss: from secants, and in closed form for linear and logistic models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from driftrate.errors import SignalError
from driftrate.estimate._tracker import Tracker
from driftrate.schedules import _checks
from driftrate.schedules.base import Array, State, counted

# A difference within this many rounding errors of the numbers it was taken from says nothing.
_ROUNDINGS = 100.0


def secant(weights: Array, gradient: Array, old_weights: Array, old_gradient: Array) -> Array:
    r"""Measure the slope of the gradient between two points, ‖g - g'‖ / ‖θ - θ'‖.

    Both gradients must be of the *same batch*: then the secant is at most L if the batch loss is
    L-smooth. Between two batches the noises differ, however near θ' is to θ, and the quotient
    measures the noise. So a secant costs one gradient more: that of the last step's batch, at the
    weights after the step.

    Args:
        weights: θ, array (..., d).
        gradient: The batch gradient at θ, of the same shape.
        old_weights: θ', where the step began.
        old_gradient: The gradient of the same batch at θ'.

    Returns:
        The secant, of the shape before the last axis; 0, which `RunningSmoothness` skips, where
        one of the two differences is lost in rounding.

    Example:
        >>> import numpy as np
        >>> curvature = np.array([4.0, 1.0])
        >>> new, old = np.array([1.0, 0.0]), np.array([0.0, 0.0])
        >>> print(secant(new, curvature * new, old, curvature * old))
        4.0

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), assumption (ii) of Theorem 4.2 and the note
        after it that L may be estimated from samples.
    """
    xp = array_namespace(weights, gradient, old_weights, old_gradient)
    norm = xp.linalg.vector_norm
    moved, changed = norm(weights - old_weights, axis=-1), norm(gradient - old_gradient, axis=-1)
    rounding = _ROUNDINGS * float(xp.finfo(moved.dtype).eps)
    # With <=, NaN is not taken for rounding and comes out as NaN.
    lost = moved <= rounding * norm(weights, axis=-1)
    lost = lost | (changed <= rounding * norm(gradient, axis=-1))
    return xp.where(lost, xp.zeros_like(moved), changed / xp.where(lost, 1.0, moved))


@dataclass(frozen=True)
class RunningSmoothness(Tracker):
    r"""A robust running maximum of secants: an estimate of L that one outlier cannot spoil.

    Every secant is a lower bound on the L of its batch, and only the largest ones are near it, so
    a maximum is needed; but a maximum keeps the worst outlier for ever. Each secant therefore
    enters as the median of the last three,

        L̂_t = max(ρ L̂_{t-1}, median(s_t, s_{t-1}, s_{t-2})),

    so that a rise counts once two of three secants show it, without any threshold for outliers,
    and the past fades by ρ per step, so that L̂ follows a loss that becomes flatter. Before there
    are three secants the estimate is the first, then the smaller of two. Secants of 0 (nothing
    was measured) are skipped. Scaling the loss scales L̂.

    Reads a number, `secant(...)`, and not a `Signal`: L is a constant of a schedule, not a field.

    Args:
        memory: ρ in (0, 1]; 0.999 forgets half in 700 steps, 1 never forgets.

    Example:
        >>> rule = RunningSmoothness()
        >>> state = rule.init()
        >>> for value in [2.0, 3.0, 1000.0, 2.5]:
        ...     smoothness, state = rule.update(state, value)
        >>> smoothness
        3.0

    Reference:
        Tukey (1977), "Exploratory Data Analysis", for the running median of three.
    """

    memory: float = 0.999

    reads: ClassVar[str] = "secant"

    def __post_init__(self) -> None:
        _checks.number(self, "memory", low=0.0, high=1.0, open_low=True)

    def _start(self) -> State:
        return {"estimate": 0.0, "last": 0.0, "older": 0.0, "count": 0}

    def _step(self, xp: Any, state: State, signal: Array) -> tuple[Array, State]:
        last, older, count = state["last"], state["older"], state["count"]
        low, high = xp.minimum(last, older), xp.maximum(last, older)
        median = xp.maximum(low, xp.minimum(high, signal))
        early = xp.where(count == 0, signal, xp.minimum(last, signal))
        candidate = xp.where(count < 2, early, median)
        faded = xp.where(count < 3, 0.0 * median, self.memory * state["estimate"])
        measured = signal > 0.0
        estimate = xp.where(measured, xp.maximum(faded, candidate), state["estimate"])
        return estimate, {
            "estimate": estimate,
            "last": xp.where(measured, signal, last),
            "older": xp.where(measured, last, older),
            "count": xp.where(measured, counted(count, xp), count),
        }


def linear_smoothness(features: Array, iterations: int = 200) -> Array:
    r"""Compute L of linear regression: the largest eigenvalue of XᵀX/n.

    The loss is the mean of (⟨x, θ⟩ - y)²/2, its Hessian XᵀX/n. Power iteration from a fixed
    start, v ← Xᵀ(Xv)/n, takes two products with X per iteration and no d × d matrix. The value is
    the Rayleigh quotient ‖Xv‖²/n of the unit vector v, so it never exceeds L. After k iterations
    it is at least about 1 - log(d)/k of L whatever the gap between eigenvalues, and much closer
    where there is one.

    Args:
        features: X, array (..., n, d); include the column of ones if the model has an intercept.
        iterations: How many, 1 or more.

    Returns:
        L, of the shape before the last two axes.

    Example:
        >>> import numpy as np
        >>> print(linear_smoothness(np.array([[2.0, 0.0], [0.0, 1.0]])))
        2.0

    Reference:
        Kuczyński and Woźniakowski (1992), "Estimating the largest eigenvalue by the power and
        Lanczos algorithms with a random start", SIAM J. Matrix Anal. Appl. 13(4).
    """
    if not is_array_api_obj(features) or features.ndim < 2 or 0 in features.shape:
        raise SignalError(
            "linear_smoothness: features must be an array (samples, coordinates), not empty, got"
            f" {getattr(features, 'shape', features)!r}"
        )
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise SignalError(
            f"linear_smoothness: iterations must be an integer >= 1, got {iterations!r}"
        )
    xp = array_namespace(features)
    if not xp.isdtype(features.dtype, "real floating"):
        raise SignalError(f"linear_smoothness: features must be real floats, got {features.dtype}")
    count, dim = features.shape[-2:]
    # A fixed normal vector: the answer is reproducible, and no structure of X is orthogonal to it.
    start = np.random.default_rng(0).standard_normal((dim, 1))
    v = xp.asarray(start, dtype=features.dtype, device=device(features))
    transposed = xp.matrix_transpose(features)
    for _ in range(iterations):
        v = xp.matmul(transposed, xp.matmul(features, _unit(xp, v)))
    image = xp.matmul(features, _unit(xp, v))
    return xp.sum(image * image, axis=(-2, -1)) / count


def logistic_smoothness(features: Array, iterations: int = 200) -> Array:
    r"""Compute L of logistic regression: a quarter of the largest eigenvalue of XᵀX/n.

    The Hessian is Σ p(1 - p) xxᵀ/n with p(1 - p) <= 1/4, so this bounds the curvature
    everywhere, and at θ = 0 it is the curvature.

    Args:
        features: X, array (..., n, d); include the column of ones if the model has an intercept.
        iterations: How many iterations `linear_smoothness` takes, 1 or more.

    Returns:
        L, of the shape before the last two axes.

    Example:
        >>> import numpy as np
        >>> print(logistic_smoothness(np.array([[2.0, 0.0], [0.0, 1.0]])))
        0.5

    Reference:
        Böhning (1992), "Multinomial logistic regression algorithm", for the bound 1/4.
    """
    return linear_smoothness(features, iterations) / 4.0


def _unit(xp: Any, v: Array) -> Array:
    """Return the column scaled to length 1; a zero column stays 0."""
    # Divide by the largest entry first: squares of tiny or huge ones would leave the range.
    largest = xp.max(xp.abs(v), axis=-2, keepdims=True)
    v = v / xp.where(largest > 0.0, largest, 1.0)
    length = xp.linalg.vector_norm(v, axis=-2, keepdims=True)
    return v / xp.where(length > 0.0, length, 1.0)
