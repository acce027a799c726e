"""Models of River around an attached optimizer: an intercept that follows, an alarm."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, Protocol

from river import base, compose, optim

from driftrate.adapters._observe import Policy, check_policy
from driftrate.errors import ConfigError
from driftrate.estimate import detector


class ConstantFeature(base.MiniBatchTransformer):
    """Add a feature that is always 1, whose weight is an intercept.

    Args:
        name: The feature's name.

    Example:
        >>> ConstantFeature().transform_one({"x": 2.0})
        {'x': 2.0, 'intercept': 1.0}
    """

    def __init__(self, name: str = "intercept") -> None:
        self.name = name

    def transform_one(self, x: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return a new dictionary of the features and the constant."""
        self._check(x)
        return {**x, self.name: 1.0}

    def transform_many(self, X: Any) -> Any:
        """Return a new data frame, of the library of X, with the features and the constant."""
        if hasattr(X, "assign"):  # pandas, all that River before 0.23 knows
            self._check(X.columns)
            return X.assign(**{self.name: 1.0})
        import narwhals

        frame = narwhals.from_native(X, eager_only=True)
        self._check(frame.columns)
        return frame.with_columns(narwhals.lit(1.0).alias(self.name)).to_native()

    def _check(self, names: Collection[Hashable]) -> None:
        if self.name in names:
            raise ConfigError(f"ConstantFeature: the data have a feature {self.name!r} already")


def with_intercept(model: Any, name: str = "intercept") -> compose.Pipeline:
    """Make the intercept of a linear model one more weight, which the optimizer moves.

    River moves an intercept by `intercept_lr` alone: no schedule sees its gradient, and a shift of
    the mean is followed at a constant rate. Here the model's own intercept stands still.

    Args:
        model: A linear model of River with an `intercept_lr`, which is set to 0.
        name: The name of the constant feature.

    Returns:
        The pipeline `ConstantFeature() | model`.

    Example:
        >>> from river import linear_model
        >>> model = with_intercept(linear_model.LinearRegression())
        >>> model.learn_one({"x": 0.0}, 1.0)
        >>> model["LinearRegression"].weights
        {'x': 0.0, 'intercept': 0.02}
    """
    if not hasattr(model, "intercept_lr"):
        raise ConfigError(f"with_intercept: {type(model).__name__} has no intercept_lr")
    model.intercept_lr = optim.schedulers.Constant(0.0)
    return compose.Pipeline(ConstantFeature(name), model)


class Notified(Protocol):
    """Anything that can be told of a shift: an optimizer of this module, an estimator."""

    def notify_shift(self, policy: Policy = "reset") -> None:
        """Take notice."""


class ShiftNotifier:
    """Watch the errors of a model with ADWIN and tell its optimizer of every shift.

    ADWIN keeps a window of errors and cuts off its old part when the means of old and new differ
    by more than chance. Only a *rise* is a shift: errors also fall, while the model learns.

    Args:
        target: Whom to tell: anything with a `notify_shift(policy)`.
        policy: What it does then: "keep", "decay" or "reset".
        **options: Of ADWIN, as in `driftrate.estimate.detector`; a small `delta` is a calm one.

    Attributes:
        shifts: How many shifts there were.

    Example:
        >>> from river import optim
        >>> import driftrate as dr
        >>> from driftrate.river import attach
        >>> optimizer = attach(optim.SGD(), dr.InverseTimeRate(0.5))
        >>> notifier = ShiftNotifier(optimizer, delta=0.01)
        >>> [step for step in range(600) if notifier.update(float(step >= 300))]
        [319]
    """

    def __init__(self, target: Notified, policy: Policy = "reset", **options: Any) -> None:
        if not hasattr(target, "notify_shift"):
            raise ConfigError(f"ShiftNotifier: {type(target).__name__} has no notify_shift")
        check_policy(0.0, policy, where="ShiftNotifier")
        self.target = target
        self.policy = policy
        self.shifts = 0
        self._alarm: Any = detector("adwin", **options)

    def update(self, error: float) -> bool:
        """Take an error, a loss or |y - ŷ|; return whether the target was told of a shift now."""
        before = self._alarm.inner.estimation
        if not self._alarm.update(error) or self._alarm.inner.estimation <= before:
            return False
        self.shifts += 1
        self.target.notify_shift(self.policy)
        return True
