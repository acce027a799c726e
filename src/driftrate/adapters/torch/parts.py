"""Parts of a batch: marked ones, or every backward pass between two steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from driftrate.adapters._observe import Fields, of_parts
from driftrate.adapters.torch.measure import compared, partial_sums, squared, summed
from driftrate.adapters.torch.metric import Weight, Weights
from driftrate.adapters.torch.observers import Observer
from driftrate.adapters.torch.together import Together
from driftrate.errors import ConfigError


class Parts(Observer):
    r"""Marked parts of a batch. Keeps their sums alone, no gradient.

    A part's gradient is seen before it is added to S_i, the sum of the i parts before it; with
    Helmert's contrasts

        Σ_i ‖g_i - ḡ‖² = Σ_{0<i<k} i/(i+1) ‖g_{i+1} - S_i/i‖²,

    which squares no sum before it is subtracted.
    """

    name = "parts"
    advice = (
        "run each batch through rate.backward(closure, x, y), or the backward pass of each of two"
        ' or more parts in `with rate.part():`; for one ordinary pass a step, mode="sequence"'
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.marked = 0
        self.counts: dict[Tensor, int] = {}  # how many parts reached a parameter
        self.apart: dict[Tensor, Tensor] = {}  # Helmert's sum
        self.sums: dict[Tensor, Tensor] = {}  # ‖S‖² when the last part was heard
        self.weights: dict[Tensor, Weight | None] = {}
        self.together = Together()
        # By count and parameter: what a kernel has left to be added up before the step.
        self.late: dict[int, dict[Tensor, tuple[Tensor, Weight | None]]] = {}
        self.edges: dict[Tensor, Node] = {}  # of this step: to find one costs more than to hook it
        self.nodes: dict[Tensor, tuple[Node, RemovableHandle]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a parameter has other nodes, and no gradient that parts could belong to.
        return {**vars(self), "edges": {}, "nodes": {}, "together": Together()}

    def watch(self, owners: Iterable[Tensor]) -> None:
        """Hear of each gradient before it is added up, after all other hooks on the parameter."""
        for owner in owners:
            if owner not in self.nodes and owner.requires_grad:
                if owner not in self.edges:
                    self.edges[owner] = get_gradient_edge(owner).node
                node = self.edges[owner]
                # Weak: what a node holds, the garbage collector does not see.
                handle = node.register_prehook(partial(_tell, ref(self), owner))
                self.nodes[owner] = (node, handle)

    def remove(self) -> None:
        for _, handle in self.nodes.values():
            handle.remove()
        self.nodes.clear()

    @contextmanager
    def part(self, owners: Sequence[Tensor]) -> Iterator[None]:
        """Mark the backward pass inside as one part."""
        if all(owner.grad is None for owner in owners):
            self._clear()  # nothing accumulated: what was measured belongs to no step
        before = sum(self.counts.values())
        self.watch(owners)
        if self.compares and self.like.device.type == "cpu":
            self.together.begin([*self.nodes])
        try:
            yield
            self._end()
        finally:
            self.remove()
        self.marked += 1
        if sum(self.counts.values()) == before:
            raise ConfigError("Rate.part: no backward pass inside reached a parameter")
        if max(self.counts.values()) > self.marked:
            raise ConfigError(
                "Rate.part: two backward passes in one part reached the same parameter: add their"
                " losses up before one backward pass"
            )

    def hear(self, owner: Tensor, part: Tensor) -> None:
        """Compare a part's gradient with the sum of those before it."""
        total = owner.grad
        count = 0 if total is None else self.counts.get(owner, 0)
        self.counts[owner] = count + 1
        if not self.compares:
            return
        if count == 0:
            self.apart.pop(owner, None)
            for late in self.late.values():
                late.pop(owner, None)
        elif self.together.before is not None:
            self.together.heard[owner] = part
        elif total is not None:
            self._compare(owner, part, total, count)

    @torch.no_grad()
    def _compare(self, owner: Tensor, part: Tensor, total: Tensor, count: int) -> None:
        """Compare the gradient of one parameter with the sum of those of `count` parts."""
        if self.metric is not None and not self.weights:
            every = [*self.nodes]
            self.weights = dict(zip(every, self.metric.weights(every), strict=True))
        weight = self.weights.get(owner)
        if self.metric is not None and weight is None:
            return
        terms = partial_sums(part, total, weight, 1.0 / count, self.like)
        if terms is not None:
            self.late.setdefault(count, {})[owner] = terms, weight
            return
        ratio, wanted = 1.0 / count, ("apart", "whole")
        new = compared([part], [total], self.like, [weight], ratio, wanted=wanted)
        apart = new["apart"] * (count / (count + 1.0))
        self.apart[owner] = self.apart[owner] + apart if owner in self.apart else apart
        self.sums[owner] = new["whole"]

    @torch.no_grad()
    def _end(self) -> None:
        """Compare what was heard of a part, in one vector where all parts had all parameters."""
        together, count = self.together, self.marked
        owners, before = together.owners, together.before
        together.before = None
        if before is None or not together.heard:
            return
        if not self.apart and all(self.counts.get(owner) == count + 1 for owner in owners):
            weights = None if self.metric is None else self.metric.weights(owners)
            if together.take(before, weights, count):
                return
        heard, totals = {**together.heard}, together.split(before)
        self._spread()
        for owner, total in zip(owners, totals, strict=True):
            if owner in heard:
                self._compare(owner, heard[owner], total, self.counts[owner] - 1)

    def _add_up(self) -> None:
        """Add up what kernels have left, all parameters at once."""
        for count, late in sorted(self.late.items()):
            terms, weights = zip(*late.values(), strict=True)
            sums = summed(terms, weights, self.like)
            every = (sums["apart"] * (count / (count + 1.0))).unbind(), sums["whole"].unbind()
            for owner, apart, whole in zip(late, *every, strict=True):
                self.apart[owner] = self.apart[owner] + apart if owner in self.apart else apart
                self.sums[owner] = whole
        self.late.clear()

    def _spread(self) -> None:
        """Give each parameter its share of what was measured together."""
        self.apart |= self.together.shares(self.together.apart, self.like)
        self.sums |= self.together.shares(self.together.whole, self.like)
        self.together.clear()

    def _compared(
        self,
        owners: Sequence[Tensor],
        gradients: Sequence[Tensor],
        weights: Weights | None,
        square: Tensor,
    ) -> Fields:
        parts = self._parts(owners)
        if parts < 2 or not self.compares:
            return {}
        self._add_up()
        if self.together.is_of(owners, parts):
            terms, last = self.together.sums()
            # Clipping and loss scaling have multiplied all parts alike since then.
            since_then = square / last if last > 0.0 else 1.0
            return of_parts(square, since_then * terms * (parts * parts), parts)
        self._spread()

        def part_of_square(places: list[int]) -> Tensor:
            some = [gradients[place] for place in places]
            return squared(some, self.like, weights and [weights[place] for place in places])

        counts = [self.counts.get(owner, 0) for owner in owners]
        several = [place for place, owner in enumerate(owners) if owner in self.apart]
        once = [place for place, count in enumerate(counts) if count == 1]
        apart = torch.zeros_like(self.like)
        # A part that did not reach a parameter has the gradient 0 there; order is no matter.
        if once:
            apart = part_of_square(once) * (1.0 - 1.0 / parts)
        if several:
            then = torch.stack([self.sums[owners[place]] for place in several])
            off = torch.stack([self.apart[owners[place]] for place in several])
            if any(counts[place] < parts for place in several):
                rest = [1.0 / counts[place] - 1.0 / parts for place in several]
                off = off + then * torch.tensor(rest, dtype=then.dtype, device=then.device)
            now = square if len(several) == len(owners) else part_of_square(several)
            # Clipping and loss scaling have multiplied all parts alike since then.
            since = torch.where(then.sum() > 0.0, now / then.sum(), torch.ones_like(then.sum()))
            apart = apart + since * off.sum()
        # Each part was given as g_i/k, so that they add up to ḡ.
        return of_parts(square, apart * (parts * parts), parts)

    def _is_blind(self, owners: Sequence[Tensor]) -> bool:
        return self._parts(owners) < 2

    def _parts(self, owners: Sequence[Tensor]) -> int:
        return self.marked

    def stepped(self) -> None:
        super().stepped()
        self._clear()

    def _clear(self) -> None:
        self.marked = 0
        self.counts.clear()
        self.apart.clear()
        self.sums.clear()
        self.weights.clear()
        self.together.clear()
        self.edges.clear()
        self.late.clear()


class Accumulated(Parts):
    """Every backward pass between two steps as a part."""

    name = "accumulation"
    advice = (
        "each step had one backward pass: run two or more of equal size before each step, or attach"
        ' with mode="sequence"'
    )

    def __init__(self, *args: Any, owners: Iterable[Tensor]) -> None:
        super().__init__(*args)
        self.watch(owners)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "watched": [*self.nodes]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        owners = state.pop("watched")
        vars(self).update(state)
        self.watch(owners)

    def read(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> Fields:
        self.watch(owners)
        return super().read(owners, gradients)

    def _parts(self, owners: Sequence[Tensor]) -> int:
        return max((self.counts.get(owner, 0) for owner in owners), default=0)


def _tell(parts: ReferenceType[Parts], owner: Tensor, gradients: tuple[Tensor | None, ...]) -> None:
    listener, gradient = parts(), gradients[0]
    if listener is not None and gradient is not None:
        listener.hear(owner, gradient.detach())
