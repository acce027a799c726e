"""Gradients that arrive clipped by norm, and the unit that clipping takes from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from driftrate.adapters.torch.measure import squared

_EQUAL = 1e-5  # two squares this close, twice in a row, are pinned: clipping divides by norm + 1e-6
_MEMORY = 0.8  # of the usual norm
_SPIKE = 3.0  # times the usual norm is an outlier, and stays clipped


class Clipping:
    r"""Notices that a loop clips by norm, and undoes it but for outliers.

    A gradient that is always clipped to c has lost its length: g' = g c/‖g‖. What a rate is
    measured from is g; so once the norms of three gradients in a row are equal, hooks measure ‖g‖
    as it was before clipping. The schedule then sees g, and its rate η for g becomes
    η min(‖g‖, 3 n)/c for g', where n is the usual norm: c is a change of units, and only a gradient
    longer than 3 n is clipped. Until then nothing is measured, and nothing costs anything.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        alone: Whether this process alone makes the gradients. Else hooks would see a rank's own
            before they are averaged, and the ranks would disagree: all that is left is a warning.
    """

    def __init__(self, like: Tensor, alone: bool = True) -> None:
        self.like = like
        self.alone = alone
        self.watching = False
        self.usual = 0.0  # n
        self._last = math.nan
        self._equal = 0
        self._squares: dict[Tensor, Tensor] = {}
        self._handles: dict[Tensor, RemovableHandle] = {}

    def scale(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return ‖g‖² before clipping and the factor of clipping; nothing where it is unknown."""
        if not (self.watching and self.alone):
            return {}
        self._watch(owners)
        raw = [self._squares[owner] for owner in owners if owner in self._squares]
        if len(raw) < len(owners):
            return {}
        before = torch.stack(raw).sum()
        share = (squared(gradients, self.like) / before).sqrt()
        return {"before": before, "share": torch.where(share < 1.0 - _EQUAL, share, 1.0)}

    def correct(self, seen: Mapping[str, float], owners: Sequence[Tensor]) -> float:
        """Return what a rate for g is multiplied by for g'.

        Args:
            seen: What `scale` returned, and `square`: ‖g'‖², or ‖g‖² where that is known.
            owners: Whose gradients to watch from now on, where they are seen to be clipped.
        """
        if not self.watching:
            self._compare(seen.get("square", math.nan), owners)
        norm = math.sqrt(seen.get("before", 0.0))
        if not 0.0 < norm < math.inf:
            return 1.0
        limit = _SPIKE * (self.usual or norm)
        self.usual = _MEMORY * (self.usual or norm) + (1.0 - _MEMORY) * min(norm, limit)
        # Never less than 1: no gradient is clipped by more than the loop does it.
        return max(min(norm, limit) / (norm * seen["share"]), 1.0)

    def _compare(self, square: float, owners: Sequence[Tensor]) -> None:
        """Watch from now on where the norm is pinned."""
        near = math.isclose(square, self._last, rel_tol=_EQUAL)
        self._equal = self._equal + 1 if near else 0
        self._last = square
        if self._equal >= 2 and square > 0.0:
            self.watching = True
            if self.alone:
                self._watch(owners)
                return
            warnings.warn(
                "all gradients arrive clipped to the same norm, and a rate cannot be measured from"
                " them: clip at a larger norm, or attach MeasuredRate(max_rate=...)",
                stacklevel=2,
            )

    def clear(self) -> None:
        """Forget the gradients of a step that was taken."""
        self._squares.clear()

    def remove(self) -> None:
        """Take back all hooks."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {
            "watching": self.watching,
            "usual": self.usual,
            "last": self._last,
            "equal": self._equal,
        }

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Take over what `save` returned."""
        self.watching, self.usual = saved["watching"], saved["usual"]
        self._last, self._equal = saved["last"], saved["equal"]
        if self.watching and self.alone:
            self._watch(owners)

    def _watch(self, owners: Sequence[Tensor]) -> None:
        for owner in owners:
            if owner not in self._handles and owner.requires_grad:
                # Weak: what a hook holds, the garbage collector does not see.
                hook = partial(_measure, ref(self))
                handle: Any = owner.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._handles[owner] = handle


@torch.no_grad()
def _measure(clipping: ReferenceType[Clipping], owner: Tensor) -> None:
    listener = clipping()
    if listener is not None and owner.grad is not None:
        listener._squares[owner] = squared([owner.grad], listener.like)
