"""HedgedSGD: a pool of SGD copies at geometrically spaced rates, mixed online."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, log
from typing import Any, ClassVar, cast

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj, is_numpy_namespace

from driftrate.errors import ConfigError, SignalError
from driftrate.learners.mixer import Mixer, negligible
from driftrate.schedules import _checks, _codec
from driftrate.schedules.base import Array, State

# Tuned, the same for every stream; docs/measured.md says how each was found. The fast twin reads
# them too.
SPACING = 0.6  # octaves between neighbours; the second copy is at the scale c
FAST, SLOW = 0.1, 0.01  # weight of the newest value in a running mean, once older than 1/that
FADE = log(0.4)  # in the prior an octave below the scale c has 0.4 of what the one above has
OVER = 0.3  # and what is above c has 0.3 of what c has
SLACK = 2.0  # times the scale c that this batch alone measures: an upper limit of the scale
SPIKE = 100.0  # times the running mean of ‖Hu‖², or of the noise: outliers are clipped there
DIVERGED = 4.0  # times the mixture's loss
OUTLIER = 1e6  # times the usual squared gradient: such a batch is not trusted the first time
LOWEST, HIGHEST = -40.0, 8.0  # octaves; only so that powers of two stay finite
RISE = 0.05  # octaves per step, while the fastest copy carries the pool
STEADY = 0.02  # least mean of sqrt|Δs/s|, s = ‖g‖²: if s never varied, anything would be a jump
OLDEST = 1000.0  # steps: the count serves running means alone
LN2 = log(2.0)
_ZEROS = ("along", "curved", "level", "noise", "last", "grad_sq", "rate", "count")


@dataclass(frozen=True)
class HedgedSGD:
    r"""A pool of SGD copies whose convex combination is the learner; no constants to choose.

    Copy k takes its own steps, θ_k ← θ_k - η_k g(θ_k), on the batch that all copies share, and the
    mixture θ̄ = Σ p_k θ_k is what predicts. For a convex loss ℓ(θ̄) <= Σ p_k ℓ(θ_k).

    *Rates.* η_k = c 2^{o_k} with octaves o_k from 0.6 down in steps of 0.6. The scale is the
    noise-free optimum c = E<Hu, u>/E‖Hu‖², from the gradient of a probe θ̄ + εu, u along the last
    gradient; for batches of B normal covariates c = B/(B + d + 1). A batch is never stepped on
    with a scale of more than twice its own <Hu, u>/‖Hu‖². The lowest octave falls by p_K 2^{o_K}
    per step, so that a copy which carries the pool at standstill has a rate that falls as 1/t; the
    highest rises while it carries more than half.

    *Shares* are those of `Mixer`, with the speed v_k = min(1, 2^{o_k}). With d = θ_k - θ̄ and
    Hd = g(θ_k) - g(θ̄), the noise N is the variance of <g(θ̄), d>/√<Hd, d> from batch to batch: in
    regression σ²/B, in a well specified likelihood 1/B. As the pool comes to rest its rate falls
    as 1/t, and with it what is shared and how often a jump is suspected in vain.

    *Jumps.* The surprise is that of log ‖g(θ̄)‖² in its own deviations. The prior, to which a jump
    moves the shares in the same step, favours the fast copies.

    *Restarts.* A copy that is faster than the mixture and whose mean loss is 4 times as high, or
    that is not finite, starts again from the mixture.

    *Outliers.* A batch with a gradient that is not finite, or whose norm is 1000 times the usual,
    is left out (a second such batch in a row is believed).

    Args:
        copies: K, the number of SGD copies. More cost time and change little.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> pool = HedgedSGD()
        >>> state = pool.init(np.zeros(3))
        >>> for _ in range(200):
        ...     x = rng.standard_normal((16, 3))
        ...     residual = pool.members(state) @ x.T - x @ np.array([1.0, -2.0, 0.5])
        ...     state = pool.update(state, 0.5 * (residual**2).mean(axis=-1), residual @ x / 16)
        >>> pool.mixture(state).round(2).tolist()
        [1.0, -2.0, 0.5]

    Reference:
        Zhang, Lu and Zhou (2018), "Adaptive online learning in dynamic environments", for pools of
        rates; Fahrbach, Javanmard, Mirrokni and Worah (2023), Conclusion, for model hedging under
        shift.
    """

    copies: int = 10

    version: ClassVar[int] = 1
    mixer: ClassVar[Mixer] = Mixer()

    def __post_init__(self) -> None:
        _checks.integer(self, "copies", low=3)

    @property
    def name(self) -> str:
        """The learner's name."""
        return type(self).__name__

    def init(self, theta: Array) -> State:
        """Return the pool with every copy at θ_1.

        Args:
            theta: θ_1, an array of shape (..., dim); leading axes are independent learners.

        Returns:
            A dictionary of arrays in the library, dtype and device of `theta`.
        """
        if not is_array_api_obj(theta) or theta.ndim < 1:
            raise ConfigError(f"HedgedSGD.init needs an array of shape (..., dim), got {theta!r}")
        xp = array_namespace(theta)
        if not xp.isdtype(theta.dtype, "real floating"):
            raise ConfigError(f"HedgedSGD.init needs real weights, got dtype {theta.dtype}")
        one = xp.zeros_like(theta[..., 0])
        octaves = xp.stack([one + SPACING * (1.0 - k) for k in range(self.copies)], axis=-1)
        index = xp.cumulative_sum(xp.ones_like(theta), axis=-1)[..., None, :]
        # Fixed directions without a structure that data might share.
        directions = xp.cos(index * (index - 2.0 / SPACING * octaves[..., None]))
        directions = directions / _norm(xp, directions)[..., None]
        return {
            # A little apart, so that the first batch shows curvature in many directions.
            "weights": theta[..., None, :] + _width(xp, theta)[..., None, None] * directions,
            "mixture": theta + 0.0,
            "shares": prior(xp, octaves),
            "octaves": octaves,
            "losses": xp.zeros_like(octaves),
            "direction": directions[..., 0, :],
            "pulls": xp.zeros_like(octaves),
            "change": one + 0.7,
            **{name: xp.zeros_like(one) for name in _ZEROS},
        }

    def mixture(self, state: State) -> Array:
        """Return θ̄ = Σ p_k θ_k, the weights to predict with, of shape (..., dim)."""
        return state["mixture"]

    def rate(self, state: State) -> Array:
        """Return Σ p_k η_k of the last step, of shape (...)."""
        return state["rate"]

    def members(self, state: State) -> Array:
        """Return the points at which `update` wants losses and gradients.

        Args:
            state: The pool.

        Returns:
            An array of shape (..., copies + 2, dim): the mixture, the copies from the fastest to
            the slowest, and the probe of curvature.
        """
        mixture, xp = state["mixture"], array_namespace(state["mixture"])
        probe = mixture + _width(xp, mixture)[..., None] * state["direction"]
        rows = [mixture[..., None, :], state["weights"], probe[..., None, :]]
        return xp.concat(rows, axis=-2)

    @np.errstate(all="ignore")  # what is not finite is found, and left out
    def update(
        self,
        state: State,
        losses: Array,
        gradients: Array,
        project: Callable[[Array], Array] | None = None,
    ) -> State:
        """Take one step with every copy and mix anew.

        Args:
            state: What `init`, `load` or the last `update` returned; it is not modified.
            losses: The batch loss at `members(state)`, of shape (..., copies + 2); the first is
                the loss of the mixture before it trains on the batch.
            gradients: The batch gradients there, of shape (..., copies + 2, dim).
            project: A projection of weights (..., dim) onto a convex set, or None.

        Returns:
            The next state.
        """
        want = (*state["shares"].shape[:-1], self.copies + 2)
        dim = state["mixture"].shape[-1]
        if tuple(losses.shape) != want or tuple(gradients.shape) != (*want, dim):
            raise SignalError(
                f"HedgedSGD.update needs losses {want} and gradients {(*want, dim)} at"
                f" members(state), got {tuple(losses.shape)} and {tuple(gradients.shape)}"
            )
        xp, mixer, octaves = array_namespace(state["shares"]), self.mixer, state["octaves"]
        speed = _speed(xp, octaves)
        trusted, screened, surprise = _screen(xp, state, losses[..., 0], gradients[..., 0, :])
        jump = mixer.jump(surprise, state["shares"], speed)
        noisy = _noise(xp, state, losses, gradients)
        bent, scale = _curvature(xp, state, gradients, noisy["level"], screened["grad_sq"])
        rates = scale[..., None] * xp.exp(LN2 * octaves)
        first = (state["count"] == 0)[..., None]
        # The first step starts from θ_1 itself, not from where the copies measured curvature.
        begin = xp.where(first[..., None], state["mixture"][..., None, :], state["weights"])
        moved = begin - rates[..., None] * gradients[..., 1:-1, :]
        if project is not None:
            moved = project(moved)
        own = losses[..., 1:-1]
        broken = ~(xp.isfinite(xp.sum(moved, axis=-1)) & xp.isfinite(own))
        own = xp.where(broken, 0.0, own)
        shares = mixer.update(
            state["shares"],
            own,
            losses[..., :1],
            trust=mixer.trust(noisy["noise"]),
            speed=speed,
            prior=prior(xp, octaves),
            jump=jump,
            broken=broken,
        )
        rate = xp.sum(shares * rates, axis=-1, keepdims=True)
        mean_loss = xp.where(first, own, state["losses"])
        mean_loss = mean_loss + FAST * (own - mean_loss)
        level = noisy["level"][..., None]
        diverged = (mean_loss > DIVERGED * level) & (rates > rate) | broken
        mixture, shares = mixer.mix(shares, moved, diverged, state["mixture"])
        new = {"mixture": mixture, "shares": shares} | screened | noisy | bent
        new["weights"] = xp.where(diverged[..., None], mixture[..., None, :], moved)
        new["octaves"] = _stretch(xp, octaves, new["shares"])
        new["losses"] = xp.where(diverged, level, mean_loss)
        new["rate"] = xp.sum(new["shares"] * rates, axis=-1)
        older = state["count"] + 1.0
        new["count"] = xp.where(older < OLDEST, older, OLDEST)
        if not (is_numpy_namespace(xp) and xp.all(trusted)):
            for key in [name for name in new if name != "grad_sq"]:  # in an order of its own
                axes = (None,) * (new[key].ndim - trusted.ndim)
                new[key] = xp.where(trusted[(..., *axes)], new[key], state[key])
        return new

    def dump(self, state: State) -> dict[str, Any]:
        """Return the state as a JSON-ready dictionary that `load` restores bit by bit."""
        return _codec.dump(cast(Any, self), state)

    def load(self, saved: Mapping[str, Any], like: Array = None) -> State:
        """Restore a state.

        Args:
            saved: What `dump` returned, before or after a journey through JSON.
            like: None to restore the library, dtype and device the state was saved from, or an
                array that says where to put it instead.

        Returns:
            The state, equal to the saved one bit by bit.
        """
        return _codec.load(cast(Any, self), saved, like)

    def _start(self) -> State:
        """Return what `load` takes for the keys of a state."""
        return dict.fromkeys(self.init(np.zeros(1)), 0.0)


