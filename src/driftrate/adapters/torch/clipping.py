"""Gradients that arrive clipped by norm, and the unit that clipping takes from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from driftrate.adapters.torch.measure import squared

_EQUAL = 1e-5  # two squares this close, twice in a row, are pinned: clipping divides by norm + 1e-6


class Clipping:
    r"""Notices that a loop clips by norm, and takes it back out.

    A gradient that is always clipped to c has lost its length: g' = g c/‖g‖. What a rate is
    measured from is g; so once the norms of three gradients in a row are equal, hooks measure ‖g‖
    as it was before clipping. The schedule then starts afresh, on g, and its rate η for g becomes
    η ‖g‖/c for g': c is a change of units. Outliers are the schedule's to refuse. A loop that does
    not clip is not watched, and pays nothing.

    Args:
        like: A scalar tensor whose dtype and device all measurements take.
        alone: Whether this process alone makes the gradients. Else hooks would see a rank's own
            before they are averaged, and the ranks would disagree: all that is left is a warning.
    """

    def __init__(self, like: Tensor, alone: bool = True) -> None:
        self.like = like
        self.alone = alone
        self.watching = False
        self._last = math.nan
        self._equal = 0
        self._squares: dict[Tensor, Tensor] = {}
        self._handles: dict[Tensor, RemovableHandle] = {}

    def scale(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the factor of clipping, `share` = ‖g'‖/‖g‖; nothing where it is unknown."""
        if not (self.watching and self.alone):
            return {}
        self._watch(owners)
        raw = [self._squares[owner] for owner in owners if owner in self._squares]
        if len(raw) < len(owners):
            return {}
        share = (squared(gradients, self.like) / torch.stack(raw).sum()).sqrt()
        # What is no number, or was not clipped, is left as it is.
        clipped = (share > 0.0) & (share < 1.0 - _EQUAL)
        return {"share": torch.where(clipped, share, 1.0)}

    def begins(self, square: float, owners: Sequence[Tensor]) -> bool:
        """Return whether ‖g'‖² shows clipping at this step, and watch the owners from now on."""
        if self.watching:
            return False
        near = math.isclose(square, self._last, rel_tol=_EQUAL)
        self._equal = self._equal + 1 if near else 0
        self._last = square
        if self._equal < 2 or not square > 0.0:
            return False
        self.watching = True
        if self.alone:
            self._watch(owners)
        else:
            warnings.warn(
                "all gradients arrive clipped to the same norm, and a rate cannot be measured from"
                " them: clip at a larger norm, or attach MeasuredRate(max_rate=...)",
                stacklevel=2,
            )
        return self.alone

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
        return {"watching": self.watching, "last": self._last, "equal": self._equal}

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        """Take over what `save` returned."""
        self.watching, self._last, self._equal = (saved[k] for k in ("watching", "last", "equal"))
        if self.watching and self.alone:
            self._watch(owners)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_squares": {}, "_handles": {}, "watched": [*self._handles]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        owners = state.pop("watched")
        vars(self).update(state)
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
