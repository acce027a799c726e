"""The parts of a batch as small parameters see them: compared in one vector."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

import torch
from torch import Tensor

from driftrate.adapters.torch.metric import Weights
from driftrate.adapters.torch.packed import division, packed


class Together:
    """What the parts of a batch show of small parameters, in one vector.

    Nothing is summed before the step, for a parameter may miss a later part.
    """

    def __init__(self) -> None:
        self.owners: list[Tensor] = []
        self.before: Tensor | None = None  # the sum of the parts before this one, while it runs
        self.heard: dict[Tensor, Tensor] = {}  # this part's gradients
        self.apart: Tensor | None = None  # terms of Helmert's sum
        self.whole: Tensor | None = None  # and of ‖S‖² when the last part was heard
        self._parts = 0

    def begin(self, owners: list[Tensor]) -> None:
        """Hear that a part begins."""
        self.heard.clear()
        totals = [owner.grad for owner in owners if owner.grad is not None]
        whole = totals and len(totals) == len(owners)
        self.before, self.owners = packed(totals) if whole else None, owners

    @torch.no_grad()
    def take(self, before: Tensor, weights: Weights | None, count: int) -> bool:
        """Compare the part that was heard with `count` parts before it; return whether it could."""
        metric, part = division(weights), packed([self.heard[owner] for owner in self.owners])
        if metric is None or part is None or part.dtype != before.dtype:
            return False
        apart, whole = torch.sub(part, before, alpha=1.0 / count), part + before
        terms = metric.over(apart).mul(apart).mul_(metric.scale * count / (count + 1.0))
        self.apart = terms if self.apart is None else self.apart + terms
        self.whole = metric.over(whole).mul(whole).mul_(metric.scale)
        self._parts = count + 1
        return True

    def is_of(self, owners: Sequence[Tensor], parts: int) -> bool:
        """Whether these parameters, and no others, were in so many parts."""
        same = len(owners) == len(self.owners) and all(map(is_, owners, self.owners))
        return self.apart is not None and self._parts == parts and same

    def sums(self) -> tuple[float, float]:
        """Return Helmert's sum and ‖S‖²."""
        if self.apart is None or self.whole is None:
            return 0.0, 0.0
        return self.apart.sum().item(), self.whole.sum().item()

    def shares(self, terms: Tensor | None, like: Tensor) -> dict[Tensor, Tensor]:
        """Return the sum of each parameter's terms."""
        if terms is None:
            return {}
        every = zip(self.owners, self.split(terms), strict=True)
        return {owner: part.sum(dtype=like.dtype) for owner, part in every}

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return the numbers of each parameter, in its shape."""
        parts = torch.split(vector, [owner.numel() for owner in self.owners])
        return [one.view(owner.shape) for owner, one in zip(self.owners, parts, strict=True)]

    def clear(self) -> None:
        """Forget the parts of a step."""
        self.before = self.apart = self.whole = None
        self.heard.clear()
        self._parts = 0