def _norm(xp: Any, vectors: Array) -> Array:
    return xp.sqrt(xp.vecdot(vectors, vectors))


def _width(xp: Any, mixture: Array) -> Array:
    """Return ε, the probe's distance: rounding and the change of curvature are both small."""
    return float(xp.finfo(mixture.dtype).eps) ** (1 / 3) * (1.0 + _norm(xp, mixture))


def prior(xp: Any, octaves: Array) -> Array:
    """Return π, the shares of a pool that knows nothing but curvature."""
    shares = xp.where(octaves > 0.5, OVER, xp.exp(FADE * xp.abs(octaves)))
    return shares / xp.sum(shares, axis=-1, keepdims=True)


def _speed(xp: Any, octaves: Array) -> Array:
    """Return v_k, how fast a copy forgets: 1 at the scale c and above."""
    return xp.exp(LN2 * xp.where(octaves < 0.0, octaves, 0.0))


def _ratio(xp: Any, a: Array, b: Array, other: Array) -> Array:
    return xp.where(b > 0, a / xp.where(b > 0, b, 1.0), other)


def _screen(xp: Any, state: State, loss: Array, gradient: Array) -> tuple[Array, State, Array]:
    """Return whether the batch is no outlier, the usual ‖g‖², and the deviations of log ‖g‖²."""
    count, before, change = state["count"], state["grad_sq"], state["change"]
    least = negligible(xp, count)
    square = xp.vecdot(gradient, gradient)
    finite = xp.isfinite(square) & xp.isfinite(loss)
    limit = xp.where(before > 0, OUTLIER * before, square)
    mild = square <= limit
    usual = before + _weight(xp, count, FAST) * (xp.where(mild, square, limit) - before)
    there = finite & (square > 0)  # a gradient of zero tells nothing about the usual ones
    usual = xp.where(there, usual, before)
    size = xp.where(square > least, xp.where(square < 1 / least, square, 1 / least), least)
    # The mean of roots, which a few jumps hardly raise: 1.05 (E sqrt|Δs/s|)² is the standard
    # deviation of log s if log s is normal.
    deviation = 1.05 * change * change
    surprise = xp.log(size / xp.where(before > least, before, size)) / deviation
    first = count == 0
    last = xp.where(first, size, state["last"])
    turn = xp.sqrt(2.0 * xp.abs(size - last) / (size + last))
    later = change + _weight(xp, count + 1.0, SLOW) * (turn - change)
    later = xp.where(first | ~there, change, xp.where(later > STEADY, later, STEADY))
    last = xp.where(there, size, last)
    return finite & mild, {"grad_sq": usual, "last": last, "change": later}, surprise


