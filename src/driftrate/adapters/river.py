"""River: an optimizer whose rate follows the shift, one sample at a time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import deepcopy
from inspect import signature
from math import isfinite, sqrt
from typing import Any, Literal, Protocol, get_args

import numpy as np

from driftrate.adapters._observe import Policy, blend, capped, check_policy, is_factor
from driftrate.errors import ConfigError, MissingDependency, MissingSignal, SignalError, StateError
from driftrate.estimate import Estimated, detector
from driftrate.schedules.base import TRAIL, Schedule, Signal
from driftrate.schedules.wrappers import Wrapper

try:
    from river import base, compose, optim
    from river.utils import VectorDict
except ImportError as error:
    raise MissingDependency("driftrate.river needs River: pip install driftrate[river]") from error

__all__ = [
    "ConstantFeature",
    "FollowedRate",
    "ScheduledOptimizer",
    "ShiftNotifier",
    "attach",
    "with_intercept",
]

VERSION = 1  # of what is pickled
Mode = Literal["sequence"]
_ALWAYS = ("step_length", "grad_sq", "dim", "trail")
_PAIRS = frozenset({"cross", "spread"})  # of two samples, not of parts of one batch
_TOLD = ("batch_size", "shift", "loss", "loss_shift")


def attach(
    optimizer: optim.base.Optimizer,
    schedule: Schedule,
    *,
    mode: Mode = "sequence",
    batch_size: float = 1.0,
    relative: bool | None = None,
) -> ScheduledOptimizer:
    r"""Let a schedule drive an optimizer of River; hand the result to a model.

    Before each update the schedule sees the gradient and gives the rate of that very update. The
    gradients g_{t-1} and g_t of two successive samples have independent noises, so that

        cross = ⟨g_t, g_{t-1}⟩,   spread = ‖g_t - g_{t-1}‖²/2,

    the squared signal and the noise of one gradient; a feature that a sample lacks counts as 0.
    The first update has none to compare with: the schedule stands still, and the rate that it
    starts from is used. Also measured, where the schedule reads them: `grad_sq` and `step_length`.
    A gradient that is not finite leaves the schedule as it was.

    Mind three things of River. Its `optim.losses.Squared` is (ŷ - y)², twice the ½(ŷ - y)² that
    the schedules of the paper assume, so a `max_rate` is half of theirs. A linear model clips the
    loss gradient before the optimizer sees it (`clip_gradient`). And it moves its intercept by
    `intercept_lr`, past the optimizer: `with_intercept` makes a model whose intercept follows.

    Args:
        optimizer: An optimizer with an `lr`; a copy is used, yours stays as it is.
        schedule: Any schedule of driftrate. What it reads and cannot be measured (`shift`, `loss`,
            `loss_shift`) is told by `ScheduledOptimizer.tell`.
        mode: Where the signal comes from: "sequence" is all that River shows.
        batch_size: B: 1 for `learn_one`, the number of rows for `learn_many`.
        relative: Whether the schedule's rate is a factor on the rate that the optimizer came with;
            one with `max_rate=None` then gets 1, `MeasuredRate` `relative=True`, which lowers a
            rate that is too high. None: True for schedules with no `max_rate` that measure products
            of gradients under an optimizer other than plain SGD, whose steps are not rate times
            gradient; else False. So `MeasuredRate()` measures the
            curvature under SGD and multiplies the rate of Adam by the measured factor, 0 to 1;
            `MeasuredRate(max_rate=lr)` is `lr` times it under any.

    Returns:
        The optimizer to learn with.

    Example:
        >>> from river import linear_model, optim
        >>> import driftrate as dr
        >>> rate = dr.Estimated(dr.LinearRate(dim=2, noise_std=1.0), dr.estimate.DebiasedShift())
        >>> model = linear_model.LinearRegression(attach(optim.SGD(), rate), intercept_lr=0.0)
        >>> for y in (1.0, 2.0, 3.0):
        ...     model.learn_one({"x": 1.0}, y)
        >>> sorted(model.optimizer.record)
        ['noise', 'rate', 'shift']
    """
    if relative is None:
        products = not {*_PAIRS, "trail"}.isdisjoint(getattr(schedule, "signals", ()))
        relative = products and is_factor(schedule, type(optimizer) is optim.SGD)
    return ScheduledOptimizer(optimizer, schedule, mode, batch_size, relative)


class FollowedRate(optim.base.Scheduler):
    """The last rate that a schedule gave, as a scheduler of River.

    A scheduler sees no gradients, and River asks it any number of times in a step: `get` only
    reads, so that asking changes nothing. Use it as `intercept_lr`, so that an intercept takes the
    weights' rate (of the step before, because River moves the intercept first).

    Args:
        rate: The rate.

    Example:
        >>> rate = FollowedRate(0.25)
        >>> rate.get(7), rate.get(7)
        (0.25, 0.25)
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def get(self, t: int) -> float:
        """Return the rate, whatever the step.

        Args:
            t: The step, which the schedule itself counts.

        Returns:
            The rate of the last update.
        """
        return self.rate


