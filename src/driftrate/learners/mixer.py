"""The mixer of every pool: losses of the members in, their shares out."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from array_api_compat import array_namespace, is_numpy_namespace

from driftrate.schedules import _checks
from driftrate.schedules.base import Array

LIMIT = 1e4  # of the evidence of one step: beyond it exp(-evidence) is 0 in any precision


@dataclass(frozen=True)
class Mixer:
    r"""Exponential weights over K members, none of which is ever out of reach.

    A member is anything with a loss: SGD copies, filters, networks. A pool keeps the shares p in
    its own state, and says with every batch what it alone can know: the losses ℓ_k of the members
    and ℓ̄ of the mixture, the noise N of the losses, how fast each member forgets
    (v_k <= 1, the part of what it knows that it gives up in a step), the prior π, and how many
    deviations s the batch was above the usual. Members stand in the order of v.

        h = temper/N                                                       `trust`
        z² = suspect² + 2 log(1 + quiet/v̄),   J = (s - z)/certain in [0, 1]    `jump`

        q_k ∝ p_k exp(-h (ℓ_k - ℓ̄)),   v̄ = Σ_j v_j q_j                     `update`: evidence
        r_k = q_k - leak v_k q_k + leak/2 (v_{k-1} q_{k-1} + v_{k+1} q_{k+1})      neighbours
        u_k = (1 - share v̄) r_k + share v̄/K                                       everyone
        p_k ← (1 - J) u_k + J π_k                                                 jump

    *Evidence.* In regression N = σ²/B and in a well specified likelihood 1/B: with temper = 1 the
    shares would be posterior chances. Losses of successive batches are not independent, hence 0.3.

    *Sharing* is dealt out in the pool's own time: leak and share are chances per 1/v steps, the
    time in which a member forgets. As a pool comes to rest v̄ falls, and sharing fades with it.
    After any step without a jump p_k >= a = share min_j v_j/K. Therefore a member whose evidence
    h ℓ_k is lower by δ than that of every other has q_k >= 1/2 at the latest after

        1 + log((1 - a)/a)/(δ + 2 log c)   steps,   c = (1 - leak)(1 - share),

    if δ > -2 log c = 0.05: evidence multiplies its odds by e^δ, sharing leaves at least the part c
    of a share, and so at least the part c² of odds below 1.

    *Jumps.* A batch of s > z deviations moves the shares to the prior in the same step. A normal
    variate is above z with a chance of about exp(-z²/2): false alarms fade with v̄ too.

    *Broken members* leave the mixture at once and keep `comeback` of their share (`mix`).

    Args:
        temper: How much evidence counts.
        leak: The part of a share that goes to the two neighbours in the time 1/v_k.
        share: The part of all shares that is dealt out equally in the time 1/v̄ (fixed share).
        suspect: The deviations from which on a jump is suspected.
        certain: How many more of them make it certain.
        quiet: The pace v̄ below which a jump must be as much rarer as the pool is slower.
        comeback: What a broken member keeps of its share.

    Example:
        >>> import numpy as np
        >>> mixer, speed = Mixer(), np.array([1.0, 0.5, 0.25])
        >>> prior = shares = np.ones(3) / 3
        >>> for _ in range(20):
        ...     losses = np.array([0.9, 0.2, np.nan])
        ...     shares = mixer.update(
        ...         shares, losses, 0.5, trust=mixer.trust(np.asarray(0.3)), speed=speed,
        ...         prior=prior, jump=np.asarray(0.0), broken=np.isnan(losses),
        ...     )
        >>> shares.round(3).tolist()
        [0.012, 0.983, 0.006]
        >>> predictions = np.array([[1.0], [2.0], [np.nan]])
        >>> mixed, shares = mixer.mix(shares, predictions, np.isnan(losses), np.zeros(1))
        >>> mixed.round(2).tolist()
        [1.99]

    Reference:
        Herbster and Warmuth (1998), "Tracking the best expert", for fixed share.
    """

    temper: float = 0.3
    leak: float = 0.02
    share: float = 0.005
    suspect: float = 3.0
    certain: float = 2.0
    quiet: float = 5e-4
    comeback: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("temper", "suspect", "quiet"):
            _checks.number(self, name, low=0.0)
        _checks.number(self, "leak", low=0.0, high=1.0)
        for name in ("share", "comeback"):  # a share of 0 would be 0 for ever
            _checks.number(self, name, low=0.0, high=1.0, open_low=True)
        _checks.number(self, "certain", low=0.0, open_low=True)

    def trust(self, noise: Array) -> Array:
        """Return h = temper/N, and 0 while no noise has been measured.

        Args:
            noise: N, the inverse of the h at which exp(-h ℓ) is the likelihood of a batch, (...).
        """
        xp = array_namespace(noise)
        seen = noise > negligible(xp, noise)
        return xp.where(seen, self.temper / xp.where(seen, noise, 1.0), 0.0)

    def jump(self, surprise: Array, shares: Array, speed: Array) -> Array:
        """Return J in [0, 1], the chance that the batch shows a jump.

        Args:
            surprise: s, by how many deviations the batch is above the usual, (...).
            shares: p, (..., K).
            speed: v, (..., K).
        """
        xp = array_namespace(shares)
        pace = xp.sum(shares * speed, axis=-1)
        start = xp.sqrt(self.suspect**2 + 2.0 * xp.log1p(self.quiet / pace))
        chance = (surprise - start) / self.certain
        return xp.where(chance > 0.0, xp.where(chance < 1.0, chance, 1.0), 0.0)

    def update(
        self,
        shares: Array,
        losses: Array,
        reference: Array,
        *,
        trust: Array,
        speed: Array,
        prior: Array,
        jump: Array,
        broken: Array,
    ) -> Array:
        """Return the shares after a batch.

        Args:
            shares: p, (..., K), each > 0; they sum to 1.
            losses: ℓ_k of the batch, (..., K).
            reference: ℓ̄ of the mixture, (..., 1) or a number. It changes no share; evidence is
                clipped that far from it.
            trust: h, (...).
            speed: v, (..., K), in (0, 1].
            prior: π, (..., K); it sums to 1.
            jump: J, (...).
            broken: Whether a member failed, (..., K): its loss is not read, and counts as the
                worst.

        Returns:
            p, (..., K), each > 0; they sum to 1.
        """
        xp = array_namespace(shares)
        plain = is_numpy_namespace(xp)  # where looking is cheaper than doing nothing in arrays
        if not plain or broken.any():
            losses = xp.where(broken, inf, losses)
        evidence = trust[..., None] * (losses - reference)
        evidence = xp.where(evidence < LIMIT, evidence, LIMIT)
        evidence = xp.where(evidence > -LIMIT, evidence, -LIMIT)
        shares = shares * xp.exp(xp.min(evidence, axis=-1, keepdims=True) - evidence)
        shares = shares / xp.sum(shares, axis=-1, keepdims=True)
        pace = xp.sum(shares * speed, axis=-1, keepdims=True)
        if self.leak > 0.0:
            out = self.leak * speed * shares
            # The first and the last member have one neighbour, and keep the other half.
            faster = xp.concat([out[..., :1], out[..., :-1]], axis=-1)
            slower = xp.concat([out[..., 1:], out[..., -1:]], axis=-1)
            shares = shares + 0.5 * (faster + slower) - out
        shares = shares + self.share * pace * (1.0 / shares.shape[-1] - shares)
        if plain and not jump.any():
            return shares
        return shares + jump[..., None] * (prior - shares)

    def mix(
        self, shares: Array, values: Array, broken: Array, otherwise: Array
    ) -> tuple[Array, Array]:
        """Return the mixture of the members that are not broken, and the shares from then on.

        Args:
            shares: p, (..., K).
            values: What is mixed, weights or predictions, (..., K, dim).
            broken: Which members leave, (..., K). Their values are not read.
            otherwise: The mixture if all leave, (..., dim).

        Returns:
            Σ p_k values_k/Σ p_k over the members that stay, (..., dim), and the shares, of which
            those that left keep `comeback`, (..., K).
        """
        xp = array_namespace(shares)
        kept = xp.where(broken, 0.0, shares)
        total = xp.sum(kept, axis=-1, keepdims=True)
        kept = kept / xp.where(total > 0, total, 1.0)
        values = xp.where(broken[..., None], 0.0, values)
        mixture = xp.matmul(kept[..., None, :], values)[..., 0, :]
        shares = xp.where(broken, self.comeback * shares, shares)
        shares = shares / xp.sum(shares, axis=-1, keepdims=True)
        return xp.where(total > 0, mixture, otherwise), shares


def negligible(xp: Any, like: Array) -> float:
    """Return a number that stands for 0, but whose square, and the inverse of it, are normal."""
    return float(float(xp.finfo(like.dtype).smallest_normal) ** 0.25)
