"""Parameters of which a process holds a part: what lies here, what counts here, sums over all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from driftrate.errors import ConfigError

Group = Any  # a `dist.ProcessGroup`, whose name is not there in every build of torch
# Those that were made here, by their ranks: one is enough, however often somebody attaches.
_GROUPS: WeakValueDictionary[tuple[int, ...], Group] = WeakValueDictionary()


def is_dtensor(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, without importing what defines it."""
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)


def local(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor, not a copy and outside of autograd."""
    here: Any = tensor.detach()
    with torch.no_grad():
        return here.to_local() if is_dtensor(here) else here  # type: ignore[no-any-return]


def laid_out(tensor: Tensor, owner: Tensor) -> Tensor:
    """Return a tensor spread over the ranks as its owner is, or whole if the owner is.

    Args:
        tensor: Of the owner's shape, a `DTensor` or the whole in every process.
        owner: A parameter.
    """
    one: Any = tensor
    other: Any = owner
    if not is_dtensor(owner):
        return one.full_tensor() if is_dtensor(tensor) else one  # type: ignore[no-any-return]
    if not is_dtensor(tensor):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(one, other.device_mesh, other.placements)
    if (one.device_mesh, one.placements) == (other.device_mesh, other.placements):
        return tensor
    return one.redistribute(other.device_mesh, other.placements)  # type: ignore[no-any-return]


def spread(here: Tensor, owner: Tensor) -> Tensor:
    """Return the `DTensor` of which `here` is this process's part, laid out as the owner is."""
    if not is_dtensor(owner):
        return here
    from torch.distributed.tensor import DTensor

    one: Any = owner
    return DTensor.from_local(
        here,
        one.device_mesh,
        one.placements,
        run_check=False,
        shape=one.shape,
        stride=one.stride(),
    )


class Shards:
    """Where the parameters of one optimizer lie, and how numbers of all ranks are added.

    A number that is measured on shards is added up over those that lie in different processes;
    what lies in several of them, a replicated tensor or one that is no `DTensor`, counts in one.
    All ranks get the sums of one `all_reduce`, whose bits are the same for all of them: on that
    the weights of every data-parallel run rely too.

    Args:
        group: The ranks that hold different parts, or the same ones.
        counts: Whether the part here of a parameter counts.
        place: Where the group's numbers must lie; None: where they are.
        uneven: Whether a parameter may have a gradient on some of the ranks alone.
        owned: Whether a parameter's moments lie only where it counts.
    """

    def __init__(
        self,
        group: Group,
        counts: Callable[[Tensor], bool],
        place: torch.device | None = None,
        uneven: bool = False,
        owned: bool = False,
    ) -> None:
        self.group = group
        self._counts = counts
        self._known: dict[Tensor, bool] = {}
        self.place = place
        self.uneven = uneven
        self.owned = owned

    def gradient(self, owner: Tensor) -> Tensor:
        """Return what lies here of a gradient, laid out as its parameter is."""
        grad: Any = owner.grad
        mine: Any = owner
        if is_dtensor(owner) and grad.placements != mine.placements:
            # Partial sums, say, of a norm's weights under sequence parallelism. The optimizer would
            # add them up in each of its operations: it gets them so.
            owner.grad = grad = laid_out(grad.detach(), owner)
        return local(grad)

    def counts(self, owner: Tensor) -> bool:
        """Return whether the part here of a parameter counts."""
        if owner not in self._known:
            self._known[owner] = self._counts(owner)
        return self._known[owner]

    def numel(self, owner: Tensor) -> int:
        """Return how many numbers of a parameter lie here."""
        return local(owner).numel()

    def mine(self, owners: Sequence[Tensor]) -> list[int]:
        """Return the places of the owners whose part here counts."""
        return [place for place, owner in enumerate(owners) if self.counts(owner)]

    def total(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums over all ranks of a few numbers, by name, the same bits on each rank."""
        table = self.added(torch.stack([*sums.values()]))
        return dict(zip(sums, table.unbind(), strict=True))

    def rows(
        self, owners: Sequence[Tensor], measured: Sequence[tuple[Sequence[Tensor], Tensor]]
    ) -> Tensor:
        """Return what all ranks have measured, a row an owner, added up in one reduction.

        A last column says of each owner whether anything was measured where it counts: a gradient
        may be missing in some ranks, and all of them have to add up tables of the same shape.

        Args:
            owners: All parameters, in the same order on every rank.
            measured: Lists of parameters, and of each list two numbers a parameter.
        """
        place = owners[0].device
        zeros = torch.zeros(3, device=place)
        rows: dict[Tensor, Tensor] = {}
        for some, found in measured:
            known = torch.nn.functional.pad(found.to(place), (0, 1), value=1.0)
            rows |= dict(zip(some, known.unbind(0), strict=True))
        here = [rows.get(one, zeros) if self.counts(one) else zeros for one in owners]
        return self.added(torch.stack(here))

    def rms(self, owners: Sequence[Tensor]) -> list[float]:
        """Return the root mean squares of the parameters, which are read once."""
        here = [
            local(owner).double().square().sum() if self.counts(owner) else 0.0 for owner in owners
        ]
        device = owners[0].device
        table = torch.stack(
            [torch.as_tensor(one, dtype=torch.float64, device=device) for one in here]
        )
        sums = self.added(table).tolist()
        pairs = zip(sums, owners, strict=True)
        return [(one / max(owner.numel(), 1)) ** 0.5 for one, owner in pairs]

    def added(self, table: Tensor) -> Tensor:
        """Return a small tensor added up over the ranks; it is overwritten."""
        there = table.to(self.place or table.device)
        dist.all_reduce(there, group=self.group)
        return there.to(table.device)


def shards_of(owners: Sequence[Tensor], who: str) -> Shards | None:
    """Return how the parameters are spread as `DTensor`s; None where each is whole.

    Args:
        owners: All parameters, in the same order on every rank.
        who: Who asks, for messages.
    """
    spread_ones: list[Any] = [owner for owner in owners if is_dtensor(owner)]
    if not spread_ones:
        return None
    from torch.distributed import fsdp  # late: whole models need none of it

    if not hasattr(fsdp, "fully_shard"):
        raise ConfigError(
            f"{who}: parameters that are DTensors need torch 2.6 or later, this is"
            f" {torch.__version__}"
        )
    for index, owner in enumerate(owners):
        if any(one.is_partial() for one in getattr(owner, "placements", ())):
            raise ConfigError(
                f"{who}: parameter {index} is a DTensor of partial sums ({owner.placements}):"  # type: ignore[attr-defined]
                " redistribute it to Shard or Replicate"
            )
    meshes = {one.device_mesh for one in spread_ones}
    largest = max(meshes, key=lambda mesh: mesh.size())
    ranks = _ranks(largest)
    if any(not set(_ranks(mesh)) <= set(ranks) for mesh in meshes):
        ranks = list(range(dist.get_world_size()))
    first, group = min(ranks), _group(largest, ranks)
    kind = largest.device_type
    place = None if kind == spread_ones[0].device.type else torch.device(kind)
    return Shards(group, partial(_counts, first), place)


def _ranks(mesh: Any) -> list[int]:
    return [int(rank) for rank in mesh.mesh.flatten().tolist()]


def _group(largest: Any, ranks: list[int]) -> Group:
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    if largest.ndim == 1:
        return largest.get_group()
    wanted = tuple(sorted(ranks))
    if dist.get_rank() not in wanted:
        return dist.new_group([*wanted], use_local_synchronization=True)  # none, for this rank
    if not _is_open(_GROUPS.get(wanted)):
        _GROUPS[wanted] = dist.new_group([*wanted], use_local_synchronization=True)
    return _GROUPS[wanted]


def _is_open(group: Group | None) -> bool:
    """Whether a process group has not been destroyed."""
    try:
        return group is not None and bool(dist.get_process_group_ranks(group))
    except KeyError:
        return False


def _counts(first: int, owner: Any) -> bool:
    """Whether the part here of a parameter counts; `first` is the lowest rank of all.

    Among copies the one at coordinate 0 does. A mesh may be one of several, whose parameters are
    copies of each other: that with the first rank counts.
    """
    if not is_dtensor(owner):
        return dist.get_rank() == first
    mesh = owner.device_mesh
    at = mesh.get_coordinate()
    if at is None or first not in _ranks(mesh):
        return False
    return not any(
        one.is_replicate() and place for one, place in zip(owner.placements, at, strict=True)
    )
