"""scikit-learn: fast linear models for streams, whose rate follows the shift."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, nan
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from driftrate.adapters._observe import KEYS, STATE_VERSION, Policy, check_version, policies
from driftrate.adapters.sklearn import drivers, losses
from driftrate.adapters.sklearn.losses import Floats
from driftrate.adapters.sklearn.single import Mode, Single
from driftrate.errors import ConfigError
from driftrate.learners import HedgedSGD
from driftrate.schedules.base import Schedule

__all__ = ["ShiftSGDClassifier", "ShiftSGDRegressor"]
_FEATURES = {"accept_sparse": "csr", "dtype": np.float64}


class _ShiftSGD(BaseEstimator):  # type: ignore[misc]
    """What regressor and classifier share: the weights, the batches and the steps."""

    _losses: dict[str, losses.Loss]
    _shown: Floats  # the weights that predict: replaced as one, never written to

    def __init__(
        self,
        loss: str,
        schedule: HedgedSGD | Schedule | None,
        mode: Mode,
        fit_intercept: bool,
        batch_size: int,
        max_iter: int,
        shuffle: bool,
        random_state: Any,
    ) -> None:
        self.loss, self.schedule, self.mode = loss, schedule, mode
        self.fit_intercept, self.batch_size = fit_intercept, batch_size
        self.max_iter, self.shuffle, self.random_state = max_iter, shuffle, random_state

    @property
    def intercept_(self) -> Floats:
        """Intercepts, one an output."""
        return self._split()[1]

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Start afresh and go through the data `max_iter` times.

        Args:
            X: Features (n, n_features), dense or sparse.
            y: Targets or labels (n,).
            sample_weight: Weights (n,) of the rows.

        Returns:
            The estimator.
        """
        X, y, weights = self._take(X, y, sample_weight, True)
        random, order = check_random_state(self.random_state), np.arange(X.shape[0])
        for _ in range(self.max_iter):
            if self.shuffle:
                random.shuffle(order)
                part = None if weights is None else weights[order]
                self._learn(X[order], y[order], part, self.max_iter)
            else:
                self._learn(X, y, weights, self.max_iter)
        self.n_iter_ = self.max_iter
        return self

    def tell(self, **fields: float) -> None:
        """Say what the next step cannot measure; it is for that step alone.

        Args:
            **fields: `shift` or `loss_shift`, as numbers; before or after the first batch.
        """
        known = hasattr(self, "_driver")
        probe = self._driver if known else drivers.driver(self.schedule, self.mode, np.zeros(1))
        probe.tell(**fields)
        # `fit` starts with a new driver.
        self._told = {**getattr(self, "_told", {}), **fields}

    def notify_shift(
        self, policy: Policy = "reset", *, moments: Policy | None = None, decay: float = 0.5
    ) -> None:
        """Say that the data have shifted: what was learned about rates goes, the weights stay.

        Args:
            policy: "keep": nothing; "reset": rates are learned afresh; "decay": for a pool the
                shares and octaves, for a schedule each number of its state goes the share
                1 - `decay` of its way back to where it started.
            moments: The same for the optimizer's moments; plain SGD has none, so any is right.
            decay: What is left of the past, in [0, 1].
        """
        policies(policy, moments, decay)
        check_is_fitted(self, "t_")
        self._driver.notify_shift(policy, decay)

    @property
    def record(self) -> dict[str, float]:
        """The last step in numbers, for any logger; what is unknown is NaN.

        `rate`: that of the step, of a pool the mean; `factor`: NaN, because no optimizer brings a
        rate; `signal` and `noise`: the measured squared gradient and its noise; `shift`: told or
        estimated.
        """
        known = self._driver.record if hasattr(self, "_driver") else {}
        return {name: known.get(name, nan) for name in KEYS}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_driftrate_version": STATE_VERSION}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        check_version(saved.get("_driftrate_version"), "estimator")
        super().__setstate__({k: v for k, v in saved.items() if k != "_driftrate_version"})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check(self) -> None:
        """Check the constants, once a stream."""
        if self.loss not in self._losses:
            raise ConfigError(f"loss must be one of {sorted(self._losses)}, got {self.loss!r}")
        for name in ("batch_size", "max_iter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ConfigError(f"{name} must be an integer >= 1, got {value!r}")

    def _begin(self, outputs: int) -> None:
        """Start from weights 0."""
        self._outputs = outputs
        width = self.n_features_in_ + bool(self.fit_intercept)
        self._driver = drivers.driver(self.schedule, self.mode, np.zeros(outputs * width))
        self.t_ = 0

    def _take(
        self, x: Any, y: Any, sample_weight: ArrayLike | None, first: bool, *known: NDArray[Any]
    ) -> tuple[Any, NDArray[Any], Floats | None]:
        """Check the arguments, begin where it is the first time; return rows, targets, weights."""
        if first:
            self._check()
        x, y = self._rows(x, y, first)
        weights: Floats | None = None
        if sample_weight is not None:
            weights = _check_sample_weight(
                sample_weight, x, dtype=np.float64, ensure_non_negative=True
            )
        return x, self._targets(y, first, *known), weights

    def _rows(self, x: Any, y: Any, reset: bool) -> tuple[Any, NDArray[Any]]:
        """Return checked features and targets."""
        plain = (
            not reset
            and type(x) is type(y) is np.ndarray
            and x.dtype == np.float64
            and x.ndim == 2
            and y.ndim == 1
            and 0 < len(x) == len(y)
            and x.shape[1] == self.n_features_in_
            and y.dtype.kind in "fiub"
            and not hasattr(self, "feature_names_in_")
        )
        # scikit-learn's checks cost more than a step; a finite sum of squares has finite terms.
        if plain and isfinite(np.vdot(x, x)) and isfinite(np.vdot(y, y)):
            return x, y
        numeric = isinstance(self, RegressorMixin)
        checked: tuple[Any, NDArray[Any]] = validate_data(
            self, x, y, reset=reset, order="C", y_numeric=numeric, **_FEATURES
        )
        return checked

    def _learn(self, x: Any, target: NDArray[Any], weights: Floats | None, passes: int = 1) -> None:
        """Take a step on each of the batches, in order; `passes`: how often, in this call."""
        rows = x.shape[0]
        # Of nearly equal size: a last batch of one row would be all noise.
        pieces = -(-rows // self.batch_size)
        if isinstance(self._driver, Single):
            self._driver.check_steps(pieces * passes)
        told = self.__dict__.pop("_told", None)
        if told:
            self._driver.tell(**told)
        # What overflows is refused or restarted by the driver.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if pieces == 1:
                self._step(x, target, weights)
            else:
                edges = [rows * piece // pieces for piece in range(pieces + 1)]
                for start, stop in pairwise(edges):
                    part = None if weights is None else weights[start:stop]
                    self._step(x[start:stop], target[start:stop], part)
        self._shown = self._driver.points[0].copy()

    def _step(self, x: Any, target: NDArray[Any], weights: Floats | None) -> None:
        points, features, rows = self._driver.points, self.n_features_in_, x.shape[0]
        table = points.reshape(len(points) * self._outputs, -1)
        scores = x @ table[:, :features].T
        if self.fit_intercept:
            scores += table[:, -1]
        scores = scores.reshape(rows, len(points), self._outputs)
        # Huber's alone has an ε.
        each, slopes = self._losses[self.loss](scores, target, getattr(self, "epsilon", 0.0))
        share = np.full(rows, 1.0 / rows) if weights is None else weights / rows
        slopes = slopes.reshape(rows, -1)
        slopes *= share[:, None]
        self._driver.step(share @ each, losses.Batch(x, slopes, features))
        self.t_ += 1

    def _split(self) -> tuple[Floats, Floats]:
        """Return coefficients (outputs, features) and intercepts (outputs,)."""
        # Read once: another thread may put the next weights in its place.
        table, features = self._shown.reshape(self._outputs, -1), self.n_features_in_
        own = table[:, -1] if table.shape[1] > features else np.zeros(self._outputs)
        return table[:, :features], own

    def _scores(self, x: Any) -> Floats:
        check_is_fitted(self, "_shown")
        x = validate_data(self, x, reset=False, **_FEATURES)
        coefficients, intercepts = self._split()
        scores: Floats = x @ coefficients.T + intercepts
        return scores


class ShiftSGDRegressor(RegressorMixin, _ShiftSGD):  # type: ignore[misc]
    r"""Linear regression on a stream, with a rate that follows the shift.

    Minimises the mean over the batch of ½r² ("squared_error") or of Huber's loss ("huber"), r =
    ⟨w, x⟩ + b - y, one step a batch. By default `HedgedSGD` drives it: ten copies of the model at
    rates that are an octave apart learn from the same batch, in one product of matrices, and their
    mixture is the model. No constant needs to be chosen, but features should be of similar size.

    Rows are samples in the order of time. `partial_fit` on more than `batch_size` rows takes
    several steps. A row's `sample_weight` multiplies its loss; the sum is divided by the number of
    rows. Constants are read at the first `partial_fit` and at each `fit`.

    One thread may predict while another calls `partial_fit`: each call of a predicting method uses
    the weights after one whole `partial_fit`. Two threads must not learn at once, and `fit`, which
    may change the number of features, needs the estimator to itself.

    Args:
        loss: "squared_error" or "huber".
        schedule: None for `HedgedSGD()`, a `HedgedSGD`, or any schedule of driftrate.
        mode: Where a schedule's `cross` and `spread` come from: "parts", two halves of the batch
            (a batch of one row has none, and is read as in "sequence"), or "sequence", this
            gradient and those before it.
        epsilon: Where Huber's loss turns linear, in the unit of y.
        fit_intercept: Whether there is an intercept.
        batch_size: The most rows in one step.
        max_iter: How many times `fit` goes through the data.
        shuffle: Whether `fit` does so in random order.
        random_state: The seed of that order.

    Attributes:
        coef_: Weights, of shape (n_features,).
        intercept_: The intercept, of shape (1,).
        n_features_in_: The number of features.
        n_iter_: How many times `fit` went through the data.
        t_: How many steps were taken.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).standard_normal((500, 3))
        >>> model = ShiftSGDRegressor(loss="huber", random_state=0).fit(x, x @ [1.0, -2.0, 0.5])
        >>> model.coef_.round(2).tolist()
        [1.0, -2.0, 0.5]

    Reference:
        `driftrate.learners.HedgedSGD`.
    """

    _losses = {"squared_error": losses.squared_error, "huber": losses.huber}  # noqa: RUF012

    def __init__(
        self,
        loss: str = "squared_error",
        *,
        schedule: HedgedSGD | Schedule | None = None,
        mode: Mode = "parts",
        epsilon: float = 1.35,
        fit_intercept: bool = True,
        batch_size: int = 64,
        max_iter: int = 20,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            loss, schedule, mode, fit_intercept, batch_size, max_iter, shuffle, random_state
        )
        self.epsilon = epsilon

    @property
    def coef_(self) -> Floats:
        """Weights, of shape (n_features,)."""
        weights: Floats = self._split()[0][0]
        return weights

    def partial_fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from the newest rows.

        Args:
            X: Features (n, n_features), dense or sparse.
            y: Targets (n,).
            sample_weight: Weights (n,) of the rows.

        Returns:
            The estimator.
        """
        first = not hasattr(self, "_driver")
        self._learn(*self._take(X, y, sample_weight, first))
        return self

    def predict(self, X: Any) -> Floats:
        """Predict targets (n,) from features (n, n_features), dense or sparse."""
        return self._scores(X)[:, 0]

    def _check(self) -> None:
        super()._check()
        epsilon = self.epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, Real) or not 0 < epsilon < np.inf:
            raise ConfigError(f"epsilon must be a finite number > 0, got {epsilon!r}")

    def _targets(self, y: NDArray[Any], first: bool) -> NDArray[Any]:
        if first:
            self._begin(1)
        return y


def _has_probabilities(self: ShiftSGDClassifier) -> bool:
    if self.loss != "log_loss":
        raise AttributeError(f"probabilities need loss='log_loss', not {self.loss!r}")
    return True


class ShiftSGDClassifier(ClassifierMixin, _ShiftSGD):  # type: ignore[misc]
    r"""Linear classification on a stream, with a rate that follows the shift.

    Minimises the mean over the batch of "log_loss" (logistic for two classes, softmax for more) or
    "hinge" (for more than two classes the sum over each class against the rest), one step a batch.
    What `ShiftSGDRegressor` says of streams, threads, arguments and attributes holds here too.

    Attributes:
        classes_: The classes, sorted.
        coef_: Weights, (1, n_features) for two classes, else (n_classes, n_features).
        intercept_: Intercepts, one a row of `coef_`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> model = ShiftSGDClassifier()
        >>> for _ in range(100):
        ...     x = rng.standard_normal((32, 2))
        ...     y = np.where(x[:, 0] > x[:, 1], "up", "down")
        ...     _ = model.partial_fit(x, y, classes=["down", "up"])
        >>> model.predict([[1.0, 0.0], [0.0, 1.0]]).tolist()
        ['up', 'down']
    """

    _losses = {"log_loss": losses.log_loss, "hinge": losses.hinge}  # noqa: RUF012

    def __init__(
        self,
        loss: str = "log_loss",
        *,
        schedule: HedgedSGD | Schedule | None = None,
        mode: Mode = "parts",
        fit_intercept: bool = True,
        batch_size: int = 64,
        max_iter: int = 20,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            loss, schedule, mode, fit_intercept, batch_size, max_iter, shuffle, random_state
        )

    @property
    def coef_(self) -> Floats:
        """Weights, (1, n_features) for two classes, else (n_classes, n_features)."""
        return self._split()[0]

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from the newest rows.

        Args:
            X: Features (n, n_features), dense or sparse.
            y: Labels (n,).
            classes: All classes that will come; needed at the first call.
            sample_weight: Weights (n,) of the rows.

        Returns:
            The estimator.
        """
        first = not hasattr(self, "_driver")
        if first and classes is None:
            raise ConfigError("classes must be passed on the first call to partial_fit.")
        known: NDArray[Any] = self.classes_ if classes is None else unique_labels(classes)
        if not first and not np.array_equal(known, self.classes_):
            raise ConfigError(
                f"classes={classes!r} is not what it was at the first call: {self.classes_}"
            )
        self._learn(*self._take(X, y, sample_weight, first, known))
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return scores (n, n_classes); for two classes (n,), positive for `classes_[1]`."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict labels (n,) from features (n, n_features), dense or sparse."""
        scores = self._scores(X)
        places = (scores[:, 0] > 0).astype(int) if self._outputs == 1 else scores.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[places]
        return labels

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Floats:
        """Predict probabilities (n, n_classes); for `loss="log_loss"`."""
        return self._probabilities(X, expit, softmax)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Floats:
        """Predict logarithms of probabilities (n, n_classes); for `loss="log_loss"`."""
        return self._probabilities(X, log_expit, log_softmax)

    def _probabilities(self, x: Any, of_two: Any, of_many: Any) -> Floats:
        scores = self._scores(x)
        if self._outputs == 1:
            return np.hstack([of_two(-scores), of_two(scores)])
        found: Floats = of_many(scores, axis=1)
        return found

    def _targets(
        self, y: NDArray[Any], first: bool, classes: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return what the loss wants: ±1 of shape (n, outputs), or places for softmax."""
        if classes is None:
            check_classification_targets(y)
            classes = np.unique(y)
        places = classes.searchsorted(y)
        strange = classes.take(places, mode="clip") != y
        if strange.any():
            raise ConfigError(
                f"y holds {y[strange][0]!r}, which is not one of the classes {classes}"
            )
        if first:
            count = len(classes)
            if count < 2:
                raise ConfigError(
                    f"The number of classes has to be greater than one; got {count} class"
                )
            self._begin(1 if count == 2 else count)
            self.classes_ = classes
        if self._outputs == 1:
            return (2.0 * places - 1.0)[:, None]
        if self.loss == "hinge":
            return np.where(places[:, None] == np.arange(self._outputs), 1.0, -1.0)
        return places
