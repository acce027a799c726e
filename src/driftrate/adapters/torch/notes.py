"""What a rate notes of its steps: how many there were, how far the last went, what a logger sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters._observe import Fields
from driftrate.adapters.torch.measure import Buffers, compared, keep
from driftrate.adapters.torch.packed import packed, product

_RECORDED = ("cross", "spread", "shift")  # beside the rates, what a logger sees


class Notes:
    """Notes in tensors that are changed in place, where a captured graph goes on with them.

    Elsewhere in numbers, or in the very tensors that were measured, unread until somebody asks.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        in_place: Whether all notes are tensors of that device.
    """

    def __init__(self, like: Tensor, in_place: bool) -> None:
        self.like = like
        self.in_place = in_place
        self.count: Any = torch.zeros_like(like, dtype=torch.int64) if in_place else 0
        self.moved: Any = torch.zeros_like(like) if in_place else 0.0
        self.seen: dict[str, Any] = dict.fromkeys(_RECORDED, math.nan)
        if in_place:
            self.seen = {name: torch.full_like(like, math.nan) for name in _RECORDED}
        self._known: set[str] = set()  # what was seen at least once: the rest is NaN already
        self._left: tuple[Sequence[Tensor], Tensor] | None = None  # packed weights of a step
        self._weights: Buffers = {}  # those that cannot be packed

    def see(self, fields: Fields) -> None:
        """Note what a step has shown; what it has not is NaN."""
        for name in _RECORDED:
            value = fields.get(name)
            if not self.in_place:
                self.seen[name] = math.nan if value is None else value
            elif isinstance(value, Tensor):
                self.seen[name].copy_(value)
            elif value is not None or name in self._known:
                self.seen[name].fill_(math.nan if value is None else value)
            if value is not None:
                self._known.add(name)

    def leave(self, owners: Sequence[Tensor]) -> None:
        """Note where the weights are before a step."""
        vector = packed(owners) if self.like.device.type == "cpu" else None
        self._left = None if vector is None else (owners, vector)
        if vector is None:
            keep(self._weights, owners, [owner.detach() for owner in owners])

    def arrive(self, owners: Sequence[Tensor], skipped: Tensor | None) -> None:
        """Measure the step, unless it was skipped."""
        if self._left is not None:
            (owners, then), self._left = self._left, None
            now = packed(owners)
            if now is None or (skipped is not None and float(skipped) > 0.0):
                return
            apart = now - then
            self.moved = math.sqrt(product(apart, apart))
        elif self._weights:
            known = [owner for owner in owners if owner in self._weights]
            now_, then_ = [p.detach() for p in known], [self._weights[p] for p in known]
            moved = compared(now_, then_, self.like, wanted=("apart",))["apart"].sqrt()
            if skipped is not None:
                moved = torch.where(skipped.to(self.like) > 0.0, self.moved, moved)
            if self.in_place:
                self.moved.copy_(moved)
            else:
                self.moved = moved

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs, in copies."""
        return {
            "count": int(self.count),
            "moved": self._copied(self.moved),
            "seen": {name: self._copied(value) for name, value in self.seen.items()},
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Take over what `save` returned."""
        seen = saved["seen"]
        if self.in_place:
            self.count.fill_(saved["count"])
            self.moved.copy_(saved["moved"])
            for name, value in seen.items():
                self.seen[name].copy_(value)
        else:
            self.count, self.moved = saved["count"], float(saved["moved"])
            self.seen = {name: float(value) for name, value in seen.items()}
        self._known.update(seen)

    def _copied(self, value: Any) -> Tensor:
        return value.clone() if isinstance(value, Tensor) else torch.full_like(self.like, value)
