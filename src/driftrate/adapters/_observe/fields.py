"""The fields of a `Signal`, from products of gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from driftrate.schedules.base import Array

Fields = dict[str, Any]
# Where all coordinates move alike, as in Adam's first step, this share of the way is along the
# gradient: the cosine between it and its signs is 0.35 to 0.6 in networks at their start.
_SIGNS = 1.0 / 3.0


class Space(NamedTuple):
    """How a framework multiplies and subtracts its gradients, of any type."""

    dot: Callable[[Any, Any], Array]  # ⟨a, b⟩ over all coordinates, in the metric of the steps
    minus: Callable[[Any, Any], Any]  # a - b


def measure(
    space: Space, reads: Collection[str], gradient: Any, *, previous: Any = None, trail: Any = None
) -> Fields:
    r"""Return the fields that one gradient shows, beside those remembered.

    `grad_sq` = ‖g_t‖²; `trail` = ⟨g_t, h_t⟩ with h_t = 0.9 h_{t-1} + g_{t-1}; and of two successive
    gradients, whose noises are independent, what `of_pair` says.

    Args:
        space: How gradients are multiplied.
        reads: The fields that the schedule reads: nothing else is measured.
        gradient: g_t.
        previous: g_{t-1}, or None where it is not remembered.
        trail: h_t, or None where it is not kept.
    """
    found: Fields = {}
    if not {"grad_sq", "trail", "cross"}.isdisjoint(reads):
        found["grad_sq"] = space.dot(gradient, gradient)
    if trail is not None and "trail" in reads:
        found["trail"] = space.dot(gradient, trail)
    if previous is not None:
        # Subtracted before squaring: a difference of squares would drown in rounding.
        apart = space.minus(gradient, previous)
        found |= of_pair(space.dot(gradient, previous), space.dot(apart, apart))
    return found


def of_pair(product: Array, apart: Array) -> Fields:
    r"""Return the fields of two successive gradients: cross = ⟨g, g'⟩, spread = ‖g - g'‖²/2.

    Two batches have independent noise, so that cross measures ⟨∇_t, ∇_{t-1}⟩ and spread the noise
    of one gradient, plus half the squared change of ∇ between the two. `apart` is ‖g - g'‖².
    """
    return {"cross": product, "spread": 0.5 * apart}


def of_parts(square: Array, deviations: Array, parts: float) -> Fields:
    r"""Return the fields of k parts of equal size: those of `driftrate.estimate.from_parts`.

    Args:
        square: ‖ḡ‖², ḡ the mean of the parts' gradients.
        deviations: Σ_i ‖g_i - ḡ‖².
        parts: k.
    """
    spread = deviations / (parts * (parts - 1.0))
    return {"parts": parts, "cross": square - spread, "spread": spread}


def reach(unit: float, normalises: bool, square: Array, dim: float) -> Array:
    r"""Return how far along the gradient a step goes at a rate of 1.

    Args:
        unit: The optimizer's own rate at a rate of 1.
        normalises: Whether the first step has the length √d, as that of Adam and its kin, all of
            whose coordinates move by the rate; else it is the gradient's, as that of SGD.
        square: ‖g‖².
        dim: d.
    """
    # A power, not a root: numbers and arrays of every framework have it.
    return unit * _SIGNS * dim**0.5 + 0.0 * square if normalises else unit * square**0.5
