"""Where the signal comes from: the sequence of gradients, parts of a batch, or ranks."""

# No `from __future__ import annotations` here: torch compares the annotations of a communication
# hook with its own types, and would find strings.

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from driftrate.adapters.torch.measure import Buffers, compared, contrast, squared
from driftrate.adapters.torch.memory import Memory
from driftrate.adapters.torch.metric import Metric, Weight, Weights
from driftrate.adapters.torch.trail import Trail
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

    @property
    def remembered(self) -> Sequence[Mapping[Tensor, Any]]:
        """What must exist before a CUDA graph is captured."""
        return [] if self.trail is None else [self.trail.remembered]

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
            fields["grad_sq"] = _unscaled(squared(gradients, self.like, weights), scale)
        else:
            taken = self.trail.take(owners, gradients, weights, scale, skipped)
            fields["grad_sq"], fields["trail"] = taken
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
    def remembered(self) -> Sequence[Mapping[Tensor, Any]]:
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
        fields: Fields = {}
        if known and (self.memory is None or self.trail is not None):
            fields = self._whole(known, some, weights, scale, skipped)
        if self.memory is None:
            return fields
        first = not self.memory.buffers
        sums = self.memory.compare(owners, gradients, scale, apart=self._spread)
        if sums is None:
            return {}
        fields = {"dim": _size(known), "grad_sq": sums["square"]} | fields
        if not first:
            fields["cross"] = sums["product"]
            if self._spread:
                fields["spread"] = sums["apart"] / 2.0
        return fields


class Parts(Source):
    r"""Marked parts of a batch. Keeps their sums alone, no gradient.

    A part's gradient is seen before it is added to S_i, the sum of the i parts before it; with
    Helmert's contrasts

        Σ_i ‖g_i - ḡ‖² = Σ_{0<i<k} i/(i+1) ‖g_{i+1} - S_i/i‖²,

    which squares no sum before it is subtracted.
    """

    name = "parts"

    def __init__(
        self, like: Tensor, metric: Metric | None = None, trail: Trail | None = None
    ) -> None:
        super().__init__(like, metric, trail)
        self.marked = 0
        self.counts: dict[Tensor, int] = {}  # how many parts reached a parameter
        self.apart: dict[Tensor, Tensor] = {}  # Helmert's sum
        self.sums: dict[Tensor, Tensor] = {}  # ‖S‖² when the last part was heard
        self.weights: dict[Tensor, Weight | None] = {}
        self.nodes: dict[Tensor, tuple[Node, RemovableHandle]] = {}

    def watch(self, owners: Iterable[Tensor]) -> None:
        """Hear of each gradient before it is added up, after all other hooks on the parameter."""
        for owner in owners:
            if owner not in self.nodes and owner.requires_grad:
                node = get_gradient_edge(owner).node
                # Weak: what a node holds, the garbage collector does not see.
                handle = node.register_prehook(partial(_tell, ref(self), owner))
                self.nodes[owner] = (node, handle)

    def remove(self) -> None:
        for _, handle in self.nodes.values():
            handle.remove()
        self.nodes.clear()

    @contextmanager
    def part(self, owners: Sequence[Tensor]) -> Iterator[None]:
        """Mark the backward pass inside as one part."""
        if all(owner.grad is None for owner in owners):
            self.stepped()  # nothing accumulated: what was measured belongs to no step
        before = sum(self.counts.values())
        self.watch(owners)
        try:
            yield
        finally:
            self.remove()
        self.marked += 1
        if sum(self.counts.values()) == before:
            raise ConfigError("Rate.part: no backward pass inside reached a parameter")
        if max(self.counts.values()) > self.marked:
            raise ConfigError(
                "Rate.part: two backward passes in one part reached the same parameter: add their"
                " losses up before one backward pass"
            )

    @torch.no_grad()
    def hear(self, owner: Tensor, part: Tensor) -> None:
        """Compare a part's gradient with the sum of those before it."""
        total = owner.grad
        count = 0 if total is None else self.counts.get(owner, 0)
        self.counts[owner] = count + 1
        if count == 0:
            self.apart.pop(owner, None)
            return
        if self.metric is not None and not self.weights:
            every = [*self.nodes]
            self.weights = dict(zip(every, self.metric.weights(every), strict=True))
        weight = self.weights.get(owner)
        if self.metric is not None and weight is None:
            return
        ratio, wanted = 1.0 / count, ("apart", "whole")
        new = compared([part], [total], self.like, [weight], ratio, wanted=wanted)
        apart = new["apart"] * (count / (count + 1.0))
        self.apart[owner] = self.apart[owner] + apart if owner in self.apart else apart
        self.sums[owner] = new["whole"]

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
        fields = self._whole(owners, gradients, weights, scale, skipped)
        parts = self._parts(owners)
        if parts < 2:
            return fields

        def square(places: list[int]) -> Tensor:
            some = [gradients[place] for place in places]
            found = squared(some, self.like, weights and [weights[place] for place in places])
            return _unscaled(found, scale)

        counts = [self.counts.get(owner, 0) for owner in owners]
        several = [place for place, owner in enumerate(owners) if owner in self.apart]
        once = [place for place, count in enumerate(counts) if count == 1]
        apart = torch.zeros_like(self.like)
        # A part that did not reach a parameter has the gradient 0 there; order is no matter.
        if once:
            apart = square(once) * (1.0 - 1.0 / parts)
        if several:
            then = torch.stack([self.sums[owners[place]] for place in several])
            off = torch.stack([self.apart[owners[place]] for place in several])
            if any(counts[place] < parts for place in several):
                rest = [1.0 / counts[place] - 1.0 / parts for place in several]
                off = off + then * torch.tensor(rest, dtype=then.dtype, device=then.device)
            now = fields["grad_sq"] if len(several) == len(owners) else square(several)
            # Clipping and loss scaling have multiplied all parts alike since then.
            since = torch.where(then.sum() > 0.0, now / then.sum(), torch.ones_like(now))
            apart = apart + since * off.sum()
        return fields | _from_parts(fields["grad_sq"], apart, parts)

    def _parts(self, owners: Sequence[Tensor]) -> int:
        return self.marked

    def stepped(self) -> None:
        super().stepped()
        self.marked = 0
        self.counts.clear()
        self.apart.clear()
        self.sums.clear()
        self.weights.clear()


