"""The law of `Pursuit`: how far a tensor of weights steps, and how it learns how far.

Every tensor has a scale s, its weights' first size, and a rate c, which starts at 1. A fast point f
takes the steps

    v ← k v + g²,    Δ = -lr · first · s · c · g/√v,    f ← f + Δ - decay · w,

an AdaGrad that forgets, without momentum: as v is a sum and not a mean, the t-th step of a rest is
about first · s/√t long until 1/(1 - k) steps are remembered. Its lead over a slow average of itself
is u, and the weights lie a share b of the way back to that average,

    u ← (1 - 1/m)(u + Δ),    w = f - b u:

at b = 0 they are f itself. So ⟨g, u⟩ is what the loss falls by along b. Where it is positive, f
wanders and its average is better; where it is negative, f is under way and the average lags. The
share follows it from 0 on, with a margin for luck,

    b ← b + bet · (⟨g, u⟩/√(mean ⟨g, u⟩²) - margin),

within a few steps of a shift, and a noisy rest gains what an average gains. The trail of the
weights' own steps,

    h ← (1 - 1/M)(h + Δw),

is where they would have gone further (or less far) had the rate been larger (or smaller) for the
last M steps, so that z = ⟨g, h⟩ is the derivative of the loss by log c over a long horizon. The
derivative by the last step alone sees sharp directions only, and stops too early: where the target
walks at random, z has mean 0 at the best constant rate whatever M is, but only M → ∞ weighs all
directions as the loss does. The rate follows its sign and size,

    log c ← log c - pace · z/√(mean z²),

and stays between `HIGH` and what its memory allows: a memory of m steps is a c of 1/√((1 - k) m).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from driftrate.errors import ConfigError

FIRST = 0.3
"""The first step over the size of the weights. Twice it makes small regressions overshoot."""
KEEP = 0.99
"""What v keeps of itself a step: jumps of the gradient's size are forgotten after 100 steps."""
SPIKE = 30.0
"""A coordinate counts for at most so many times its usual size, so that one row spoils nothing."""
LARGEST = 1e18
"""A coordinate above this, or not finite, counts as 0: its square has no place in float32."""
SMALLEST = 1e-18
"""A coordinate below this counts as 0 too: where its square is 0, g/√v would be a million."""
PACE = 0.01
"""How fast log c follows its derivative."""
FIRST_PACE = 0.2
"""The same at the first step; it falls with the root of the steps down to `PACE`."""
HORIZON = 300.0
"""M: over how many steps the derivative by the rate looks back."""
KEEP_SIGNAL = 0.999
"""What the means of z² and ⟨g, u⟩² keep of themselves a step."""
LOUDEST = 3.0
"""The largest |z|/√(mean z²) that counts, and the same of ⟨g, u⟩."""
SLOW = 30.0
"""m: over how many steps the average looks back; 10 and 100 serve as well."""
BET = 0.05
"""How fast the share of the way back follows its derivative."""
MARGIN = 0.2
"""What is taken off it. Without, b follows noise, and small regressions lose by it."""
MOST = 0.9
"""The largest share: of a weight at the average itself no gradient would hold the fast point."""
HIGH = 10.0
"""The largest c. Without an end the first layer's rate runs away when inputs are drawn anew."""
REST = 1000.0
"""A memory may be so long at any time, and later a tenth of the steps seen."""
WEIGHT_DECAY = 0.01
"""The decay of a step over the relative length of the step, see `decay`."""


@dataclass(frozen=True)
class Law:
    """The numbers a tensor has: arrays of any library, one entry a tensor.

    Args:
        steps: t, the steps taken.
        log_rate: log c.
        square: The running mean of z², not yet corrected for its start.
        scale: s.
        share: b, of the weights as they are.
        bet: b of the weights after the next step: its signal is known only with the step itself.
        push: The running mean of ⟨g, u⟩², not yet corrected for its start.
    """

    steps: Any
    log_rate: Any
    square: Any
    scale: Any
    share: Any
    bet: Any
    push: Any

    @classmethod
    def start(cls, scale: Any) -> Law:
        """Return the law of a tensor before its first step."""
        return cls(0.0, 0.0, 0.0, scale, 0.0, 0.0, 0.0)

    def stacked(self, xp: Any) -> Any:
        """Return one array, the numbers last."""
        return xp.stack([getattr(self, field.name) for field in fields(self)], -1)


