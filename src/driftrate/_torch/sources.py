"""Where the signal comes from: the sequence of gradients, parts of a batch, or ranks."""

# No `from __future__ import annotations` here: torch compares the annotations of a communication
# hook with its own types, and would find strings.

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from driftrate._torch.measure import Buffers, contrast, keep, squared
from driftrate._torch.memory import Memory
from driftrate._torch.metric import Metric, Weights
from driftrate._torch.trail import Trail
from driftrate.errors import ConfigError

Fields = dict[str, Any]


class Source(ABC):
    """Measures the gradients that the next step uses.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        metric: The metric of the optimizer, or None for the plain one.
        trail: The trail of past gradients, where a product with it is wanted (`trail`).
    """

    name: ClassVar[str]
    fields: ClassVar[frozenset[str]] = frozenset({"dim", "parts", "cross", "spread", "trail"})

    def __init__(
        self, like: Tensor, metric: Metric | None = None, trail: Trail | None = None
    ) -> None:
        self.like = like
        self.metric = metric
        self.trail = trail
        self.buffers: Buffers = {}

    @property
    def remembered(self) -> Sequence[Buffers]:
        """What must exist before a CUDA graph is captured."""
        return [] if self.trail is None else [self.trail.buffers]

    @abstractmethod
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
            scale: The factor of a loss scaler, or None.
            skipped: Not 0 where the loss scaler will skip the step, or None.
        """

    def stepped(self) -> None:  # noqa: B027
        """Hear that the step was taken."""

    def remove(self) -> None:  # noqa: B027
        """Take back all hooks."""

    def save(self, owners: Sequence[Tensor]) -> dict[str, Any]:
        """Return what the next measurement needs, in the order of the parameters."""
        return {} if self.trail is None else {"trail": self.trail.save(owners)}

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Take over what `save` returned; `check` has been passed."""
        if self.trail is not None:
            self.trail.load(saved["trail"], owners)

    def check(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Raise `StateError` where `saved` does not fit, with nothing changed."""
        if self.trail is not None:
            self.trail.check(saved.get("trail"), owners)

    def _weighed(
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

    def _along(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        weights: Weights | None,
        scale: Tensor | None,
        skipped: Tensor | None,
    ) -> Fields:
        """Return the product with the trail, 0 at the first step, and the number of coordinates."""
        fields: Fields = {"dim": sum(p.numel() * (1 + p.is_complex()) for p in owners)}
        if self.trail is not None:
            fields["trail"] = self.trail.take(owners, gradients, weights, scale, skipped)
        return fields


class Gradients(Source):
    """The sequence of whole gradients: each against the one before.

    cross = ⟨g_t, g_{t-1}⟩ and spread = ‖g_t - g_{t-1}‖²/2: two batches have independent noise, so
    that cross measures ⟨∇_t, ∇_{t-1}⟩ and spread the noise of one gradient, plus half the
    squared change of ∇ between the two.
    """

    name = "sequence"
    fields = frozenset({"dim", "cross", "spread", "trail"})

    def __init__(
        self,
        like: Tensor,
        metric: Metric | None,
        trail: Trail | None,
        memory: Memory | None,
        spread: bool,
    ) -> None:
        super().__init__(like, metric, trail)
        self.memory = memory
        self._spread = spread

    @property
    def remembered(self) -> Sequence[Buffers]:
        return [*super().remembered, *([] if self.memory is None else [self.memory.buffers])]

    def stepped(self) -> None:
        if self.memory is not None:
            self.memory.stepped()

    def save(self, owners: Sequence[Tensor]) -> dict[str, Any]:
        return super().save(owners) | ({} if self.memory is None else self.memory.save(owners))

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        super().load(saved, owners)
        if self.memory is not None:
            self.memory.load(saved, owners)

    def check(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        super().check(saved, owners)
        if self.memory is not None:
            self.memory.check({k: v for k, v in saved.items() if k != "trail"}, owners)

    def read(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        scale: Tensor | None,
        skipped: Tensor | None = None,
    ) -> Fields:
        known, some, weights = self._weighed(owners, gradients)
        along = self._along(known, some, weights, scale, skipped) if known else {}
        if self.memory is None:
            if not known:
                return {}
            return {"grad_sq": _unscaled(squared(some, self.like, weights), scale)} | along
        first = not self.memory.buffers
        sums = self.memory.compare(owners, gradients, scale, apart=self._spread)
        if sums is None:
            return {}
        fields = {"grad_sq": sums.square} | along
        if not first:
            fields["cross"] = sums.product
            if sums.apart is not None:
                fields["spread"] = sums.apart / 2.0
        return fields


class Parts(Source):
    r"""Marked parts of a batch. Keeps one gradient copy.

    With S_i the gradient accumulated over i parts, the i-th part differs from the mean of those
    before it by S_{i+1} - S_i (i+1)/i, and by Helmert's contrasts

        Σ_i ‖g_i - ḡ‖² = Σ_{i<k} i/(i+1) ‖S_{i+1} - S_i (i+1)/i‖²,

    which needs the last S alone, whatever k, and squares no sum before it is subtracted.
    """

    name = "parts"

    def __init__(
        self, like: Tensor, metric: Metric | None = None, trail: Trail | None = None
    ) -> None:
        super().__init__(like, metric, trail)
        self.count = 0
        self.apart = torch.zeros_like(like)

    def mark(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Hear that the gradients now hold one part more."""
        owners, gradients, weights = self._weighed(owners, gradients)
        if self.count == 0:
            self.apart = torch.zeros_like(self.like)
            for stale in self.buffers.keys() - set(owners):
                del self.buffers[stale]  # no gradient in this part: 0
            keep(self.buffers, owners, gradients)
        else:
            self.apart = self.apart + _helmert(
                self.buffers, owners, gradients, self.like, self.count, weights
            )
        self.count += 1

    def read(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        scale: Tensor | None,
        skipped: Tensor | None = None,
    ) -> Fields:
        owners, gradients, weights = self._weighed(owners, gradients)
        if not owners:
            return {}
        along = self._along(owners, gradients, weights, scale, skipped)
        square = _unscaled(squared(gradients, self.like, weights), scale)
        then = self._then(owners, weights)
        return _from_parts(square, self.apart, self.count, then) | along

    def _then(self, owners: Sequence[Tensor], weights: Weights | None) -> Tensor:
        """Return ‖ḡ‖² as it was when the last part was heard."""
        known = [place for place, owner in enumerate(owners) if owner in self.buffers]
        some = [self.buffers[owners[place]] for place in known]
        return squared(some, self.like, weights and [weights[place] for place in known])

    def stepped(self) -> None:
        super().stepped()
        self.count = 0


class Accumulated(Parts):
    """Every backward pass between two steps as a part, by hooks on the parameters."""

    name = "accumulation"

    def __init__(
        self,
        like: Tensor,
        metric: Metric | None,
        trail: Trail | None,
        owners: Iterable[Tensor],
    ) -> None:
        super().__init__(like, metric, trail)
        self.counts: dict[Tensor, int] = {}
        self.sums: dict[Tensor, Tensor] = {}
        self.seen: dict[Tensor, ReferenceType[Tensor]] = {}
        self.handles: dict[Tensor, RemovableHandle] = {}
        self.watch(owners)

    def watch(self, owners: Iterable[Tensor]) -> None:
        """Put a hook on each parameter that has none and can have a gradient."""
        for owner in owners:
            if owner not in self.handles and owner.requires_grad:
                self.handles[owner] = owner.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._hear
                )

    @torch.no_grad()
    def _hear(self, owner: Tensor) -> None:
        gradient = owner.grad
        if gradient is None:
            return
        # A new tensor means that the gradients were set to None: a step was skipped, start again.
        known = self.seen.get(owner)
        if known is None or known() is not gradient:
            self.counts[owner] = 0
        self.seen[owner] = ref(gradient)
        count = self.counts.get(owner, 0)
        if count == 0:
            self.sums[owner] = torch.zeros_like(self.like)
            keep(self.buffers, [owner], [gradient])
        else:
            weights = self._weighed([owner], [gradient])[2]
            self.sums[owner] = self.sums[owner] + _helmert(
                self.buffers, [owner], [gradient], self.like, count, weights or None
            )
        self.counts[owner] = count + 1

    def read(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        scale: Tensor | None,
        skipped: Tensor | None = None,
    ) -> Fields:
        self.watch(owners)
        owners, gradients, weights = self._weighed(owners, gradients)
        if not owners:
            return {}
        along = self._along(owners, gradients, weights, scale, skipped)
        square = _unscaled(squared(gradients, self.like, weights), scale)
        parts = max(self.counts.get(owner, 0) for owner in owners)
        apart, heard = torch.zeros_like(self.like), []
        for place, owner in enumerate(owners):
            count = self.counts.get(owner, 0)
            weight = None if weights is None else weights[place]
            if count:
                heard.append((owner, weight))
                apart = apart + self.sums[owner]
            if 0 < count < parts:
                # Parts that did not reach this parameter have the gradient 0; order is no matter.
                rest = squared([self.buffers[owner]], self.like, [weight])
                apart = apart + (1.0 / count - 1.0 / parts) * rest
        then = self._then([owner for owner, _ in heard], [weight for _, weight in heard])
        return _from_parts(square, apart, parts, then) | along

    def stepped(self) -> None:
        super().stepped()
        self.counts.clear()

    def remove(self) -> None:
        for handle in self.handles.values():
            handle.remove()
        self.handles.clear()


