"""Models of River whose memory follows the shift: the pool, row by row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import pairwise
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from river import base

from driftrate.adapters import _history
from driftrate.adapters._observe import Policy, policies
from driftrate.adapters._pool import LEAVE_OUT, ShiftedPool, check_present, is_missing
from driftrate.adapters.river import frames
from driftrate.errors import ConfigError, SignalError

Floats = NDArray[np.float64]


class _Shift:
    """What both models share: the pool, and the place of each feature in it."""

    def __init__(self, fit_intercept: bool, batch_size: int) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size must be an integer >= 1, got {batch_size!r}")
        self.fit_intercept, self.batch_size = fit_intercept, batch_size
        self._places: dict[Hashable, int] = {}
        self._pool: ShiftedPool | None = None

    @property
    def memory(self) -> float:
        """How many past rows the model believes in now."""
        return 0.0 if self._pool is None else self._pool.now.memory()

    def plot_memory(self, ax: Any = None) -> Any:
        """Draw how many past rows the model believed in, over time; return the axes.

        Args:
            ax: Axes of matplotlib; new ones if None.
        """
        history = _history.History() if self._pool is None else self._pool.history
        return _history.plot_memory(history, ax)

    def notify_shift(self, policy: Policy = "reset", *, decay: float = 0.5) -> None:
        """Say that the data have shifted: how sure the model was goes, what it predicts stays.

        Args:
            policy: "keep": nothing; "reset": members are as unsure of their weights as at the
                start; "decay": in part.
            decay: What is left of the past then, in [0, 1].
        """
        policies(policy, None, decay)
        if self._pool is not None:
            self._pool.notify_shift(policy, decay)

    def _unit_test_skips(self) -> set[str]:
        # A step on several rows is not several steps.
        return {"check_learn_many_matches_learn_one"}

    def _learn(self, names: list[Hashable], x: Floats, y: NDArray[Any], classes: int) -> None:
        """Learn rows in steps of `batch_size` at most; `classes`: how many, 0 for numbers."""
        for name in names:
            self._places.setdefault(name, len(self._places))
        width = len(self._places)
        if self._pool is None:
            # There is room for a second class before it comes.
            self._pool = ShiftedPool(
                width, max(classes, 2) if classes else None, self.fit_intercept
            )
        elif width > self._pool.width or classes > self._pool.classes:
            self._pool.widen(width, classes if classes > self._pool.classes else None)
        table = self._table(names, x)
        pieces = -(-len(y) // self.batch_size)
        edges = [len(y) * piece // pieces for piece in range(pieces + 1)] if pieces else []
        for start, stop in pairwise(edges):
            self._pool.learn(table[start:stop], y[start:stop])

    def _table(self, names: list[Hashable], x: Floats) -> Floats:
        """Return rows with every feature in its place; 0 where it is not there."""
        found = [self._places.get(name, -1) for name in names]
        if found == list(range(len(self._places))):
            return x
        table = np.zeros((len(x), len(self._places)))
        for place, column in zip(found, x.T, strict=True):
            if place >= 0:
                table[:, place] = column
        return table


def _row(x: Mapping[Hashable, Any]) -> tuple[list[Hashable], Floats]:
    """Return the names and numbers of one row."""
    try:
        values = [np.nan if value is None else float(value) for value in x.values()]
    except (TypeError, ValueError) as error:
        raise SignalError(f"features must be numbers: {error}") from error
    return list(x), _finite(np.array([values]))


def _columns(frame: Any) -> tuple[list[Hashable], Floats]:
    """Return the names and numbers of a data frame."""
    names, rows = frames.columns(frame)
    return names, _finite(rows)


def _rows(frame: Any, y: Any) -> tuple[list[Hashable], Floats, list[Any]]:
    """Return the names and numbers of a data frame, and what comes with each row."""
    names, rows = _columns(frame)
    targets = frames.values(y)
    if len(targets) != len(rows):
        raise SignalError(f"X has {len(rows)} rows and y has {len(targets)}: one target a row")
    return names, rows, targets


def _finite(rows: Floats) -> Floats:
    if np.isinf(rows).any():
        raise SignalError("features must be finite numbers, or NaN where missing; got infinity")
    return rows


class ShiftRegressor(_Shift, base.MiniBatchRegressor):
    """Linear regression on a stream that shifts: nothing to choose, nothing to scale.

    A pool of memories (`driftrate.learners.hedged_filter.HedgedFilter`): filters that forget at
    different paces, and SGD copies, learn from each row, and their forecasts are mixed by how well
    they foretold. Features are standardised inside by the rows so far; when their scale moves,
    weights and information move with it. After a sudden change of units a new pool takes over as
    soon as it forecasts much better.

    A feature that a row lacks is 0, as in River's linear models; None and NaN are missing, and
    count as the feature's mean so far. New features may come at any time. A target or label that is
    missing is an error, and nothing of its call is learned.

    Args:
        fit_intercept: Whether there is an intercept.
        batch_size: The most rows in one step of `learn_many`.

    Example:
        >>> import random
        >>> from driftrate.river import ShiftRegressor
        >>> rng, model = random.Random(0), ShiftRegressor()
        >>> for step in range(600):
        ...     x = {"a": rng.gauss(0, 1), "b": rng.gauss(50, 9)}
        ...     y = (3.0 if step < 300 else -3.0) * x["a"] + x["b"] + rng.gauss(0, 0.1)
        ...     model.learn_one(x, y)
        >>> round(model.predict_one({"a": 1.0, "b": 50.0}))
        47
    """

    def __init__(self, fit_intercept: bool = True, batch_size: int = 16) -> None:
        super().__init__(fit_intercept, batch_size)

    def learn_one(self, x: Mapping[Hashable, Any], y: float) -> None:
        """Learn from one row."""
        names, row = _row(x)
        self._learn(names, row, np.array([_number(y)]), 0)

    def predict_one(self, x: Mapping[Hashable, Any]) -> float:
        """Predict the target of one row; 0 before anything was learned."""
        return float(self._means(*_row(x))[0])

    def predict_interval_one(
        self, x: Mapping[Hashable, Any], coverage: float = 0.9
    ) -> tuple[float, float]:
        """Return the limits between which the target of one row will lie.

        Args:
            x: The row.
            coverage: The part of the targets that shall lie inside, in (0, 1).
        """
        names, row = _row(x)
        if self._pool is None:
            return -np.inf, np.inf
        low, high = self._pool.now.interval(self._table(names, row), coverage)[0]
        return float(low), float(high)

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn from a data frame and a column of targets, in the order of the rows."""
        names, rows, targets = _rows(X, y)
        self._learn(names, rows, np.array([_number(target) for target in targets]), 0)

    def predict_many(self, X: Any) -> Any:
        """Predict the targets of a data frame's rows, as a column of its library."""
        return frames.column(self._means(*_columns(X)), X)

    def _means(self, names: list[Hashable], rows: Floats) -> Floats:
        if self._pool is None:
            return np.zeros(len(rows))
        return self._pool.now.means(self._table(names, rows))


