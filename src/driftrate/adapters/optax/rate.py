"""A schedule's rate around a transformation: what each update sees, says and scales."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from driftrate.adapters._observe import Fields, Loop, Told, is_network, measure, reach
from driftrate.adapters._observe import record as _record
from driftrate.adapters.optax import trees
from driftrate.adapters.optax.own import Own, check_inner, check_moments, injected, weights
from driftrate.adapters.optax.parts import compared
from driftrate.adapters.optax.state import RateState, check_state, stamped
from driftrate.adapters.optax.trees import Leaves, Tree, numbers
from driftrate.errors import ConfigError, MissingSignal, SignalError
from driftrate.schedules.base import HORIZON, TRAIL, Array, Schedule, Signal, State, select

_GIVEN = "update(..., signal=dr.Signal({name}=...))"


def given(signal: Signal | None) -> Fields:
    """Return the fields that a signal has."""
    fields = {} if signal is None else signal._asdict()
    return {name: value for name, value in fields.items() if value is not None}


def require(schedule: Schedule, fields: Fields, mode: str | None) -> Signal:
    """Return what the schedule reads of the fields; say how to give what is missing."""
    for name in schedule.signals:
        if fields.get(name) is None and name not in schedule.optional:
            how = "update(..., parts=gradients) or " if mode == "parts" else ""
            raise MissingSignal(
                f'{schedule.name} needs {name}, which mode="{mode}" did not get: use'
                f" {how}{_GIVEN.format(name=name)}"
            )
    return Signal(**{name: fields[name] for name in schedule.signals if name in fields})


class Rate:
    """The two functions of an attached transformation; it holds settings alone, no state."""

    def __init__(
        self, inner: Any, loop: Loop, own: Own, batch_size: float | None, normalises: bool = False
    ) -> None:
        self.inner = optax.with_extra_args_support(inner)
        self.schedule, self.mode, self.relative = loop
        self.own = own
        self.told = Told(self.schedule, batch_size, how=_GIVEN)
        self.reads = {*self.schedule.signals}
        self.remembers = self.mode == "sequence" and bool({"cross", "spread"} & self.reads)
        self.trails, self.leads = "trail" in self.reads, "lead" in self.reads
        self.normalises = normalises  # whether all coordinates of a first step move alike

    def transformation(self) -> optax.GradientTransformationExtraArgs:
        """Return both functions as Optax takes them."""
        return optax.GradientTransformationExtraArgs(self.init, self.update)

    def init(self, params: Tree) -> RateState:
        """Return the state before the first update."""
        leaves = numbers(params)
        if all(leaf is None for leaf in leaves):
            raise ConfigError("attach: the optimizer has no parameters")
        zero = jnp.zeros((), trees.real_type(leaves))
        start, below = self.schedule.init(like=zero), self.inner.init(params)
        check_inner(below)
        if self.own.moments is not None:
            check_moments(below, params)
        _, known = self._applied(start["rate"], below)
        return RateState(
            stamp=stamped(self.schedule),
            schedule=start,
            record=self._noted(start, dict.fromkeys(self.reads, zero), known),
            known=jnp.zeros((), bool),
            step_length=zero,
            seen=jnp.zeros((), bool),
            previous=jax.tree.map(jnp.zeros_like, params) if self.remembers else (),
            trail=trees.still(params) if self.trails else (),
            lead=trees.still(params, jnp.float32) if self.leads else (),
            inner=below,
        )

    def update(
        self, updates: Tree, state: RateState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, RateState]:
        """Return the scaled updates and the next state; `signal` and `parts` may be given."""
        check_state(self.schedule, state, RateState)
        signal, parts = extra.get("signal"), extra.get("parts")
        if parts is not None and self.mode != "parts":
            raise SignalError(
                f"attach: parts= was given in mode {self.mode!r}: attach(..., mode='parts')"
            )
        gradient, last = numbers(updates), state.schedule["rate"]
        fields, ready = self._observed(state, gradient, params, signal, parts)
        whole = require(self.schedule, fields, self.mode)
        rate, after = self.schedule.update(state.schedule, whole)
        after = select(jnp, ready, after, state.schedule)
        out, below = self.inner.update(updates, state.inner, params, **extra)
        factor, known = self._applied(jnp.where(ready, rate, last), below)
        plain, length = trees.space(last), state.step_length
        if "step_length" in self.reads:
            # Of the updates without their rate: the sum need not wait for the others, and over
            # shards all are one reduction.
            bare = numbers(out)
            length = jnp.abs(factor) * jnp.sqrt(plain.dot(bare, bare))
        out = trees.scaled(out, factor)
        moved = numbers(out)
        previous, trail, lead = state.previous, state.trail, state.lead
        if self.remembers:
            previous = trees.replaced(lambda _, g: g, previous, gradient)
        good = jnp.isfinite(plain.dot(gradient, gradient))
        if self.leads:
            keep = 1.0 - 1.0 / HORIZON
            lead = trees.replaced(lambda h, u: jnp.where(good, keep * h + u, h), lead, moved)
        if self.trails:
            trail = trees.replaced(lambda h, g: jnp.where(good, TRAIL * h + g, h), trail, gradient)
        return out, state._replace(
            schedule=after,
            record=self._noted(after, fields, known),
            known=ready,
            step_length=length,
            seen=jnp.ones_like(state.seen),
            previous=previous,
            trail=trail,
            lead=lead,
            inner=below,
        )

    def _observed(
        self,
        state: RateState,
        gradient: Leaves,
        params: Tree,
        signal: Signal | None,
        parts: Tree,
    ) -> tuple[Fields, Array]:
        """Return what was measured and told, and whether there was something to measure by."""
        like = state.schedule["rate"]
        metric, ready = None, jnp.ones((), bool)
        if self.own.moments is not None:
            metric, ready = weights(self.own.moments, state.inner, like)
        previous = trail = None
        if self.remembers:
            previous, ready = numbers(state.previous), ready & state.seen
        if self.trails:
            trail = numbers(state.trail)
        products = trees.space(like, metric)
        size = sum(leaf.size for leaf in gradient if leaf is not None)
        fields: Fields = {"step_length": state.step_length, "dim": size}
        fields |= measure(products, self.reads, gradient, previous=previous, trail=trail)
        if self.leads:
            fields |= self._led(state, gradient, params, fields)
        if parts is not None:
            fields |= compared(parts, products, like)
        fields |= self.told.usual | given(signal)
        self.told.require(fields)
        return fields, ready

    def _led(self, state: RateState, gradient: Leaves, params: Tree, fields: Fields) -> Fields:
        """Return the product with the weights' lead, and how long weights and steps are."""
        plain = trees.space(state.schedule["rate"])
        found: Fields = {"lead": plain.dot(gradient, numbers(state.lead))}
        if params is not None:
            weights = numbers(params)
            found["weights_sq"] = plain.dot(weights, weights)
        elif not self.relative:
            raise MissingSignal(
                f"{self.schedule.name} needs the weights: update(gradients, state, params)"
            )
        unit = self.own.base.rate if self.relative else 1.0
        if unit is not None:
            square = plain.dot(gradient, gradient)
            found["reach"] = reach(unit, self.normalises, square, float(fields["dim"]))
        return found

    def _applied(self, rate: Array, inner: Tree) -> tuple[Array, dict[str, Any]]:
        """Return what updates are multiplied by, and `rate` and `factor` of the record."""
        came, shown, scheduled = self.own.base.rate, injected(inner), self.own.scheduled
        now: Any = None if scheduled else came  # the optimizer's own rate at this update
        if shown is not None:
            now = jnp.asarray(shown, rate.dtype)
        factor = rate
        if not self.relative:
            base = now if shown is None else jnp.where(now == 0.0, 1.0, now)
            factor = rate / (came if scheduled else base)
        used: Any = rate
        if self.relative or scheduled:
            used = None if now is None else factor * now
        share = factor if self.relative and not scheduled else None
        if used is not None and came is not None:
            share = used / came
        return factor, {"rate": used, "factor": share}

    def _noted(self, state: State, fields: Fields, known: dict[str, Any]) -> dict[str, Array]:
        """Return what can be known of an update; `record` adds NaN for the rest."""
        seen = {name: fields[name] for name in fields if name in self.reads}
        every = _record(self.schedule, state, seen, **known)
        return {
            name: jnp.asarray(value, state["rate"].dtype)
            for name, value in every.items()
            if not (isinstance(value, float) and math.isnan(value))
        }


class ByShape:
    """Two rates around a transformation: which one it is, the parameters' shapes say."""

    def __init__(self, layer: Rate, network: Rate) -> None:
        self.layer, self.network = layer, network

    def transformation(self) -> optax.GradientTransformationExtraArgs:
        """Return both functions as Optax takes them."""
        return optax.GradientTransformationExtraArgs(self.init, self.update)

    def init(self, params: Tree) -> RateState:
        """Return the state before the first update."""
        shapes = [jnp.shape(leaf) for leaf in numbers(params) if leaf is not None]
        return (self.network if is_network(shapes) else self.layer).init(params)

    def update(
        self, updates: Tree, state: RateState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, RateState]:
        """Return the scaled updates and the next state; what the state is of, says the state."""
        long = getattr(state, "lead", ()) != ()
        return (self.network if long else self.layer).update(updates, state, params, **extra)
