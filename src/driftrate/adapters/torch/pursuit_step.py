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
    length: Tensor,
    keep: Tensor | None,
    fade: Tensor,
) -> Tensor:
    """Move a tensor and return its signal z = ⟨g, h⟩, h the trail before the step.

    Args:
        p: The weights.
        grad: Their gradient, dense.
        state: Of the tensor: `square` is v, `trail` is h, `rest` what a short float dropped.
        length: The step over g/√v.
        keep: What is kept of the weights; None for all.
        fade: What the trail keeps.
    """
    square: Tensor = state["square"]
    trail: Tensor = state["trail"]
    grad = grad.float()
    size = grad.abs()
    grad = torch.where((size >= law.SMALLEST) & (size <= law.LARGEST), grad, 0.0)
    most = law.SPIKE * (square * (1 - law.KEEP)).sqrt()
    # A coordinate's first gradient has nothing to be measured by.
    grad = torch.where(square > 0, grad.clamp(-most, most), grad)
    signal = (grad * trail).sum()
    # What is not visited does not forget: rows of an embedding count their own visits.
    square.copy_(torch.where(grad == 0, square, law.KEEP * square + grad * grad))
    delta = length * grad / square.sqrt().clamp_min(1e-30)
    trail.sub_(delta).mul_(fade)
    if "rest" not in state:
        p.copy_((p if keep is None else p * keep) - delta)
        return signal
    # A rest that is no rest of these weights is of others, which were there before a reset.
    rest = state["rest"].float()
    whole = p.float()
    whole = whole + torch.where(rest.abs() <= torch.finfo(p.dtype).eps * whole.abs(), rest, 0.0)
    moved = (whole if keep is None else whole * keep) - delta
    p.copy_(moved)
    state["rest"].copy_(moved - p.float())
    return signal


def move(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[dict[str, Any]],
    factors: Tensor,
    decays: Sequence[bool],
) -> Tensor:
    """Move tensors of one device, and return their signals.

    Args:
        params: The weights.
        grads: Their gradients, dense.
        states: Of each tensor.
        factors: A row a tensor: length, keep and fade, see `step_one`.
        decays: Whether it decays.
    """
    signals = []
    for p, grad, state, row, decay in zip(params, grads, states, factors, decays, strict=True):
        length, keep, fade = row.unbind()
        names = [name for name in ("square", "trail", "rest") if name in state]
        every = [p, grad, *(state[name] for name in names)]
        pieces: Iterable[tuple[Tensor, ...]] = [tuple(every)]
        if p.is_cpu and p.numel() > _CHUNK and all(t.is_contiguous() for t in every):
            pieces = zip(*(t.view(-1).split(_CHUNK) for t in every), strict=True)
        signal = torch.zeros_like(length)
        for some, part, *kept in pieces:
            own: dict[str, Any] = dict(zip(names, kept, strict=True))
            signal = signal + step_one(some, part, own, length, keep if decay else None, fade)
        signals.append(signal)
    return torch.stack(signals)
