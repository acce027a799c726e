"""Which way the tensors of a step of `Pursuit` are moved: compiled, by a kernel, or as written."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters.torch import pursuit_fast, pursuit_kernel, pursuit_step

_DENSE = (Tensor, torch.nn.Parameter)  # what is derived of them may hold its numbers elsewhere


def move(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[dict[str, Any]],
    factors: Tensor,
    decays: bool,
) -> Tensor:
    """Move tensors of one device by their gradients, and return their signals, a row a tensor.

    Args:
        params: The weights.
        grads: Their gradients.
        states: Of each tensor.
        factors: A row a tensor, see `law.factors`.
        decays: Whether matrices decay; vectors never do.
    """
    grads = [_like(p, grad) for p, grad in zip(params, grads, strict=True)]
    decay = [decays and p.dim() > 1 for p in params]
    ways = [_way(*every) for every in zip(params, grads, states, strict=True)]
    if len(set(ways)) == 1:
        return ways[0].move(params, grads, states, factors, decay)  # type: ignore[no-any-return]
    signals: dict[int, Tensor] = {}
    for way in set(ways):
        some = [i for i, one in enumerate(ways) if one is way]
        lists = ([each[i] for i in some] for each in (params, grads, states, decay))
        mine, theirs, own, which = lists
        moved = way.move(mine, theirs, own, torch.stack([factors[i] for i in some]), which)
        signals |= dict(zip(some, moved.unbind(0), strict=True))
    return torch.stack([signals[i] for i in range(len(ways))])


def _like(p: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient, dense and laid out as the weights."""
    grad = grad.to_dense() if grad.is_sparse else grad
    return grad.contiguous() if p.is_contiguous() else grad


def _way(p: Tensor, grad: Tensor, state: dict[str, Any]) -> ModuleType:
    for way in (pursuit_fast, pursuit_kernel):
        if way.takes(p, grad) and _packed(p, grad, state) and not torch.compiler.is_compiling():
            return way
    return pursuit_step


def _packed(p: Tensor, grad: Tensor, state: dict[str, Any]) -> bool:
    """Whether all that belongs to a tensor lies in memory in the same order, without gaps."""
    every = [p, grad, *(value for name, value in state.items() if name != "law")]
    if any(type(t) not in _DENSE for t in every):
        return False
    if all(t.is_contiguous() for t in every):
        return True
    by_channel = p.is_contiguous(memory_format=torch.channels_last)
    return by_channel and all(t.stride() == p.stride() for t in every)
