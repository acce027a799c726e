"""The weights' lead over their slow average, and this gradient's product with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, optim

from driftrate.adapters._observe import Fields, reach
from driftrate.adapters.torch.groups import Groups
from driftrate.adapters.torch.measure import blocks, kernel, squared, stacked
from driftrate.adapters.torch.metric import is_adam_like
from driftrate.adapters.torch.packed import product
from driftrate.adapters.torch.trail import Kept, dense, put
from driftrate.schedules.base import HORIZON, Array

Reach = Callable[[Array, Any], Array]  # of ‖g‖² and the number of coordinates


class Lead(Kept):
    """Remembers w̄ ← w̄ + (w - w̄)/50; a gradient that is not finite leaves it as it was.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        reach: How far along the gradient a step goes at a rate of 1; None where nobody knows.
    """

    name = "average"

    def __init__(self, like: Tensor, reach: Reach | None) -> None:
        super().__init__(like)
        self._reach = reach

    def take(self, owners: Sequence[Tensor], gradients: Sequence[Tensor], dim: float) -> Fields:
        """Return ‖g‖², ⟨g, w - w̄⟩, ‖w‖² and the reach, then let the average follow."""
        gradient, weights = self.packed(gradients), self.packed(owners)
        if gradient is not None and weights is not None:
            average = self.vector(owners, weights.clone)
            if average is not None:
                return self._take_packed(gradient, weights, average, dim)
        self.loosen()
        for owner in owners:
            if owner not in self.buffers:
                self.buffers[owner] = self.started(owner.detach())
        square = squared(gradients, self.like)
        given = {p: dense(g) for p, g in zip(owners, gradients, strict=True)}
        every = [owner.detach() for owner in self.buffers]
        some = [given.get(owner) for owner in self.buffers]
        good = square < inf  # of a square as good as isfinite, in one operation for four
        lead, size = looked(every, [*self.buffers.values()], some, good, self.like)
        return self.fields(square, lead, size, dim)

    def kind(self, like: Tensor) -> torch.dtype:
        # In single precision at least: a fiftieth of a step would be lost in half of it.
        return torch.promote_types(like.dtype, torch.float32)

    def started(self, weight: Tensor) -> Tensor:
        """Return the average of weights at their first step: a copy."""
        return torch.empty(weight.shape, dtype=self.kind(weight), device=weight.device).copy_(
            weight
        )

    def fields(self, square: Array, lead: Array, weights: Array, dim: Any) -> Fields:
        """Return ‖g‖², ⟨g, w - w̄⟩ and ‖w‖² as fields, with the reach of dim coordinates."""
        fields: Fields = {"grad_sq": square, "lead": lead, "weights_sq": weights}
        if self._reach is not None:
            fields["reach"] = self._reach(square, dim)
        return fields

    def _take_packed(
        self, gradient: Tensor, weights: Tensor, average: Tensor, dim: float
    ) -> Fields:
        """Do what `take` does with small parameters that all have a gradient."""
        lead, square = weights - average, product(gradient, gradient)
        along = product(gradient, lead)
        if isfinite(square):
            average.add_(lead, alpha=1.0 / HORIZON)
        return self.fields(square, along, product(weights, weights), dim)


def looked(
    weights: Sequence[Tensor],
    averages: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    good: Tensor | None,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return ⟨g, w - w̄⟩ and ‖w‖² of all with a gradient; let the averages follow where good.

    Args:
        weights: The weights.
        averages: Their averages, changed in place.
        gradients: Their gradients, dense ones; None adds nothing to the sums.
        good: Whether the averages follow; None: they do not.
        like: A scalar tensor whose dtype and device both sums take.
    """
    quick: list[tuple[Tensor, Tensor, Tensor | None]] = []
    products: list[Tensor] = []
    rest: list[Tensor] = []  # weights that no kernel looks at
    fast = kernel() if like.is_cuda else None
    for weight, average, gradient in zip(weights, averages, gradients, strict=True):
        some = (weight, average) if gradient is None else (weight, average, gradient)
        single = average.dtype is torch.float32
        fits = single and all(one.shape == weight.shape for one in some)
        if fast is not None and fits and all(fast.takes(one, like.device) for one in some):
            quick.append((weight, average, gradient))
            continue
        products += _looked_blocks(weight, average, gradient, good)
        if gradient is not None:
            rest.append(weight)
    if fast is not None and quick:
        lead, size = fast.looked(*zip(*quick, strict=True), good).to(like.dtype).unbind()
    else:
        lead = size = torch.zeros_like(like)
    if products:
        lead = lead + stacked(products, like).sum(dtype=like.dtype)
        size = size + squared(rest, like)
    return lead, size


def _looked_blocks(
    weight: Tensor, average: Tensor, gradient: Tensor | None, good: Tensor | None
) -> list[Tensor]:
    """Do what `looked` does, block by block: the lead of all weights would be a copy of them."""
    gradients = repeat(None) if gradient is None else blocks(gradient)
    products = []
    for new, slow, along in zip(blocks(weight), blocks(average), gradients, strict=False):
        lead = new.to(slow.dtype) - slow
        if along is not None:
            products.append(torch.dot(along, lead))
        if good is None:
            continue
        if good.device.type != "cpu":
            put(slow, torch.add(slow, lead, alpha=1.0 / HORIZON), good)
        elif good:
            slow.add_(lead, alpha=1.0 / HORIZON)
    return products


def reach_of(optimizer: optim.Optimizer, groups: Groups) -> Reach | None:
    """Return how far a step goes; None of an optimizer that is neither SGD nor Adam's kin."""
    normalises = is_adam_like(optimizer)
    if not (normalises or isinstance(optimizer, optim.SGD)):
        return None
    return partial(_reached, groups, normalises)


def _reached(groups: Groups, normalises: bool, square: Array, dim: Any) -> Array:
    # Where it is a number, a device is told it once.
    return reach(groups.unit, normalises, 0.0 if normalises else square, dim)
