"""What is measured where parameters are spread over processes: on shards, with one sum over all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from driftrate.adapters._observe import Fields, of_pair, of_parts
from driftrate.adapters.torch.lead import looked
from driftrate.adapters.torch.measure import Buffers, compared, keep, squared
from driftrate.adapters.torch.metric import Weights
from driftrate.adapters.torch.observers import Observer
from driftrate.adapters.torch.parts import Parts
from driftrate.adapters.torch.sharded import Shards, laid_out, local, spread
from driftrate.adapters.torch.trail import Kept
from driftrate.errors import ConfigError


class Sharded(Observer):
    """Measures shards, and adds up what all ranks have measured in one reduction a step.

    What lies in several processes is measured in one of them, and remembered in all. All ranks get
    the same sums, take part in every reduction, and so do alike.
    """

    def __init__(self, *args: Any, shards: Shards) -> None:
        super().__init__(*args)
        self._shards = shards
        self._loss: Tensor | None = None  # this rank's own, until the step's reduction

    @property
    def shards(self) -> Shards:
        return self._shards

    @property
    def idle(self) -> bool:
        return super().idle and self._loss is None

    def agree(self, told: Fields) -> Fields:
        """Return what was told, a loss left out: `read` returns its mean over the ranks."""
        self._loss = None
        if self.among is not None:  # more ranks than hold the shards
            return super().agree(told)
        if not self._shares_loss(told):
            return told
        self._loss = torch.as_tensor(told["loss"]).detach().to(self.like).reshape(())
        return {name: value for name, value in told.items() if name != "loss"}

    def read(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> Fields:
        sums = {} if super().idle else self._measured(owners, gradients)
        loss, self._loss = self._loss, None
        if loss is not None:
            sums["loss"] = loss / dist.get_world_size(self._shards.group)
        total = self._shards.total(sums)
        mean = {} if loss is None else {"loss": total.pop("loss")}
        return mean if super().idle else {**self._told(owners, gradients, total), **mean}

    def _measured(self, owners: Sequence[Tensor], gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return what is to be added up over the ranks."""
        mine = self._shards.mine(owners)
        counted, some = [owners[at] for at in mine], [gradients[at] for at in mine]
        counted, some, weights = self._weighed(counted, some)
        sums = {"dim": self._dim(counted)}
        if self.memory is not None:
            sums |= self._beside_last(owners, gradients)
        if self.lead is not None:
            for owner in owners:
                if owner not in self.lead.buffers:
                    self.lead.buffers[owner] = self.lead.started(local(owner))
            sums |= self._lead(counted, some)
        elif self.trail is not None:
            olds = [None if old is None else local(old) for old in self.trail.olds(counted)]
            found = compared(some, olds, self.like, weights)
            sums |= {"square": found["square"], "along": found["product"] / self.trail.share}
        elif self.memory is None:
            sums["square"] = squared(some, self.like, weights)
        return sums | self._of_parts()

    def _told(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor], total: dict[str, Tensor]
    ) -> Fields:
        """Remember the gradients, and return the fields that the sums over all ranks tell."""
        new = dict(zip(owners, gradients, strict=True))
        square = total["square"]
        good = square.isfinite() & (total["dim"] > 0.0)
        fields: Fields = {"dim": total["dim"], "grad_sq": square}
        if self.memory is not None:
            known = total["began"] > 0.0
            product = torch.where(known, total["product"], torch.nan)
            fields["cross"] = product
            if "apart" in total:
                fields |= of_pair(product, torch.where(known, total["apart"], torch.nan))
            for gone in [owner for owner in self.memory.buffers if owner not in new]:
                del self.memory.buffers[gone]
            keep(self.memory.buffers, owners, gradients)
        if self.lead is not None:
            buffers = self.lead.buffers
            here = [local(owner) for owner in buffers]
            looked(here, [*buffers.values()], [None] * len(buffers), good, self.like)
            fields |= self.lead.fields(square, total["lead"], total["weights"], total["dim"])
        elif self.trail is not None:
            # A parameter that the metric does not know yet is not in the trail either.
            self.trail.lengthen({p: new[p] for p in self._remembered(owners)}, good)
            fields["trail"] = total["along"]
        fields |= self._from_parts(total)
        # Where no rank had anything, a metric without moments say, a schedule stands still.
        some = total["dim"] > 0.0
        return {
            name: torch.where(some, value, torch.nan) if isinstance(value, Tensor) else value
            for name, value in fields.items()
        }

    def _weighed(
        self, owners: list[Tensor], gradients: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], Weights | None]:
        """Return the parameters that the metric knows, their gradients and weights here."""
        if self.metric is None:
            return owners, gradients, None
        every = self.metric.weights(owners)
        known = [(at, one) for at, one in enumerate(every) if one is not None]
        return (
            [owners[at] for at, _ in known],
            [gradients[at] for at, _ in known],
            [weight._replace(moment=local(weight.moment)) for _, weight in known],
        )

    def _remembered(self, owners: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the parameters that the metric knows, or may know in another process."""
        if self.metric is None:
            return owners
        elsewhere = self._shards.owned
        return [
            owner
            for owner in owners
            if self.metric.knows(owner) or (elsewhere and not self._shards.counts(owner))
        ]

    def _dim(self, counted: Sequence[Tensor]) -> Tensor:
        here = sum(self._shards.numel(p) * (1 + p.is_complex()) for p in counted)
        return torch.full_like(self.like, here)

    def _beside_last(
        self, owners: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        assert self.memory is not None
        buffers = self.memory.buffers
        new = {owner: torch.zeros_like(old) for owner, old in buffers.items()}
        new |= dict(zip(owners, gradients, strict=True))  # a gradient that is not there is 0
        counted = [owner for owner in new if self._shards.counts(owner)]
        counted, some, weights = self._weighed(counted, [new[owner] for owner in counted])
        olds = [buffers.get(owner) for owner in counted]
        more = ("apart",) if "spread" in self.reads else ()
        sums = compared(some, olds, self.like, weights, wanted=("square", "product", *more))
        return {**sums, "began": torch.full_like(self.like, float(bool(buffers)))}

    def _lead(self, counted: Sequence[Tensor], gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        assert self.lead is not None
        averages = [self.lead.buffers[owner] for owner in counted]
        lead, size = looked(
            [local(owner) for owner in counted], averages, gradients, None, self.like
        )
        return {"square": squared(gradients, self.like), "lead": lead, "weights": size}

    def _of_parts(self) -> dict[str, Tensor]:
        """Return what was measured here of the parts of this batch."""
        return {}

    def _from_parts(self, total: dict[str, Tensor]) -> Fields:
        """Return the fields of the parts from the sums over all ranks."""
        return {}

    def moved(self, owners: Sequence[Tensor], then: Sequence[Tensor]) -> Tensor:
        mine = self._shards.mine(owners)
        now, before = [local(owners[at]) for at in mine], [then[at] for at in mine]
        return self._shards.total(compared(now, before, self.like, wanted=("apart",)))["apart"]

    def save(self, owners: Sequence[Tensor]) -> dict[str, Any]:
        """Return what the next measurement needs, as `DTensor`s that can be spread anew."""
        saved = super().save(owners)
        for one in self.kept:
            pairs = zip(saved[one.name], owners, strict=True)
            saved[one.name] = [None if t is None else spread(t, owner) for t, owner in pairs]
        return saved

    def load(self, saved: dict[str, Any], owners: Sequence[Tensor]) -> None:
        for one in self.kept:
            pairs = zip(saved[one.name], owners, strict=True)
            here = [None if t is None else local(laid_out(t, owner)) for t, owner in pairs]
            saved = {**saved, one.name: here}
        super().load(saved, owners)

    def blank(self, kept: Kept, owner: Tensor) -> Tensor:
        """Return zeros where nothing is remembered of a parameter, to be loaded into."""
        return spread(torch.zeros_like(local(owner), dtype=kept.kind(owner)), owner)


class ShardedSequence(Sharded):
    """Each gradient against those before it, on shards."""

    name = "sequence"


class ShardedParts(Sharded, Parts):
    """Marked parts of a batch, from the sums of their gradients before and after each.

    Shards show a gradient when all ranks have added it up: what a part has added to it is a
    difference, and one copy of the gradient's shards is kept for it until the step.
    """

    def __init__(self, *args: Any, shards: Shards) -> None:
        super().__init__(*args, shards=shards)
        self.before: Buffers = {}
        self.deviations = torch.zeros_like(self.like)
        self.then = torch.zeros_like(self.like)

    @contextmanager
    def part(self, owners: Sequence[Tensor]) -> Iterator[None]:
        if all(owner.grad is None for owner in owners):
            self._clear()  # nothing accumulated: what was measured belongs to no step
        yield
        with torch.no_grad():
            self._hear(owners)

    def _hear(self, owners: Sequence[Tensor]) -> None:
        reached = [owner for owner in owners if owner.grad is not None]
        if not reached:
            raise ConfigError(
                "Rate.part: no gradient has come of the pass inside: there was no backward pass, or"
                " set_requires_gradient_sync(False) keeps it apart on each rank: leave that out,"
                " parts are measured when they are added up over the ranks"
            )
        gradients = [self._shards.gradient(owner) for owner in reached]
        mine = self._shards.mine(reached)
        counted, totals, weights = self._weighed(
            [reached[at] for at in mine], [gradients[at] for at in mine]
        )
        if self.marked:
            count = self.marked
            lasts = [self.before.get(owner) for owner in counted]
            pairs = zip(totals, lasts, strict=True)
            parts = [new if last is None else new - last for new, last in pairs]
            wanted = ("apart",)
            new = compared(parts, lasts, self.like, weights, 1.0 / count, wanted=wanted)
            self.deviations += new["apart"] * (count / (count + 1.0))
        self.then = squared(totals, self.like, weights)
        self.marked += 1
        keep(self.before, reached, gradients)

    def _of_parts(self) -> dict[str, Tensor]:
        return {"deviations": self.deviations, "then": self.then} if self.marked > 1 else {}

    def _from_parts(self, total: dict[str, Tensor]) -> Fields:
        if "then" not in total:
            return {}
        square, then = total["square"], total["then"]
        # Clipping and loss scaling have multiplied all parts alike since then.
        since = torch.where(then > 0.0, square / then, torch.ones_like(then))
        # Each part was given as g_i/k, so that they add up to ḡ.
        deviations = since * total["deviations"] * self.marked**2
        return of_parts(square, deviations, self.marked)

    def _clear(self) -> None:
        super()._clear()
        self.before.clear()
        self.deviations = torch.zeros_like(self.like)
        self.then = torch.zeros_like(self.like)
