"""The loop: nature moves, a batch is drawn, a rate is chosen, regret recorded, a step taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from driftrate.learners.hedged_sgd import HedgedSGD
from driftrate.learners.projections import Projection
from driftrate.schedules import _checks
from driftrate.schedules.base import TRAIL, Array, Schedule, Signal
from driftrate.simulation.clairvoyant import Clairvoyant
from driftrate.simulation.direct import DirectSampler
from driftrate.simulation.exact import ExactSampler
from driftrate.simulation.gradient import Sample, Sampler
from driftrate.simulation.ledger import Ledger
from driftrate.streams.backend import Backend
from driftrate.streams.base import Stream
from driftrate.streams.target import Standing, Target

Learner = Schedule | Clairvoyant | HedgedSGD
PART_SIGNALS = frozenset({"parts", "cross", "spread"})


def needs_of(rule: Learner) -> frozenset[str]:
    """Return the signals that a rule asks for."""
    return frozenset(rule.signals) if isinstance(rule, Schedule) else frozenset()


@dataclass(frozen=True)
class Record:
    """What a simulation keeps besides regret, rates and distances.

    Args:
        every: Keep every n-th step, and the last; sums stay exact.
        weights: Keep the trajectory θ_t too, of shape (seeds, kept steps, dim).
        terms: Keep what `Run.upper_bound`, `lower_bound` and `gradient_bound` need.

    Example:
        >>> Record(every=10)
        Record(every=10, weights=False, terms=False)
    """

    every: int = 1
    weights: bool = False
    terms: bool = False

    def __post_init__(self) -> None:
        _checks.integer(self, "every", low=1)


class Engine:
    """One pass over a stream with several rules at once, each a lane; lanes see the same batches.

    The state is δ = θ - θ*, of shape (lanes, seeds, dim): the sampler needs nothing else, and in
    float32 δ keeps digits near the target that θ would lose.
    """

    turn = 4  # steps at a time, while a block's numbers lie in the cache

    def __init__(
        self,
        stream: Stream,
        rules: Sequence[Learner],
        backend: Backend,
        *,
        seeds: int,
        exact: bool,
        parts: int,
        project: Projection | None,
        start: Array,
        record: Record,
    ) -> None:
        self.stream, self.rules, self.backend = stream, rules, backend
        self.project, self._weights, self._terms = project, record.weights, record.terms
        self.needs = frozenset().union(*(needs_of(rule) for rule in rules))
        self.parts = parts if self.needs & PART_SIGNALS else 1
        sampler = ExactSampler if exact else DirectSampler
        self.sampler: Sampler = sampler(stream, backend, self.needs, self.parts)
        lanes = len(rules)
        like = backend.zeros(seeds, scalar=True)
        # Once, because isinstance on an abstract class is slow.
        self._asked = [rule if isinstance(rule, Schedule) else None for rule in rules]
        self.states: list[Any] = [rule and rule.init(like=like) for rule in self._asked]
        self.error = backend.zeros(lanes, seeds, stream.dim)
        self.error += backend.asarray(start)
        self.rates = backend.zeros(lanes, seeds, scalar=True)
        self.step_length = backend.zeros(lanes, seeds, scalar=True)
        self.done = 0  # steps
        self.last: Target | None = None  # nature at the last step
        self._trail: Array | None = None  # of past gradients, if a rule reads it
        self.alive = self.rates == 0
        self._all_alive = backend.host  # a device is never read back
        self.diverged_at = backend.zeros(lanes, seeds, scalar=True)  # the step from 1, 0 for never
        self.culprit = backend.zeros(lanes, seeds, scalar=True)  # the rate that made a seed diverge
        self.ledger = Ledger(
            stream.steps,
            record.every,
            lambda shape: backend.zeros(*shape, scalar=len(shape) == 3),
            (lanes, seeds),
        )

    def run(self, until: int, stop: Sequence[int] = ()) -> None:
        """Go on to a step, or end after the current one once `stop` has entries."""
        with np.errstate(all="ignore"):
            while self.done < until:
                self.last = self._advance(self.done, self.last)
                self.done += 1
                if stop:
                    return

    def _advance(self, step: int, last: Target | None) -> Target:
        backend, error = self.backend, self.error
        xp = backend.xp
        weights = None
        if self.stream.nature.adaptive:
            weights = error if last is None else error + last.oracle
        target = self.stream.target(step, backend, last, weights)
        values: dict[str, Array] = {}
        loss_before = self._move(target, last, values)
        standing = Standing(self.stream, target, backend, error)
        if loss_before is not None:
            values["loss_shift"] = xp.abs(standing.expected_loss - loss_before)
        sample = self._draw(standing)
        self._choose(step, standing, sample, values.get("loss_shift", 0.0))
        self._record(standing, values)
        self._descend(sample, target)
        return target

    def _draw(self, standing: Standing) -> Any:
        return self.sampler.draw(standing)

    def _record(self, standing: Standing, values: dict[str, Array]) -> None:
        xp, target = self.backend.xp, standing.target
        if self._terms:
            values["loss"] = standing.expected_loss
            values.setdefault("loss_shift", 0.0)
            one = self.stream.second_moment(standing) - standing.gradient_sq
            values["noise_std"] = xp.sqrt(self.backend.positive(one))
        if self._weights:
            values["weights"] = self.error + target.oracle
        regret, gradient_sq = standing.regret, standing.gradient_sq
        if not self._all_alive:
            regret = xp.where(self.alive, regret, np.inf)
            gradient_sq = xp.where(self.alive, gradient_sq, np.inf)
        values["step_regret"] = regret
        values["rates"] = self.rates
        values["distance"] = xp.sqrt(standing.distance_sq)
        values["shift"] = target.shift
        self.ledger.add(values, {"regret": regret, "gradient_regret": gradient_sq})

    def _move(self, target: Target, last: Target | None, values: dict[str, Array]) -> Array | None:
        """Move the target; return the loss of the weights before it moved."""
        xp, before = self.backend.xp, None
        if last is not None and ("loss_shift" in self.needs or self._terms):
            before = Standing(self.stream, last, self.backend, self.error).expected_loss
        if self._terms:
            product = 0.0 if target.move is None else -xp.vecdot(self.error, target.move)
            values["shift_product"] = product
        if last is None:
            self.error -= target.oracle
        elif target.move is not None:
            self.error -= target.move
        return before

    def _mark(self, good: Array, step: int, rates: Array) -> None:
        """Mark seeds whose numbers are not good as diverged.

        On the host they are put on the target, which keeps every later number finite. On a device
        nothing is read back: NaN goes on, and is masked in what is recorded.
        """
        xp = self.backend.xp
        if self.backend.host and good.all():
            return
        fresh = self.alive & ~good
        # The culprit is a rate that is not finite, else the rate of the step before.
        culprit = xp.where(xp.isfinite(rates), self.rates, rates)
        self.diverged_at = xp.where(fresh, step + 1.0, self.diverged_at)
        self.culprit = xp.where(fresh, culprit, self.culprit)
        self.alive = self.alive & good
        self._all_alive = False

    def _choose(self, step: int, standing: Standing, sample: Sample, loss_shift: Array) -> None:
        """Ask every rule for its rate."""
        xp, target = self.backend.xp, standing.target
        measured: dict[str, Array] = {
            name: value
            for name in ("loss", "grad_sq", "cross", "spread")
            if name in self.needs and (value := getattr(sample, name)) is not None
        }
        if "step_length" in self.needs:
            measured["step_length"] = self.step_length
        if "trail" in self.needs:
            measured["trail"] = self._along(sample)
        if "loss_shift" in self.needs:
            measured["loss_shift"] = loss_shift + xp.zeros_like(self.rates)
        good = self.alive
        for name, value in measured.items():
            good = good & xp.isfinite(value)
            measured[name] = xp.where(good, value, 0.0)
        shift = target.shift
        rates = xp.zeros_like(self.rates)
        for lane, schedule in enumerate(self._asked):
            if schedule is not None:
                own = shift[lane] if getattr(shift, "ndim", 0) == 2 else shift
                revealed = Signal(
                    batch_size=float(target.batch_size),
                    shift=own,
                    parts=float(self.parts) if self.parts > 1 else None,
                    dim=float(self.stream.dim),
                    **{name: value[lane] for name, value in measured.items()},
                )
                rate, self.states[lane] = schedule.update(self.states[lane], revealed)
            else:
                rate = self.rules[lane].rate(standing)[lane]  # type: ignore[union-attr, arg-type]
            rates[lane] = rate
        self._mark(good & xp.isfinite(standing.regret + rates), step, rates)
        self.rates = rates if self._all_alive else xp.where(self.alive, rates, 0.0)

    def _along(self, sample: Sample) -> Array:
        """Return the product of this step's gradient with the trail, and update the trail."""
        xp, vectors = self.backend.xp, sample.gradient.vectors
        gradient = vectors(self.error) if callable(vectors) else vectors
        if self._trail is None:
            self._trail = gradient + 0.0
            return xp.zeros_like(self.rates)
        product = xp.astype(xp.vecdot(gradient, self._trail), self.backend.real)
        self._trail *= TRAIL
        self._trail += gradient
        return product

    def _descend(self, sample: Sample, target: Target) -> None:
        """Take the step, in place."""
        backend, error = self.backend, self.error
        xp = backend.xp
        before = error + 0.0 if "step_length" in self.needs else None
        sample.gradient.descend(error, self.rates)
        if backend.host and not self._all_alive:
            error[~self.alive] = 0.0  # NaN times a rate of 0 is NaN
        if self.project is not None:
            error[...] = self.project(error + target.oracle) - target.oracle
        if before is not None:
            before -= error
            length = xp.sqrt(xp.vecdot(before, before))
            self.step_length = xp.astype(length, backend.real)
