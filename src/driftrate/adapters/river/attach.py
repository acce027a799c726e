"""An optimizer of River and the schedule that sets its rate."""

from __future__ import annotations

from copy import deepcopy
from inspect import signature
from math import isfinite, nan, sqrt
from typing import Any, Literal

import numpy as np
from river import optim

from driftrate.adapters import _observe
from driftrate.adapters._observe import Base, Fields, Policy, Told
from driftrate.adapters.river import moments as moments_of
from driftrate.adapters.river import vectors
from driftrate.errors import ConfigError
from driftrate.schedules.base import Schedule, Signal

Mode = Literal["sequence"]
_MODES = {"sequence": 'mode="sequence"'}
# Where none of them is read, no gradient is looked at.
_SHOWN = frozenset({"grad_sq", "dim", "trail", "cross", "spread"})


def attach(
    optimizer: optim.base.Optimizer,
    schedule: Schedule,
    *,
    mode: Mode = "sequence",
    batch_size: float = 1.0,
    relative: bool | None = None,
    metric: Literal["plain", "moments"] | None = None,
) -> ScheduledOptimizer:
    r"""Let a schedule drive an optimizer of River; hand the result to a model.

    Before each update the schedule sees the gradient and gives the rate of that very update. The
    gradients g_{t-1} and g_t of two successive samples have independent noises, so that

        cross = ⟨g_t, g_{t-1}⟩,   spread = ‖g_t - g_{t-1}‖²/2,

    the squared signal and the noise of one gradient; a feature that a sample lacks counts as 0.
    The first update has none to compare with: the schedule stands still, and the rate that it
    starts from is used. Also measured, where the schedule reads them: `grad_sq`, `step_length`,
    `dim`, and `trail`, the product with h_t = 0.9 h_{t-1} + g_{t-1}; without parts `MeasuredRate`
    reads `grad_sq` and `trail`. A gradient that is not finite leaves the schedule as it was.

    Mind three things of River. Its `optim.losses.Squared` is (ŷ - y)², twice the ½(ŷ - y)² that
    the schedules of the paper assume, so a `max_rate` is half of theirs. A linear model clips the
    loss gradient before the optimizer sees it (`clip_gradient`). And it moves its intercept by
    `intercept_lr`, past the optimizer: `with_intercept` makes a model whose intercept follows.

    Args:
        optimizer: An optimizer with an `lr`; a copy is used, yours stays as it is.
        schedule: Any schedule of driftrate. What it reads and cannot be measured (`shift`, `loss`,
            `loss_shift`) is told by `ScheduledOptimizer.tell` before each update.
        mode: Where the signal comes from: "sequence" is all that River shows.
        batch_size: B: 1 for `learn_one`, the number of rows for `learn_many`; `tell(batch_size=)`
            overrides it once.
        relative: True: the schedule's rate is a factor on the optimizer's own `lr`, at most 1
            where the schedule has no `max_rate`. False: it is the learning rate. None: a factor
            for schedules with no `max_rate` that measure products of gradients, under anything but
            plain SGD; else the rate (docs/attach.md has examples).
        metric: In which metric gradients are multiplied and squared. "plain": Σ a_i b_i.
            "moments": Σ a_i b_i c/(√v_i + ε) with the moments of Adam before the step; the first
            update, which has none, takes the rate that the schedule starts from. None: "moments"
            for River's Adam, AMSGrad, Nadam and RMSProp, else "plain".

    Returns:
        The optimizer to learn with.

    Example:
        >>> from river import linear_model, optim
        >>> import driftrate as dr
        >>> rate = dr.Estimated(dr.LinearRate(dim=2, noise_std=1.0), dr.estimate.DebiasedShift())
        >>> model = linear_model.LinearRegression(attach(optim.SGD(), rate), intercept_lr=0.0)
        >>> for y in (1.0, 2.0, 3.0):
        ...     model.learn_one({"x": 1.0}, y)
        >>> list(model.optimizer.record)
        ['rate', 'factor', 'signal', 'noise', 'shift']
    """
    return ScheduledOptimizer(optimizer, schedule, mode, batch_size, relative, metric)