class Ranks(Source):
    """The gradients of the ranks of a `DistributedDataParallel` model, before they are averaged.

    A communication hook does what DDP does, and takes the square of a rank's own gradient less
    the mean. A copy of each bucket lives until its mean is there; one number a rank is gathered.
    """

    name = "ranks"

    def __init__(
        self,
        like: Tensor,
        metric: Metric | None,
        trail: Trail | None,
        model: DistributedDataParallel,
        owners: Iterable[Tensor],
    ) -> None:
        super().__init__(like, metric, trail)
        self.group: dist.ProcessGroup = model.process_group
        self.owners = set(owners)
        self.apart: dict[int, Tensor] = {}
        self.squares: dict[int, Tensor] = {}
        self.active = True
        _listen(model, self)

    def read(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        scale: Tensor | None,
        skipped: Tensor | None = None,
    ) -> Fields:
        self.owners.update(owners)
        owners, gradients, weights = self._weighed(owners, gradients)
        if not owners:
            return {}
        along = self._along(owners, gradients, weights, scale, skipped)
        square = _unscaled(squared(gradients, self.like, weights), scale)
        if not self.apart:
            return {"grad_sq": square} | along
        own = torch.stack([self.apart[index] for index in sorted(self.apart)]).sum()
        then = torch.stack([self.squares[index] for index in sorted(self.squares)]).sum()
        size = dist.get_world_size(self.group)
        every = [torch.empty_like(own) for _ in range(size)]
        # Gathered and added in the order of the ranks: all of them get the same bits.
        dist.all_gather(every, own, group=self.group)
        # The ranks' gradients are averaged, the parts of a batch added: g_i/k either way.
        return _from_parts(square, torch.stack(every).sum() / (size * size), size, then) | along

    def begin(self) -> None:
        """Hear that a backward pass begins."""
        self.apart.clear()
        self.squares.clear()

    def stepped(self) -> None:
        super().stepped()
        self.begin()

    def remove(self) -> None:
        self.active = False


