"""Wrappers that take any schedule and return one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

from driftrate.errors import ConfigError
from driftrate.schedules import _checks
from driftrate.schedules.base import Array, Schedule, Signal, State, counted, real, register, select
from driftrate.schedules.baselines import ConstantRate, InverseTimeRate
from driftrate.schedules.linear import LinearRate


@dataclass(frozen=True)
class Wrapper(Schedule):
    """The base of wrappers: reads what the inner schedule reads; its state is under `"inner"`."""

    schedule: Schedule

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise _checks.refuse(self, "schedule", self.schedule, "a Schedule")
        object.__setattr__(self, "_heavy", self.schedule._heavy)

    @property
    def name(self) -> str:
        """The wrapper's name around the inner one's."""
        return f"{type(self).__name__}({self.schedule.name})"

    @property
    def signals(self) -> tuple[str, ...]:
        """The fields of `Signal` that the inner schedule needs."""
        return self.schedule.signals

    @property
    def optional(self) -> frozenset[str]:
        """The fields that the inner schedule can do without."""
        return self.schedule.optional

    def reading(self, fields: Collection[str]) -> Schedule:
        """Return the wrapper around the inner schedule's form for these fields."""
        return replace(self, schedule=self.schedule.reading(fields))


@register
@dataclass(frozen=True)
class Clip(Wrapper):
    """Keep the rate of a schedule inside [min, max].

    Args:
        schedule: Any schedule.
        min: The smallest rate.
        max: The largest rate, or None.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.Clip(dr.ConstantRate(5.0), max=1.0)
        >>> rate.update(rate.init(), dr.Signal())[0]
        1.0
    """

    min: float = 0.0
    max: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.number(self, "min", low=0.0)
        if self.max is not None:
            _checks.number(self, "max", low=self.min)

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(InverseTimeRate(1.0), min=0.01, max=0.3)

    def _start(self) -> State:
        return {"rate": 0.0, "inner": self.schedule._start()}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        rate, inner = self.schedule._step(xp, state["inner"], signal)
        rate = xp.where(rate > self.min, rate, self.min)
        if self.max is not None:
            rate = xp.where(rate < self.max, rate, self.max)
        return rate, {"rate": rate, "inner": inner}


@register
@dataclass(frozen=True)
class Warmup(Wrapper):
    """Multiply the rate by t/steps during the first steps.

    Args:
        schedule: Any schedule.
        steps: The first step at the full rate, 1 or more.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.Warmup(dr.ConstantRate(1.0), steps=4)
        >>> rate.update(rate.init(), dr.Signal())[0]
        0.25
    """

    steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.integer(self, "steps", low=1)

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(ConstantRate(0.2), steps=20)

    def _start(self) -> State:
        return {"rate": 0.0, "count": 0, "inner": self.schedule._start()}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        rate, inner = self.schedule._step(xp, state["inner"], signal)
        count = counted(state["count"], xp)
        share = real(xp, count, rate) / self.steps
        rate = rate * xp.where(share < 1.0, share, 1.0)
        return rate, {"rate": rate, "count": count, "inner": inner}


@register
@dataclass(frozen=True)
class KnownShifts(Wrapper):
    """Tell a schedule when the shift comes: a launch, a season, a recalibrated sensor.

    At each of the given steps the schedule restarts from its initial state. With a `size` it keeps
    its state instead, and `size` is added to the shift that the signal reports.

    Args:
        schedule: Any schedule; one that reads `shift` where `size` is given.
        times: The steps, counted from 1, whose data are the first after a shift.
        size: The length of the shift, or None to restart.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.KnownShifts(dr.InverseTimeRate(1.0), times=[3])
        >>> state, rates = rate.init(), []
        >>> for _ in range(4):
        ...     eta, state = rate.update(state, dr.Signal())
        ...     rates.append(eta)
        >>> rates
        [1.0, 0.5, 1.0, 0.5]

    Reference:
        diffrax's controllers take known jump times in the same way.
    """

    times: Sequence[int] = ()
    size: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        times = list(self.times) if isinstance(self.times, Sequence) else [self.times]
        for time in times:
            if isinstance(time, bool) or not isinstance(time, Integral) or time < 1:
                raise ConfigError(f"KnownShifts.times must be step numbers >= 1, got {time!r}")
        object.__setattr__(self, "times", tuple(sorted({int(time) for time in times})))
        if self.size is not None:
            _checks.number(self, "size", low=0.0)
            if "shift" not in self.schedule.signals:
                raise ConfigError(
                    f"KnownShifts.size needs a schedule that reads `shift`, {self.schedule.name}"
                    f" reads {self.schedule.signals}: leave size=None to restart it"
                )

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(LinearRate(dim=16, noise_std=0.5), times=(20, 40), size=2.0)

    def _start(self) -> State:
        return {"rate": 0.0, "count": 0, "inner": self.schedule._start()}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        count, inner = counted(state["count"], xp), state["inner"]
        now = count < 0
        for time in self.times:
            now = now | (count == time)
        if self.size is not None:
            jump = xp.where(now, self.size, 0.0 * signal.shift)
            signal = signal._replace(shift=signal.shift + jump)
        else:
            inner = select(xp, now, self.schedule.init(like=state["rate"]), inner)
        rate, inner = self.schedule._step(xp, inner, signal)
        return rate, {"rate": rate, "count": count, "inner": inner}
