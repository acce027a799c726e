"""A linear model that plain SGD moves: its losses, its steps, and what predicts meanwhile."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax

from driftrate.adapters._observe import Policy
from driftrate.adapters.sklearn import losses
from driftrate.adapters.sklearn.drivers import Pool
from driftrate.adapters.sklearn.losses import Floats, Loss
from driftrate.adapters.sklearn.single import Single


class Line(NamedTuple):
    """The weights of one moment: what predicts. It is replaced as one, never written to.

    Args:
        table: Weights (outputs, features), and intercepts in one more column where there are any.
        features: The number of features.
    """

    table: Floats
    features: int

    def linear(self) -> tuple[Floats, Floats]:
        """Return weights (outputs, features) and intercepts (outputs,)."""
        wide = self.table.shape[1] > self.features
        own = self.table[:, -1] if wide else np.zeros(len(self.table))
        return self.table[:, : self.features], own

    def scores(self, x: Any) -> Floats:
        """Return the scores (rows, outputs)."""
        weights, intercepts = self.linear()
        found: Floats = x @ weights.T + intercepts
        return found

    def means(self, x: Any) -> Floats:
        """Return forecasts of numbers (rows,)."""
        return self.scores(x)[:, 0]

    def chances(self, x: Any) -> Floats:
        """Return the chances of classes (rows, classes)."""
        return self._chances(x, expit, softmax)

    def log_chances(self, x: Any) -> Floats:
        """Return logarithms of the chances (rows, classes)."""
        return self._chances(x, log_expit, log_softmax)

    def _chances(self, x: Any, of_two: Any, of_many: Any) -> Floats:
        scores = self.scores(x)
        if scores.shape[1] == 1:
            return np.hstack([of_two(-scores), of_two(scores)])
        found: Floats = of_many(scores, axis=1)
        return found


class Descent:
    """A linear model whose weights a driver moves along the gradient of a loss.

    Args:
        driver: What moves the weights, all 0 at first.
        loss: The loss of scores.
        outputs: How many scores a row has.
        features: The number of features; an intercept follows where there is room for one.
        epsilon: That of Huber's loss.
    """

    def __init__(
        self, driver: Pool | Single, loss: Loss, outputs: int, features: int, epsilon: float
    ) -> None:
        self.driver, self.steps = driver, 0
        self._loss, self._outputs, self._features = loss, outputs, features
        self._epsilon = epsilon

    @property
    def now(self) -> Line:
        """What predicts: the weights of the moment."""
        return Line(self.driver.points[0].copy().reshape(self._outputs, -1), self._features)

    @property
    def record(self) -> dict[str, float]:
        """The last step in numbers."""
        return self.driver.record

    def check_steps(self, steps: int) -> None:
        """Refuse several steps in one call where each has to be told something."""
        if isinstance(self.driver, Single):
            self.driver.check_steps(steps)

    def tell(self, **fields: float) -> None:
        """Say what the next step cannot measure."""
        self.driver.tell(**fields)

    def notify_shift(self, policy: Policy, decay: float) -> None:
        """Let what was learned about rates go, in part or in whole."""
        self.driver.notify_shift(policy, decay)

    def learn(self, x: Any, y: NDArray[Any], weights: Floats | None = None) -> None:
        """Take a step on rows, dense or sparse.

        Args:
            x: Features (rows, features).
            y: Numbers, or places of classes (rows,).
            weights: What each row's loss is multiplied with (rows,).
        """
        points, features, rows = self.driver.points, self._features, x.shape[0]
        table = points.reshape(len(points) * self._outputs, -1)
        scores = x @ table[:, :features].T
        if table.shape[1] > features:
            scores += table[:, -1]
        scores = scores.reshape(rows, len(points), self._outputs)
        share = np.full(rows, 1.0 / rows) if weights is None else weights / rows
        # What overflows is refused or restarted by the driver.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            each, slopes = self._loss(scores, self._coded(y), self._epsilon)
            slopes = slopes.reshape(rows, -1)
            slopes *= share[:, None]
            self.driver.step(share @ each, losses.Batch(x, slopes, features))
        self.steps += 1

    def _coded(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return what the loss wants: numbers, places, or ±1 of shape (rows, outputs)."""
        if self._loss in (losses.squared_error, losses.huber):
            return y
        if self._outputs == 1:
            return (2.0 * y - 1.0)[:, None]
        if self._loss is losses.hinge:
            return np.where(y[:, None] == np.arange(self._outputs), 1.0, -1.0)
        return y
