"""What a rate notes of its steps: how many, how far the last one went, what a logger sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters._observe import Fields
from driftrate.adapters.torch.measure import Buffers, keep
from driftrate.adapters.torch.observers import Observer
from driftrate.adapters.torch.packed import packed
from driftrate.adapters.torch.sharded import local

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
        self._owners: Sequence[Tensor] | None = None  # the parameters of this step
        self._packed: Tensor | None = None  # their weights before it
        self._weights: Buffers = {}  # the same, where they cannot be packed

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

    def leave(self, observer: Observer, owners: Sequence[Tensor]) -> None:
        """Note where the weights are before a step."""
        self._owners = owners
        small = owners and self.like.device.type == "cpu" and observer.shards is None
        self._packed = packed(owners) if small else None
        if self._packed is None:
            keep(self._weights, owners, [local(owner) for owner in owners])

    def arrive(self, observer: Observer, skipped: Tensor | None) -> None:
        """Measure the step, unless it was skipped."""
        if self._owners is None:
            return
        owners, then, self._owners, self._packed = self._owners, self._packed, None, None
        now = None if then is None else packed(owners)
        if now is None or then is None:
            moved: Any = observer.moved(owners, [self._weights[owner] for owner in owners]).sqrt()
        else:
            apart = now - then
            moved = torch.dot(apart, apart).to(self.like).sqrt()
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
            self.moved.copy_(torch.as_tensor(saved["moved"]))
            for name, value in seen.items():
                self.seen[name].copy_(torch.as_tensor(value))
        else:
            self.count, self.moved = saved["count"], float(saved["moved"])
            self.seen = {name: float(value) for name, value in seen.items()}
        self._known.update(seen)

    def _copied(self, value: Any) -> Tensor:
        return value.clone() if isinstance(value, Tensor) else torch.full_like(self.like, value)
