"""Losses of linear scores and their derivatives, for several models at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

Floats = NDArray[np.float64]
# (scores (n, models, outputs), target, epsilon) -> (losses (n, models), derivatives in scores)
Loss = Callable[[Floats, NDArray[Any], float], tuple[Floats, Floats]]


class Batch:
    """The derivatives of one batch's losses by the scores, and its features."""

    def __init__(self, x: Any, derivatives: Floats, features: int) -> None:
        self.rows = len(derivatives)
        self._x, self._derivatives, self._features = x, derivatives, features

    def gradient(self, start: int, stop: int, out: Floats) -> None:
        """Write the sum over some rows of each model's gradient, intercept last."""
        x, slopes = self._x, self._derivatives
        if stop - start < self.rows:
            x, slopes = x[start:stop], slopes[start:stop]
        per_output = out.reshape(slopes.shape[1], -1)
        # A sparse product wants the sparse matrix first.
        if issparse(x):
            per_output[:, : self._features] = (x.T @ slopes).T
        else:
            np.matmul(slopes.T, x, out=per_output[:, : self._features])
        if per_output.shape[1] > self._features:
            slopes.sum(axis=0, out=per_output[:, -1])


def squared_error(scores: Floats, target: NDArray[Any], epsilon: float) -> tuple[Floats, Floats]:
    """½(s - y)², for targets (n,)."""
    scores -= target[:, None, None]
    flat = scores[:, :, 0]
    return 0.5 * flat * flat, scores


def huber(scores: Floats, target: NDArray[Any], epsilon: float) -> tuple[Floats, Floats]:
    """½r² where |r| <= ε, else ε(|r| - ½ε), for r = s - y."""
    scores -= target[:, None, None]
    near = np.minimum(np.maximum(scores, -epsilon), epsilon)
    return (near * (scores - 0.5 * near))[:, :, 0], near


def logistic(scores: Floats, target: NDArray[Any], epsilon: float) -> tuple[Floats, Floats]:
    """-log p_y = log(1 + exp(-ys)), for targets ±1 of shape (n, 1)."""
    signs = target[:, None, :]
    losses = np.logaddexp(0.0, -signs * scores)
    # The derivative by the margin is -σ(-ys) = exp(-loss) - 1.
    np.expm1(-losses, out=scores)
    scores *= signs
    return losses[:, :, 0], scores


def softmax(scores: Floats, target: NDArray[Any], epsilon: float) -> tuple[Floats, Floats]:
    """-log p_y = log Σ_c exp(s_c) - s_y, for targets (n,), the places of classes."""
    rows = np.arange(len(target))
    scores -= scores.max(axis=2, keepdims=True)
    right = scores[rows, :, target]
    np.exp(scores, out=scores)
    total = scores.sum(axis=2)
    scores /= total[:, :, None]
    scores[rows, :, target] -= 1.0
    return np.log(total) - right, scores


def log_loss(scores: Floats, target: NDArray[Any], epsilon: float) -> tuple[Floats, Floats]:
    """The logistic loss of one score for two classes, softmax of one score for each class."""
    return (logistic if scores.shape[2] == 1 else softmax)(scores, target, epsilon)


def hinge(scores: Floats, target: NDArray[Any], epsilon: float) -> tuple[Floats, Floats]:
    """Σ_c max(0, 1 - y_c s_c), each class against the rest, for targets ±1 (n, outputs)."""
    signs = target[:, None, :]
    short = np.maximum(1.0 - signs * scores, 0.0)
    np.multiply(short > 0.0, -signs, out=scores)
    return short.sum(axis=2), scores
