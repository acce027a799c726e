"""One weight vector, moved by plain SGD at the rate of a schedule."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any, Literal

import numpy as np

from driftrate.adapters import _observe
from driftrate.adapters._observe import TOLD, Base, Fields, Policy, Space, Told
from driftrate.adapters.sklearn.losses import Batch, Floats
from driftrate.errors import MissingSignal
from driftrate.schedules.base import TRAIL, Schedule, Signal

Mode = Literal["parts", "sequence"]
MODES = {"parts": 'mode="parts"', "sequence": 'mode="sequence"'}
_MEASURED = ("batch_size", "loss")  # what other loops are told
_PARTS = frozenset({"parts", "cross", "spread"})
_SPACE = Space(lambda a, b: float(a @ b), np.subtract)


class Single:
    """One weight vector, moved by plain SGD at the rate of a schedule.

    A batch of one row has no halves. In mode "parts" the schedule then takes its form for the
    sequence, on the same state: rows that come one by one give the trajectory of that mode.
    """

    def __init__(self, schedule: Schedule, mode: Mode, theta: Floats) -> None:
        self.schedule = _settled(schedule, mode)
        self.version = schedule.version
        self.points = theta[None, :].copy()
        self.state = self.schedule.init()
        self._splits = mode == "parts" and not _PARTS.isdisjoint(self.schedule.signals)
        self._told = Told(self.schedule, measured=_MEASURED)
        self._previous: Floats | None = None
        self._trail = np.zeros_like(theta)
        self._length = 0.0
        self._fields: Fields = {}
        self._whole: Schedule | None = self.schedule
        if self._splits:
            try:
                self._whole = _settled(schedule, "sequence")
            except MissingSignal:
                self._whole = None

    @property
    def record(self) -> dict[str, float]:
        """The last step in numbers; no optimizer brings a rate to compare with."""
        rate = self.state[self.schedule.output]
        return _observe.record(self.schedule, self.state, self._fields, rate)

    def tell(self, **fields: float) -> None:
        """Say what the next step cannot measure; it is for that step alone."""
        self._told.tell(**fields)

    def check_steps(self, steps: int) -> None:
        """Refuse several steps in one call where each has to be told something."""
        asks = {*self.schedule.signals} & {*TOLD} - {*_MEASURED} - self.schedule.optional
        if steps > 1 and asks:
            raise MissingSignal(
                f"{self.schedule.name} needs {sorted(asks)} told before each step, and this call"
                f" takes {steps} steps: use partial_fit with batch_size rows at most"
            )

    def notify_shift(self, policy: Policy, decay: float) -> None:
        """Move the schedule's state back to where it started, in part or in whole."""
        past, _ = _observe.policies(policy, None, decay)
        self.state = _observe.blend(self.state, self.schedule.init(), past)

    def __setstate__(self, saved: dict[str, Any]) -> None:
        schedule = saved["schedule"]
        _observe.check_version(saved["version"], schedule.name, schedule.version)
        self.__dict__.update(saved)

    def step(self, losses: Floats, batch: Batch) -> None:
        """Measure, ask the schedule, and move the weights."""
        splits = self._splits and batch.rows > 1
        schedule = self.schedule if splits else self._whole
        if schedule is None:
            raise MissingSignal(
                f'{self.schedule.name} with mode="parts" needs batches of 2 rows or more, got 1'
            )
        self._fields = self._told.take()
        points = np.empty_like(self.points)
        batch.gradient(0, batch.rows, points)
        gradient, loss = points[0], float(losses[0])
        square = float(gradient @ gradient)
        if not (isfinite(loss) and isfinite(square)):
            return
        self._fields |= {
            "batch_size": float(batch.rows),
            "loss": loss,
            "step_length": self._length,
            "dim": float(gradient.size),
        }
        reads = schedule.signals
        previous = None if splits or _PARTS.isdisjoint(reads) else self._previous
        self._fields |= _observe.measure(
            _SPACE, reads, gradient, previous=previous, trail=self._trail
        )
        if splits:
            self._fields |= self._halves(batch)
        self._previous, self._trail = gradient, TRAIL * self._trail + gradient
        signal = {name: self._fields[name] for name in reads if name in self._fields}
        if {*reads} - schedule.optional <= signal.keys():
            self.state = schedule.update(self.state, Signal(**signal))[1]
        rate = self.state[schedule.output]
        self.points[0] -= rate * gradient
        self._length = rate * sqrt(square)

    def _halves(self, batch: Batch) -> Fields:
        """Compare the two halves of the batch; an odd row is left out of the comparison."""
        half = batch.rows // 2
        parts = np.empty((2, *self.points.shape))
        batch.gradient(0, half, parts[0])
        batch.gradient(half, 2 * half, parts[1])
        # `gradient` divides by all rows.
        one, other = parts[:, 0] * (batch.rows / half)
        mean, apart = 0.5 * (one + other), one - other
        return _observe.of_parts(float(mean @ mean), 0.5 * float(apart @ apart), 2.0)


def _settled(schedule: Schedule, mode: str) -> Schedule:
    """Return the schedule's form for a mode; no optimizer brings a rate of its own."""
    base = Base(plain=True, rate=None)
    return _observe.settle(schedule, base, modes=MODES, mode=mode, relative=False).schedule
