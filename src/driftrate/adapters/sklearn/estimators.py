"""scikit-learn: linear models for streams, with a memory or a rate that follows the shift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite, nan
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from driftrate.adapters import _history
from driftrate.adapters._observe import KEYS, STATE_VERSION, Policy, check_version, policies
from driftrate.adapters._pool import LEAVE_OUT, ShiftedPool, Standing, check_present
from driftrate.adapters.sklearn import drivers, losses
from driftrate.adapters.sklearn.descent import Descent, Line
from driftrate.adapters.sklearn.losses import Floats
from driftrate.adapters.sklearn.single import MODES, Mode
from driftrate.errors import ConfigError, SignalError
from driftrate.learners import HedgedSGD
from driftrate.schedules.base import Schedule

__all__ = ["ShiftClassifier", "ShiftRegressor"]

DENSE = 500  # features, up to which sparse rows are made dense
_ROWS = 4096  # sparse rows that are made dense at once, where they are only looked at
_PASSES = 20  # of `fit`, where rates are learned
_FEATURES = {"accept_sparse": "csr", "dtype": np.float64}


class _Shift(BaseEstimator):  # type: ignore[misc]
    """What regressor and classifier share: arguments, batches, and what predicts meanwhile."""

    _losses: dict[str, losses.Loss]  # the first one is the pool's
    _passes: int  # of `fit`, for the pool
    _shown: Standing | Line  # what predicts: replaced as one, never written to

    def __init__(
        self,
        loss: str,
        schedule: HedgedSGD | Schedule | None,
        mode: Mode,
        fit_intercept: bool,
        missing: Literal["error", "mean"],
        batch_size: int,
        max_iter: int | None,
        shuffle: bool,
        random_state: Any,
    ) -> None:
        self.loss, self.schedule, self.mode = loss, schedule, mode
        self.fit_intercept, self.missing, self.batch_size = fit_intercept, missing, batch_size
        self.max_iter, self.shuffle, self.random_state = max_iter, shuffle, random_state

    @property
    def intercept_(self) -> Floats:
        """Intercepts, one an output."""
        return self._shown.linear()[1]

    @property
    def memory_(self) -> float:
        """How many past rows the pool believes in now."""
        if isinstance(self._shown, Line):
            raise AttributeError(f"memory_ is what a pool of memories has: {_POOL_ALONE}")
        return self._shown.memory()

    def plot_memory(self, ax: Any = None) -> Any:
        """Draw how many past rows the pool believed in, over time; return the axes.

        Args:
            ax: Axes of matplotlib; new ones if None.
        """
        check_is_fitted(self, "_shown")
        if isinstance(self._model, Descent):
            raise ConfigError(f"plot_memory is for the pool of memories: {_POOL_ALONE}")
        return _history.plot_memory(self._model.history, ax)

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
        pooled = isinstance(self._model, ShiftedPool)
        passes = (self._passes if pooled else _PASSES) if self.max_iter is None else self.max_iter
        for _ in range(passes):
            if self.shuffle:
                random.shuffle(order)
                part = None if weights is None else weights[order]
                self._learn(X[order], y[order], part, passes)
            else:
                self._learn(X, y, weights, passes)
        self.n_iter_ = passes
        return self

    def tell(self, **fields: float) -> None:
        """Say what the next step cannot measure; it is for that step alone.

        Args:
            **fields: `shift` or `loss_shift`, as numbers; before or after the first batch.
        """
        known = hasattr(self, "_model")
        probe = self._model if known else self._new(1, None, False)
        probe.tell(**fields)
        # `fit` starts with a new model.
        self._told = {**getattr(self, "_told", {}), **fields}

    def notify_shift(
        self, policy: Policy = "reset", *, moments: Policy | None = None, decay: float = 0.5
    ) -> None:
        """Say that the data have shifted: how sure the model was goes, what it predicts stays.

        Args:
            policy: "keep": nothing; "reset": members are as unsure of their weights as at the
                start, or rates are learned afresh; "decay": in part: information and rows, of a
                `HedgedSGD` shares and octaves, of a schedule each number of its state goes the
                share 1 - `decay` of its way back to where it started.
            moments: The same for the optimizer's moments; there are none, so any is right.
            decay: What is left of the past, in [0, 1].
        """
        policies(policy, moments, decay)
        check_is_fitted(self, "t_")
        self._model.notify_shift(policy, decay)
        self._shown = self._model.now

    @property
    def record(self) -> dict[str, float]:
        """The last step in numbers, for any logger; what is unknown is NaN.

        `rate`: that of the step, of a `HedgedSGD` the mean; the pool of memories has none.
        `factor`: NaN, because no optimizer brings a rate. `signal` and `noise`: the measured
        squared gradient and its noise. `shift`: told or estimated.
        """
        known = self._model.record if hasattr(self, "_model") else {}
        return {name: known.get(name, nan) for name in KEYS}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_driftrate_version": STATE_VERSION}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        check_version(saved.get("_driftrate_version"), "estimator")
        super().__setstate__({k: v for k, v in saved.items() if k != "_driftrate_version"})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing == "mean"
        return tags

    def _check(self) -> None:
        """Check the constants, once a stream."""
        if self.loss not in self._losses:
            raise ConfigError(f"loss must be one of {sorted(self._losses)}, got {self.loss!r}")
        if self.mode not in MODES:
            raise ConfigError(f"mode must be one of {[*MODES]}, got {self.mode!r}")
        if self.missing not in ("error", "mean"):
            raise ConfigError(f"missing must be 'error' or 'mean', got {self.missing!r}")
        for name in ("batch_size", "max_iter"):
            value = getattr(self, name)
            if name == "max_iter" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ConfigError(f"{name} must be an integer >= 1, got {value!r}")

    def _new(self, features: int, classes: int | None, sparse: bool) -> ShiftedPool | Descent:
        """Return a model that knows nothing: the pool of memories where it can be, else SGD."""
        own = self.loss == next(iter(self._losses))
        if self.schedule is None and own and not (sparse and features > DENSE):
            return ShiftedPool(features, classes, bool(self.fit_intercept))
        if self.missing != "error":
            raise ConfigError(
                f"missing={self.missing!r} is for the pool of memories: {_POOL_ALONE}"
            )
        outputs = 1 if classes is None or classes == 2 else classes
        theta = np.zeros(outputs * (features + bool(self.fit_intercept)))
        driver = drivers.driver(self.schedule, self.mode, theta)
        loss = self._losses[self.loss]
        if loss is losses.log_loss:
            loss = losses.logistic if outputs == 1 else losses.softmax
        # Huber's alone has an ε.
        return Descent(driver, loss, outputs, features, getattr(self, "epsilon", 0.0))

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
        y = self._targets(y, first, *known)
        if first:
            classes = len(self.classes_) if hasattr(self, "classes_") else None
            self._model, self.t_ = self._new(x.shape[1], classes, issparse(x)), 0
        return x, y, weights

    def _targets(self, y: NDArray[Any], first: bool, *known: NDArray[Any]) -> NDArray[Any]:
        """Return numbers, or places of classes."""
        if not np.isfinite(y).all():  # objects come through scikit-learn's checks
            raise SignalError(
                f"y must hold finite numbers, got {y[~np.isfinite(y)][0]}; {LEAVE_OUT}"
            )
        return y

    @property
    def _finite(self) -> bool | str:
        """What scikit-learn's checks of features are to let pass."""
        return "allow-nan" if self.missing == "mean" else True

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
        # scikit-learn lets None pass, and fails on pandas.NA with no word of it.
        if (objects := np.asarray(y)).dtype == object and objects.ndim == 1:
            check_present(objects)
        options = {**_FEATURES, "ensure_all_finite": self._finite}
        if isinstance(self, RegressorMixin):
            options["y_numeric"] = True
        checked: tuple[Any, NDArray[Any]] = validate_data(
            self, x, y, reset=reset, order="C", **options
        )
        return checked

    def _learn(self, x: Any, target: NDArray[Any], weights: Floats | None, passes: int = 1) -> None:
        """Take a step on each of the batches, in order; `passes`: how often, in this call."""
        pooled = isinstance(self._model, ShiftedPool)
        if pooled and weights is not None and not weights.all():
            there = weights > 0
            x, target, weights = x[there], target[there], weights[there]
        rows = x.shape[0]
        # Of nearly equal size: a last batch of one row would be all noise.
        pieces = -(-rows // self.batch_size)
        self._model.check_steps(pieces * passes)
        told = self.__dict__.pop("_told", None)
        if told:
            self._model.tell(**told)
        edges = [rows * piece // pieces for piece in range(pieces + 1)] if rows else []
        for start, stop in pairwise(edges):
            part = None if weights is None else weights[start:stop]
            block = x[start:stop]
            if pooled and issparse(block):
                block = block.toarray()
            self._model.learn(block, target[start:stop], part)
        self.t_ = self._model.steps
        self._shown = self._model.now

    def _ask(self, x: Any, how: Callable[[Standing | Line, Any], Floats]) -> Floats:
        """Check features and return what the model of this moment says of them."""
        check_is_fitted(self, "_shown")
        # Read once: another thread may put the next one in its place.
        shown = self._shown
        x = validate_data(self, x, reset=False, ensure_all_finite=self._finite, **_FEATURES)
        if not issparse(x) or isinstance(shown, Line):
            return how(shown, x)
        parts = range(0, x.shape[0], _ROWS)
        return np.concatenate([how(shown, x[start : start + _ROWS].toarray()) for start in parts])


_POOL_ALONE = (
    "schedule=None and the default loss, on dense rows, or sparse ones of 500 features at most"
)


def _has_intervals(self: ShiftRegressor) -> bool:
    if self.schedule is not None or self.loss != "squared_error":
        raise AttributeError(f"intervals are what the pool of memories says: {_POOL_ALONE}")
    return True


class ShiftRegressor(RegressorMixin, _Shift):  # type: ignore[misc]
    r"""Linear regression on a stream that shifts: nothing to choose, nothing to scale.

    A pool of memories (`HedgedFilter`): filters that forget at different paces, and SGD copies,
    learn from each batch, and their forecasts are mixed by how well they foretold. Features are
    standardised inside by the rows so far; when their scale moves, weights and information move
    with it, so that the model stays one of the raw features. A value further than 5 deviations
    from the mean counts as that far. After a sudden change of units a new pool takes over as soon
    as it forecasts much better.

    Rows are samples in the order of time. `partial_fit` on more than `batch_size` rows takes
    several steps. A row counts as often as its `sample_weight` says. Constants are read at the
    first `partial_fit` and at each `fit`.

    With a `schedule` (a rate for plain SGD, or a `HedgedSGD`), with Huber's loss, and where the
    first rows are sparse with over 500 features, the model is one weight vector that SGD moves, by
    default with the copies of `HedgedSGD`. Features should then be of similar size, and a row's
    weight multiplies its loss.

    One thread may predict while another calls `partial_fit`: each call of a predicting method uses
    the model after one whole `partial_fit`. Two threads must not learn at once, and `fit`, which
    may change the number of features, needs the estimator to itself.

    Args:
        loss: "squared_error", or "huber", for SGD.
        schedule: None for the pool, a `HedgedSGD`, or any schedule of driftrate.
        mode: Where a schedule's `cross` and `spread` come from: "parts", two halves of the batch
            (a batch of one row has none, and is read as in "sequence"), or "sequence", this
            gradient and those before it.
        epsilon: Where Huber's loss turns linear, in the unit of y.
        fit_intercept: Whether there is an intercept.
        missing: What NaN among the features is: an "error", or the feature's "mean" so far, for the
            pool.
        batch_size: The most rows in one step.
        max_iter: How many times `fit` goes through the data; if None once (classes: 5 times), with
            SGD 20 times.
        shuffle: Whether `fit` does so in random order. Old rows in the order of time are for
            `partial_fit`, or `shuffle=False`.
        random_state: The seed of that order.

    Attributes:
        coef_: Weights for raw features, (n_features,), of the pool the mean by shares.
        intercept_: The intercept, of shape (1,).
        memory_: How many past rows the pool believes in now.
        n_features_in_: The number of features.
        feature_names_in_: Their names, where the first rows had any.
        n_iter_: How many times `fit` went through the data.
        t_: How many steps were taken.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.standard_normal((2000, 3)) * [1.0, 100.0, 0.01] + 10.0
        >>> y = x @ [1.0, -2.0, 50.0] + 7.0 + 0.1 * rng.standard_normal(2000)
        >>> model = ShiftRegressor().partial_fit(x, y)
        >>> model.coef_.round().tolist(), model.predict([[10.0, 10.0, 10.0]]).round(1).tolist()
        ([1.0, -2.0, 50.0], [497.0])
        >>> low, high = model.predict_interval([[10.0, 10.0, 10.0]], coverage=0.8)[0]
        >>> bool(low < 497.0 < high)
        True

    Reference:
        `driftrate.learners.hedged_filter.HedgedFilter`; `driftrate.learners.HedgedSGD`.
    """

    _losses = {"squared_error": losses.squared_error, "huber": losses.huber}  # noqa: RUF012
    _passes = 1

    def __init__(
        self,
        loss: str = "squared_error",
        *,
        schedule: HedgedSGD | Schedule | None = None,
        mode: Mode = "parts",
        epsilon: float = 1.35,
        fit_intercept: bool = True,
        missing: Literal["error", "mean"] = "error",
        batch_size: int = 16,
        max_iter: int | None = None,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            loss,
            schedule,
            mode,
            fit_intercept,
            missing,
            batch_size,
            max_iter,
            shuffle,
            random_state,
        )
        self.epsilon = epsilon

    @property
    def coef_(self) -> Floats:
        """Weights, of shape (n_features,)."""
        weights: Floats = self._shown.linear()[0][0]
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
        first = not hasattr(self, "_model")
        self._learn(*self._take(X, y, sample_weight, first))
        return self

    def predict(self, X: Any) -> Floats:
        """Predict targets (n,) from features (n, n_features), dense or sparse."""
        return self._ask(X, lambda shown, x: shown.means(x))

    @available_if(_has_intervals)  # type: ignore[untyped-decorator]
    def predict_interval(self, X: Any, coverage: float = 0.9) -> Floats:
        """Return the limits (n, 2) between which targets will lie; for the pool.

        They are quantiles of the mixture, at the chances that would have left the right part of the
        last few hundred targets outside.

        Args:
            X: Features (n, n_features), dense or sparse.
            coverage: The part of the targets that shall lie inside, in (0, 1).
        """

        def limits(shown: Standing | Line, x: Any) -> Floats:
            if isinstance(shown, Line):
                raise ConfigError(f"predict_interval is for the pool of memories: {_POOL_ALONE}")
            return shown.interval(x, coverage)

        return self._ask(X, limits)

    def _check(self) -> None:
        super()._check()
        epsilon = self.epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, Real) or not 0 < epsilon < np.inf:
            raise ConfigError(f"epsilon must be a finite number > 0, got {epsilon!r}")


def _has_probabilities(self: ShiftClassifier) -> bool:
    if self.loss != "log_loss":
        raise AttributeError(f"probabilities need loss='log_loss', not {self.loss!r}")
    return True


class ShiftClassifier(ClassifierMixin, _Shift):  # type: ignore[misc]
    r"""Linear classification on a stream that shifts: nothing to choose, nothing to scale.

    A pool of memories: logistic models for two classes, softmax for more, whose chances are mixed.
    With a `schedule`, with "hinge" (for more than two classes the sum over each class against the
    rest), and where the first rows are sparse with over 500 features, SGD moves one weight vector.
    What `ShiftRegressor` says of streams, threads, arguments and attributes holds here too.

    Attributes:
        classes_: The classes, sorted.
        coef_: Weights for raw features, (1, n_features) for two classes, else (n_classes,
            n_features). Of the pool they are the mean by shares: roughly the model, which mixes
            chances, not scores.
        intercept_: Intercepts, one a row of `coef_`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> model = ShiftClassifier()
        >>> for _ in range(100):
        ...     x = rng.standard_normal((32, 2))
        ...     y = np.where(x[:, 0] > x[:, 1], "up", "down")
        ...     _ = model.partial_fit(x, y, classes=["down", "up"])
        >>> model.predict([[1.0, 0.0], [0.0, 1.0]]).tolist()
        ['up', 'down']
    """

    _losses = {"log_loss": losses.log_loss, "hinge": losses.hinge}  # noqa: RUF012
    _passes = 5  # a Newton step a batch is not the optimum yet

    def __init__(
        self,
        loss: str = "log_loss",
        *,
        schedule: HedgedSGD | Schedule | None = None,
        mode: Mode = "parts",
        fit_intercept: bool = True,
        missing: Literal["error", "mean"] = "error",
        batch_size: int = 16,
        max_iter: int | None = None,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            loss,
            schedule,
            mode,
            fit_intercept,
            missing,
            batch_size,
            max_iter,
            shuffle,
            random_state,
        )

    @property
    def coef_(self) -> Floats:
        """Weights, (1, n_features) for two classes, else (n_classes, n_features)."""
        return self._shown.linear()[0]

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
        first = not hasattr(self, "_model")
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
        """Return scores (n, n_classes); for two classes (n,), positive for `classes_[1]`.

        Of the pool they are logarithms of probabilities, for two classes of their ratio.
        """
        scores = self._ask(X, lambda shown, x: shown.scores(x))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict labels (n,) from features (n, n_features), dense or sparse."""
        scores = self.decision_function(X)
        places = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[places]
        return labels

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Floats:
        """Predict probabilities (n, n_classes); for `loss="log_loss"`."""
        return self._ask(X, lambda shown, x: shown.chances(x))

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Floats:
        """Predict logarithms of probabilities (n, n_classes); for `loss="log_loss"`."""
        return self._ask(X, lambda shown, x: shown.log_chances(x))

    def _targets(self, y: NDArray[Any], first: bool, *known: NDArray[Any]) -> NDArray[Any]:
        """Return the places of labels among the classes."""
        if not known:
            check_classification_targets(y)
        classes = known[0] if known else np.unique(y)
        places = classes.searchsorted(y)
        strange = classes.take(places, mode="clip") != y
        if strange.any():
            raise ConfigError(
                f"y holds {y[strange][0]!r}, which is not one of the classes {classes}"
            )
        if first:
            if len(classes) < 2:
                raise ConfigError(
                    f"The number of classes has to be greater than one; got {len(classes)} class"
                )
            self.classes_ = classes
        return places