def _noise(xp: Any, state: State, losses: Array, gradients: Array) -> State:
    """Return the mean loss, and the noise N of one degree of freedom with what it is made of."""
    count, before = state["count"], state["noise"]
    level = state["level"] + _weight(xp, count, FAST) * (xp.abs(losses[..., 0]) - state["level"])
    away = state["weights"] - state["mixture"][..., None, :]
    pull = xp.vecdot(away, gradients[..., :1, :])
    # Subtracted before the product: where the loss is linear the bend is 0, not rounding.
    bend = xp.vecdot(away, gradients[..., 1:-1, :] - gradients[..., :1, :])
    seen = (bend > 0) & xp.isfinite(bend) & xp.isfinite(pull)
    pulls = xp.where(seen, pull / xp.sqrt(xp.where(seen, bend, 1.0)), 0.0)
    # The change from batch to batch: a pull that lasts is no noise.
    turn = pulls - state["pulls"]
    number = xp.sum(xp.astype(seen, count.dtype), axis=-1)
    mean = 0.5 * xp.sum(turn * turn, axis=-1) / xp.where(number > 0, number, 1.0)
    # After a jump a loss that is linear far out (Huber's) has next to no bend to divide by.
    limit = xp.where(before > 0, SPIKE * before, inf)
    mean = xp.where(mean < limit, mean, limit)
    # All copies are one before the first step, which therefore tells nothing about noise.
    weight = _weight(xp, xp.where(count > 1, count - 1.0, 0.0), SLOW)
    noise = xp.where(number > 0, before + weight * (mean - before), before)
    return {"level": level, "noise": noise, "pulls": pulls}


