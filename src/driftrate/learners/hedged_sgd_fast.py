"""The fast twin of `HedgedSGD`: one learner, float64 NumPy, in place."""

from __future__ import annotations

from math import inf, isfinite, log, log1p, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftrate.errors import StateError
from driftrate.learners import hedged_sgd as hedged
from driftrate.learners.hedged_sgd import HedgedSGD
from driftrate.learners.mixer import LIMIT, negligible
from driftrate.schedules.base import State

Floats = NDArray[np.float64]
_LEAST = negligible(np, np.zeros(()))
_ARRAYS = ("shares", "octaves", "losses", "pulls", "direction")
_EPS = float(np.finfo(np.float64).eps) ** (1 / 3)


class FastHedgedSGD:
    """`HedgedSGD` for one learner in NumPy, in place: the fast twin of its `update`.

    Scalars are Python floats and weights never move in memory; a step costs a tenth of that on
    the array API. A test holds the twins together.

    `points` are where losses and gradients are wanted, of shape (copies + 2, dim); the first is the
    mixture. `gradients` is room of the same shape for a caller that writes them in place.

    Args:
        rule: The pool.
        state: A state of `HedgedSGD` without leading axes.

    Example:
        >>> rng, rule = np.random.default_rng(0), HedgedSGD()
        >>> pool = FastHedgedSGD(rule, rule.init(np.zeros(3)))
        >>> for _ in range(200):
        ...     x = rng.standard_normal((16, 3))
        ...     residual = pool.points @ x.T - x @ np.array([1.0, -2.0, 0.5])
        ...     pool.update(0.5 * (residual**2).mean(axis=-1), residual @ x / 16)
        >>> pool.points[0].round(2).tolist()
        [1.0, -2.0, 0.5]
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
        arrays = (state[name].copy() for name in _ARRAYS)
        self.shares, self.octaves, self.losses, self.pulls, self.direction = arrays
        self.scalars = {name: float(value) for name, value in state.items() if value.ndim == 0}
        self.place = np.linspace(0.0, 1.0, copies)
        # What a copy gives to its neighbours and loses; the ends keep half of it.
        near = np.eye(copies, k=1) + np.eye(copies, k=-1)
        near[0, 0] = near[-1, -1] = 1.0
        self.leak = self.rule.mixer.leak * (0.5 * near - np.eye(copies))
        self._probe()

    @property
    def rate(self) -> float:
        """Σ p_k η_k of the last step."""
        return self.scalars["rate"]

    @property
    def state(self) -> State:
        """The state, as `HedgedSGD` itself has it."""
        arrays = {"weights": self.points[1:-1], "mixture": self.points[0]}
        arrays |= {name: getattr(self, name) for name in _ARRAYS}
        return {name: array.copy() for name, array in arrays.items()} | {
            name: np.asarray(value) for name, value in self.scalars.items()
        }

    def __getstate__(self) -> dict[str, Any]:
        return {"rule": self.rule, "version": self.rule.version, "state": self.state}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        if saved["version"] != HedgedSGD.version:
            known = f"this driftrate reads version {HedgedSGD.version}"
            raise StateError(f"the saved pool is of version {saved['version']!r}; {known}")
        self.__init__(saved["rule"], saved["state"])  # type: ignore[misc]

    @np.errstate(all="ignore")  # what is not finite is found, and left out
    def update(self, losses: Floats, gradients: Floats) -> None:
        """Take one step with every copy and mix anew.

        Args:
            losses: The batch loss at `points`, of shape (copies + 2,).
            gradients: The batch gradients there, of shape (copies + 2, dim); overwritten.
        """
        now, loss, own = self.scalars, float(losses[0]), losses[1:-1]
        square = float(gradients[0] @ gradients[0])
        powers = np.exp(hedged.LN2 * self.octaves)
        jump = self._screen(loss, square, powers)
        if jump is None:
            return
        first = now["count"] == 0
        trust = self._noise(loss, gradients)
        rates = self._curvature(gradients, sqrt(square)) * powers
        weights, steps = self.points[1:-1], gradients[1:-1]
        steps *= rates[:, None]
        if first:
            # From θ_1 itself, not from where the copies measured curvature.
            weights[...] = self.points[0]
            self.losses[...] = own
        weights -= steps

        broken = None
        # A finite sum of squares has finite terms.
        if not isfinite(float(self.flat @ self.flat) + float(own @ own)):
            broken = ~(np.isfinite(weights.sum(axis=1)) & np.isfinite(own))
            own = np.where(broken, 0.0, own)
        evidence = np.fmin(np.fmax(trust * (own - loss), -LIMIT), LIMIT)
        if broken is not None:
            evidence[broken] = LIMIT
        shares = self._share(evidence, jump, powers)

        limit = hedged.DIVERGED * now["level"]
        self.losses += hedged.FAST * (own - self.losses)
        if broken is not None or float(self.losses.max()) > limit:
            diverged = (self.losses > limit) & (rates > float(shares @ rates))
            self._restart(shares, diverged if broken is None else diverged | broken)
        else:
            self.shares = shares / float(shares.sum())
            np.matmul(self.shares, weights, out=self.points[0])
        now["rate"] = float(self.shares @ rates)
        now["count"] = min(now["count"] + 1.0, hedged.OLDEST)
        self._stretch(float(powers[-1]))
        self._probe()

    def _screen(self, loss: float, square: float, powers: Floats) -> float | None:
        """Return a jump's chance, None if the batch is an outlier; follow the usual ‖g‖²."""
        now, mixer = self.scalars, self.rule.mixer
        before = now["grad_sq"]
        if not (isfinite(square) and isfinite(loss)):
            return None
        if square == 0.0:
            return 0.0
        limit = hedged.OUTLIER * before if before > 0 else square
        now["grad_sq"] += self._weight(0.0, hedged.FAST) * (min(square, limit) - before)
        if square > limit:
            return None
        size, change = min(max(square, _LEAST), 1.0 / _LEAST), now["change"]
        jump = log(size / before) / (1.05 * change * change) if before > _LEAST else 0.0
        pace = float(self.shares @ np.minimum(powers, 1.0))
        # What follows is `Mixer.jump`.
        jump -= sqrt(mixer.suspect**2 + 2.0 * log1p(mixer.quiet / pace))
        jump /= mixer.certain
        if now["count"] > 0:
            turn = sqrt(2.0 * abs(size - now["last"]) / (size + now["last"]))
            change += self._weight(1.0, hedged.SLOW) * (turn - change)
            now["change"] = max(change, hedged.STEADY)
        now["last"] = size
        return min(max(jump, 0.0), 1.0)

    def _noise(self, loss: float, gradients: Floats) -> float:
        """Follow the mean loss and the noise of one degree of freedom; return the trust."""
        now = self.scalars
        now["level"] += self._weight(0.0, hedged.FAST) * (abs(loss) - now["level"])
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
            limit = hedged.SPIKE * now["noise"] if now["noise"] > 0 else inf
            mean = 0.5 * float(turn @ turn) / number
            mean = mean if mean < limit else limit  # the limit too where it is not a number
            now["noise"] += self._weight(ahead, hedged.SLOW) * (mean - now["noise"])
        return self.rule.mixer.temper / now["noise"] if now["noise"] > _LEAST else 0.0

    def _curvature(self, gradients: Floats, norm: float) -> float:
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
            cap = hedged.SLACK * inner / square if square > 0 else inf
            limit = hedged.SPIKE * now["curved"]
            if 0 < limit < square:
                inner, square = sqrt(limit / square) * inner, limit
            weight = self._weight(0.0, hedged.SLOW)
            now["along"] += weight * (inner - now["along"])
            now["curved"] += weight * (square - now["curved"])
        if norm > 0:
            np.divide(gradient, norm, out=self.direction)
        if now["curved"] > 0:
            return min(now["along"] / now["curved"], cap)
        return now["level"] / now["grad_sq"] if now["grad_sq"] > 0 else 0.0

    def _share(self, evidence: Floats, jump: float, powers: Floats) -> Floats:
        """Return the shares of `Mixer.update`, not yet divided by their sum."""
        shares: Floats = self.shares * np.exp(float(evidence.min()) - evidence)
        shares /= float(shares.sum())
        moving = np.minimum(powers, 1.0) * shares
        pace = self.rule.mixer.share * float(moving.sum())
        shares += self.leak @ moving
        shares *= 1.0 - pace
        shares += pace / len(shares)
        if jump > 0:
            shares += jump * (hedged.prior(np, self.octaves) - shares)
        return shares

    def _restart(self, shares: Floats, diverged: NDArray[np.bool_]) -> None:
        """Mix the others as `Mixer.mix` does, and put what diverged there."""
        weights, kept = self.points[1:-1], np.where(diverged, 0.0, shares)
        weights[diverged] = 0.0
        total = float(kept.sum())
        if total > 0:
            np.matmul(kept / total, weights, out=self.points[0])
        weights[diverged] = self.points[0]
        self.losses[diverged] = self.scalars["level"]
        shares = np.where(diverged, self.rule.mixer.comeback * shares, shares)
        self.shares = shares / float(shares.sum())

    def _stretch(self, slowest: float) -> None:
        """Extend the range of octaves at an end that carries the pool."""
        octaves, shares = self.octaves, self.shares
        high, low = float(octaves[0]), float(octaves[-1])
        if low > hedged.LOWEST:
            octaves -= float(shares[-1]) * slowest * self.place
        if shares[0] > 0.5 and high < hedged.HIGHEST:
            octaves += hedged.RISE * (1.0 - self.place)

    def _weight(self, ahead: float, least: float) -> float:
        return max(1.0 / (self.scalars["count"] + ahead + 1.0), least)

    def _probe(self) -> None:
        mixture = self.points[0]
        self.width = _EPS * (1.0 + sqrt(float(mixture @ mixture)))
        np.add(mixture, self.width * self.direction, out=self.points[-1])
