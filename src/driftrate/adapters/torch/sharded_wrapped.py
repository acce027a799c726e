"""How the parameters lie that torch's older wrappers have spread: FSDP1 and ZeRO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from driftrate.adapters.torch.sharded import Shards
from driftrate.errors import ConfigError


def is_flattened(owner: Tensor) -> bool:
    """Whether `FullyShardedDataParallel` has a parameter in one of its flat ones, or it is one."""
    return bool(getattr(owner, "_fsdp_flattened", False))


class Flat(Shards):
    """The shards of a `FullyShardedDataParallel` model, which are plain tensors of one axis.

    An original parameter may have no numbers here, and then no gradient either; a flat one may end
    in zeros that are no numbers of the model.

    Args:
        model: The wrapped model.
    """

    def __init__(self, model: Any) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp._flat_param import HandleShardingStrategy

        if not isinstance(model, FullyShardedDataParallel):
            raise ConfigError(
                "attach: fsdp must be a FullyShardedDataParallel model, got"
                f" {type(model).__name__}; a model of fully_shard needs no fsdp="
            )
        every: list[Any] = [one._handle for one in FullyShardedDataParallel.fsdp_modules(model)]
        handles = [handle for handle in every if handle is not None]
        groups = {handle.process_group for handle in handles}
        if len(groups) != 1:
            raise ConfigError(f"attach: fsdp= has {len(groups)} process groups, not one")
        group = groups.pop()
        first = dist.get_rank(group) == 0
        split = {
            handle._sharding_strategy is not HandleShardingStrategy.NO_SHARD for handle in handles
        }
        if len(split) != 1:
            raise ConfigError("attach: fsdp= is sharded in parts only: shard all of it, or none")
        spread = split.pop()
        super().__init__(group, lambda p: first or (spread and is_flattened(p)), uneven=True)
        self.shapes = [tuple(shape) for handle in handles for shape in handle.flat_param._shapes]

    def numel(self, owner: Tensor) -> int:
        return owner.numel() - int(getattr(owner, "_shard_numel_padded", 0))


def is_zero(optimizer: Optimizer) -> bool:
    """Whether each process steps with a share of the parameters alone, as ZeRO does."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that takes the steps of this process."""
    return optimizer.optim if is_zero(optimizer) else optimizer  # type: ignore[attr-defined]


def shares_of(optimizer: Any) -> Shards:
    """Return how ZeRO spreads moments: a parameter's lie whole in the process that steps it.

    All processes have all gradients.
    """
    inner = optimizer.optim

    def counts(owner: Tensor) -> bool:
        return any(owner is p for group in inner.param_groups for p in group["params"])

    return Shards(optimizer.process_group, counts, owned=True)


def refuse_wrapped(optimizer: Any, owners: Sequence[Tensor], fsdp: Any) -> None:
    """Raise `ConfigError` where nobody could say how the parameters lie."""
    name = type(optimizer).__name__
    if is_zero(optimizer) and optimizer._overlap_with_ddp:
        raise ConfigError(f"attach: {name}(overlap_with_ddp=True) takes no steps to hook onto")
    if fsdp is None and any(is_flattened(owner) for owner in owners):
        raise ConfigError(
            f"attach: a parameter of {name} is sharded by FullyShardedDataParallel, and does not"
            " say how: attach(..., fsdp=model)"
        )
