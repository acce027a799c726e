"""What moves the weights of an estimator: a pool of rates, or one schedule."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any, Literal, Protocol

import numpy as np

from driftrate.adapters._observe import Policy, blend
from driftrate.adapters.sklearn.losses import Floats
from driftrate.errors import ConfigError, MissingSignal, SignalError, StateError
from driftrate.estimate import Estimated, from_parts
from driftrate.learners import HedgedSGD
from driftrate.learners.hedged_sgd_fast import FastHedgedSGD
from driftrate.schedules.base import TRAIL, Schedule, Signal
from driftrate.schedules.wrappers import Wrapper

Mode = Literal["parts", "sequence"]
TOLD = ("shift", "loss_shift")
_ALWAYS = ("batch_size", "loss", "step_length", "grad_sq", "dim", "trail")
MEASURED = {
    "parts": (*_ALWAYS, "parts", "cross", "spread"),
    "sequence": (*_ALWAYS, "cross", "spread"),
}


class Derivative(Protocol):
    """One batch: what the loss says of the scores, and the features behind them."""

    rows: int

    def gradient(self, start: int, stop: int, out: Floats) -> None:
        """Write the sum over the rows of each model's gradient."""
        ...


class Driver(Protocol):
    """Holds the points at which losses and gradients are wanted; the first is the model."""

    points: Floats

    def step(self, losses: Floats, batch: Derivative) -> None:
        """Take one step, in place."""
        ...

    def tell(self, **fields: float) -> None:
        """Say what cannot be measured."""
        ...

    def notify_shift(self, policy: Policy, decay: float) -> None:
        """Forget some of what was learned about rates, and nothing of the weights."""
        ...

    @property
    def record(self) -> dict[str, float]:
        """The last step in numbers."""
        ...


class Pool(FastHedgedSGD):
    """The pool as the driver of an estimator."""

    @property
    def record(self) -> dict[str, float]:
        """Σ p_k η_k, and the running mean of the loss."""
        return {"rate": self.scalars["rate"], "loss": self.scalars["level"]}

    def tell(self, **fields: float) -> None:
        """Refuse: a pool measures everything."""
        raise SignalError(f"tell: {self.rule.name} needs nothing told, got {sorted(fields)}")

    def notify_shift(self, policy: Policy, decay: float) -> None:
        """Forget shares and octaves, or all but the weights."""
        if policy == "keep":
            return
        start = self.rule.init(self.points[0].copy())
        if policy == "reset":
            self.load(start)
        else:
            for name in ("shares", "octaves"):
                now = getattr(self, name)
                now *= decay
                now += (1.0 - decay) * start[name]

    def step(self, losses: Floats, batch: Derivative) -> None:
        """Take one step with every copy and mix anew."""
        batch.gradient(0, batch.rows, self.gradients)
        self.update(losses, self.gradients)


