"""The models of a race: losses, scores and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from driftrate.errors import ConfigError
from driftrate.race.networks.network import Network, widths

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]  # float64 of a regression or of two classes, int64 of more
Task = Literal["regression", "binary", "classes"]

MODELS = ("linear", "logistic", "softmax", "mlp")
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
    """A model that is linear in its weights, which are flat, so that one rule moves them all.

    Args:
        task: What is predicted.
        features: The number of columns, the bias column among them.
        outputs: The number of scores: the classes if there are more than two, else 1.

    Example:
        >>> model = Model("regression", features=2, outputs=1)
        >>> loss, gradient = model.gradients(np.zeros(2), np.eye(2), np.array([1.0, 3.0]))
        >>> float(loss), gradient.tolist()
        (2.5, [-0.5, -1.5])
    """

    task: Task
    features: int
    outputs: int

    @cached_property
    def size(self) -> int:
        """The number of weights."""
        return self.features * self.outputs

    def init(self) -> Floats:
        """Return the first weights: 0, which predict nothing."""
        return np.zeros(self.size)

    def scores(self, theta: Floats, x: Floats) -> Floats:
        """Return the scores of weights (..., size) on rows: (..., rows), or with classes last."""
        out: Floats = x @ theta.reshape(*theta.shape[:-1], self.features, self.outputs)
        return out if self.task == "classes" else out[..., 0]

    def gradients(self, theta: Floats, x: Floats, y: Labels) -> tuple[Floats, Floats]:
        """Return the mean loss (...) and its gradient (..., size) at weights (..., size)."""
        _, loss, gradient = self.parts(theta, x, y, parts=1)
        return loss, gradient[0]

    def parts(
        self, theta: Floats, x: Floats, y: Labels, parts: int
    ) -> tuple[Floats, Floats, Floats]:
        """Return the scores, the mean loss and the gradients (parts, ..., size) of equal parts."""
        scores = self.scores(theta, x)
        residual = _residuals(self.task, scores, y)
        loss = losses(self.task, scores, y).mean(axis=-1)
        left = x.reshape(parts, -1, x.shape[-1])
        right = residual.reshape(*residual.shape[:-2], parts, -1, residual.shape[-1])
        outer = np.swapaxes(left, -1, -2) @ right / left.shape[-2]
        flat = outer.reshape(*theta.shape[:-1], parts, -1)
        return scores, loss, np.moveaxis(flat, -2, 0)


def make_model(
    name: str, task: Task, features: int, classes: int, hidden: str | None = None
) -> Model | Network:
    """Return the model of a name for a task.

    Args:
        name: One of `MODELS`.
        task: What is predicted.
        features: The number of columns; that of a linear model's bias is among them.
        classes: The number of classes, 0 for a regression.
        hidden: The widths of a network's hidden layers, with commas between; 128,128 if none.

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
    if name == "mlp":
        return Network(task, features, outputs, widths(hidden))
    return Model(task, features, outputs)
