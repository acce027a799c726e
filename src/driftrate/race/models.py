"""The models of a race: losses, scores and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from driftrate.errors import ConfigError

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]  # float64 of a regression or of two classes, int64 of more
Task = Literal["regression", "binary", "classes"]

MODELS = ("linear", "logistic", "softmax", "mlp")
HIDDEN = 64
# The model that fits a task without being asked for.
NATURAL: dict[Task, str] = {"regression": "linear", "binary": "logistic", "classes": "softmax"}


def losses(task: Task, scores: Floats, y: Labels) -> Floats:
    """Return the loss of every row.

    (p - y)²/2 for a regression, log(1 + e^p) - y p for two classes, log Σ_j e^{p_j} - p_y for more.

    Args:
        task: What is predicted.
        scores: p, of shape (..., rows) or, for more than two classes, (..., rows, classes).
        y: The labels, of shape (rows,).

    Returns:
        An array of shape (..., rows).

    Example:
        >>> losses("binary", np.zeros(2), np.array([0.0, 1.0])).round(4).tolist()
        [0.6931, 0.6931]
    """
    if task == "regression":
        return 0.5 * (scores - y) ** 2
    if task == "binary":
        return np.logaddexp(0.0, scores) - y * scores
    top = scores.max(axis=-1)
    total = np.log(np.exp(scores - top[..., None]).sum(axis=-1))
    chosen: Floats = total + top - scores[..., np.arange(len(y)), y]
    return chosen


def errors(task: Task, scores: Floats, y: Labels) -> Floats:
    """Return the error of every row: squared for a regression, else whether the class is wrong.

    Example:
        >>> errors("binary", np.array([-1.0, 2.0]), np.array([0.0, 0.0])).tolist()
        [0.0, 1.0]
    """
    if task == "regression":
        return (scores - y) ** 2
    guess = scores > 0 if task == "binary" else scores.argmax(axis=-1)
    truth = y > 0.5 if task == "binary" else y
    return np.asarray(guess != truth, dtype=np.float64)


def _residuals(task: Task, scores: Floats, y: Labels) -> Floats:
    """Return the derivative of a row's loss by its scores, with an axis of outputs last."""
    if task == "regression":
        return (scores - y)[..., None]
    if task == "binary":
        return (0.5 * (1.0 + np.tanh(0.5 * scores)) - y)[..., None]
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    chances: Floats = shifted / shifted.sum(axis=-1, keepdims=True)
    chances[..., np.arange(len(y)), y] -= 1.0
    return chances


@dataclass(frozen=True)
class Model:
    """A model with flat weights, so that one rule moves them all.

    Args:
        task: What is predicted.
        features: The number of columns, the bias column among them.
        outputs: The number of scores: the classes if there are more than two, else 1.
        hidden: The width of the hidden layer, 0 for a model that is linear in its weights.

    Example:
        >>> model = Model("regression", features=2, outputs=1)
        >>> loss, gradient = model.gradients(np.zeros(2), np.eye(2), np.array([1.0, 3.0]))
        >>> float(loss), gradient.tolist()
        (2.5, [-0.5, -1.5])
    """

    task: Task
    features: int
    outputs: int
    hidden: int = 0

    @property
    def linear(self) -> bool:
        """Whether the scores are linear in the weights, and the loss therefore convex."""
        return self.hidden == 0

    @cached_property
    def size(self) -> int:
        """The number of weights."""
        if self.linear:
            return self.features * self.outputs
        return self.features * self.hidden + (self.hidden + 1) * self.outputs

    def init(self, seed: int) -> Floats:
        """Return the first weights: 0 for a linear model, else He's normal ones, last layer 0.

        With a last layer of 0 every model starts by predicting nothing.
        """
        theta = np.zeros(self.size)
        if not self.linear:
            rng = np.random.default_rng(seed)
            count = self.features * self.hidden
            theta[:count] = rng.standard_normal(count) * np.sqrt(2.0 / self.features)
        return theta

    def scores(self, theta: Floats, x: Floats) -> Floats:
        """Return the scores of weights (..., size) on rows: (..., rows), or with classes last."""
        out = self._forward(theta, x)[-1]
        return out if self.task == "classes" else out[..., 0]

    def gradients(self, theta: Floats, x: Floats, y: Labels) -> tuple[Floats, Floats]:
        """Return the mean loss (...) and its gradient (..., size) at weights (..., size)."""
        _, loss, gradient = self.parts(theta, x, y, parts=1)
        return loss, gradient[0]

    def parts(
        self, theta: Floats, x: Floats, y: Labels, parts: int
    ) -> tuple[Floats, Floats, Floats]:
        """Return the scores, the mean loss and the gradients (parts, ..., size) of equal parts."""
        *inner, out = self._forward(theta, x)
        scores = out if self.task == "classes" else out[..., 0]
        residual = _residuals(self.task, scores, y)
        loss = losses(self.task, scores, y).mean(axis=-1)
        lead = theta.shape[:-1]

        def product(left: Floats, right: Floats) -> Floats:
            """Return the mean over each part's rows of left ⊗ right, (parts, ..., flat)."""
            left = left.reshape(*left.shape[:-2], parts, -1, left.shape[-1])
            right = right.reshape(*right.shape[:-2], parts, -1, right.shape[-1])
            outer = np.swapaxes(left, -1, -2) @ right / left.shape[-2]
            return np.moveaxis(outer.reshape(*lead, parts, -1), -2, 0)

        if self.linear:
            return scores, loss, product(x, residual)
        hidden, second = inner
        back = (residual @ np.swapaxes(second[..., :-1, :], -1, -2)) * (hidden[..., :-1] > 0)
        both = product(x, back), product(hidden, residual)
        return scores, loss, np.concatenate(both, axis=-1)

    def _forward(self, theta: Floats, x: Floats) -> tuple[Floats, ...]:
        """Return what the backward pass needs, and the outputs (..., rows, outputs) last."""
        lead = theta.shape[:-1]
        if self.linear:
            return (x @ theta.reshape(*lead, self.features, self.outputs),)
        cut = self.features * self.hidden
        first = theta[..., :cut].reshape(*lead, self.features, self.hidden)
        second = theta[..., cut:].reshape(*lead, self.hidden + 1, self.outputs)
        hidden = np.maximum(x @ first, 0.0)
        hidden = np.concatenate([hidden, np.ones((*hidden.shape[:-1], 1))], axis=-1)
        return hidden, second, hidden @ second


def make_model(name: str, task: Task, features: int, classes: int) -> Model:
    """Return the model of a name for a task.

    Args:
        name: One of `MODELS`.
        task: What is predicted.
        features: The number of columns, the bias column among them.
        classes: The number of classes, 0 for a regression.

    Example:
        >>> make_model("softmax", "classes", features=5, classes=3).size
        15
    """
    if name not in MODELS:
        raise ConfigError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    if name not in ("mlp", NATURAL[task]):
        what = {"regression": "numbers", "binary": "two classes", "classes": f"{classes} classes"}
        fits = f"a target of {what[task]}: use {NATURAL[task]} or mlp"
        raise ConfigError(f"model {name!r} does not fit {fits}")
    outputs = classes if task == "classes" else 1
    return Model(task, features, outputs, HIDDEN if name == "mlp" else 0)