class Accumulated(Parts):
    """Every backward pass between two steps as a part."""

    name = "accumulation"

    def __init__(
        self,
        like: Tensor,
        metric: Metric | None,
        trail: Trail | None,
        owners: Iterable[Tensor],
    ) -> None:
        super().__init__(like, metric, trail)
        self.watch(owners)

    def read(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        scale: Tensor | None,
        skipped: Tensor | None = None,
    ) -> Fields:
        self.watch(owners)
        return super().read(owners, gradients, scale, skipped)

    def _parts(self, owners: Sequence[Tensor]) -> int:
        return max(self.counts.get(owner, 0) for owner in owners)


def _tell(parts: ReferenceType[Parts], owner: Tensor, gradients: tuple[Tensor | None, ...]) -> None:
    listener, gradient = parts(), gradients[0]
    if listener is not None and gradient is not None:
        listener.hear(owner, gradient.detach())


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
        fields = self._whole(owners, gradients, weights, scale, skipped)
        if not self.apart:
            return fields
        own = torch.stack([self.apart[index] for index in sorted(self.apart)]).sum()
        then = torch.stack([self.squares[index] for index in sorted(self.squares)]).sum()
        size = dist.get_world_size(self.group)
        every = [torch.empty_like(own) for _ in range(size)]
        # Gathered and added in the order of the ranks: all of them get the same bits.
        dist.all_gather(every, own, group=self.group)
        # Clipping and loss scaling have multiplied all ranks' gradients alike since then.
        square = fields["grad_sq"]
        since = torch.where(then > 0.0, square / then, torch.ones_like(then))
        # The ranks' gradients are averaged, the parts of a batch added: g_i/k either way.
        apart = since * torch.stack(every).sum() / (size * size)
        return fields | _from_parts(square, apart, size)

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


def _size(owners: Iterable[Tensor]) -> int:
    """Return how many real coordinates the parameters have."""
    return sum(owner.numel() * (1 + owner.is_complex()) for owner in owners)


def _unscaled(square: Tensor, scale: Tensor | None) -> Tensor:
    return square if scale is None else square / scale.to(square).square()


def _from_parts(square: Tensor, apart: Tensor, parts: int) -> Fields:
    """Return the fields of k parts g_i/k whose sum is the gradient that the optimizer uses.

    Args:
        square: ‖ḡ‖² of the gradient that the optimizer uses.
        apart: Σ ‖g_i/k - ḡ/k‖².
        parts: k.
    """
    spread = apart * (parts / (parts - 1.0))
    return {"parts": parts, "cross": square - spread, "spread": spread}
