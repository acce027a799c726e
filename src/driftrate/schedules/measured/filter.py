"""The bank of hypotheses behind `MeasuredRate`: how large the signal is, and how fast it grows."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, NamedTuple

from driftrate.schedules import _scalars
from driftrate.schedules.base import Array, State

# Hypotheses: 0 a target that rests, 1 to 6 one that drifts, 7 one that has just jumped. A drift is
# told by the rate at which a learner of constant rate would best follow it.
SETTLES = (0.0, 0.003, 0.01, 0.03, 0.08, 0.2, 0.5, 0.0)
MODELS = len(SETTLES)
_RESTS, _DRIFTS = 0.7, 0.3 / 6.0  # what rest and each drift are worth before anything was seen
_SWITCH = 0.003  # the chance a step that the drift changes, while nothing has rested
_JUMP = 0.008  # the chance of a jump, likewise
_FRESH = 0.8  # the chance that a jump is still news a step later
_PATIENCE = 4.0  # after so many steps of rest a change of drift is half as likely
_ALERT = 100.0  # and a jump a fourth after so many
_LEAST = 1e-12  # no hypothesis is given up; far below any chance of change, or no rest would last
_SLIVER = 0.01  # of a hypothesis: less than this of a jump leaves its moments as they are
_THIN = 24.0  # half the lower degrees of freedom of ‖g‖², where it is regular
_NEWS = 5.0  # a jump multiplies the gradient's square by anything up to e^5, all equally likely
_TINY = 1e-30
NAMES = ("level", "along", "level_error", "along_error", "shared", "weight", "floor")


class Bank(NamedTuple):
    """For each hypothesis the signal v, its product c with the trail, their errors, and a weight.

    v = ‖∇‖² and c = ⟨∇, h⟩, h the trail of past gradients; the errors are variances and a
    covariance. Each has its own additive noise s too: what one takes for signal, another takes for
    noise, and a shared s would confirm whoever is believed. Hypotheses are stacked on a first axis.
    """

    xp: Any
    settles: Array
    level: Array
    along: Array
    level_error: Array
    along_error: Array
    shared: Array
    weight: Array
    floor: Array

    @classmethod
    def unpack(cls, xp: Any, state: State) -> Bank:
        """Read the leaves of a state."""
        leaf = state["level0"]
        # Plain floats are stacked in NumPy: one formula for eight numbers costs less than eight.
        vx = xp
        if xp is _scalars:
            vx = import_module("array_api_compat.numpy")  # late: it brings all of NumPy
            settles = vx.asarray(SETTLES)
            rows = [vx.asarray([state[f"{name}{j}"] for j in range(MODELS)]) for name in NAMES]
        else:
            # Filled, not copied: a copy from the host would make the device wait.
            settles = vx.stack([vx.full_like(leaf, rate) for rate in SETTLES])
            rows = [vx.stack([state[f"{name}{j}"] for j in range(MODELS)]) for name in NAMES]
        return cls(vx, settles, *rows)

    @staticmethod
    def start() -> State:
        """Return the leaves of a state that has seen nothing: all that is left is a jump."""
        leaves: State = {f"{name}{j}": 0.0 for name in NAMES for j in range(MODELS)}
        weights = {f"weight{j}": 0.1 / (MODELS - 1) for j in range(MODELS - 1)}
        return leaves | weights | {f"weight{MODELS - 1}": 0.9}

    def pack(self, xp: Any) -> State:
        """Return the leaves of a state."""
        leaves: State = {}
        for name in NAMES:
            stacked = getattr(self, name)
            values = stacked.tolist() if xp is _scalars else [stacked[j] for j in range(MODELS)]
            leaves |= {f"{name}{j}": value for j, value in enumerate(values)}
        return leaves

    @property
    def jumped(self) -> Array:
        """Which row is the hypothesis of a jump: a mask that broadcasts against the rest."""
        return _last(self.xp, self.settles)

    def mean(self, values: Array) -> Array:
        """Return the weighted mean over the hypotheses."""
        return self.xp.sum(self.weight * values, axis=0)

    def noise(self, falls: Array) -> Array:
        """Return N = κv + s under each hypothesis."""
        return falls * self.level + self.floor

    def begin(self, level: Array, first: Array) -> Bank:
        """Give every hypothesis the same uncertain level where nothing was seen before."""
        vx = self.xp
        level = vx.where(first, level, self.level)
        error = vx.where(first, level * level, self.level_error)
        return self._replace(level=level, level_error=error)

    def see_along(self, product: Array, noise: Array, scale: Array) -> Bank:
        """Correct by a product with the trail over `scale`, its noise of the variance `noise`."""
        vx = self.xp
        total = self.along_error + noise + _TINY
        off = product / scale - self.along
        gain, way = self.along_error / total, self.shared / total
        return self._replace(
            weight=self._believe(off, total, scale),
            level=_positive(vx, self.level, self.level + way * off),
            along=self.along + gain * off,
            level_error=self.level_error - way * self.shared,
            along_error=(1.0 - gain) * self.along_error,
            shared=(1.0 - gain) * self.shared,
        )._sound()

    def see_level(self, product: Array, noise: Array, scale: Array) -> Bank:
        """Correct by a product of two parts over `scale`, its noise of the variance `noise`."""
        vx = self.xp
        total = self.level_error + noise + _TINY
        off = product / scale - self.level
        gain, way = self.level_error / total, self.shared / total
        return self._replace(
            weight=self._believe(off, total, scale),
            level=_positive(vx, self.level, self.level + gain * off),
            along=self.along + way * off,
            level_error=(1.0 - gain) * self.level_error,
            along_error=self.along_error - way * self.shared,
            shared=(1.0 - gain) * self.shared,
        )._sound()

    def _believe(self, off: Array, total: Array, scale: Array) -> Array:
        """Return weights by how well a product over `scale` was foretold.

        Tails are Student's with 3 degrees of freedom: one odd batch convinces nobody.
        """
        odd = 1.0 + off * off / (3.0 * total)
        return _normal(self.xp, self.weight / (odd * odd * scale * self.xp.sqrt(total)))

    def see_square(
        self,
        square: Array,
        noise: Array,
        slope: Array,
        freedom: Array,
        heavy: float,
        regular: Array,
    ) -> tuple[Bank, Array, Array]:
        r"""Correct by the gradient's square; return how likely it was without a jump, and its tail.

        Its ratio to the mean is taken for an F variate with 2b lower degrees of freedom, of density
        u^a (1 + u)^{-(a+b)}/B(a, b), u = a·ratio/b, in its logarithm. The belief in b = 24, a thin
        tail, is learned: where squares are regular a jump is plain to see, and a heavier tail takes
        less for one.

        Args:
            square: ‖g‖².
            noise: E‖ξ‖² under each hypothesis.
            slope: The derivative of the square's mean by the level.
            freedom: The square's degrees of freedom.
            heavy: b of the heavy tail.
            regular: The belief in the thin one.
        """
        vx = self.xp
        expected = self.level + noise
        relative = self.level_error * (slope / expected) ** 2
        a = 0.5 / (1.0 / freedom + 0.5 * relative)
        ratio = a * (square / expected) + _TINY
        odd = (1.0 - regular) * self.weight * _density(vx, a, heavy, ratio)
        thin = regular * self.weight * _density(vx, a, _THIN, ratio)
        weight = odd + thin
        likely = vx.sum(weight, axis=0)
        # A batch's residuals move all its products together: thrice the variance it should have.
        total = slope * slope * self.level_error + 6.0 * expected * expected / freedom
        most = 2.0 * vx.sqrt(total)
        off = square - expected
        off = vx.where(off < most, off, most)
        off = vx.where(off > -most, off, -most)
        gain, way = slope * self.level_error / total, slope * self.shared / total
        bank = self._replace(
            weight=_normal(vx, weight),
            level=_positive(vx, self.level, self.level + gain * off),
            along=self.along + way * off,
            level_error=(1.0 - slope * gain) * self.level_error,
            along_error=self.along_error - slope * way * self.shared,
            shared=(1.0 - slope * gain) * self.shared,
        )._sound()
        return bank, likely, vx.sum(thin, axis=0) / likely

    def jump(
        self,
        level: Array,
        error: Array,
        seen: Array,
        otherwise: Array,
        rest: Array,
        product: Array,
        trail: Array,
        falls: Array,
    ) -> Bank:
        """Let the target jump to `level`, as far as the gradient's square shows it (`seen`).

        Args:
            level: v after the jump.
            error: Its variance.
            seen: How well the square shows it, from 0 to 1.
            otherwise: How likely the square is without a jump.
            rest: For how many steps the target has rested.
            product: That of the gradient with the trail, or None.
            trail: The trail's squared length over the effective dimension.
            falls: How much of the noise falls with the signal.
        """
        vx, here = self.xp, self.jumped
        # Squared: what false alarms leave behind then falls as 1/t, as the optimal rate does.
        chance = seen * _JUMP * (_ALERT / (_ALERT + rest)) ** 2
        news = chance / (chance + (1.0 - chance) * otherwise)
        before = vx.where(here, 0.0 * self.weight, self.weight)
        along = vx.sum(before * self.along, axis=0)
        along_error = vx.sum(before * self.along_error, axis=0) + level * trail
        floor = vx.sum(before * self.floor, axis=0) / vx.sum(before, axis=0)
        if product is not None:
            gain = along_error / (along_error + (falls * level + floor) * trail + _TINY)
            along = along + gain * (product - along)
            along_error = (1.0 - gain) * along_error
        old = (1.0 - news) * self.weight[-1]
        total = old + news

        def blend(rows: Array, errors: Array, new: Array, new_error: Array) -> tuple[Array, Array]:
            mean = (old * rows + news * new) / total
            spread = old * (errors + (rows - mean) ** 2) + news * (new_error + (new - mean) ** 2)
            return vx.where(here, mean, rows), vx.where(here, spread / total, errors)

        levels, level_errors = blend(self.level, self.level_error, level, error)
        alongs, along_errors = blend(self.along, self.along_error, along, along_error)
        weight = (1.0 - news) * self.weight
        return self._replace(
            level=levels,
            along=alongs,
            level_error=level_errors,
            along_error=along_errors,
            shared=vx.where(here, self.shared * (old / total), self.shared),
            floor=vx.where(here, (old * self.floor + news * floor) / total, self.floor),
            weight=_normal(vx, vx.where(here, weight + news, weight)),
        )._sound()

    def mix(self, rest: Array) -> Bank:
        """Let the target change its ways: drift begins or ends, a jump becomes old.

        Mass that moves carries its moments with it (interacting multiple models).
        """
        vx, here, w = self.xp, self.jumped, self.weight
        switch = _SWITCH * _PATIENCE / (_PATIENCE + rest)
        before = vx.where(here, 0.0 * w, w)
        settled = vx.sum(before, axis=0)  # not 1 - w[-1], which single precision makes 0
        among = before / settled
        worth = vx.where(self.settles > 0.0, 0.0 * w + _DRIFTS, _RESTS)
        worth = vx.where(here, 0.0 * w, worth)
        stay = vx.where(here, _FRESH * w, (1.0 - switch) * w)
        come = switch * settled * worth
        old = (1.0 - _FRESH) * w[-1] * worth
        mass = stay + come + old
        # What is hardly believed of a jump is far from what the others know: one bell curve over
        # both would be as wide as the jump, and at rest that would be most of what is known.
        old = old * (old / (old + _SLIVER * mass))
        carried = stay + come + old

        def blend(rows: Array) -> tuple[Array, Array, Array]:
            pool = vx.sum(among * rows, axis=0)
            return rows, pool, (stay * rows + come * pool + old * rows[-1]) / carried

        def moment(errors: Array, a: tuple[Array, ...], b: tuple[Array, ...]) -> Array:
            # Of two of level and along: their rows, the pool of all, and what they become.
            pooled = vx.sum(among * (errors + (a[0] - a[1]) * (b[0] - b[1])), axis=0)
            own = errors + (a[0] - a[2]) * (b[0] - b[2])
            all_of = pooled + (a[1] - a[2]) * (b[1] - b[2])
            jumped = errors[-1] + (a[0][-1] - a[2]) * (b[0][-1] - b[2])
            return (stay * own + come * all_of + old * jumped) / carried

        xs, cs = blend(self.level), blend(self.along)
        return self._replace(
            level=xs[-1],
            along=cs[-1],
            level_error=moment(self.level_error, xs, xs),
            along_error=moment(self.along_error, cs, cs),
            shared=moment(self.shared, xs, cs),
            weight=_normal(vx, mass),
            floor=blend(self.floor)[-1],
        )._sound()

    def predict(
        self,
        share: Array,
        square: Array,
        falls: Array,
        drift: Array,
        dim: Array,
        keep: float,
        turn: Array,
        trail: Array,
    ) -> Bank:
        """Move every hypothesis by the step that the learner took and the drift it supposes.

        Args:
            share: ηL, the share of the way that the step went.
            square: ‖g‖².
            falls: How much of the noise falls with the signal, d noise/d level.
            drift: The unit of drift, E‖ξ‖² as it was measured.
            dim: The effective dimension.
            keep: What the trail keeps of itself a step.
            turn: How much the step lowered the product with the trail.
            trail: The trail's new squared length.
        """
        x, p, noise = self.level, self.level_error, self.noise(falls)
        # A random walk by q (in units of the noise) a step settles at the rate r, q = r²/(1 - r).
        q = self.settles * self.settles / (1.0 - self.settles) * drift
        stay, own = (1.0 - share) ** 2, share * share
        # By this batch's own square, ⟨∇, g⟩ by regression on it: a quiet batch leads less far, a
        # loud one throws the weights where the step was too long. What it may have gained is not
        # believed.
        worse = share * (share - 2.0 * x / (2.0 * x + noise)) * (square - x - noise)
        level = stay * x + own * noise + self.xp.where(worse > 0.0, worse, 0.0 * worse)
        chance = x * noise / dim  # the variance of ⟨∇, ξ⟩
        slope = stay + own * falls
        level_error = slope * slope * p + 4.0 * own * stay * chance + 2.0 * (own * noise) ** 2 / dim
        level_error = level_error + (4.0 * level + 2.0 * q) * q / dim
        along_error = p + 2.0 * keep * self.shared + keep * keep * self.along_error
        return self._replace(
            level=level + q,
            along=keep * self.along + x - turn,
            level_error=level_error,
            along_error=along_error + chance + q * trail / dim,
            shared=slope * (p + keep * self.shared) - 2.0 * share * chance,
        )._sound()

    def _sound(self) -> Bank:
        """Return the bank with errors that a covariance can have, none beyond twice its level."""
        vx = self.xp
        level = vx.where(self.level > _TINY**0.5, self.level, _TINY**0.5)
        square = level * level
        error = vx.where(self.level_error > 1e-8 * square, self.level_error, 1e-8 * square)
        error = vx.where(error < 4.0 * square, error, 4.0 * square)
        along_error = vx.where(self.along_error > _TINY, self.along_error, _TINY)
        most = 0.99 * vx.sqrt(error) * vx.sqrt(along_error)
        shared = vx.where(self.shared < most, self.shared, most)
        return self._replace(
            level=level,
            level_error=error,
            along_error=along_error,
            shared=vx.where(shared > -most, shared, -most),
        )


def _density(vx: Any, a: Array, b: float, ratio: Array) -> Array:
    """Return the F density over that of a jump; `ratio` is a times the variate."""
    value = math.log(_NEWS) - a * vx.log1p(b / ratio) - b * vx.log1p(ratio / b) - _beta(vx, a, b)
    return vx.exp(vx.where(value > -60.0, value, -60.0))


def _beta(vx: Any, a: Array, b: float) -> Array:
    """Return log B(a, b), b >= 6.

    Γ(a + 6)/Γ(a) is a product; Γ(a + b)/Γ(a + 6) is Stirling's, so arranged that nothing cancels.
    """
    more, low, high = b - 6.0, a + 6.0, a + b
    value = math.lgamma(b) - vx.log(a * (a + 1.0) * (a + 2.0) * (a + 3.0) * (a + 4.0) * (a + 5.0))
    value = value - (low - 0.5) * vx.log1p(more / low) - more * (vx.log(high) - 1.0)
    return value - (1.0 / high - 1.0 / low) / 12.0


def _last(vx: Any, rows: Array) -> Array:
    number = vx.cumulative_sum(vx.ones_like(rows), axis=0)
    return number > MODELS - 0.5


def _normal(vx: Any, weight: Array) -> Array:
    """Return the weights as shares of 1, none of them quite 0."""
    total = vx.sum(weight, axis=0)
    share = weight / vx.where(total > 0.0, total, 1.0)
    share = vx.where(share > _LEAST, share, _LEAST)
    return share / vx.sum(share, axis=0)


def _positive(vx: Any, old: Array, new: Array) -> Array:
    """Return the new level; far below the old one it falls by a factor and stays positive."""
    low = 0.2 * old
    return vx.where(new > low, new, 0.8 * old * (low / (old - new + low)))
