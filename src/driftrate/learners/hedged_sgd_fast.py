"""The fast twin of `HedgedSGD`: one learner, float64 NumPy, in place."""

from __future__ import annotations

from math import inf, isfinite, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftrate.errors import StateError
from driftrate.learners import hedged_sgd as hedged
from driftrate.learners.hedged_sgd import HedgedSGD
from driftrate.schedules.base import State

Floats = NDArray[np.float64]
_LEAST = float(np.finfo(np.float64).smallest_normal) ** 0.25
_EPS = float(np.finfo(np.float64).eps) ** (1 / 3)


class FastHedgedSGD:
    """`HedgedSGD` for one learner in NumPy, in place: the fast twin of its `update`.

    Scalars are Python floats and weights never move in memory; a step costs a tenth of that on
    the array API. A test holds the twins together.

    `points` are where losses and gradients are wanted, of shape (copies + 2, dim); the first is the
    mixture. `gradients` is room of the same shape for a caller that writes them in place.

    Args:
        rule: The pool's constants.
        state: A state of `HedgedSGD` without leading axes.
    """

    def __init__(self, rule: HedgedSGD, state: State) -> None:
        self.rule = rule
        self.load(state)

    def load(self, state: State) -> None:
        """Go on from a state of `HedgedSGD` without leading axes; it is copied."""
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

    def __getstate__(self) -> dict[str, Any]:
        return {"rule": self.rule, "version": self.rule.version, "state": self.state}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        if saved["version"] != HedgedSGD.version:
            raise StateError(
                f"the saved pool is of version {saved['version']!r}; this driftrate reads version"
                f" {HedgedSGD.version}"
            )
        self.__init__(saved["rule"], saved["state"])  # type: ignore[misc]

    def update(self, losses: Floats, gradients: Floats) -> None:
        """Take one step with every copy and mix anew.

        Args:
            losses: The batch loss at `points`, of shape (copies + 2,).
            gradients: The batch gradients there, of shape (copies + 2, dim); overwritten.
        """
        with np.errstate(all="ignore"):  # what is not finite is looked for, and left out
            self._advance(losses, gradients)

    def _advance(self, losses: Floats, gradients: Floats) -> None:
        now, loss, own = self.scalars, float(losses[0]), losses[1:-1]
        gradient = gradients[0]
        square = float(gradient @ gradient)
        jump = self._screen(loss, square)
        if jump is None:
            return
        first = now["count"] == 0
        trust = self._judge(loss, gradients)
        powers = np.exp(hedged._LN2 * self.octaves)
        rates = self._bend(gradients, sqrt(square)) * powers
        weights, steps = self.points[1:-1], gradients[1:-1]
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

    def _judge(self, loss: float, gradients: Floats) -> float:
        """Follow the loss' level and the noise of one degree of freedom; return the trust."""
        now = self.scalars
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

    def _bend(self, gradients: Floats, norm: float) -> float:
        """Measure the curvature, point the probe along the gradient; return the rates' scale."""
        now, gradient, cap = self.scalars, gradients[0], inf
        if now["count"] == 0:
            away = (self.points[1:-1] - self.points[0]) / self.width
            bent = (gradients[1:-1] - gradient) / self.width
            square = float(np.einsum("ij,ij->", bent, bent)) / len(bent)
            inner = float(np.einsum("ij,ij->", bent, away)) / len(bent)
        else:
            bent = (gradients[-1] - gradient) / self.width
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
