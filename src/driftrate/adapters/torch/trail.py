"""What is remembered of past gradients, and this gradient's product with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from operator import is_
from typing import Any, ClassVar

import torch
from torch import Tensor, optim

from driftrate.adapters._observe import Fields, of_pair
from driftrate.adapters.torch.measure import Buffers, compared, keep
from driftrate.adapters.torch.metric import Metric, Weights, weighed
from driftrate.adapters.torch.packed import division, packed, product
from driftrate.errors import StateError
from driftrate.schedules.base import TRAIL, Array

_AVERAGING = (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam)


class Kept:
    """One tensor a parameter, kept from step to step: one gradient's worth of memory.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
    """

    name: ClassVar[str]
    borrowed: ClassVar[bool] = False  # whether it is the optimizer's, and in its state

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: Buffers = {}
        self._vector: Tensor | None = None  # what the buffers of `_packed` are views of
        self._packed: Sequence[Tensor] = ()

    def __getstate__(self) -> dict[str, Any]:
        # Pickled views would no longer share the vector, and each bring all of it along.
        buffers = {owner: tensor.clone() for owner, tensor in self.buffers.items()}
        return {**vars(self), "buffers": buffers, "_vector": None, "_packed": ()}

    def packed(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return tensors in one vector, where they may be measured as numbers; else None."""
        return packed(tensors) if self.like.device.type == "cpu" else None

    def vector(self, owners: Sequence[Tensor], start: Callable[[], Tensor]) -> Tensor | None:
        """Return what is remembered of these parameters as one vector, to be changed in place.

        None where other parameters are remembered too.

        Args:
            owners: The parameters.
            start: Makes what is taken, packed, for what is remembered of those that are new.
        """
        known = self._packed
        if self._vector is not None and len(known) == len(owners) and all(map(is_, owners, known)):
            return self._vector
        if self.buffers.keys() - {*owners}:
            return None
        begin = start()
        parts = torch.split(begin, [owner.numel() for owner in owners])
        pairs = zip(owners, parts, strict=True)
        vector = packed([self.buffers.get(owner, part) for owner, part in pairs])
        if vector is None or vector.dtype != begin.dtype:
            return None
        for owner, part in zip(owners, torch.split(vector, [*map(len, parts)]), strict=True):
            self.buffers[owner] = part.view(owner.shape)
        self._vector, self._packed = vector, [*owners]
        return vector

    def loosen(self) -> None:
        """Let each buffer be changed by itself."""
        self._vector, self._packed = None, ()

    def forget(self) -> None:
        """Forget all."""
        self.loosen()
        self.buffers.clear()

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
        self.loosen()
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
        quick = self._compare_packed(owners, gradients, metric, spread)
        if quick is not None:
            return quick
        self.loosen()
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

    def _compare_packed(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        metric: Metric | None,
        spread: bool,
    ) -> Fields | None:
        """Do what `compare` does with small parameters that all have a gradient; else None."""
        gradient = self.packed(gradients)
        if gradient is None:
            return None
        metric_of = division(None if metric is None else metric.weights(owners))
        if metric_of is None:
            return None
        begins = not self.buffers
        old = self.vector(owners, lambda: torch.zeros_like(gradient))
        if old is None:
            return None
        over = metric_of.over(gradient)
        fields: Fields = {"grad_sq": metric_of.scale * product(over, gradient)}
        if not begins:
            fields["cross"] = metric_of.scale * product(over, old)
            if spread:
                apart = gradient - old
                square = metric_of.scale * product(metric_of.over(apart), apart)
                fields |= of_pair(fields["cross"], square)
        old.copy_(gradient)
        return fields


class Trail(Kept):
    """Remembers h ← 0.9 h + g; a gradient that is not finite leaves it as it was."""

    name = "trail"
    share = 1.0

    def take(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], weights: Weights | None
    ) -> tuple[Array, Array]:
        """Return ⟨g, g⟩ and ⟨g, h⟩ in the metric, then lengthen the trail."""
        quick = self._take_packed(owners, gradients, weights)
        if quick is not None:
            return quick
        self.loosen()
        new = {p: dense(g) for p, g in zip(owners, gradients, strict=True)}
        sums = compared([*new.values()], self.olds(owners), self.like, weights)
        self.lengthen(new, sums["square"] < inf)
        return sums["square"], sums["product"] / self.share

    def _take_packed(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], weights: Weights | None
    ) -> tuple[float, float] | None:
        """Do what `take` does with small parameters; None of others."""
        gradient = self.packed(gradients)
        metric = None if gradient is None else division(weights)
        if gradient is None or metric is None:
            return None
        trail = self._trail(owners, gradient)
        if trail is None or trail.dtype != gradient.dtype:
            return None
        over = metric.over(gradient)
        square, along = (metric.scale * product(over, one) for one in (gradient, trail))
        self._lengthen_packed(trail, gradient, square)
        return square, along / self.share

    def _trail(self, owners: Sequence[Tensor], gradient: Tensor) -> Tensor | None:
        """Return the trail in one vector, or what is `share` times it."""
        return self.vector(owners, lambda: torch.zeros_like(gradient))

    def _lengthen_packed(self, trail: Tensor, gradient: Tensor, square: float) -> None:
        if isfinite(square):
            torch.add(gradient, trail, alpha=TRAIL, out=trail)

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

    borrowed = True

    def __init__(self, like: Tensor, optimizer: optim.Optimizer) -> None:
        super().__init__(like)
        self._optimizer = optimizer  # not its state, which loading replaces
        heavy = isinstance(optimizer, optim.SGD)
        self._name, self.share = ("momentum_buffer", 1.0) if heavy else ("exp_avg", 1.0 - TRAIL)

    @property
    def remembered(self) -> Mapping[Tensor, Any]:
        return self._optimizer.state

    def _trail(self, owners: Sequence[Tensor], gradient: Tensor) -> Tensor | None:
        known = [old for old in self.olds(owners) if old is not None]
        return packed(known) if len(known) == len(owners) else None

    def _lengthen_packed(self, trail: Tensor, gradient: Tensor, square: float) -> None:
        """Leave it to the optimizer."""

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
