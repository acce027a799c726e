"""What moves the weights of an estimator: a pool of rates, or one schedule."""

from __future__ import annotations

from math import inf, isfinite, log, sqrt
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from driftrate.adapters._observe import Policy, blend
from driftrate.adapters.sklearn.losses import Floats
from driftrate.errors import ConfigError, MissingSignal, SignalError, StateError
from driftrate.estimate import Estimated, from_parts
from driftrate.learners import HedgedSGD
from driftrate.learners import hedged_sgd as hedged
from driftrate.schedules.base import TRAIL, Schedule, Signal, State
from driftrate.schedules.wrappers import Wrapper

Mode = Literal["parts", "sequence"]
TOLD = ("shift", "loss_shift")
_ALWAYS = ("batch_size", "loss", "step_length", "grad_sq", "dim", "trail")
MEASURED = {
    "parts": (*_ALWAYS, "parts", "cross", "spread"),
    "sequence": (*_ALWAYS, "cross", "spread"),
}
_LEAST = float(np.finfo(np.float64).smallest_normal) ** 0.25
_EPS = float(np.finfo(np.float64).eps) ** (1 / 3)


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


class Pool:
    """`HedgedSGD` for one learner in NumPy, in place: the fast twin of its `update`.

    Scalars are Python floats and weights never move in memory; a step costs a tenth of that on
    the array API. A test holds the twins together.

    Args:
        rule: The pool's constants.
        state: A state of `HedgedSGD` without leading axes.
    """

    def __init__(self, rule: HedgedSGD, state: State) -> None:
        self.rule = rule
        self._load(state)

    def _load(self, state: State) -> None:
        copies, dim = state["weights"].shape
        self.points = np.empty((copies + 2, dim))
        self.points[0], self.points[1:-1] = state["mixture"], state["weights"]
        self.flat = self.points[1:-1].reshape(-1)
        self.gradients = np.empty_like(self.points)
        self.shares, self.octaves = state["shares"].copy(), state["octaves"].copy()
        self.losses, self.pulls = state["losses"].copy(), state["pulls"].copy()
        self.direction = state["direction"].copy()
        self.scalars = {name: float(value) for name, value in state.items() if value.ndim == 0}
        self.place = np.linspace(0.0, 1.0, copies)
        # What a copy gives to its neighbours and loses; the ends give half of it to themselves.
        near = np.eye(copies, k=1) + np.eye(copies, k=-1)
        near[0, 0] = near[-1, -1] = 1.0
        self.leak = hedged._LEAK * (0.5 * near - np.eye(copies))
        self._probe()

    @property
    def state(self) -> State:
        """The state, as `HedgedSGD` itself has it."""
        arrays = {
            "weights": self.points[1:-1],
            "mixture": self.points[0],
            "shares": self.shares,
            "octaves": self.octaves,
            "losses": self.losses,
            "pulls": self.pulls,
            "direction": self.direction,
        }
        return {
            **{name: array.copy() for name, array in arrays.items()},
            **{name: np.asarray(value) for name, value in self.scalars.items()},
        }

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
            self._load(start)
        else:
            for name in ("shares", "octaves"):
                now = getattr(self, name)
                now *= decay
                now += (1.0 - decay) * start[name]

    def __getstate__(self) -> dict[str, Any]:
        return {"rule": self.rule, "version": self.rule.version, "state": self.state}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        if saved["version"] != HedgedSGD.version:
            raise StateError(
                f"the saved pool is of version {saved['version']!r}; this driftrate reads version"
                f" {HedgedSGD.version}"
            )
        self.__init__(saved["rule"], saved["state"])  # type: ignore[misc]

    def step(self, losses: Floats, batch: Derivative) -> None:
        """Take one step with every copy and mix anew."""
        batch.gradient(0, batch.rows, self.gradients)
        self._update(losses)

    def _update(self, losses: Floats) -> None:
        now, loss, own = self.scalars, float(losses[0]), losses[1:-1]
        gradient = self.gradients[0]
        square = float(gradient @ gradient)
        jump = self._screen(loss, square)
        if jump is None:
            return
        first = now["count"] == 0
        trust = self._judge(loss)
        powers = np.exp(hedged._LN2 * self.octaves)
        rates = self._bend(sqrt(square)) * powers
        weights, steps = self.points[1:-1], self.gradients[1:-1]
        steps *= rates[:, None]
        if first:
            # From θ_1 itself, not from where the copies looked for curvature.
            weights[...] = self.points[0]
            self.losses[...] = own
        weights -= steps

        broken = None
        # A finite sum of squares has finite terms.
        if not isfinite(float(self.flat @ self.flat) + float(own @ own)):
            broken = ~(np.isfinite(weights.sum(axis=1)) & np.isfinite(own))
            own = np.where(broken, 0.0, own)
        evidence = np.maximum(np.minimum(trust * (own - loss), 1e4), -1e4)
        if broken is not None:
            evidence[broken] = 1e4
        shares = self._share(evidence, jump, powers)

        limit = hedged._DIVERGED * now["level"]
        self.losses += hedged._FAST * (own - self.losses)
        if broken is not None or float(self.losses.max()) > limit:
            diverged = (self.losses > limit) & (rates > float(shares @ rates))
            self._restart(shares, diverged if broken is None else diverged | broken)
        else:
            self.shares = shares / float(shares.sum())
            np.matmul(self.shares, weights, out=self.points[0])
        now["rate"] = float(self.shares @ rates)
        now["count"] = min(now["count"] + 1.0, hedged._OLDEST)
        self._stretch(float(powers[-1]))
        self._probe()

    def _screen(self, loss: float, square: float) -> float | None:
        """Return a jump's chance, None if the batch is not to be trusted; mind the gradient."""
        now = self.scalars
        before = now["grad_sq"]
        if not (isfinite(square) and isfinite(loss)):
            return None
        if square == 0.0:
            return 0.0
        limit = hedged._OUTLIER * before if before > 0 else square
        now["grad_sq"] += self._weight(0.0, hedged._FAST) * (min(square, limit) - before)
        if square > limit:
            return None
        size, change = min(max(square, _LEAST), 1.0 / _LEAST), now["change"]
        jump = log(size / before) / (1.05 * change * change) if before > _LEAST else 0.0
        jump -= float(hedged._suspicion(np, self.shares, self.octaves))
        jump /= hedged._SURPRISE[1]
        if now["count"] > 0:
            turn = sqrt(2.0 * abs(size - now["last"]) / (size + now["last"]))
            change += self._weight(1.0, hedged._SLOW) * (turn - change)
            now["change"] = max(change, hedged._LEAST)
        now["last"] = size
        return min(max(jump, 0.0), 1.0)

    def _judge(self, loss: float) -> float:
        """Follow the loss' level and the noise of one degree of freedom; return the trust."""
        now, gradients = self.scalars, self.gradients
        now["level"] += self._weight(0.0, hedged._FAST) * (abs(loss) - now["level"])
        away = self.points[1:-1] - self.points[0]
        pull = away @ gradients[0]
        bend = np.einsum("ij,ij->i", away, gradients[1:-1] - gradients[0])
        seen = (bend > 0) & np.isfinite(bend) & np.isfinite(pull)
        number = int(np.count_nonzero(seen))
        pulls = pull / np.sqrt(bend)
        if number < len(seen):
            pulls[~seen] = 0.0
        turn = pulls - self.pulls
        self.pulls = pulls
        if number > 0:
            ahead = -1.0 if now["count"] > 1 else -now["count"]
            limit = hedged._SPIKE * now["noise"] if now["noise"] > 0 else inf
            mean = min(0.5 * float(turn @ turn) / number, limit)
            now["noise"] += self._weight(ahead, hedged._SLOW) * (mean - now["noise"])
        return hedged._TEMPER / now["noise"] if now["noise"] > _LEAST else 0.0

    def _bend(self, norm: float) -> float:
        """Measure the curvature, point the probe along the gradient; return the rates' scale."""
        now, gradient, cap = self.scalars, self.gradients[0], inf
        if now["count"] == 0:
            away = (self.points[1:-1] - self.points[0]) / self.width
            bent = (self.gradients[1:-1] - gradient) / self.width
            square = float(np.einsum("ij,ij->", bent, bent)) / len(bent)
            inner = float(np.einsum("ij,ij->", bent, away)) / len(bent)
        else:
            bent = (self.gradients[-1] - gradient) / self.width
            square, inner = float(bent @ bent), float(bent @ self.direction)
        if isfinite(square) and inner > 0:
            cap = hedged._SLACK * inner / square
            limit = hedged._SPIKE * now["curved"]
            if 0 < limit < square:
                inner, square = sqrt(limit / square) * inner, limit
            weight = self._weight(0.0, hedged._SLOW)
            now["along"] += weight * (inner - now["along"])
            now["curved"] += weight * (square - now["curved"])
        if norm > 0:
            np.divide(gradient, norm, out=self.direction)
        if now["curved"] > 0:
            return min(now["along"] / now["curved"], cap)
        return now["level"] / now["grad_sq"] if now["grad_sq"] > 0 else 0.0

    def _share(self, evidence: Floats, jump: float, powers: Floats) -> Floats:
        """Return the new shares: evidence, neighbours, everyone, and the prior at a jump."""
        shares: Floats = self.shares * np.exp(float(evidence.min()) - evidence)
        shares /= float(shares.sum())
        moving = np.minimum(powers, 1.0) * shares
        pace = hedged._SHARE * float(moving.sum())
        shares += self.leak @ moving
        shares *= 1.0 - pace
        shares += pace / len(shares)
        if jump > 0:
            shares += jump * (hedged._prior(np, self.octaves) - shares)
        return shares

    def _restart(self, shares: Floats, diverged: NDArray[np.bool_]) -> None:
        """Mix the others, and put what diverged there."""
        weights, kept = self.points[1:-1], np.where(diverged, 0.0, shares)
        weights[diverged] = 0.0
        total = float(kept.sum())
        if total > 0:
            np.matmul(kept / total, weights, out=self.points[0])
        weights[diverged] = self.points[0]
        self.losses[diverged] = self.scalars["level"]
        shares = np.where(diverged, hedged._COMEBACK * shares, shares)
        self.shares = shares / float(shares.sum())

    def _stretch(self, slowest: float) -> None:
        """Extend the range of octaves where an end carries the pool."""
        octaves, shares = self.octaves, self.shares
        high, low = float(octaves[0]), float(octaves[-1])
        if low > hedged._LOWEST:
            octaves -= float(shares[-1]) * slowest * self.place
        if shares[0] > 0.5 and high < hedged._HIGHEST:
            octaves += hedged._RISE * (1.0 - self.place)

    def _weight(self, ahead: float, least: float) -> float:
        return max(1.0 / (self.scalars["count"] + ahead + 1.0), least)

    def _probe(self) -> None:
        mixture = self.points[0]
        self.width = _EPS * (1.0 + sqrt(float(mixture @ mixture)))
        np.add(mixture, self.width * self.direction, out=self.points[-1])


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
