"""Which way the tensors of a step of `Pursuit` are moved: compiled, by a kernel, or as written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters.torch import pursuit_fast, pursuit_kernel, pursuit_state, pursuit_step

# What is derived of them may hold its numbers elsewhere.
_DENSE = frozenset({Tensor, torch.nn.Parameter})


def move(
    ways: Sequence[ModuleType],
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[dict[str, Any]],
    factors: Tensor,
    decays: bool,
) -> Tensor:
    """Move tensors of one device by their gradients, and return their signals, a row a tensor.

    Args:
        ways: What `chosen` returned for each.
        params: The weights.
        grads: Their gradients, as `chosen` returned them.
        states: Of each tensor.
        factors: A row a tensor, see `law.factors`.
        decays: Whether matrices decay; vectors never do.
    """
    decay = [decays and p.dim() > 1 for p in params]
    every = params, grads, states, factors, decay
    if len({*ways}) == 1:
        return ways[0].move(*every)  # type: ignore[no-any-return]
    signals, start = [], 0
    # Runs in their order, not all of one way together: parameters may share memory.
    for way, run in groupby(ways):
        some = slice(start, start := start + len([*run]))
        signals.append(way.move(*(each[some] for each in every)))
    return torch.cat(signals)


def chosen(index: int, p: Tensor, grad: Tensor, state: dict[str, Any]) -> tuple[ModuleType, Tensor]:
    """Return the way in which a tensor moves and its gradient, dense and laid out as the weights.

    Args:
        index: Of the parameter, for messages.
        p: The weights.
        grad: Their gradient.
        state: What is kept of them.

    Raises:
        StateError: Something does not fit.
    """
    if grad.layout is not torch.strided:
        grad = grad.to_dense()
    if p.is_contiguous():
        grad = grad.contiguous()
    way = _way(p, grad, state)
    if way is pursuit_step and (torch.compiler.is_compiling() or not _fits(p, grad, state)):
        pursuit_state.check(index, p, grad, state)
    return way, grad


def _way(p: Tensor, grad: Tensor, state: dict[str, Any]) -> ModuleType:
    for way in (pursuit_fast, pursuit_kernel):
        if way.takes(p, grad) and not torch.compiler.is_compiling() and _fits(p, grad, state):
            return way
    return pursuit_step


def _fits(p: Tensor, grad: Tensor, state: dict[str, Any]) -> bool:
    """Whether all that belongs to a tensor lies in one order, without gaps, and apart.

    The compiled step and the kernel count by the weights: past the end of what is shorter they
    would write into what is not theirs.
    """
    v: Any = state.get("square")
    h: Any = state.get("trail")
    u: Any = state.get("lead")
    place = p.device
    numbers = state.get("law")  # none before the first step
    if numbers is not None and (numbers.device != place or numbers.shape != pursuit_state.LAW):
        return False
    # The usual case, without loops: they take longer than the step of a small tensor.
    if (
        (type(p) in _DENSE and type(grad) in _DENSE)
        and (type(v) in _DENSE and type(h) in _DENSE and type(u) in _DENSE)
        and (grad.shape == v.shape == h.shape == u.shape == p.shape)
        and (p.dtype is v.dtype is h.dtype is u.dtype is torch.float32)
        and (p.is_contiguous() and grad.is_contiguous())
        and (v.is_contiguous() and h.is_contiguous() and u.is_contiguous())
        and (grad.device == v.device == h.device == u.device == place)
        and not ("rest" in state or p.is_neg() or grad.is_neg())
    ):
        starts = p.data_ptr(), grad.data_ptr(), v.data_ptr(), h.data_ptr(), u.data_ptr()
        size, (a, b, c, d, e) = 4 * p.numel(), sorted(starts)
        return bool(a + size <= b and b + size <= c and c + size <= d and d + size <= e)
    return _fits_too(p, grad, {name: one for name, one in state.items() if name != "law"})


def _fits_too(p: Tensor, grad: Tensor, state: dict[str, Any]) -> bool:
    """Whether the same holds of short weights, and of those that lie by channels."""
    kinds = dict.fromkeys(pursuit_state.KEPT, torch.float32)
    if p.dtype in pursuit_state.SHORT:
        kinds["rest"] = p.dtype
    every = [p, grad, *state.values()]
    if not _DENSE.issuperset(map(type, every)) or p.is_neg() or grad.is_neg():
        return False
    if {name: one.dtype for name, one in state.items()} != kinds:
        return False
    form = torch.contiguous_format if p.is_contiguous() else torch.channels_last
    for t in every:
        if t.shape != p.shape or t.device != p.device or not t.is_contiguous(memory_format=form):
            return False
    return pursuit_fast.apart((t.data_ptr(), t.nbytes) for t in every)
