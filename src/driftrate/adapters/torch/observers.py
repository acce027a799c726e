"""What is measured of the gradients of a step: of the whole one, and of two in a row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from driftrate.adapters._observe import Fields
from driftrate.adapters.torch.lead import Lead
from driftrate.adapters.torch.measure import compared, squared
from driftrate.adapters.torch.metric import Metric, Weights, weighed
from driftrate.adapters.torch.sharded import Shards
from driftrate.adapters.torch.trail import Kept, Memory, Trail
from driftrate.errors import MissingSignal, StateError


class Observer:
    """Measures the gradient that the next step uses; the base of all that compare it.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        reads: The fields that the schedule reads.
        metric: The metric of the optimizer, or None for the plain one.
        trail: The trail of past gradients, where a product with it is wanted (`trail`).
        memory: The last gradient, where it is compared with this one (`cross`, `spread`).
        lead: The weights' slow average, where a product with their lead is wanted (`lead`).
    """

    name: ClassVar[str | None] = None
    advice: ClassVar[str] = ""  # what a loop must do so that there is something to compare

    def __init__(
        self,
        like: Tensor,
        reads: Collection[str],
        metric: Metric | None = None,
        trail: Trail | None = None,
        memory: Memory | None = None,
        lead: Lead | None = None,
    ) -> None:
        self.like = like
        self.reads = reads
        self.metric = metric
        self.trail = trail
        self.memory = memory
        self.lead = lead
        self.among: Any = None  # the process group whose ranks have the same rate; None: nobody
        self.compares = not {"cross", "spread"}.isdisjoint(reads)
        # Steps with nothing to compare; None once there was something, or nothing is wanted.
        self.blind: int | None = 0 if self.compares else None

    @property
    def kept(self) -> list[Kept]:
        """What is remembered from step to step."""
        return [one for one in (self.trail, self.memory, self.lead) if one is not None]

    @property
    def shards(self) -> Shards | None:
        """How the parameters are spread over processes; None where each is whole here."""
        return None

    @property
    def shared(self) -> bool:
        """Whether other processes measure with this one."""
        return self.among is not None or self.shards is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to measure."""
        return self.name is None and {"grad_sq", "dim"}.isdisjoint(self.reads)

    def agree(self, told: Fields) -> Fields:
        """Return what was told, with the mean over the ranks in the place of a rank's own loss.

        That is the loss whose gradient is the mean of the ranks'.
        """
        if self.among is None or not self._shares_loss(told):
            return told
        size = dist.get_world_size(self.among)
        total = torch.as_tensor(told["loss"]).detach().to(self.like, copy=True).reshape(())
        dist.all_reduce(total, group=self.among)
        return {**told, "loss": total / size}

    def _shares_loss(self, told: Fields) -> bool:
        return "loss" in self.reads and "loss" in told

    def read(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> Fields:
        """Return the fields for the gradients that the optimizer is about to use.

        Args:
            owners: The parameters that have a gradient.
            gradients: Their gradients, the factors of loss scaling and clipping taken out.
        """
        fields: Fields = {}
        if self.memory is not None:  # it begins before the metric has moments
            spread = "spread" in self.reads
            fields = self.memory.compare(owners, gradients, self.metric, spread)
        owners, gradients, weights = weighed(self.metric, owners, gradients)
        if not owners:
            return {}
        fields["dim"] = sum(owner.numel() * (1 + owner.is_complex()) for owner in owners)
        if self.lead is not None:
            fields |= self.lead.take(owners, gradients, fields["dim"])
        elif self.trail is not None:
            fields["grad_sq"], fields["trail"] = self.trail.take(owners, gradients, weights)
        elif self.memory is None:
            fields["grad_sq"] = squared(gradients, self.like, weights)
        return fields | self._compared(owners, gradients, weights, fields["grad_sq"])

    def _compared(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        weights: Weights | None,
        square: Tensor,
    ) -> Fields:
        """Return what the gradients show beside others, in the metric; `square` is ‖g‖²."""
        return {}

    def moved(self, owners: Sequence[Tensor], then: Sequence[Tensor]) -> Tensor:
        """Return ‖w - w'‖², w' the numbers that lay here of the parameters before the step."""
        now = [owner.detach() for owner in owners]
        return compared(now, then, self.like, wanted=("apart",))["apart"]

    def require(self, owners: Sequence[Tensor]) -> None:
        """Refuse the second step that has nothing to compare, before anything is measured.

        One such step may be a short batch. Two from the start are a loop that will never have
        anything to compare, and whose rate would never leave its start.
        """
        if self.blind is None or not self.advice:
            return
        if self._is_blind(owners):
            if self.blind:
                raise MissingSignal(f'mode="{self.name}" has measured nothing: {self.advice}')
        else:
            self.blind = None

    def _is_blind(self, owners: Sequence[Tensor]) -> bool:
        return False

    def stepped(self) -> None:
        """Hear that the step was taken."""
        if self.blind is not None:
            self.blind += 1

    def forget(self) -> None:
        """Forget the gradients before this step."""
        for one in self.kept:
            one.forget()

    def remove(self) -> None:
        """Take back all hooks."""

    def save(self, owners: Sequence[Tensor]) -> dict[str, Any]:
        """Return what the next measurement needs, in the order of the parameters."""
        return {"blind": self.blind, **{one.name: one.save(owners) for one in self.kept}}

    def check(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Raise `StateError` where `saved` does not fit, with nothing changed."""
        if "blind" not in saved:
            raise StateError(f"the state holds no measurements, but {sorted(saved)}")
        for one in self.kept:
            one.check(saved.get(one.name), owners)

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Take over what `save` returned; `check` has been passed."""
        self.blind = saved["blind"]
        for one in self.kept:
            one.load(saved[one.name], owners)


class Successive(Observer):
    """Each gradient against those before it."""

    name = "sequence"
