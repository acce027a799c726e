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

from driftrate._torch.measure import Buffers, contrast, keep, product, squared
from driftrate.errors import ConfigError, StateError

Fields = dict[str, Any]

_LARGE = 1 << 18


class Source(ABC):
    """Measures `cross` and `spread` of the gradients that the next step uses.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
    """

    name: ClassVar[str]
    fields: ClassVar[frozenset[str]] = frozenset({"parts", "cross", "spread"})

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: Buffers = {}

    @abstractmethod
    def read(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], scale: Tensor | None
    ) -> Fields:
        """Return the fields for the gradients that the optimizer is about to use.

        Args:
            owners: The parameters that have a gradient.
            gradients: Their gradients, times `scale` where one is given.
            scale: The factor of a loss scaler, or None.
        """

    def stepped(self) -> None:  # noqa: B027
        """Hear that the step was taken."""

    def remove(self) -> None:  # noqa: B027
        """Take back all hooks."""

    def save(self, owners: Sequence[Tensor]) -> dict[str, Any]:
        """Return what the next measurement needs, in the order of the parameters."""
        return {}

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:  # noqa: B027
        """Take over what `save` returned; `check` has been passed."""

    def check(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:  # noqa: B027
        """Raise `StateError` where `saved` does not fit, with nothing changed."""


class Gradients(Source):
    """The sequence of whole gradients: each against the one before. Keeps one gradient alive.

    cross = ⟨g_t, g_{t-1}⟩ and spread = ‖g_t - g_{t-1}‖²/2: two batches have independent noise, so
    that cross measures ⟨∇_t, ∇_{t-1}⟩ and spread the noise of one gradient, plus half the
    squared change of ∇ between the two.

    `zero_grad()` drops the gradients, so the last ones are held, not copied, until it shows that
    a loop reuses their memory (`set_to_none=False`, DDP's buckets): then one measurement is lost
    and they are copied from there on. Where memory is known to be reused (CUDA graphs), or a
    gradient's form asks for it (sparse, float16, scaled, many small tensors on a device), they are
    copied from the start.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        captured: Whether the step may be captured in a CUDA graph.
    """

    name = "sequence"
    fields = frozenset({"cross", "spread"})

    def __init__(self, like: Tensor, captured: bool = False) -> None:
        super().__init__(like)
        # NaN: there is no gradient before the first, and a schedule leaves such a signal alone.
        self.square = torch.full_like(like, torch.nan)
        self.scale = torch.ones_like(like)
        self.scaled = False
        self.holds = not captured
        self.held: dict[Tensor, int] = {}  # the version of each gradient that is held

    def read(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], scale: Tensor | None
    ) -> Fields:
        self.scaled = self.scaled or scale is not None
        if self.holds and (self.scaled or not self._can_hold(gradients)):
            self.holds = False
        if any(
            self.buffers[p].data_ptr() == g.data_ptr() or self.buffers[p]._version != self.held[p]
            for p, g in zip(owners, gradients, strict=True)
            if p in self.held
        ):
            self.holds = False
            self.buffers.clear()
            self.square.fill_(torch.nan)
        square = _unscaled(squared(gradients, self.like), scale)
        if self.holds and self.like.device.type != "cpu":
            pairs = [
                (gradient, self.buffers[owner])
                for owner, gradient in zip(owners, gradients, strict=True)
                if owner in self.buffers
            ]
            cross = product(pairs, self.like) if pairs else 0.0 * square
            cross = cross + 0.0 * self.square
            spread = ((square + self.square) / 2.0 - cross).clamp(min=0.0)
        else:
            apart = self._apart(owners, gradients, scale)
            cross = (square + self.square - apart) / 2.0
            spread = apart / 2.0 + 0.0 * self.square
        self.held.clear()
        if self.holds:
            self.buffers = dict(zip(owners, gradients, strict=True))
        self.square.copy_(square)
        if self.scaled:
            self.scale.copy_(torch.ones_like(self.scale) if scale is None else scale)
        return {"grad_sq": square, "cross": cross, "spread": spread}

    def stepped(self) -> None:
        # Optimizers may change a gradient in their step; what comes later is a change of the loop.
        if self.holds:
            self.held = {owner: tensor._version for owner, tensor in self.buffers.items()}

    def _can_hold(self, gradients: Sequence[Tensor]) -> bool:
        if any(g.is_sparse or g.is_complex() or g.dtype == torch.float16 for g in gradients):
            return False
        # A launch for each of many small tensors costs more than a copy of all in one.
        size = sum(g.numel() for g in gradients) / len(gradients)
        return self.like.device.type == "cpu" or size > _LARGE

    def _apart(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], scale: Tensor | None
    ) -> Tensor:
        # A buffer has the gradient as it came; only a loss scaler makes that a difference.
        factor: float | Tensor = 1.0
        if self.scaled:
            factor = (1.0 if scale is None else scale.to(self.like)) / self.scale
        present = set(owners)
        gone = [self.buffers.pop(owner) for owner in [*self.buffers] if owner not in present]
        if self.held:  # they belong to the loop: do not write into them
            self.buffers = {p: t if self.holds else t.clone() for p, t in self.buffers.items()}
        apart = contrast(self.buffers, owners, gradients, self.like, factor, replace=not self.holds)
        if gone:
            apart = apart + squared(gone, self.like) * factor * factor
        return _unscaled(apart, scale)

    def save(self, owners: Sequence[Tensor]) -> dict[str, Any]:
        previous = [self.buffers.get(owner) for owner in owners]
        return {
            "previous": [None if tensor is None else tensor.clone() for tensor in previous],
            "square": self.square.clone(),
            "scale": self.scale.clone(),
            "scaled": self.scaled,
        }

    def check(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
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


class Parts(Source):
    r"""Marked parts of a batch. Keeps one gradient copy.

    With S_i the gradient accumulated over i parts, the i-th part differs from the mean of those
    before it by S_{i+1} - S_i (i+1)/i, and by Helmert's contrasts

        Σ_i ‖g_i - ḡ‖² = Σ_{i<k} i/(i+1) ‖S_{i+1} - S_i (i+1)/i‖²,

    which needs the last S alone, whatever k, and squares no sum before it is subtracted.
    """

    name = "parts"

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        self.count = 0
        self.apart = torch.zeros_like(like)

    def mark(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Hear that the gradients now hold one part more."""
        if self.count == 0:
            self.apart = torch.zeros_like(self.like)
            for stale in self.buffers.keys() - set(owners):
                del self.buffers[stale]  # no gradient in this part: 0
            keep(self.buffers, owners, gradients)
        else:
            self.apart = self.apart + _helmert(
                self.buffers, owners, gradients, self.like, self.count
            )
        self.count += 1

    def read(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], scale: Tensor | None
    ) -> Fields:
        square = _unscaled(squared(gradients, self.like), scale)
        return _from_parts(square, self.apart, self.count, self._then(owners))

    def _then(self, owners: Sequence[Tensor]) -> Tensor:
        return squared([self.buffers[p] for p in owners if p in self.buffers], self.like)

    def stepped(self) -> None:
        self.count = 0


class Accumulated(Parts):
    """Every backward pass between two steps as a part, by hooks on the parameters."""

    name = "accumulation"

    def __init__(self, like: Tensor, owners: Iterable[Tensor]) -> None:
        super().__init__(like)
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
            self.sums[owner] = self.sums[owner] + _helmert(
                self.buffers, [owner], [gradient], self.like, count
            )
        self.counts[owner] = count + 1

    def read(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], scale: Tensor | None
    ) -> Fields:
        self.watch(owners)
        square = _unscaled(squared(gradients, self.like), scale)
        heard = [owner for owner in owners if self.counts.get(owner, 0)]
        parts = max((self.counts[owner] for owner in heard), default=0)
        apart = torch.zeros_like(self.like)
        for owner in heard:
            apart = apart + self.sums[owner]
            if self.counts[owner] < parts:
                # Parts that did not reach this parameter have the gradient 0; order is no matter.
                rest = 1.0 / self.counts[owner] - 1.0 / parts
                apart = apart + rest * squared([self.buffers[owner]], self.like)
        return _from_parts(square, apart, parts, self._then(heard))

    def stepped(self) -> None:
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

    def __init__(self, like: Tensor, model: DistributedDataParallel, owners: Iterable[Tensor]):
        super().__init__(like)
        self.group: dist.ProcessGroup = model.process_group
        self.owners = set(owners)
        self.apart: dict[int, Tensor] = {}
        self.squares: dict[int, Tensor] = {}
        self.active = True
        _listen(model, self)

    def read(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], scale: Tensor | None
    ) -> Fields:
        self.owners.update(owners)
        square = _unscaled(squared(gradients, self.like), scale)
        if not self.apart:
            return {"grad_sq": square}
        own = torch.stack([self.apart[index] for index in sorted(self.apart)]).sum()
        then = torch.stack([self.squares[index] for index in sorted(self.squares)]).sum()
        size = dist.get_world_size(self.group)
        every = [torch.empty_like(own) for _ in range(size)]
        # Gathered and added in the order of the ranks: all of them get the same bits.
        dist.all_gather(every, own, group=self.group)
        # The ranks' gradients are averaged, the parts of a batch added: g_i/k either way.
        return _from_parts(square, torch.stack(every).sum() / (size * size), size, then)

    def stepped(self) -> None:
        self.apart.clear()
        self.squares.clear()

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
                ranks.stepped()
            mine = {p: g.detach().clone() for p, g in gradients.items() if p in ranks.owners}
            if mine:
                copies.append((ranks, mine))
    group = listeners[0].group
    buffer.div_(dist.get_world_size(group))
    work: Any = dist.all_reduce(buffer, group=group, async_op=True)

    @torch.no_grad()
    def averaged(done: Any) -> Tensor:
        for ranks, mine in copies:
            owners = list(mine)
            means = [gradients[owner] for owner in owners]
            ranks.squares[index] = squared(means, ranks.like)
            ranks.apart[index] = contrast(mine, owners, means, ranks.like)
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
) -> Tensor:
    ratio = (count + 1.0) / count
    return contrast(buffers, owners, gradients, like, ratio) / ratio


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
