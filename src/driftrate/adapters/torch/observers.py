"""What is measured of the gradients of a step: of the whole one, and of two in a row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from driftrate.adapters._observe import Fields, of_pair
from driftrate.adapters.torch.measure import squared
from driftrate.adapters.torch.memory import Memory
from driftrate.adapters.torch.metric import Metric, Weights
from driftrate.adapters.torch.trail import Trail
from driftrate.errors import MissingSignal, StateError


class Observer:
    """Measures the gradient that the next step uses; the base of all that compare it.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        reads: The fields that the schedule reads.
        metric: The metric of the optimizer, or None for the plain one.
        trail: The trail of past gradients, where a product with it is wanted (`trail`).
    """

    name: ClassVar[str | None] = None
    advice: ClassVar[str] = ""  # what a loop must do so that there is something to compare

    def __init__(
        self,
        like: Tensor,
        reads: Collection[str],
        metric: Metric | None = None,
        trail: Trail | None = None,
    ) -> None:
        self.like = like
        self.reads = reads
        self.metric = metric
        self.trail = trail
        # Steps with nothing to compare; None once there was something, or nothing is wanted.
        self.blind: int | None = None if {"cross", "spread"}.isdisjoint(reads) else 0

    @property
    def remembered(self) -> Sequence[Mapping[Tensor, Any]]:
        """What must exist before a CUDA graph is captured."""
        return [] if self.trail is None else [self.trail.remembered]

    def read(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        scale: Tensor | None,
        skipped: Tensor | None = None,
    ) -> Fields:
        """Return the fields for the gradients that the optimizer is about to use.

        Args:
            owners: The parameters that have a gradient.
            gradients: Their gradients, times `scale` where one is given.
            scale: The factor of a loss scaler or of clipping, or None.
            skipped: Not 0 where the loss scaler will skip the step, or None.
        """
        if {"grad_sq", "dim"}.isdisjoint(self.reads):
            return {}
        return self._whole(owners, gradients, None, scale, skipped)

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
        if self.trail is not None:
            self.trail.buffers.clear()

    def remove(self) -> None:
        """Take back all hooks."""

    def save(self, owners: Sequence[Tensor]) -> dict[str, Any]:
        """Return what the next measurement needs, in the order of the parameters."""
        trail = {} if self.trail is None else {"trail": self.trail.save(owners)}
        return {"blind": self.blind, **trail}

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Take over what `save` returned; `check` has been passed."""
        self.blind = saved["blind"]
        if self.trail is not None:
            self.trail.load(saved["trail"], owners)

    def check(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Raise `StateError` where `saved` does not fit, with nothing changed."""
        if "blind" not in saved:
            raise StateError(f"the state holds no measurements, but {sorted(saved)}")
        if self.trail is not None:
            self.trail.check(saved.get("trail"), owners)

    def weighed(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], Weights | None]:
        """Return the parameters that the metric knows, their gradients and weights."""
        if self.metric is None:
            return [*owners], [*gradients], None
        every = self.metric.weights(owners)
        known = [place for place, weight in enumerate(every) if weight]
        return (
            [owners[place] for place in known],
            [gradients[place] for place in known],
            [every[place] for place in known],
        )

    def _whole(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        weights: Weights | None,
        scale: Tensor | None,
        skipped: Tensor | None,
    ) -> Fields:
        """Return what the whole gradient shows: its size, its square and its product with h."""
        fields: Fields = {"dim": _size(owners)}
        if self.trail is None:
            fields["grad_sq"] = unscaled(squared(gradients, self.like, weights), scale)
        else:
            taken = self.trail.take(owners, gradients, weights, scale, skipped)
            fields["grad_sq"], fields["trail"] = taken
        return fields


class Successive(Observer):
    """Each gradient against the one before: what `_observe.of_pair` says of two.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        reads: The fields that the schedule reads.
        metric: The metric of the optimizer, or None for the plain one.
        trail: The trail of past gradients, where a product with it is wanted (`trail`).
        memory: The last gradient; None where the schedule reads the trail alone.
    """

    name = "sequence"

    def __init__(
        self,
        like: Tensor,
        reads: Collection[str],
        metric: Metric | None,
        trail: Trail | None,
        memory: Memory | None,
    ) -> None:
        super().__init__(like, reads, metric, trail)
        self.memory = memory

    @property
    def remembered(self) -> Sequence[Mapping[Tensor, Any]]:
        return [*super().remembered, *([] if self.memory is None else [self.memory.buffers])]

    def stepped(self) -> None:
        if self.memory is not None:
            self.memory.stepped()

    def save(self, owners: Sequence[Tensor]) -> dict[str, Any]:
        memory = {} if self.memory is None else {"memory": self.memory.save(owners)}
        return super().save(owners) | memory

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        super().load(saved, owners)
        if self.memory is not None:
            self.memory.load(saved["memory"], owners)

    def check(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        super().check(saved, owners)
        if self.memory is not None:
            self.memory.check(saved.get("memory", {}), owners)

    def read(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        scale: Tensor | None,
        skipped: Tensor | None = None,
    ) -> Fields:
        known, some, weights = self.weighed(owners, gradients)
        fields: Fields = {}
        if known and (self.memory is None or self.trail is not None):
            fields = self._whole(known, some, weights, scale, skipped)
        if self.memory is None:
            return fields
        first = not self.memory.buffers
        spread = "spread" in self.reads
        sums = self.memory.compare(owners, gradients, scale, apart=spread)
        if sums is None:
            return {}
        fields = {"dim": _size(known), "grad_sq": sums["square"]} | fields
        if not first:
            pair = of_pair(sums["product"], sums.get("apart", self.like))
            fields |= pair if spread else {"cross": pair["cross"]}
        return fields


def _size(owners: Iterable[Tensor]) -> int:
    """Return how many real coordinates the parameters have."""
    return sum(owner.numel() * (1 + owner.is_complex()) for owner in owners)


def unscaled(square: Tensor, scale: Tensor | None) -> Tensor:
    """Return the square of gradients whose common factor `scale` is taken out."""
    return square if scale is None else square / scale.to(square).square()
