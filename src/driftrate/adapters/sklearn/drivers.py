"""What moves the weights of an estimator: a pool of rates, or one schedule."""

from __future__ import annotations

from typing import Any

from driftrate.adapters._observe import Policy
from driftrate.adapters.sklearn.losses import Batch, Floats
from driftrate.adapters.sklearn.single import Single
from driftrate.errors import ConfigError, SignalError
from driftrate.learners import HedgedSGD
from driftrate.learners.hedged_sgd_fast import FastHedgedSGD
from driftrate.schedules.base import Schedule


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

    def step(self, losses: Floats, batch: Batch) -> None:
        """Take one step with every copy and mix anew."""
        batch.gradient(0, batch.rows, self.gradients)
        self.update(losses, self.gradients)


def driver(rule: Any, mode: str, theta: Floats) -> Pool | Single:
    """Return what moves the flat weights: None is a `HedgedSGD`; a schedule is read in a mode."""
    rule = HedgedSGD() if rule is None else rule
    if isinstance(rule, HedgedSGD):
        return Pool(rule, rule.init(theta))
    if isinstance(rule, Schedule):
        return Single(rule, "parts" if mode == "parts" else "sequence", theta)
    raise ConfigError(f"schedule must be None, a HedgedSGD or a Schedule, got {rule!r}")
