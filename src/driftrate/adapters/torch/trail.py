"""What is remembered of past gradients, and this gradient's product with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, optim

from driftrate.adapters._observe import Fields, of_pair
from driftrate.adapters.torch.measure import Buffers, compared, keep
from driftrate.adapters.torch.metric import Metric, Weights, weighed
from driftrate.errors import StateError
from driftrate.schedules.base import TRAIL

_AVERAGING = (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam)


class Kept:
    """One tensor a parameter, kept from step to step: one gradient's worth of memory.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
    """

    name: ClassVar[str]

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: Buffers = {}

    @property
    def remembered(self) -> Mapping[Tensor, Any]:
        """What it has of which parameters."""
        return self.buffers

    def kind(self, like: Tensor) -> torch.dtype:
        """Return the precision in which it keeps what is like this gradient or weight."""
        return like.dtype

    def save(self, owners: Sequence[Tensor]) -> list[Tensor | None]:
        """Return what is remembered, in the order of the parameters."""
        every = [self.buffers.get(owner) for owner in owners]
        return [None if tensor is None else tensor.clone() for tensor in every]

    def check(self, saved: Any, owners: Sequence[Tensor]) -> None:
        """Raise `StateError` where `saved` does not fit, with nothing changed."""
        if not isinstance(saved, list) or len(saved) != len(owners):
            raise StateError(
                f"the state holds no {self.name} of the optimizer's {len(owners)} gradients"
            )
        for index, (tensor, owner) in enumerate(zip(saved, owners, strict=True)):
            if tensor is not None and tensor.shape != owner.shape:
                raise StateError(
                    f"the state's {self.name} of parameter {index} is of shape"
                    f" {tuple(tensor.shape)}, the parameter of {tuple(owner.shape)}"
                )

    def load(self, saved: list[Tensor | None], owners: Sequence[Tensor]) -> None:
        """Take over what `save` returned, in place: a captured graph goes on with it."""
        for owner, tensor in zip(owners, saved, strict=True):
            if tensor is None:
                self.buffers.pop(owner, None)
            else:
                keep(self.buffers, [owner], [tensor.to(owner.device)])


class Memory(Kept):
    """Remembers the last gradient."""

    name = "memory"

    def compare(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        metric: Metric | None,
        spread: bool = True,
    ) -> Fields:
        """Return ‖g‖² and what `of_pair` says of g and the last one, then remember g instead.

        A gradient that is not there is 0. Nothing is returned where the metric has no moments yet.

        Args:
            owners: The parameters that have a gradient.
            gradients: Their gradients.
            metric: The metric of the optimizer, or None for the plain one.
            spread: Whether `spread` is wanted too.
        """
        new = dict(zip(owners, gradients, strict=True))
        gone = [owner for owner in self.buffers if owner not in new]
        new |= {owner: torch.zeros_like(self.buffers[owner]) for owner in gone}
        known, some, weights = weighed(metric, [*new], [*new.values()])
        fields: Fields = {}
        if known:
            olds = [self.buffers.get(owner) for owner in known]
            wanted = ("square", "product", "apart") if spread else ("square", "product")
            sums = compared(some, olds, self.like, weights, wanted=wanted)
            fields["grad_sq"] = sums["square"]
            if self.buffers:
                pair = of_pair(sums["product"], sums.get("apart", self.like))
                fields |= pair if spread else {"cross": pair["cross"]}
        for owner in gone:
            del self.buffers[owner]
        keep(self.buffers, owners, gradients)
        return fields


class Trail(Kept):
    """Remembers h ← 0.9 h + g; a gradient that is not finite leaves it as it was."""

    name = "trail"
    share = 1.0

    def take(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], weights: Weights | None
    ) -> tuple[Tensor, Tensor]:
        """Return ⟨g, g⟩ and ⟨g, h⟩ in the metric, then lengthen the trail."""
        new = {p: dense(g) for p, g in zip(owners, gradients, strict=True)}
        sums = compared([*new.values()], self.olds(owners), self.like, weights)
        self.lengthen(new, sums["square"].isfinite())
        return sums["square"], sums["product"] / self.share

    def olds(self, owners: Sequence[Tensor]) -> list[Tensor | None]:
        """Return h, or what is `share` times h, None where there is none yet."""
        return [self.buffers.get(owner) for owner in owners]

    def lengthen(self, new: Mapping[Tensor, Tensor], good: Tensor) -> None:
        """Add the gradients, dense ones, to the trail where the step is good."""
        if good.device.type == "cpu" and not good:
            return
        for owner, old in self.buffers.items():
            if owner not in new:  # no gradient: 0
                put(old, TRAIL * old, good)
        for owner, gradient in new.items():
            kind = self.kind(gradient)
            if owner not in self.buffers:
                self.buffers[owner] = torch.zeros_like(gradient, dtype=kind)
            old, one = self.buffers[owner], gradient.to(kind)
            if good.device.type == "cpu":
                torch.add(one, old, alpha=TRAIL, out=old)
            else:
                put(old, torch.add(one, old, alpha=TRAIL), good)

    def kind(self, like: Tensor) -> torch.dtype:
        # A sum of ten could leave the range of float16: it is kept in single precision.
        return torch.promote_types(like.dtype, torch.bfloat16)


class Momentum(Trail):
    """Reads h where the optimizer keeps it: Adam's first moment is 0.1 h, heavy ball's buffer h.

    Costs no memory and no write. What makes the optimizer's moments useless (a gradient that is
    not finite) makes the trail so. The optimizer is one for which `keeps_trail` holds.
    """

    def __init__(self, like: Tensor, optimizer: optim.Optimizer) -> None:
        super().__init__(like)
        self._optimizer = optimizer  # not its state, which loading replaces
        heavy = isinstance(optimizer, optim.SGD)
        self._name, self.share = ("momentum_buffer", 1.0) if heavy else ("exp_avg", 1.0 - TRAIL)

    @property
    def remembered(self) -> Mapping[Tensor, Any]:
        return self._optimizer.state

    def olds(self, owners: Sequence[Tensor]) -> list[Tensor | None]:
        return [self._optimizer.state.get(owner, {}).get(self._name) for owner in owners]

    def lengthen(self, new: Mapping[Tensor, Tensor], good: Tensor) -> None:
        """Leave it to the optimizer."""


def dense(tensor: Tensor) -> Tensor:
    """Return a gradient with all its zeros."""
    return tensor.to_dense() if tensor.is_sparse else tensor


def put(old: Tensor, new: Tensor, good: Tensor) -> None:
    """Write where it is good, without asking the device whether it is."""
    torch.where(good.to(old.device), new, old, out=old)


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
