"""The gradient of the step before, and what this one has in common with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters.torch.measure import Buffers, compared, contrast, keep, product, squared
from driftrate.adapters.torch.metric import Metric
from driftrate.errors import StateError

# A launch for each of many small tensors costs more than a copy of all in one.
_LARGE = 1 << 18


class Memory:
    """Remembers the last whole gradient, in one gradient's worth of memory.

    `zero_grad()` drops the gradients, so the last ones are held, not copied, until it shows that
    a loop reuses their memory (`set_to_none=False`, DDP's buckets): then one measurement is lost
    and they are copied from there on. Where memory is known to be reused (CUDA graphs), or a
    gradient's form asks for it (sparse, float16, scaled, many small tensors on a device), they are
    copied from the start.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        metric: The metric of the optimizer, or None for the plain one.
        captured: Whether the step may be captured in a CUDA graph.
    """

    def __init__(self, like: Tensor, metric: Metric | None = None, captured: bool = False) -> None:
        self.like = like
        self.metric = metric
        self.buffers: Buffers = {}
        self.square = torch.full_like(like, torch.nan)  # of the last gradient
        self.scale = torch.ones_like(like)
        self.scaled = False
        self.holds = not captured
        self.held: dict[Tensor, int] = {}  # the version of each gradient that is held

    def compare(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        scale: Tensor | None = None,
        *,
        apart: bool = True,
    ) -> dict[str, Tensor] | None:
        """Compare the gradients with the last ones, then remember them instead.

        Args:
            owners: The parameters that have a gradient.
            gradients: Their gradients, times `scale` where one is given.
            scale: The factor of a loss scaler, or None.
            apart: Whether ‖g_t - g_{t-1}‖² is wanted too.

        Returns:
            The sums, the loss scaler's factor taken out; a gradient that was not there is 0. None
            where a loop has written into the last gradients, or the metric has no moments yet.
        """
        self.scaled = self.scaled or scale is not None
        if self.holds and (self.scaled or not self._can_hold(gradients)):
            self.holds = False
        written = self._written(owners, gradients)
        if written:
            self.holds = False
            self.buffers.clear()
            self.square.fill_(torch.nan)
        # A buffer has the gradient as it came; only a loss scaler makes that a difference.
        ratio: float | Tensor = 1.0
        if self.scaled:
            ratio = (1.0 if scale is None else scale.to(self.like)) / self.scale
        present = set(owners)
        gone = [owner for owner in self.buffers if owner not in present]
        if self.metric is not None or self.like.device.type == "cpu":
            sums = self._anywhere(owners, gradients, gone, ratio, apart)
            if not self.holds:
                self._release(gone)
                keep(self.buffers, owners, gradients)
        elif self.holds:
            sums = self._held_on_device(owners, gradients)
        else:
            sums = self._copied_on_device(owners, gradients, gone, ratio)
        self.held.clear()
        if self.holds:
            self.buffers = dict(zip(owners, gradients, strict=True))
        if sums is not None and scale is not None:
            by = scale.to(self.like).square()
            sums = {name: one / by for name, one in sums.items()}
        if sums is not None:
            self.square.copy_(sums["square"])
        if self.scaled:
            self.scale.copy_(torch.ones_like(self.scale) if scale is None else scale)
        return None if written else sums

    def stepped(self) -> None:
        """Hear that the step was taken."""
        # Optimizers may change a gradient in their step; what comes later is a change of the loop.
        if self.holds:
            self.held = {owner: tensor._version for owner, tensor in self.buffers.items()}

    def _anywhere(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        gone: Sequence[Tensor],
        ratio: float | Tensor,
        apart: bool,
    ) -> dict[str, Tensor] | None:
        """Compare in any metric, on any device."""
        new = dict(zip(owners, gradients, strict=True))
        some = [*owners, *gone]
        weights = None
        if self.metric is not None:
            every = self.metric.weights(some)
            some = [owner for owner, weight in zip(some, every, strict=True) if weight]
            weights = [weight for weight in every if weight]
            if not some:
                return None
        here = sum(owner in new for owner in some)
        sums = compared(
            [new[owner] for owner in some[:here]],
            [self.buffers.get(owner) for owner in some[:here]],
            self.like,
            weights and weights[:here],
            ratio,
            wanted=("square", "product", "apart") if apart else ("square", "product"),
        )
        if apart and some[here:]:
            rest = [self.buffers[owner] for owner in some[here:]]
            lost = squared(rest, self.like, weights and weights[here:]) * ratio * ratio
            sums["apart"] = sums["apart"] + lost
        return sums | {"product": sums["product"] * ratio}

    def _held_on_device(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """Take the plain products, in one look at each gradient."""
        square = squared(gradients, self.like)
        pairs = [
            (gradient, self.buffers[owner])
            for owner, gradient in zip(owners, gradients, strict=True)
            if owner in self.buffers
        ]
        along = product(pairs, self.like) if pairs else torch.zeros_like(square)
        off = (square + self.square - 2.0 * along).clamp(min=0.0)
        return {"square": square, "product": along, "apart": off}

    def _copied_on_device(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        gone: Sequence[Tensor],
        ratio: float | Tensor,
    ) -> dict[str, Tensor]:
        """Take the plain difference in the copies themselves, all tensors in one launch."""
        square, first = squared(gradients, self.like), not self.buffers
        if self.held:  # they belong to the loop: do not write into them
            self.buffers = {owner: tensor.clone() for owner, tensor in self.buffers.items()}
        rest = [self.buffers.pop(owner) for owner in gone]
        off = contrast(self.buffers, owners, gradients, self.like, ratio)
        if first:
            return {"square": square, "product": torch.zeros_like(square), "apart": off}
        if rest:
            off = off + squared(rest, self.like) * ratio * ratio
        before = self.square * (self.scale * ratio).square() if self.scaled else self.square
        return {"square": square, "product": (square + before - off) / 2.0, "apart": off}

    def _release(self, gone: Sequence[Tensor]) -> None:
        if self.held:  # they belong to the loop: do not write into them
            self.buffers.clear()
        for owner in gone:
            self.buffers.pop(owner, None)

    def _written(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
        return any(
            self.buffers[p].data_ptr() == g.data_ptr() or self.buffers[p]._version != self.held[p]
            for p, g in zip(owners, gradients, strict=True)
            if p in self.held
        )

    def _can_hold(self, gradients: Sequence[Tensor]) -> bool:
        if any(g.is_sparse or g.is_complex() or g.dtype == torch.float16 for g in gradients):
            return False
        size = sum(g.numel() for g in gradients) / len(gradients)
        return self.like.device.type == "cpu" or size > _LARGE

    def save(self, owners: Sequence[Tensor]) -> dict[str, Any]:
        """Return what the next comparison needs, in the order of the parameters."""
        previous = [self.buffers.get(owner) for owner in owners]
        return {
            "previous": [None if tensor is None else tensor.clone() for tensor in previous],
            "square": self.square.clone(),
            "scale": self.scale.clone(),
            "scaled": self.scaled,
        }

    def check(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Raise `StateError` where `saved` does not fit, with nothing changed."""
        if saved.keys() != {"previous", "square", "scale", "scaled"}:
            raise StateError(f"the state holds no sequence of gradients, but {sorted(saved)}")
        if len(saved["previous"]) != len(owners):
            raise StateError(
                f"the state holds {len(saved['previous'])} previous gradients, the optimizer"
                f" {len(owners)} parameters"
            )
        for index, (tensor, owner) in enumerate(zip(saved["previous"], owners, strict=True)):
            if tensor is not None and tensor.shape != owner.shape:
                raise StateError(
                    f"the state's gradient of parameter {index} is of shape"
                    f" {tuple(tensor.shape)}, the parameter of {tuple(owner.shape)}"
                )

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Take over what `save` returned; `check` has been passed."""
        if self.held:
            self.held.clear()
            self.buffers.clear()
        for owner, tensor in zip(owners, saved["previous"], strict=True):
            if tensor is None:
                self.buffers.pop(owner, None)
            else:
                keep(self.buffers, [owner], [tensor.to(owner.device)])
        self.square.copy_(saved["square"])
        self.scale.copy_(saved["scale"])
        self.scaled = saved["scaled"]
