"""Products of lists of tensors: plain, or in the metric that the optimizer steps in."""

from __future__ import annotations

from typing import Any

import keras
from array_api_compat import array_namespace

from driftrate.adapters._observe import Space
from driftrate.schedules.base import Array


def is_adam_like(optimizer: Any) -> bool:
    """Whether the optimizer is known to divide by the root of a second moment."""
    kinds = keras.optimizers
    return isinstance(optimizer, kinds.Adam | kinds.Nadam | kinds.RMSprop | kinds.Lamb)


def weights(optimizer: Any, seconds: list[Array], count: Array) -> list[Array]:
    r"""Return the metric's weights c/(√(v + r) + ε), c = √(1 - β₂^t); RMSprop has its ε as r.

    The moments v are those before step t + 1: they do not know the gradient that is measured.
    """
    xp = array_namespace(count)
    rms = isinstance(optimizer, keras.optimizers.RMSprop)
    scale = xp.ones_like(count) if rms else xp.sqrt(1.0 - optimizer.beta_2**count)
    eps, root = (0.0, optimizer.epsilon) if rms else (optimizer.epsilon, 0.0)
    return [scale / (xp.sqrt(v + root) + eps) for v in seconds]


def second_moments(optimizer: Any) -> list[keras.Variable]:
    """Return the variables whose roots divide."""
    hats = getattr(optimizer, "amsgrad", False)
    return list(optimizer._velocity_hats if hats else optimizer._velocities)


def space(metric: list[Array] | None = None) -> Space:
    """Return how lists of tensors are multiplied: ⟨a, b⟩ = Σ a_i b_i w_i."""

    def dot(a: list[Array], b: list[Array]) -> Array:
        # Not keras.ops.sum: some of these turn double precision into single.
        xp = array_namespace(*a)
        pairs = [x * y for x, y in zip(a, b, strict=True)]
        if metric is not None:
            pairs = [product * weight for product, weight in zip(pairs, metric, strict=True)]
        first, *rest = (xp.sum(product) for product in pairs)
        return sum(rest, first)

    def minus(a: list[Array], b: list[Array]) -> list[Array]:
        return [x - y for x, y in zip(a, b, strict=True)]

    return Space(dot, minus)
