"""Small parameters on the CPU as one vector.

There a call of torch takes as long as a few thousand additions: a network of small layers is looked
at in one call, and not in one a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from driftrate.adapters.torch.metric import Weights

# Numbers, in all: one block of `measure`, so that a sum is as accurate.
_MOST = 1 << 17
_KINDS = (torch.float32, torch.float64)
_PLAIN = (Tensor, torch.nn.Parameter)  # a subclass may have its numbers elsewhere


def packed(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the numbers of small, dense, real tensors of the CPU in a new vector; else None."""
    kind, total = tensors[0].dtype, 0
    if kind not in _KINDS:
        return None
    for tensor in tensors:
        if type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.dtype != kind:
            return None
        if tensor.layout is not torch.strided:
            return None
        total += tensor.numel()
    if total > _MOST:
        return None
    if len(tensors) == 1:  # torch would give a view of it
        return tensors[0].detach().reshape(-1).clone()
    vector: Tensor = torch._C._nn.flatten_dense_tensors([*tensors])
    return vector


class Division(NamedTuple):
    """The metric of packed parameters."""

    root: Tensor | None  # √v + ε, or None for the plain one
    scale: float

    def over(self, vector: Tensor) -> Tensor:
        """Return a vector over the root, without the scale."""
        return vector if self.root is None else vector / self.root


_WHOLE = Division(None, 1.0)


def division(weights: Weights | None) -> Division | None:
    """Return the metric; None where it cannot be packed, or where ε or the scale differ."""
    if weights is None:
        return _WHOLE
    first, every = weights[0], []
    for weight in weights:
        if first is None or weight is None or weight.eps != first.eps:
            return None
        # A tensor of a device is not compared, for that would be a read.
        if weight.scale is not first.scale and weight.scale != first.scale:
            return None
        every.append(weight.moment)
    moments = packed(every)
    if first is None or moments is None:
        return None
    return Division(moments.sqrt_().add_(first.eps), float(first.scale))


def product(a: Tensor, b: Tensor) -> float:
    """Return ⟨a, b⟩ as a number."""
    return torch.dot(a, b).item()