def _number(y: Any) -> float:
    try:
        number = nan if is_missing(y) else float(y)
    except (TypeError, ValueError):
        number = nan
    if not isfinite(number):
        raise SignalError(f"targets must be finite numbers, got {y!r}; {LEAVE_OUT}")
    return number


class ShiftClassifier(_Shift, base.MiniBatchClassifier):
    """Linear classification on a stream that shifts: nothing to choose, nothing to scale.

    The chances of logistic models (two classes) or softmax models (more) with different memories,
    mixed by how well they foretold. New classes may come at any time. What `ShiftRegressor` says of
    features and arguments holds here too.

    Args:
        fit_intercept: Whether there is an intercept.
        batch_size: The most rows in one step of `learn_many`.

    Example:
        >>> import random
        >>> from driftrate.river import ShiftClassifier
        >>> rng, model = random.Random(0), ShiftClassifier()
        >>> for step in range(600):
        ...     x = {"a": rng.gauss(0, 1), "b": rng.gauss(50, 9)}
        ...     model.learn_one(x, "up" if x["a"] > 0 else "down")
        >>> model.predict_one({"a": 1.0, "b": 50.0}), model.predict_one({"a": -1.0, "b": 50.0})
        ('up', 'down')
    """

    def __init__(self, fit_intercept: bool = True, batch_size: int = 16) -> None:
        super().__init__(fit_intercept, batch_size)
        self._labels: dict[Hashable, int] = {}

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Mapping[Hashable, Any], y: Hashable) -> None:
        """Learn from one row and its label."""
        names, row = _row(x)
        self._learn(names, row, self._places_of([y]), len(self._labels))

    def predict_proba_one(self, x: Mapping[Hashable, Any], **kwargs: Any) -> dict[Any, float]:
        """Predict the chance of each label seen so far."""
        found = self._chances(*_row(x))
        return {label: float(found[0, place]) for label, place in self._labels.items()}

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn from a data frame and a column of labels, in the order of the rows."""
        names, rows, labels = _rows(X, y)
        self._learn(names, rows, self._places_of(labels), len(self._labels))

    def predict_proba_many(self, X: Any) -> Any:
        """Predict the chance of each label for a data frame's rows, as one of its library."""
        found = self._chances(*_columns(X))
        return frames.frame({label: found[:, k] for label, k in self._labels.items()}, X)

    def predict_many(self, X: Any) -> Any:
        """Predict the labels of a data frame's rows, as a column of its library."""
        chances, labels = self._chances(*_columns(X)), list(self._labels)
        if not labels:
            return frames.column([None] * len(chances), X)
        places = chances.argmax(axis=1)
        return frames.column([labels[place] for place in places], X)

    def _places_of(self, labels: list[Hashable]) -> NDArray[np.int64]:
        """Return the places of labels, the next ones for those that are new."""
        check_present(labels)
        places = [self._labels.setdefault(label, len(self._labels)) for label in labels]
        return np.array(places, dtype=np.int64)

    def _chances(self, names: list[Hashable], rows: Floats) -> Floats:
        if self._pool is None:
            return np.zeros((len(rows), 0))
        found = self._pool.now.chances(self._table(names, rows))[:, : len(self._labels)]
        among: Floats = found / found.sum(axis=1, keepdims=True)
        return among
