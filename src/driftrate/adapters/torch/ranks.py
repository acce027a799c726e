"""The ranks of a `DistributedDataParallel` model as the parts of a batch."""

# No `from __future__ import annotations` here: torch compares the annotations of a communication
# hook with its own types, and would find strings.

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from driftrate.adapters._observe import Fields, of_parts
from driftrate.adapters.torch.measure import Buffers, compared, squared
from driftrate.adapters.torch.metric import Weights, weighed
from driftrate.adapters.torch.observers import Observer
from driftrate.errors import ConfigError


class Ranks(Observer):
    """The gradients of the ranks of a `DistributedDataParallel` model, before they are averaged.

    A communication hook does what DDP does, and takes the square of a rank's own gradient less
    the mean. A copy of each bucket lives until its mean is there; one number a rank is gathered.
    Where a loop accumulates under `no_sync`, a rank's part is the sum of its backward passes: that
    is what the bucket holds when it is averaged.
    """

    name = "ranks"
    advice = (
        "no gradient was averaged over the ranks: call the DDP model itself, and run the last"
        " backward pass before a step outside no_sync()"
    )

    def __init__(
        self, *args: Any, model: DistributedDataParallel, owners: Iterable[Tensor]
    ) -> None:
        super().__init__(*args)
        self.group: dist.ProcessGroup = model.process_group
        self.owners = set(owners)
        self.apart: dict[int, Tensor] = {}
        self.squares: dict[int, Tensor] = {}
        self.active = True
        _listen(model, self)

    def read(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> Fields:
        self.owners.update(owners)
        return super().read(owners, gradients)

    def _compared(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        weights: Weights | None,
        square: Tensor,
    ) -> Fields:
        if not self.apart:
            return {}
        own = torch.stack([self.apart[index] for index in sorted(self.apart)]).sum()
        then = torch.stack([self.squares[index] for index in sorted(self.squares)]).sum()
        size = dist.get_world_size(self.group)
        every = [torch.empty_like(own) for _ in range(size)]
        # Gathered and added in the order of the ranks: all of them get the same bits.
        dist.all_gather(every, own, group=self.group)
        # Clipping and loss scaling have multiplied all ranks' gradients alike since then.
        since = torch.where(then > 0.0, square / then, torch.ones_like(then))
        return of_parts(square, since * torch.stack(every).sum(), size)

    def _is_blind(self, owners: Sequence[Tensor]) -> bool:
        return not self.apart

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
            ours = [*mine], [gradients[owner] for owner in mine]
            owners, means, weights = weighed(ranks.metric, *ours)
            ranks.squares[index] = squared(means, ranks.like, weights)
            olds = [mine[owner] for owner in owners]
            sums = compared(means, olds, ranks.like, weights, wanted=("apart",))
            ranks.apart[index] = sums["apart"]
        mean: Tensor = done.value()[0]
        return mean

    future: torch.futures.Future[Tensor] = work.get_future().then(averaged)
    return future