class FollowedRate(optim.base.Scheduler):
    """The last rate that a schedule gave, as a scheduler of River.

    A scheduler sees no gradients, and River asks it any number of times in a step: `get` only
    reads, so that asking changes nothing. Use it as `intercept_lr`, so that an intercept takes the
    weights' rate (of the step before, because River moves the intercept first).

    Example:
        >>> rate = FollowedRate(0.25)
        >>> rate.get(7), rate.get(7)
        (0.25, 0.25)
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def get(self, t: int) -> float:
        """Return the rate of the last update, whatever the step t: the schedule itself counts."""
        return self.rate


class ScheduledOptimizer(optim.base.Optimizer):
    """An optimizer of River and the schedule that sets its rate; `attach` makes it.

    Pickle it, or the model around it, to stop and resume bit by bit; `clone` starts afresh. The
    arguments are those of `attach`.

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
        relative: bool | None = None,
        metric: Literal["plain", "moments"] | None = None,
    ) -> None:
        _check(optimizer)
        _observe.check_batch_size(batch_size)
        self._base = float(optimizer.learning_rate)
        base = Base(type(optimizer) is optim.SGD, self._base)
        loop = _observe.settle(schedule, base, modes=_MODES, mode=mode, relative=relative)
        self.optimizer, self.schedule = optimizer, schedule
        self.mode, self.batch_size, self.relative = mode, batch_size, loop.relative
        self.metric = moments_of.check_metric(optimizer, metric)
        self._followed = loop.schedule
        reads = self._reads = loop.schedule.signals
        self._must = {*reads} - loop.schedule.optional
        self._told = Told(loop.schedule, batch_size)
        self._state = loop.schedule.init()
        self._rate = FollowedRate(0.0)
        self._set_rate()
        super().__init__(self._rate)
        self._inner = self._fresh()
        self._previous: Any = None
        self._trail: Any = None
        self._length = 0.0
        self._fields: Fields = {}

    def look_ahead(self, w: Any) -> Any:
        """Let the optimizer move weights w before a prediction, where it does so; return w."""
        return self._inner.look_ahead(w)

    def step(self, w: Any, g: Any) -> Any:
        """Set the rate from the gradient g, let the optimizer move weights w in place; return w."""
        self._follow(self._told.take(), g)
        before = None
        if "step_length" in self._reads:
            # A feature's weight appears when it is first asked for.
            known = w if isinstance(w, np.ndarray) else vectors.as_dict(w) | {k: w[k] for k in g}
            before = vectors.copied(known)
        w = self._inner.step(w, g)
        if before is not None:
            moved = vectors.minus(vectors.copied(w), before)
            length = sqrt(vectors.dot(moved, moved))
            self._length = length if isfinite(length) else self._length
        self.n_iterations += 1
        return w

    def tell(self, **fields: float) -> None:
        """Say what the next update cannot measure; it is for that update alone.

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
        self._told.tell(**fields)

    def notify_shift(
        self, policy: Policy = "reset", *, moments: Policy | None = None, decay: float = 0.5
    ) -> None:
        """Say that the data have shifted, and what to do with what was learned before.

        Args:
            policy: For the schedule's state. "keep": nothing; "reset": it starts afresh; "decay":
                each number goes the share 1 - `decay` of its way back to where it started.
            moments: For the optimizer's moments, by default as `policy`. "keep": nothing;
                "reset": the optimizer starts afresh; "decay": they are multiplied by `decay`,
                which is refused where it is not known what the optimizer keeps.
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
        past, kept = _observe.policies(policy, moments, decay)
        if kept == 0.0:
            self._inner = self._fresh()
        elif kept < 1.0:
            moments_of.decay(self._inner, kept)
        self._state = _observe.blend(self._state, self._followed.init(), past)
        self._set_rate()

    @property
    def record(self) -> dict[str, float]:
        """The last update in numbers, for any logger; what is unknown is NaN.

        `rate`, and `factor`: that over the rate that the optimizer came with; `signal` and `noise`:
        the measured squared gradient and its noise, in the metric of `attach`; `shift`: told or
        estimated.
        """
        rate = self._rate.rate
        factor = rate / self._base if self._base else nan
        return _observe.record(self._followed, self._state, self._fields, rate, factor)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "version": _observe.STATE_VERSION}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        _observe.check_version(saved.get("version"), "optimizer")
        self.__dict__.update({key: value for key, value in saved.items() if key != "version"})

    def _fresh(self) -> Any:
        inner = deepcopy(self.optimizer)
        inner.lr = self._rate
        return inner

    def _set_rate(self) -> None:
        rate = self._state[self._followed.output]
        self._rate.rate = self._base * rate if self.relative else rate

    def _follow(self, told: Fields, gradient: Any) -> None:
        """Step the schedule, where all that it needs is there, and set the rate."""
        measured = self._measure(gradient)
        fields = self._fields = told | (measured or {})
        signal = {name: fields[name] for name in self._reads if name in fields}
        if measured is not None and self._must <= signal.keys():
            self._state = self._followed.update(self._state, Signal(**signal))[1]
            self._set_rate()

    def _measure(self, gradient: Any) -> Fields | None:
        """Return what the gradient shows, and remember it; None where it is not finite."""
        fields: Fields = {"step_length": self._length}
        reads = self._reads
        if _SHOWN.isdisjoint(reads):
            return fields
        gradient = vectors.copied(gradient)
        if not isfinite(vectors.dot(gradient, gradient)):
            return None
        # What was of another type, before, is not compared.
        same = type(gradient)
        previous = self._previous if isinstance(self._previous, same) else None
        trail = self._trail if isinstance(self._trail, same) else None
        if "trail" in reads:
            self._trail = gradient if trail is None else vectors.lengthened(trail, gradient)
        if not {"cross", "spread"}.isdisjoint(reads):
            self._previous = gradient
        space, size = moments_of.PLAIN, vectors.size(gradient)
        if self.metric == "moments":
            metric = moments_of.Metric(self._inner)
            space, size = metric.space, metric.size(gradient)
        if size == 0:
            return fields
        shown = _observe.measure(space, reads, gradient, previous=previous, trail=trail)
        return fields | {"dim": float(size), "trail": 0.0} | shown


def _check(optimizer: Any) -> None:
    """Refuse an optimizer that cannot follow, before anything is touched."""
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