def _curvature(
    xp: Any, state: State, gradients: Array, level: Array, usual: Array
) -> tuple[State, Array]:
    """Return the probe's next direction, the moments of curvature, and the scale of the rates."""
    u, weight = state["direction"], _weight(xp, state["count"], SLOW)
    width = _width(xp, state["mixture"])
    bent = (gradients[..., -1, :] - gradients[..., 0, :]) / width[..., None]
    square, inner = xp.vecdot(bent, bent), xp.vecdot(bent, u)
    first = state["count"] == 0
    if not is_numpy_namespace(xp) or xp.any(first):
        # One direction of one batch may be far too flat to set a rate: average over all copies.
        away = (state["weights"] - state["mixture"][..., None, :]) / width[..., None, None]
        all_bent = (gradients[..., 1:-1, :] - gradients[..., :1, :]) / width[..., None, None]
        square = xp.where(first, xp.mean(xp.vecdot(all_bent, all_bent), axis=-1), square)
        inner = xp.where(first, xp.mean(xp.vecdot(all_bent, away), axis=-1), inner)
    seen = xp.isfinite(square) & (inner > 0)
    # <Hu, u>/‖Hu‖² >= 1/λ_max of this batch, which may be far smaller than those before.
    cap = xp.where(seen, SLACK * inner / xp.where(seen, square, 1.0), inf)
    limit = SPIKE * state["curved"]
    shrink = xp.where((limit > 0) & (square > limit), limit / square, 1.0)
    inner, square = xp.sqrt(shrink) * inner, shrink * square
    along = xp.where(seen, state["along"] + weight * (inner - state["along"]), state["along"])
    curved = xp.where(seen, state["curved"] + weight * (square - state["curved"]), state["curved"])
    # The gradient leans towards steep directions; its noise is independent of the next batch.
    norm = _norm(xp, gradients[..., 0, :])[..., None]
    there = xp.isfinite(norm) & (norm > 0)
    direction = xp.where(there, gradients[..., 0, :] / xp.where(there, norm, 1.0), u)
    # A loss without curvature (hinge) gets the rate of Polyak's step.
    scale = _ratio(xp, along, curved, _ratio(xp, level, usual, 0.0 * level))
    scale = xp.where(scale < cap, scale, cap)
    return {"direction": direction, "along": along, "curved": curved}, scale


def _stretch(xp: Any, octaves: Array, shares: Array) -> Array:
    """Return evenly spaced octaves, the range extended at an end that carries the pool."""
    high, low = octaves[..., :1], octaves[..., -1:]
    place = (high - octaves) / (high - low)
    sink = xp.where(low > LOWEST, shares[..., -1:] * xp.exp(LN2 * low), 0.0)
    rise = xp.where((shares[..., :1] > 0.5) & (high < HIGHEST), RISE, 0.0)
    return octaves + rise * (1.0 - place) - sink * place


def _weight(xp: Any, count: Array, least: float) -> Array:
    """Return the weight of the newest value in a running mean, 1/(count + 1) at first."""
    weight = 1.0 / (count + 1.0)
    return xp.where(weight > least, weight, least)