class Single:
    """One weight vector whose rate a schedule gives.

    Args:
        schedule: Any schedule.
        mode: Where `cross` and `spread` come from.
        theta: The first weights.
    """

    def __init__(self, schedule: Schedule, mode: Mode, theta: Floats) -> None:
        # The sequence's `cross` is of two batches, not of parts of one.
        schedule = schedule.reading((*TOLD, *(MEASURED[mode] if mode == "parts" else _ALWAYS)))
        lacking = sorted({*schedule.signals} - {*TOLD} - {*MEASURED[mode]} - schedule.optional)
        if lacking:
            able = [one for one, measured in MEASURED.items() if {*lacking} <= {*measured}]
            use = " or ".join(f'mode="{one}"' for one in able) or "another schedule"
            raise MissingSignal(
                f'{schedule.name} needs {lacking}, which mode="{mode}" cannot give: use {use}'
            )
        self.schedule = schedule
        self.mode = mode
        self.points = theta[None, :].copy()
        self.state = schedule.init()
        self.version = schedule.version
        self.previous: Floats | None = None
        self.trail = np.zeros_like(theta) if "trail" in schedule.signals else None
        self.length = 0.0
        self.told: dict[str, float] = {}
        self.seen: dict[str, float] = {}

    @property
    def record(self) -> dict[str, float]:
        """The rate; signal, noise and shift where the schedule reads them."""
        known = {"signal": "cross", "noise": "spread", "shift": "shift"}
        read = {name: self.seen[field] for name, field in known.items() if field in self.seen}
        schedule, state = self.schedule, self.state
        while isinstance(schedule, Wrapper):
            if isinstance(schedule, Estimated) and schedule.estimator.provides == "shift":
                read["shift"] = state["estimator"]["estimate"]
            schedule, state = schedule.schedule, state["inner"]
        return {"rate": self.state["rate"], **read}

    def tell(self, **fields: float) -> None:
        """Say what cannot be measured; it stays said."""
        unknown = sorted(fields.keys() - {*TOLD})
        if unknown:
            raise SignalError(f"tell: {unknown} cannot be told, only {sorted(TOLD)} can")
        known = fields.keys() & {*self.schedule.signals}
        probe = dict.fromkeys(self.schedule.signals, 2.0) | {name: fields[name] for name in known}
        self.schedule.update(self.schedule.init(), Signal(**probe))
        self.told |= fields

    def notify_shift(self, policy: Policy, decay: float) -> None:
        """Move the schedule's state back to where it started, in part or in whole."""
        start = self.schedule.init()
        if policy == "reset":
            self.state = start
        elif policy == "decay":
            self.state = blend(self.state, start, decay)

    def __setstate__(self, saved: dict[str, Any]) -> None:
        schedule = saved["schedule"]
        if saved["version"] != schedule.version:
            raise StateError(
                f"the saved {schedule.name} is of version {saved['version']!r}; this driftrate"
                f" reads version {schedule.version}"
            )
        self.__dict__.update(saved)

    def step(self, losses: Floats, batch: Derivative) -> None:
        """Measure, ask the schedule, and move the weights."""
        reads, rows = self.schedule.signals, batch.rows
        for name in reads:
            if name in TOLD and name not in self.told and name not in self.schedule.optional:
                raise MissingSignal(
                    f"{self.schedule.name} needs {name}: call tell({name}=...) before partial_fit"
                )
        whole = np.empty_like(self.points)
        batch.gradient(0, rows, whole)
        gradient = whole[0]
        if not (isfinite(float(losses[0])) and isfinite(float(gradient @ gradient))):
            return
        found = self.told | {
            "batch_size": float(rows),
            "loss": float(losses[0]),
            "step_length": self.length,
            "grad_sq": float(gradient @ gradient),
            "dim": float(gradient.size),
        }
        if self.trail is not None:
            found["trail"] = float(gradient @ self.trail)
            self.trail = TRAIL * self.trail + gradient
        ready = True
        if not {"parts", "cross", "spread"}.isdisjoint(reads):
            if self.mode == "parts":
                found |= self._halves(batch)
            else:
                previous, self.previous = self.previous, gradient
                ready = previous is not None
                if previous is not None:
                    apart = gradient - previous
                    found["cross"] = float(gradient @ previous)
                    found["spread"] = 0.5 * float(apart @ apart)
        rate = self.state["rate"]
        if ready:
            self.seen = {name: found[name] for name in reads if name in found}
            rate, self.state = self.schedule.update(self.state, Signal(**self.seen))
        self.points[0] -= rate * gradient
        self.length = rate * sqrt(found["grad_sq"])

    def _halves(self, batch: Derivative) -> dict[str, float]:
        """Compare the two halves of the batch; an odd row is left out of the comparison."""
        half = batch.rows // 2
        if half == 0:
            raise MissingSignal(
                f'{self.schedule.name} with mode="parts" needs batches of 2 rows or more, got 1:'
                ' use mode="sequence"'
            )
        parts = np.empty((2, *self.points.shape))
        batch.gradient(0, half, parts[0])
        batch.gradient(half, 2 * half, parts[1])
        # `gradient` divides by all rows.
        signal = from_parts(parts[:, 0] * (batch.rows / half))
        return {"parts": 2.0, "spread": float(signal.spread), "cross": float(signal.cross)}


def driver(rule: Any, mode: str, theta: Floats) -> Driver:
    """Return what moves the weights.

    Args:
        rule: None, a `HedgedSGD`, or a schedule.
        mode: Where a schedule's signal comes from.
        theta: The first weights, flat.

    Returns:
        The driver.
    """
    if mode not in MEASURED:
        raise ConfigError(f"mode must be one of {tuple(MEASURED)}, got {mode!r}")
    rule = HedgedSGD() if rule is None else rule
    if isinstance(rule, HedgedSGD):
        return Pool(rule, rule.init(theta))
    if isinstance(rule, Schedule):
        return Single(rule, "parts" if mode == "parts" else "sequence", theta)
    raise ConfigError(f"schedule must be None, a HedgedSGD or a Schedule, got {rule!r}")
