"""A wrapper that feeds a schedule an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from driftrate.errors import ConfigError
from driftrate.estimate.shift import ShiftEMA
from driftrate.schedules.base import Array, Estimator, Signal, State, register
from driftrate.schedules.linear import LinearRate
from driftrate.schedules.wrappers import Wrapper


@register
@dataclass(frozen=True)
class Estimated(Wrapper):
    """Feed a schedule an estimate in place of a signal that is not available.

    Args:
        schedule: A schedule that reads the field which the estimator provides.
        estimator: An estimator of `driftrate.estimate`, for example `ShiftEMA()`.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.Estimated(dr.LinearRate(dim=2, noise_std=0.1), dr.estimate.ShiftEMA())
        >>> rate.signals
        ('batch_size', 'step_length')
    """

    estimator: Estimator

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.estimator, Estimator):
            raise ConfigError(f"Estimated.estimator must be an Estimator, got {self.estimator!r}")
        if self.estimator.provides not in self.schedule.signals:
            raise ConfigError(
                f"Estimated: {self.estimator.name} provides {self.estimator.provides!r}, which"
                f" {self.schedule.name} does not read; it reads {self.schedule.signals}"
            )

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(LinearRate(dim=16, noise_std=0.5, max_rate=0.5), ShiftEMA())

    @property
    def name(self) -> str:
        """The wrapper's name around those of the schedule and the estimator."""
        return f"{type(self).__name__}({self.schedule.name}, {self.estimator.name})"

    @property
    def signals(self) -> tuple[str, ...]:
        """What the schedule still needs, then what the estimator needs."""
        rest = [name for name in self.schedule.signals if name != self.estimator.provides]
        return tuple(dict.fromkeys([*rest, *self.estimator.signals]))

    def _start(self) -> State:
        return {"rate": 0.0, "estimator": self.estimator._start(), "inner": self.schedule._start()}

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        value, estimator = self.estimator._step(xp, state["estimator"], signal)
        signal = signal._replace(**{self.estimator.provides: value})
        rate, inner = self.schedule._step(xp, state["inner"], signal)
        return rate, {"rate": rate, "estimator": estimator, "inner": inner}