NUMBERS = len(fields(Law))
VERSION = 1  # of what an optimizer saves; 0.1.0 did not say it


def sound(xp: Any, law: Law) -> Any:
    """Return whether a law's numbers are finite and, all but log c, not below 0.

    Args:
        xp: A namespace with `all`, `isfinite` and `stack`.
        law: Of one tensor or of many.

    Example:
        >>> import numpy as np
        >>> bool(sound(np, Law.start(0.05))), bool(sound(np, Law.start(float("nan"))))
        (True, False)
    """
    numbers = law.stacked(xp)
    return xp.all(xp.isfinite(numbers)) & xp.all(replace(law, log_rate=law.scale).stacked(xp) >= 0)


def scale(xp: Any, shape: Sequence[int], rms: Any) -> Any:
    """Return s of a tensor, or None where its neighbours decide.

    A matrix (a kernel, a table of rows) has the root mean square of its first weights, but no more
    than a layer with its smaller side as inputs would be drawn with; a matrix of zeros has what its
    larger side as inputs would give. So s depends on no layout: in × out and out × in agree.

    Args:
        xp: A namespace with `where` and `clip`.
        shape: The tensor's.
        rms: The root mean square of its first weights.

    Returns:
        s; None for vectors and scalars, which take the median of the matrices, see `settle`.

    Example:
        >>> import numpy as np
        >>> round(float(scale(np, (300, 784), 0.0206)), 4), scale(np, (300,), 0.02)
        (0.0206, None)
        >>> round(float(scale(np, (256, 192), 1.0)), 4) == round((3 * 192) ** -0.5, 4)
        True
    """
    if len(shape) < 2:
        return None
    size = math.prod(shape)
    sides = size / max(shape[0], 1), size / max(shape[-1], 1)
    largest, usual = ((3 * max(side, 1.0)) ** -0.5 for side in (min(sides), max(sides)))
    return xp.where(rms == 0.0, usual, xp.clip(rms, None, largest))