class ScheduledOptimizer(optim.base.Optimizer):
    """An optimizer of River and the schedule that sets its rate; `attach` makes it.

    Pickle it, or the model around it, to stop and resume bit by bit; `clone` starts afresh.

    Args:
        optimizer: An optimizer with an `lr`; a copy is used.
        schedule: Any schedule of driftrate.
        mode: "sequence".
        batch_size: B.
        relative: Whether the schedule's rate is a factor on the optimizer's own.

    Example:
        >>> from river import optim
        >>> import driftrate as dr
        >>> optimizer = attach(optim.SGD(), dr.ConstantRate(0.5))
        >>> optimizer.step({"x": 2.0}, {"x": 2.0})
        {'x': 1.0}
        >>> optimizer.learning_rate, optimizer.n_iterations
        (0.5, 1)
    """

    def __init__(
        self,
        optimizer: optim.base.Optimizer,
        schedule: Schedule,
        mode: Mode = "sequence",
        batch_size: float = 1.0,
        relative: bool = False,
    ) -> None:
        _check(optimizer, schedule, mode)
        self.optimizer = optimizer
        self.schedule = schedule
        self.mode = mode
        self.batch_size = batch_size
        self.relative = relative
        schedule = schedule.reading((*_TOLD, *_ALWAYS))
        self._followed = capped(schedule) if relative else schedule
        self._told: dict[str, float] = {}
        self.tell(batch_size=batch_size)
        self._factor = float(optimizer.learning_rate) if relative else 1.0
        self._state = self._followed.init()
        self._rate = FollowedRate(self._factor * self._state["rate"])
        super().__init__(self._rate)
        self._inner = self._fresh()
        self._previous: Any = None
        self._trail: Any = None
        self._length = 0.0
        self._seen: dict[str, float] = {}

    def look_ahead(self, w: Any) -> Any:
        """Let the optimizer move the weights before a prediction, where it does so.

        Args:
            w: The weights, modified in place.

        Returns:
            The weights.
        """
        return self._inner.look_ahead(w)

    def step(self, w: Any, g: Any) -> Any:
        """Set the rate from the gradient, then let the optimizer use both.

        Args:
            w: The weights, modified in place.
            g: The gradient.

        Returns:
            The weights.
        """
        reads = self._followed.signals
        for name in reads:
            if name in _TOLD and name not in self._told and name not in self._followed.optional:
                raise MissingSignal(
                    f"{self.schedule.name} needs {name}: call optimizer.tell({name}=...) first"
                )
        self._follow(g, reads)
        before = None
        if "step_length" in reads:
            # A feature's weight appears when it is first asked for.
            before = _kept(w if isinstance(w, np.ndarray) else {k: w[k] for k in g} | _plain(w))
        w = self._inner.step(w, g)
        if before is not None:
            moved = _minus(_kept(w), before)
            length = sqrt(_dot(moved, moved))
            self._length = length if isfinite(length) else self._length
        self.n_iterations += 1
        return w

    def tell(self, **fields: float) -> None:
        """Say what the schedule cannot measure; it stays said until it is told anew.

        Args:
            **fields: Any of `batch_size`, `shift`, `loss` and `loss_shift`, as numbers.

        Example:
            >>> from river import optim
            >>> import driftrate as dr
            >>> optimizer = attach(optim.SGD(), dr.LinearRate(dim=1, noise_std=1.0))
            >>> optimizer.tell(shift=0.5)
            >>> _ = optimizer.step({"x": 2.0}, {"x": 2.0})
            >>> optimizer.record["shift"]
            0.5
        """
        unknown = sorted(fields.keys() - {*_TOLD})
        if unknown:
            raise SignalError(f"tell: {unknown} cannot be told, only {sorted(_TOLD)} can")
        known = fields.keys() & {*self._followed.signals}
        probe = dict.fromkeys(self._followed.signals, 2.0) | {name: fields[name] for name in known}
        self._followed.update(self._followed.init(), Signal(**probe))
        self._told |= fields

    def notify_shift(
        self,
        policy: Policy = "reset",
        *,
        moments: Literal["keep", "reset"] | None = None,
        decay: float = 0.5,
    ) -> None:
        """Say that the data have shifted, and what to do with what was learned before.

        Args:
            policy: For the schedule's state. "keep": nothing; "reset": it starts afresh; "decay":
                each number goes the share 1 - `decay` of its way back to where it started.
            moments: For the optimizer's moments, "keep" or "reset"; by default "reset" where the
                policy is, else "keep".
            decay: What is left of the past, in [0, 1].

        Example:
            >>> from river import optim
            >>> import driftrate as dr
            >>> optimizer = attach(optim.SGD(), dr.InverseTimeRate(0.5))
            >>> for _ in range(5):
            ...     _ = optimizer.step({"x": 2.0}, {"x": 2.0})
            >>> optimizer.notify_shift("reset")
            >>> _ = optimizer.step({"x": 2.0}, {"x": 2.0})
            >>> optimizer.learning_rate
            0.5
        """
        check_policy(decay, policy)
        if moments not in ("keep", "reset", None):
            raise ConfigError(f"notify_shift: moments keep or reset, got {moments!r}")
        start = self._followed.init()
        if policy == "reset":
            self._state = start
        elif policy == "decay":
            self._state = blend(self._state, start, decay)
        self._rate.rate = self._factor * self._state["rate"]
        if moments == "reset" or (moments is None and policy == "reset"):
            self._inner = self._fresh()

    @property
    def record(self) -> dict[str, float]:
        """The last update in numbers, for any logger.

        `rate`: the rate that the schedule gave; `signal`: the measured squared gradient (`cross`);
        `noise`: the measured noise of the gradient (`spread`); `shift`: the shift that was told or
        estimated. What the schedule does not read is not there.
        """
        known = {"signal": "cross", "noise": "spread", "shift": "shift"}
        read = {name: self._seen[field] for name, field in known.items() if field in self._seen}
        schedule, state = self._followed, self._state
        while isinstance(schedule, Wrapper):
            if isinstance(schedule, Estimated) and schedule.estimator.provides == "shift":
                read["shift"] = state["estimator"]["estimate"]
            schedule, state = schedule.schedule, state["inner"]
        return {"rate": self._state["rate"], **read}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "version": VERSION}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        version = saved.get("version")
        if version != VERSION:
            raise StateError(
                f"the saved optimizer is of version {version!r}; this driftrate reads version"
                f" {VERSION}"
            )
        self.__dict__.update({key: value for key, value in saved.items() if key != "version"})

    def _fresh(self) -> Any:
        inner = deepcopy(self.optimizer)
        inner.lr = self._rate
        return inner

    def _follow(self, gradient: Any, reads: tuple[str, ...]) -> None:
        """Step the schedule and set the rate."""
        found = {"step_length": self._length}
        if not {*_PAIRS, "grad_sq", "dim", "trail"}.isdisjoint(reads):
            gradient = _kept(gradient)
            found |= {"grad_sq": _dot(gradient, gradient), "dim": float(_size(gradient))}
            if not isfinite(found["grad_sq"]):
                return
        if "trail" in reads:
            trail = self._trail
            found["trail"] = 0.0 if trail is None else _dot(gradient, trail)
            self._trail = gradient if trail is None else _lengthened(trail, gradient)
        if not _PAIRS.isdisjoint(reads):
            previous, self._previous = self._previous, gradient
            if type(previous) is not type(gradient):
                return
            apart = _minus(gradient, previous)
            found |= {"cross": _dot(gradient, previous), "spread": 0.5 * _dot(apart, apart)}
        told = self._told | found
        self._seen = {name: told[name] for name in reads if name in told}
        rate, self._state = self._followed.update(self._state, Signal(**self._seen))
        self._rate.rate = self._factor * rate