# torch takes one communication hook a model and never gives it back: the hook stays, and asks
# here whether anyone listens.
_LISTENERS: WeakKeyDictionary[DistributedDataParallel, list[Ranks]] = WeakKeyDictionary()


def _listen(model: DistributedDataParallel, ranks: Ranks) -> None:
    listeners = _LISTENERS.get(model)
    if listeners is None:
        listeners = []
        try:
            model.register_comm_hook(listeners, _average)
        except RuntimeError as error:
            raise ConfigError(
                "attach: the DDP model has a communication hook already, and torch takes one:"
                f' leave it out, or use mode="sequence" ({error})'
            ) from error
        _LISTENERS[model] = listeners
    listeners[:] = [other for other in listeners if other.active] + [ranks]


def _average(
    listeners: list[Ranks],
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over the ranks as DDP does, and tell the listeners of the difference."""
    buffer, index = bucket.buffer(), bucket.index()
    gradients = dict(zip(bucket.parameters(), bucket.gradients(), strict=True))
    copies: list[tuple[Ranks, Buffers]] = []
    for ranks in listeners:
        if ranks.active:
            if index == 0:
                ranks.begin()
            mine = {p: g.detach().clone() for p, g in gradients.items() if p in ranks.owners}
            if mine:
                copies.append((ranks, mine))
    group = listeners[0].group
    buffer.div_(dist.get_world_size(group))
    work: Any = dist.all_reduce(buffer, group=group, async_op=True)

    @torch.no_grad()
    def averaged(done: Any) -> Tensor:
        for ranks, mine in copies:
            owners, means, weights = ranks._weighed([*mine], [gradients[p] for p in mine])
            ranks.squares[index] = squared(means, ranks.like, weights)
            ranks.apart[index] = contrast(mine, owners, means, ranks.like, weights=weights)
        mean: Tensor = done.value()[0]
        return mean

    future: torch.futures.Future[Tensor] = work.get_future().then(averaged)
    return future


def _helmert(
    buffers: Buffers,
    owners: Sequence[Tensor],
    gradients: Sequence[Tensor],
    like: Tensor,
    count: int,
    weights: Weights | None,
) -> Tensor:
    ratio = (count + 1.0) / count
    return contrast(buffers, owners, gradients, like, ratio, weights) / ratio


def _unscaled(square: Tensor, scale: Tensor | None) -> Tensor:
    return square if scale is None else square / scale.to(square).square()


def _from_parts(square: Tensor, apart: Tensor, parts: int, then: Tensor) -> Fields:
    """Return the fields of k parts g_i/k whose sum is the gradient that the optimizer uses.

    Args:
        square: ‖ḡ‖² of the gradient that the optimizer uses.
        apart: Σ ‖g_i/k - ḡ/k‖², as measured.
        parts: k.
        then: ‖ḡ‖² when `apart` was measured. Clipping and loss scaling multiply all parts alike.
    """
    if parts < 2:
        return {"grad_sq": square}
    since = torch.where(then > 0.0, square / then, torch.ones_like(then))
    spread = since * apart * (parts / (parts - 1.0))
    return {"grad_sq": square, "parts": parts, "cross": square - spread, "spread": spread}
