"""One step of `Pursuit` on one tensor, to be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters import _pursuit as law

# What one chunk needs stays in the processor's cache.
_CHUNK = 1 << 16


def step_one(
    p: Tensor,
    grad: Tensor,
    state: dict[str, Any],
    factors: Tensor,
    decays: bool,
) -> Tensor:
    """Move a tensor and return its signals ⟨g, h⟩ and ⟨g, u⟩, h and u from before the step.

    Args:
        p: The weights.
        grad: Their gradient, dense.
        state: Of the tensor: `square` is v, `trail` is h, `lead` is u, `rest` what a short float
            dropped.
        factors: Of the tensor, see `law.factors`.
        decays: Whether the weights decay.
    """
    length, keep, fade, forth, back, hold = factors.unbind()
    square: Tensor = state["square"]
    trail: Tensor = state["trail"]
    lead: Tensor = state["lead"]
    grad = grad.float()
    size = grad.abs()
    grad = torch.where((size >= law.SMALLEST) & (size <= law.LARGEST), grad, 0.0)
    most = law.SPIKE * (square * (1 - law.KEEP)).sqrt()
    # A coordinate's first gradient has nothing to be measured by.
    grad = torch.where(square > 0, grad.clamp(-most, most), grad)
    signals = torch.stack([(grad * trail).sum(), (grad * lead).sum()])
    # Coordinates with zero gradient keep their state and do not move, nor decay.
    still = grad == 0
    square.copy_(torch.where(still, square, law.KEEP * square + grad * grad))
    delta = length * grad / square.sqrt().clamp_min(1e-30)
    step = torch.where(still, 0.0, back * lead - forth * delta)
    trail.add_(step).mul_(fade)
    lead.copy_(torch.where(still, lead, hold * (lead - delta)))
    if "rest" not in state:
        p.copy_(torch.where(still, p, p * keep + step) if decays else p + step)
        return signals
    # A rest that is no rest of these weights is of others, which were there before a reset.
    rest = state["rest"].float()
    here = p.float()
    whole = here + torch.where(rest.abs() <= torch.finfo(p.dtype).eps * here.abs(), rest, 0.0)
    moved = (whole * keep if decays else whole) + step
    # The rest is rounded too: with it a weight that stays could round to its neighbour.
    p.copy_(torch.where(still, here, moved))
    state["rest"].copy_(torch.where(still, rest, moved - p.float()))
    return signals


def move(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[dict[str, Any]],
    factors: Tensor,
    decays: Sequence[bool],
) -> Tensor:
    """Move tensors of one device, and return their signals, a row a tensor.

    Args:
        params: The weights.
        grads: Their gradients, dense.
        states: Of each tensor.
        factors: A row a tensor, see `law.factors`.
        decays: Whether it decays.
    """
    signals = []
    for p, grad, state, row, decay in zip(params, grads, states, factors, decays, strict=True):
        names = [name for name in ("square", "trail", "lead", "rest") if name in state]
        every = [p, grad, *(state[name] for name in names)]
        pieces: Iterable[tuple[Tensor, ...]] = [tuple(every)]
        if p.is_cpu and p.numel() > _CHUNK and all(t.is_contiguous() for t in every):
            pieces = zip(*(t.view(-1).split(_CHUNK) for t in every), strict=True)
        found = row.new_zeros(2)
        for some, part, *kept in pieces:
            own: dict[str, Any] = dict(zip(names, kept, strict=True))
            found = found + step_one(some, part, own, row, decay)
        signals.append(found)
    return torch.stack(signals)
