"""What a loop tells a schedule, because no gradient shows it."""

from __future__ import annotations

from functools import cached_property
from numbers import Real
from typing import Any

from driftrate.errors import MissingSignal, SignalError
from driftrate.schedules.base import Schedule, Signal
from driftrate.schedules.wrappers import Wrapper

TOLD = ("batch_size", "shift", "loss", "loss_shift")


class Told:
    """What was told for the next step, and for that alone.

    Args:
        schedule: Who reads it.
        batch_size: B where a step is not told it; None where nobody knows.
        measured: Which of `TOLD` the loop itself measures.
        how: How a loop tells a field, for errors.
    """

    def __init__(
        self,
        schedule: Schedule,
        batch_size: float | None = None,
        measured: tuple[str, ...] = (),
        how: str = "tell({name}=...) before each step",
    ) -> None:
        self._schedule, self._how, self._measured = schedule, how, measured
        self.fields: dict[str, Any] = {}
        inner = innermost(schedule)
        # B must be known where a constant is the noise of one sample; some can do without it.
        counts = hasattr(inner, "noise_std") or "batch_size" in inner.optional
        if batch_size is None and not counts:
            batch_size = 1.0
        self.usual = {} if batch_size is None else {"batch_size": batch_size}

    @cached_property  # looked up at every row; a pickle from before it has to find it, too
    def _only(self) -> tuple[str, ...]:
        """The fields that only a loop can tell."""
        able = {*TOLD} - {*self._measured} - self._schedule.optional
        return tuple(name for name in self._schedule.signals if name in able)

    def tell(self, **fields: Any) -> None:
        """Take what the next step cannot measure; Python numbers are checked at once."""
        able = [name for name in TOLD if name not in self._measured]
        unknown = sorted(fields.keys() - {*able})
        if unknown:
            raise SignalError(f"tell: {unknown} cannot be told, only {able} can")
        known = {
            name: value
            for name, value in fields.items()
            if name in self._schedule.signals and not hasattr(value, "dtype")
        }
        if known:
            # The schedule's own check, on a state of its own.
            probe = dict.fromkeys(self._schedule.signals, 2.0) | known
            self._schedule.update(self._schedule.init(), Signal(**probe))
        self.fields |= fields

    def take(self) -> dict[str, Any]:
        """Return what holds for this step, and forget it; raise as `require` does."""
        told, self.fields = self.usual | self.fields, {}
        self.require(told)
        return told

    def require(self, told: dict[str, Any]) -> None:
        """Raise `MissingSignal` where a field that only a loop can tell is not there."""
        for name in self._only:
            if name not in told:
                where = ", or attach(batch_size=...)" if name == "batch_size" else ""
                raise MissingSignal(
                    f"{self._schedule.name} needs {name}: {self._how.format(name=name)}{where}"
                )


def innermost(schedule: Schedule) -> Schedule:
    """Return the schedule inside all wrappers."""
    while isinstance(schedule, Wrapper):
        schedule = schedule.schedule
    return schedule


def is_number(value: object) -> bool:
    """Whether a value is a real number of Python or NumPy, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)
