"""The rate of learning: how much of what a step could gain on its own batch it has gained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters.torch.sharded import Shards, local


class Sample:
    """A step that is looked at twice on the same batch.

    ρ = 1 - ⟨g(w + Δ), Δ⟩/⟨g(w), Δ⟩ is 0 for a step that is far too short, 1 at the minimum of the
    loss along the step, and 2 where nothing is gained.

    Args:
        params: What the step moves.
        shards: How they are spread over processes; None where each is whole.
    """

    def __init__(self, params: Sequence[Tensor], shards: Shards | None = None) -> None:
        self._params = params
        self._shards = shards
        self._devices = sorted({p.get_device() for p in params if p.is_cuda})
        self._noise = torch.get_rng_state()
        self._noises = [torch.cuda.get_rng_state(place) for place in self._devices]
        self._before: list[tuple[Tensor, Tensor]] = []

    def keep(self) -> None:
        """Keep the weights and gradients of before the step."""
        self._moving = [p for p in self._params if p.grad is not None]
        self._before = [
            (p.detach().clone(), p.grad.clone()) for p in self._moving if p.grad is not None
        ]

    def look(self, closure: Callable[[], Any]) -> Tensor:
        """Return ρ after the step, with the same random numbers; gradients are put back."""
        for p in self._params:
            p.grad = None
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self._noise)
            for place, noise in zip(self._devices, self._noises, strict=True):
                torch.cuda.set_rng_state(noise, place)
            with torch.enable_grad():
                closure()
        new = old = torch.zeros(())
        for p, (weights, grad) in zip(self._moving, self._before, strict=True):
            step = local(p.detach() - weights).float()
            if self._shards is None or self._shards.counts(p):
                old = old.to(p.device) + (_dense(grad) * step).sum()
                if p.grad is not None:
                    new = new.to(p.device) + (_dense(p.grad) * step).sum()
            p.grad = grad
        if self._shards is not None:
            new, old = self._shards.added(torch.stack([new, old.to(new.device)]))
        return 1 - new / old


def _dense(grad: Tensor) -> Tensor:
    here = local(grad)
    return (here.to_dense() if here.is_sparse else here).float()