def settle(xp: Any, scales: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Return the scale of every tensor: vectors take the (lower) median of the matrices.

    Where there is no matrix a vector counts as the weights of one unit.

    Args:
        xp: A namespace with `sort`, `stack` and `asarray`.
        scales: What `scale` returned, tensor by tensor.
        sizes: How many weights each tensor has.

    Example:
        >>> import numpy as np
        >>> [float(s) for s in settle(np, [0.1, None, 0.3, 0.2], [8, 1, 8, 8])]
        [0.1, 0.2, 0.3, 0.2]
        >>> round(float(settle(np, [None], [3])[0]), 4)
        0.3333
    """
    known = [s for s in scales if s is not None]
    if known:
        middle = xp.sort(xp.stack(known))[(len(known) - 1) // 2]
        return [middle if s is None else s for s in scales]
    return [xp.asarray((3 * max(n, 1)) ** -0.5) for n in sizes]


def length(xp: Any, law: Law) -> Any:
    """Return first · s · c, the factor of g/√v in a step at lr = 1.

    Args:
        xp: A namespace with `exp`, `sqrt` and `clip`.
        law: Of one tensor or of many.
    """
    return FIRST * law.scale * xp.exp(law.log_rate)


def decay(xp: Any, law: Law) -> Any:
    """Return what a weight loses a step at `weight_decay` = 1 and lr = 1: its relative rate.

    first · √(1 - k) · min(c, 1) is the usual length of a step over the size of the weights, so that
    `weight_decay` is what is lost while a weight could move by its own size. It does not grow with
    c above 1: weights that shrink make gradients larger and c with them. Coordinates whose gradient
    counts as 0 do not decay, see `move`.
    """
    return FIRST * (1 - KEEP) ** 0.5 * xp.exp(xp.clip(law.log_rate, None, 0.0))


def fade(xp: Any, law: Law) -> Any:
    """Return what the trail keeps at the step that makes `steps` one more: 1 - 1/min(t + 1, M)."""
    return 1 - 1 / xp.clip(law.steps + 2, None, HORIZON)


def mix(xp: Any, law: Law) -> tuple[Any, Any, Any]:
    """Return what the weights take of Δ and of u in a step, and what u keeps of u + Δ.

    With f = w + b u before the step and after it, and 1 - 1/m = hold,

        Δw = (1 - hold b') Δ + (b - hold b') u,    u' = hold (u + Δ),

    which is Δ alone while b = b' = 0.

    Example:
        >>> import numpy as np
        >>> still = Law.start(0.05)
        >>> [float(x) for x in mix(np, still)]
        [1.0, 0.0, 0.5]
    """
    hold = 1 - 1 / xp.clip(law.steps + 2, None, SLOW)
    return 1 - hold * law.bet, law.share - hold * law.bet, hold


def factors(xp: Any, law: Law, lr: Any, weight_decay: Any) -> Any:
    """Return what `move` multiplies with, one array with the `FACTORS` last."""
    keep = 1 - weight_decay * lr * decay(xp, law)
    return xp.stack([length(xp, law) * lr, keep, fade(xp, law), *mix(xp, law)], -1)


FACTORS = ("length", "keep", "fade", "forth", "back", "hold")


def whole(xp: Any, weight: Any, rest: Any, eps: float) -> Any:
    """Return 16-bit weights with what their type dropped of the step before.

    A rest that is no rest of these weights is of others, which were there before a reset.

    Args:
        xp: A namespace with `abs` and `where`.
        weight: In the precision of the sum.
        rest: What was dropped, in the same.
        eps: Of the 16-bit type.
    """
    return weight + xp.where(xp.abs(rest) <= eps * xp.abs(weight), rest, 0 * rest)


def move(
    xp: Any,
    weight: Any,
    gradient: Any,
    square: Any,
    trail: Any,
    lead: Any,
    *,
    length: Any,
    keep: Any,
    fade: Any,
    forth: Any,
    back: Any,
    hold: Any,
) -> tuple[Any, Any, Any, Any, Any]:
    """Return a tensor after a step, its v, h and u, and the signals ⟨g, h⟩ and ⟨g, u⟩ of before.

    Args:
        xp: A namespace with `abs`, `clip`, `sqrt`, `stack`, `sum`, `where` and `zeros_like`.
        weight: w.
        gradient: g, in the precision of v.
        square: v.
        trail: h.
        lead: u.
        length: The step over g/√v, lr · first · s · c.
        keep: What is kept of the weights that move.
        fade: What the trail keeps.
        forth: What the weights take of Δ, see `mix`.
        back: What they take of u.
        hold: What u keeps.

    Example:
        >>> import numpy as np
        >>> w, v, h, u = np.ones(3), np.zeros(3), np.zeros(3), np.zeros(3)
        >>> g = np.array([4.0, -0.5, np.inf])
        >>> told = dict(length=0.1, keep=1.0, fade=0.5, forth=1.0, back=0.0, hold=0.5)
        >>> w, v, h, u, z = move(np, w, g, v, h, u, **told)
        >>> w.tolist(), v.tolist(), h.tolist(), u.tolist(), z.tolist()
        ([0.9, 1.1, 1.0], [16.0, 0.25, 0.0], [-0.05, 0.05, 0.0], [-0.05, 0.05, 0.0], [0.0, 0.0])
    """
    size = xp.abs(gradient)
    counts = (size >= SMALLEST) & (size <= LARGEST)
    gradient = xp.where(counts, gradient, xp.zeros_like(gradient))
    most = SPIKE * xp.sqrt((1 - KEEP) * square)
    # A coordinate's first gradient has nothing to be measured by.
    gradient = xp.where(square > 0, xp.clip(gradient, -most, most), gradient)
    signals = xp.stack([xp.sum(gradient * trail), xp.sum(gradient * lead)])
    # Coordinates with zero gradient keep their state and do not move, nor decay.
    still = gradient == 0
    square = xp.where(still, square, KEEP * square + gradient * gradient)
    delta = length * gradient / xp.clip(xp.sqrt(square), 1e-30, None)
    step = xp.where(still, xp.zeros_like(lead), back * lead - forth * delta)
    lead = xp.where(still, lead, hold * (lead - delta))
    weight = xp.where(still, weight, keep * weight + step)
    return weight, square, fade * (trail + step), lead, signals


def follow(xp: Any, law: Law, signal: Any, push: Any) -> Law:
    """Return the law after a step.

    Args:
        xp: A namespace with `clip`, `log`, `maximum` and `sqrt`.
        law: Before it.
        signal: z = ⟨g, h⟩, h the trail before the step.
        push: ⟨g, u⟩, u the lead before the step.

    Example:
        >>> import numpy as np
        >>> law = Law(*(np.array(x) for x in (500.0, 0.0, 1e-4, 0.05, 0.5, 0.5, 1e-4)))
        >>> after = [follow(np, law, np.array(z), np.array(z)) for z in (-0.01, 0.01)]
        >>> [(round(float(one.log_rate), 3), round(float(one.bet), 3)) for one in after]
        [(0.006, 0.459), (-0.006, 0.521)]
    """
    steps = law.steps + 1

    def running(old: Any, new: Any) -> tuple[Any, Any]:
        mean = KEEP_SIGNAL * old + (1 - KEEP_SIGNAL) * new * new
        usual = xp.sqrt(mean / (1 - KEEP_SIGNAL**steps)) + 1e-30
        return mean, xp.clip(new / usual, -LOUDEST, LOUDEST)

    square, sign = running(law.square, signal)
    pushed, gain = running(law.push, push)
    pace = xp.clip(FIRST_PACE / xp.sqrt(steps), PACE, None)
    low = -0.5 * xp.log((1 - KEEP) * xp.clip(steps / 10, REST, None))
    rate = xp.clip(xp.maximum(law.log_rate - pace * sign, low), None, math.log(HIGH))
    bet = xp.clip(law.bet + BET * (gain - MARGIN), 0.0, MOST)
    return Law(steps, rate, square, law.scale, law.bet, bet, pushed)


def memory(xp: Any, law: Law) -> Any:
    """Return the memory of a rate in steps: an AdaGrad that has seen so many steps as far.

    Example:
        >>> import numpy as np
        >>> round(float(memory(np, Law.start(0.05))), 6)
        100.0
    """
    return xp.exp(-2 * law.log_rate) / (1 - KEEP)


def shown(xp: Any, law: Law) -> dict[str, Any]:
    """Return what a logger wants of the mean law of some tensors, see `Pursuit.record`.

    Example:
        >>> import numpy as np
        >>> {name: round(float(value), 6) for name, value in shown(np, Law.start(0.05)).items()}
        {'rate': 1.0, 'memory': 100.0, 'share': 0.0}
    """
    return {"rate": xp.exp(law.log_rate), "memory": memory(xp, law), "share": law.share}


def forgets(policy: str) -> bool:
    """Return whether a shift that is told changes anything: "reset" does, "keep" does not."""
    if policy not in ("keep", "reset"):
        raise ConfigError(f'policy must be "keep" or "reset", got {policy!r}')
    return policy == "reset"


def renewed(xp: Any, law: Law) -> Law:
    """Return the law after a shift that was told; trail and lead are then 0.

    Rates below 1 start from 1 again, and all follow as fast as at the start.

    Example:
        >>> import numpy as np
        >>> law = Law(*(np.array(x) for x in (500.0, -0.7, 1e-4, 0.05, 0.5, 0.5, 1e-4)))
        >>> renewed(np, law).stacked(np).tolist()
        [0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0]
    """
    still = Law(*(0 * law.steps for _ in range(NUMBERS)))
    return replace(still, log_rate=xp.clip(law.log_rate, 0.0, None), scale=law.scale)
