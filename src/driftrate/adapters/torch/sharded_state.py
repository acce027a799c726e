"""The state of a rate whose parameters are shards, in the form that torch's checkpoints want."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from driftrate.adapters.torch.observers import Observer
from driftrate.adapters.torch.sharded import is_dtensor
from driftrate.adapters.torch.sharded_observers import Sharded
from driftrate.errors import StateError


def pack(state: dict[str, Any], observer: Observer, owners: Sequence[Tensor]) -> dict[str, Any]:
    """Return a state with the same entries at every step, where parameters are `DTensor`s.

    A checkpoint is loaded into what a new run has before its first step. So all that is not
    remembered tensor by tensor is one text, and what is not remembered yet is zeros.

    Args:
        state: As it is where parameters are whole.
        observer: What remembers.
        owners: All parameters.
    """
    if not isinstance(observer, Sharded) or not any(is_dtensor(owner) for owner in owners):
        return state
    kept, known = {}, {}
    for one in observer.kept:
        saved = state["observer"][one.name]
        known[one.name] = [tensor is not None for tensor in saved]
        kept[one.name] = {
            str(index): observer.blank(one, owner) if tensor is None else tensor
            for index, (tensor, owner) in enumerate(zip(saved, owners, strict=True))
        }
    rest = {name: value for name, value in state.items() if name != "version"}
    rest["observer"] = {"blind": state["observer"]["blind"], "known": known}
    numbers = json.dumps(rest, default=_as_number)
    packed = {"version": state["version"], "numbers": numbers}
    return {**packed, "kept": kept} if kept else packed


def unpack(state: dict[str, Any]) -> dict[str, Any]:
    """Return what `pack` was given; a state that was not packed as it is."""
    if "numbers" not in state:
        return state
    try:
        rest = json.loads(state["numbers"])
        for name, flags in rest["observer"].pop("known").items():
            kept = state["kept"][name]
            tensors = [kept[str(at)] if flag else None for at, flag in enumerate(flags)]
            rest["observer"][name] = tensors
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the saved rate is damaged: {error!r}") from error
    return {"version": state["version"], **rest}


def _as_number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"not a number: {value!r}")