class ConstantFeature(base.Transformer):
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
        """Return the features and the constant.

        Args:
            x: The features.

        Returns:
            A new dictionary.
        """
        if self.name in x:
            raise ConfigError(f"ConstantFeature: the data have a feature {self.name!r} already")
        return {**x, self.name: 1.0}


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
        ...


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
        """Take the error of one prediction.

        Args:
            error: A loss, or |y - ŷ|.

        Returns:
            Whether the target was told of a shift just now.
        """
        before = self._alarm.inner.estimation
        if not self._alarm.update(error) or self._alarm.inner.estimation <= before:
            return False
        self.shifts += 1
        self.target.notify_shift(self.policy)
        return True


def _check(optimizer: Any, schedule: Any, mode: str) -> None:
    """Refuse what cannot work, before anything is touched."""
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"attach: schedule must be a Schedule, got {schedule!r}")
    if mode not in get_args(Mode):
        raise ConfigError(f"attach: mode must be one of {get_args(Mode)}, got {mode!r}")
    if not isinstance(optimizer, optim.base.Optimizer):
        raise ConfigError(f"attach: optimizer must be one of river.optim, got {optimizer!r}")
    kind = type(optimizer).__name__
    if isinstance(optimizer, ScheduledOptimizer):
        raise ConfigError(f"attach: the optimizer already follows {optimizer.schedule.name}")
    if isinstance(optimizer, optim.Averager):
        raise ConfigError("attach: put Averager outside, Averager(attach(optimizer, schedule))")
    if "lr" not in signature(type(optimizer)).parameters or isinstance(optimizer, optim.AdaBound):
        why = "multiplies its bounds by every rate" if hasattr(optimizer, "lr") else "has no lr"
        why = "reads no lr" if isinstance(optimizer, optim.AdaDelta) else why
        raise ConfigError(f"attach: {kind} {why}: use SGD, Momentum, Adam or another")
    if optimizer.n_iterations:
        raise ConfigError(f"attach: this {kind} has learned before: attach a new one")
    if not isinstance(optimizer.lr, optim.schedulers.Constant):
        raise ConfigError(f"attach: two schedules for one rate: give {kind} a number as its lr")
    able = _PAIRS | {*_TOLD, *_ALWAYS} | schedule.reading((*_TOLD, *_ALWAYS)).optional
    lacking = sorted({*schedule.signals} - able)
    if lacking:
        raise MissingSignal(
            f'{schedule.name} needs {lacking}, which mode="{mode}" cannot give, and River has no'
            " other: driftrate.sklearn splits batches in parts"
        )


