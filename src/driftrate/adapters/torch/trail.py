"""The trail of past gradients, and this gradient's product with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, optim

from driftrate.adapters.torch.measure import Buffers, compared
from driftrate.adapters.torch.metric import Weights
from driftrate.errors import StateError
from driftrate.schedules.base import TRAIL

_AVERAGING = (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam)


class Trail:
    """Remembers h ← 0.9 h + g, in one gradient's worth of memory.

    A gradient that is not finite, or whose step a loss scaler skips, leaves it as it was.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
    """

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: Buffers = {}

    @property
    def remembered(self) -> Mapping[Tensor, Any]:
        """What it has of which parameters."""
        return self.buffers

    def take(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        weights: Weights | None,
        scale: Tensor | None,
        skipped: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return ⟨g, g⟩ and ⟨g, h⟩, then lengthen the trail.

        Args:
            owners: The parameters that are measured.
            gradients: Their gradients, times `scale` where one is given.
            weights: The metric, one weight a parameter; None for the plain one.
            scale: The factor of a loss scaler, or None.
            skipped: Not 0 where the step will be skipped, or None.
        """
        olds = [self.buffers.get(owner) for owner in owners]
        dense = [g.to_dense() if g.is_sparse else g for g in gradients]
        square, product = _looked(compared(dense, olds, self.like, weights), scale, self.like)
        good = square.isfinite()
        if skipped is not None:
            good = good & (skipped.to(self.like) == 0.0)
        if good.device.type == "cpu" and not good:
            return square, product
        present = set(owners)
        for owner, old in self.buffers.items():
            if owner not in present:  # no gradient: 0
                self._put(old, TRAIL * old, good)
        for owner, gradient in zip(owners, dense, strict=True):
            # A sum of ten could leave the range of float16: it is kept in single precision.
            kind = torch.promote_types(gradient.dtype, torch.bfloat16)
            if owner not in self.buffers:
                self.buffers[owner] = torch.zeros_like(gradient, dtype=kind)
            old, new = self.buffers[owner], gradient.to(kind)
            if scale is not None:
                new = new / scale.to(new.device, kind)
            if good.device.type == "cpu":
                torch.add(new, old, alpha=TRAIL, out=old)
            else:
                self._put(old, torch.add(new, old, alpha=TRAIL), good)
        return square, product

    @staticmethod
    def _put(old: Tensor, new: Tensor, good: Tensor) -> None:
        """Write where it is good, without asking the device whether it is."""
        torch.where(good.to(old.device), new, old, out=old)

    def save(self, owners: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the trail in the order of the parameters."""
        every = [self.buffers.get(owner) for owner in owners]
        return [None if tensor is None else tensor.clone() for tensor in every]

    def check(self, saved: Any, owners: Sequence[Tensor]) -> None:
        """Raise `StateError` where `saved` does not fit, with nothing changed."""
        if not isinstance(saved, list) or len(saved) != len(owners):
            raise StateError(f"the state holds no trail of the optimizer's {len(owners)} gradients")
        for index, (tensor, owner) in enumerate(zip(saved, owners, strict=True)):
            if tensor is not None and tensor.shape != owner.shape:
                raise StateError(
                    f"the state's trail of parameter {index} is of shape {tuple(tensor.shape)},"
                    f" the parameter of {tuple(owner.shape)}"
                )

    def load(self, saved: list[Tensor | None], owners: Sequence[Tensor]) -> None:
        """Take over what `save` returned, in place: a captured graph goes on with it."""
        for owner, tensor in zip(owners, saved, strict=True):
            if tensor is None:
                self.buffers.pop(owner, None)
            elif owner in self.buffers:
                self.buffers[owner].copy_(tensor)
            else:
                self.buffers[owner] = tensor.to(owner.device, copy=True)


class Momentum(Trail):
    """Reads h where the optimizer keeps it: Adam's first moment is 0.1 h, heavy ball's buffer h.

    Costs no memory and no write. What makes the optimizer's moments useless (a gradient that is
    not finite) makes the trail so.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        optimizer: One for which `keeps_trail` holds.
    """

    def __init__(self, like: Tensor, optimizer: optim.Optimizer) -> None:
        super().__init__(like)
        self._optimizer = optimizer  # not its state, which loading replaces
        heavy = isinstance(optimizer, optim.SGD)
        self._name, self._share = ("momentum_buffer", 1.0) if heavy else ("exp_avg", 1.0 - TRAIL)

    @property
    def remembered(self) -> Mapping[Tensor, Any]:
        return self._optimizer.state

    def take(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        weights: Weights | None,
        scale: Tensor | None,
        skipped: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return ⟨g, g⟩ and ⟨g, h⟩."""
        state = self._optimizer.state
        olds = [state.get(owner, {}).get(self._name) for owner in owners]
        dense = [g.to_dense() if g.is_sparse else g for g in gradients]
        sums = compared(dense, olds, self.like, weights)
        square, product = _looked(sums, scale, self.like)
        return square, product / self._share

    def save(self, owners: Sequence[Tensor]) -> list[Tensor | None]:
        """Return nothing: the optimizer's own state has it."""
        return [None] * len(owners)

    def load(self, saved: list[Tensor | None], owners: Sequence[Tensor]) -> None:
        """Do nothing, likewise."""


def keeps_trail(optimizer: optim.Optimizer) -> bool:
    """Whether the optimizer's own buffers are the trail, but for a factor.

    With the trail's decay, of the gradient alone: without weight decay in it, and not negated.
    """
    every = optimizer.param_groups
    if any(group.get("maximize") for group in every):
        return False
    if type(optimizer) is optim.SGD:
        return all(
            (group["momentum"], group["dampening"], group["weight_decay"]) == (TRAIL, 0.0, 0.0)
            for group in every
        )
    if type(optimizer) not in _AVERAGING:
        return False
    return all(
        not isinstance(group["betas"][0], Tensor)
        and group["betas"][0] == TRAIL
        and (group["weight_decay"] == 0.0 or group.get("decoupled_weight_decay", False))
        for group in every
    )


def _looked(sums: dict[str, Tensor], scale: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return square and product with the loss scaler's factor of the new gradient taken out."""
    if scale is None:
        return sums["square"], sums["product"]
    by = scale.to(like)
    return sums["square"] / by.square(), sums["product"] / by
