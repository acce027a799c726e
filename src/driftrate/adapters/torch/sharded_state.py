"""The state of a rate whose parameters are shards, in the form that torch's checkpoints want."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from driftrate.adapters.torch.observers import Observer
from driftrate.adapters.torch.sharded import is_dtensor
from driftrate.adapters.torch.sharded_observers import Sharded
from driftrate.errors import StateError


def pack(state: dict[str, Any], observer: Observer, owners: Sequence[Tensor]) -> dict[str, Any]:
    """Return a state with the same entries at every step, where parameters are shards.

    A checkpoint is loaded into what a new run has before its first step. So all that is not
    remembered tensor by tensor is one text, and what is not remembered yet is zeros. What an
    optimizer remembers is in its own state alone. Shards that are plain tensors go under the name
    of their rank: under one name a checkpoint would take one rank's for all.

    Args:
        state: As it is where parameters are whole.
        observer: What remembers.
        owners: All parameters.
    """
    name = _rank(observer)
    if not isinstance(observer, Sharded) or not (name or any(map(is_dtensor, owners))):
        return state
    kept, known = {}, {}
    for one in observer.kept:
        saved = state["observer"][one.name]
        known[one.name] = [tensor is not None for tensor in saved]
        if one.borrowed:
            continue
        kept[one.name] = {
            str(index): observer.blank(one, owner) if tensor is None else tensor
            for index, (tensor, owner) in enumerate(zip(saved, owners, strict=True))
        }
    rest = {key: value for key, value in state.items() if key != "version"}
    rest["observer"] = {"blind": state["observer"]["blind"], "known": known}
    packed = {"numbers": json.dumps(rest, default=_as_number), **({"kept": kept} if kept else {})}
    return {"version": state["version"], **({name: packed} if name else packed)}


def unpack(state: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """Return what `pack` was given; a state that was not packed as it is.

    Args:
        state: What `pack` returned.
        observer: What is to remember.
    """
    name = _rank(observer)
    others = [one for one in state if one.startswith("rank ")]
    if name in others:
        state = {"version": state["version"], **state[name]}
    elif others:
        raise StateError(
            f"the saved rate is of FullyShardedDataParallel's {others[0]}, this one of"
            f" {name or 'another way to shard'}: under it a rate goes on in the same ranks alone,"
            " under fully_shard in others too"
        )
    if "numbers" not in state:
        return state
    try:
        rest = json.loads(state["numbers"])
        for what, flags in rest["observer"].pop("known").items():
            kept = state.get("kept", {}).get(what, {})
            tensors = [kept[str(at)] if flag else None for at, flag in enumerate(flags)]
            rest["observer"][what] = tensors
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the saved rate is damaged: {error!r}") from error
    return {"version": state["version"], **rest}


def is_of_checkpoint() -> bool:
    """Whether torch's checkpoints take this step, to have a state to load into: that is no step.

    Its rates and gradients are 0, but so may be those of a first step of a warm-up in a process
    that holds no numbers. And a process may be alone in it, so that no other can be asked.
    """
    frame = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.distributed.checkpoint"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _rank(observer: Observer) -> str:
    """Return the name of this rank, where its shards are plain tensors of its own; else nothing."""
    shards = observer.shards
    if shards is None or not shards.uneven:
        return ""
    return f"rank {dist.get_rank(shards.group)} of {dist.get_world_size(shards.group)}"


def _as_number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"not a number: {value!r}")