def _plain(vector: Any) -> dict[Hashable, Any]:
    return vector.to_dict() if isinstance(vector, VectorDict) else dict(vector)


def _kept(vector: Any) -> Any:
    """Return our own copy: an array, a `VectorDict` of numbers, or a dictionary of arrays."""
    if isinstance(vector, np.ndarray):
        return vector.copy()
    plain = _plain(vector)
    # River's models have numbers for all features, or vectors for all.
    if isinstance(next(iter(plain.values()), 0.0), np.ndarray):
        return {key: np.array(value) for key, value in plain.items()}
    return VectorDict(dict(plain))


def _dot(a: Any, b: Any) -> float:
    """Return ⟨a, b⟩; a coordinate that one of them lacks is 0."""
    if isinstance(a, dict):
        return sum(float(np.vdot(one, b[key])) for key, one in a.items() if key in b)
    return float(np.vdot(a, b) if isinstance(a, np.ndarray) else a @ b)


def _minus(a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {
            **{key: one - b[key] if key in b else one for key, one in a.items()},
            **{key: -one for key, one in b.items() if key not in a},
        }
    return a - b


def _size(vector: Any) -> int:
    """Return how many coordinates it has."""
    if isinstance(vector, np.ndarray):
        return vector.size
    if isinstance(vector, dict):
        return sum(one.size for one in vector.values())
    return len(vector)


def _lengthened(trail: Any, gradient: Any) -> Any:
    """Return 0.9 h + g; a coordinate that one of them lacks is 0."""
    if isinstance(trail, dict):
        return {
            **{key: TRAIL * one for key, one in trail.items()},
            **{
                key: TRAIL * trail[key] + one if key in trail else one
                for key, one in gradient.items()
            },
        }
    return TRAIL * trail + gradient
