"""The optimizer that lets a schedule set another one's rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from array_api_compat import array_namespace
from keras import ops

from driftrate.adapters import _observe
from driftrate.adapters._observe import TOLD, Fields, Policy
from driftrate.adapters.keras.config import decode, encode
from driftrate.adapters.keras.metric import is_adam_like, second_moments, space, weights
from driftrate.errors import ConfigError, SignalError, StateError
from driftrate.schedules.base import (
    HORIZON,
    TRAIL,
    Array,
    Schedule,
    Signal,
    State,
    map_state,
    select,
)


@keras.saving.register_keras_serializable(package="driftrate")
class ScheduledOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """A Keras optimizer and the schedule that sets its rate; `attach` makes it.

    Args:
        inner_optimizer: A fresh Keras optimizer with a number as its rate.
        schedule: The schedule, in the form that reads what the mode gives.
        mode: Where the signal comes from, as in `attach`.
        batch_size: B where an update is not told it.
        relative: Whether the schedule's rate is a factor on `base_rate`.
        base_rate: The rate that the inner optimizer came with; by default, the one that it has.
        metric: "plain" or "moments", as in `attach`.
        scheduler: A schedule that the rate is multiplied with, or None.
        network: The schedule's form for variables of more than one layer, where it has another.
        name: The optimizer's name.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        schedule: Schedule,
        mode: str | None = None,
        *,
        batch_size: float | None = None,
        relative: bool = False,
        base_rate: float | None = None,
        metric: str = "plain",
        scheduler: Any = None,
        network: Schedule | None = None,
        name: str | None = None,
    ) -> None:
        # The base class asks for a rate; what trains is the inner optimizer's.
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.schedule = schedule
        self.mode = mode
        self.relative = relative
        came = inner_optimizer.learning_rate.value if base_rate is None else base_rate
        self.base_rate = float(came)
        self.metric = metric
        self.scheduler = scheduler
        self.batch_size = batch_size
        self.network = network
        self._told = self._teller()

    @property
    def variables(self) -> list[keras.Variable]:
        """All state: the schedule's and the inner optimizer's."""
        return [*self._variables, *self.inner_optimizer.variables]

    @property
    def learning_rate(self) -> keras.Variable:
        """The rate of the last update; the schedule sets it, nobody else can."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: object) -> None:
        raise ConfigError(f"{self.schedule.name} sets the learning rate, it cannot be {value!r}")

    @property
    def iterations(self) -> Any:
        """How many updates there were."""
        return self.inner_optimizer.iterations

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Make the variables of the schedule and of the inner optimizer, for those of a model."""
        variables = list(variables)
        if not variables:
            raise ConfigError("attach: the optimizer has no variables to train")
        if self.inner_optimizer.built:
            raise ConfigError("attach: the optimizer has trained before: attach a new one")
        if self.network is not None and _observe.is_network(one.shape for one in variables):
            before, self.schedule = self._told.fields, self.network
            self._told = self._teller()
            self._told.fields = before
        # Half precision would round away slow changes of a schedule's state.
        wide = any(variable.dtype == "float64" for variable in variables)
        self._real = "float64" if wide else "float32"
        reads, told = self.schedule.signals, self._told.usual | self._told.fields
        self._stamp = self._number("stamp", _observe.stamp(self.schedule))
        self._state = map_state(lambda leaf: self._number("state", leaf), self.schedule._start())
        # What is told holds for the next update; NaN says that nothing was.
        self._next = {
            field: self._number(f"told_{field}", float(told.get(field, math.nan)))
            for field in reads
            if field in TOLD and (field in told or field not in self.schedule.optional)
        }
        self._last: Fields = {
            field: self._number(f"last_{field}", math.nan)
            for field in ("cross", "spread", "shift")
            if field in reads
        }
        self._length = self._number("step_length", 0.0)
        self._size = float(sum(math.prod(variable.shape) for variable in variables))
        self._deviations = self._number("deviations", 0.0)
        remembers = self.mode == "sequence" and {"cross", "spread"} & {*reads}
        self._trail, self._previous = (
            [self.add_variable_from_reference(one, name=name) for one in variables if kept]
            for name, kept in (("trail", "trail" in reads), ("previous_gradient", remembers))
        )
        # Not from a reference: a fiftieth of a step would be lost in half precision.
        self._average = [
            self.add_variable(one.shape, dtype=self._real, name="average")
            for one in variables
            if "lead" in reads
        ]
        self._begun = self._number("begun", 0.0)  # whether the average has
        self.inner_optimizer.build(variables)
        self._set_rate(ops.copy(self._state["rate"].value))
        super().build(variables)

    def apply(
        self, grads: Sequence[Array], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        """Set the rate from the gradients, then let the inner optimizer use both."""
        if trainable_variables is None:
            if not self.built:
                raise StateError("apply: build the optimizer, or pass its variables")
            trainable_variables = self._trainable_variables
        self._told.require(self._told.usual | self._told.fields)
        variables, grads = list(trainable_variables), list(grads)
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        if not self.inner_optimizer.gradient_accumulation_steps:
            self._told.take()  # the variables have it
        self._check_variables_are_known(variables)
        if all(grad is None for grad in grads):
            self.inner_optimizer.apply(grads, variables)  # which says that there is no gradient
            return
        updates = self._follow(grads, variables)
        walks = variables if "step_length" in self.schedule.signals else []
        before = [self._wide(ops.copy(variable.value)) for variable in walks]
        self.inner_optimizer.apply(grads, variables)
        if walks:
            moved = space().minus([self._wide(variable.value) for variable in walks], before)
            xp, length = array_namespace(*moved), self._length
            length.assign(xp.where(updates, xp.sqrt(space().dot(moved, moved)), length.value))

    def tell(self, **fields: float) -> None:
        """Say what the next update cannot measure, before training or between two batches.

        It holds for the next update alone. A step that needs a field and was not told it raises
        `MissingSignal` where Python runs it (the torch backend without accumulation, and where JAX
        traces it); a compiled step leaves state and rate as they were. In a callback of `fit`
        reach the optimizer through `self.model.optimizer`: on JAX that brings the variables up to
        date.

        Args:
            **fields: Any of `batch_size`, `shift`, `loss` and `loss_shift`, as numbers.

        Example:
            >>> import keras
            >>> import driftrate as dr
            >>> from driftrate.keras import attach
            >>> rate = dr.LinearRate(dim=2, noise_std=1.0)
            >>> optimizer = attach(keras.optimizers.SGD(), rate, batch_size=16)
            >>> optimizer.tell(shift=0.5)
            >>> weight = keras.Variable([2.0, 4.0])
            >>> optimizer.apply([keras.ops.convert_to_tensor([2.0, 4.0])], [weight])
            >>> optimizer.record["shift"]
            0.5
        """
        if self.built:
            late = sorted({*self.schedule.signals} & {*TOLD} & fields.keys() - self._next.keys())
            if late:
                raise SignalError(f"tell: {late} must be told before training, or in attach")
        self._told.tell(**fields)
        if self.built:
            for name in fields.keys() & self._next.keys():
                self._next[name].assign(fields[name])

    def notify_shift(
        self, policy: Policy = "reset", *, moments: Policy | None = None, decay: float = 0.5
    ) -> None:
        """Say that the data have shifted, and what to do with what was learned before.

        Call it between two batches, not between the micro-batches of one.

        Args:
            policy: For the schedule's state. "keep": nothing; "reset": it starts afresh; "decay":
                each number goes the share 1 - `decay` of its way back to where it started.
            moments: For the optimizer's moments, by default as `policy`; "reset" also starts its
                count of updates afresh.
            decay: What is left of the past, in [0, 1].

        Example:
            >>> import keras
            >>> import driftrate as dr
            >>> from driftrate.keras import attach
            >>> optimizer = attach(keras.optimizers.SGD(), dr.InverseTimeRate(0.5))
            >>> weight, gradient = keras.Variable([2.0]), keras.ops.ones(1)
            >>> for _ in range(5):
            ...     optimizer.apply([gradient], [weight])
            >>> optimizer.notify_shift("reset", moments="keep")
            >>> optimizer.apply([gradient], [weight])
            >>> optimizer.record["rate"]
            0.5
        """
        share, rest = _observe.policies(policy, moments, decay)
        if not self.built:
            return
        if share < 1.0:
            self._assign(_observe.blend(self._values(), self.schedule._start(), share))
        if rest < 1.0:
            self._forget(rest)

    @property
    def record(self) -> dict[str, float]:
        """The last update in numbers, for any logger; reads the device.

        `rate`: the learning rate that the optimizer used; `factor`: that over the rate that it
        came with; `signal`: the measured squared gradient (`cross`) and `noise`: the measured noise
        of the gradient (`spread`), both in the metric of `attach`; `shift`: the shift that was told
        or estimated. What is unknown is NaN.
        """
        if not self.built:
            return _observe.record(self.schedule, self.schedule._start(), {})
        rate = float(self.inner_optimizer.learning_rate.value)
        factor = rate / self.base_rate if self.base_rate else None
        found = _observe.record(self.schedule, self._state, self._last, rate, factor)
        return {name: float(getattr(value, "value", value)) for name, value in found.items()}

    def scale_loss(self, loss: Array) -> Array:
        """Return the loss times the inner optimizer's scale."""
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """Let the inner optimizer put its averages in place at the end of a `fit`."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Restore all variables, or refuse and leave them as they are."""
        if self.built:
            count, ours = len(store.keys()), self.variables
            if count == len(self.from_config(self.get_config()).variables):
                return  # saved before the first step: there is nothing to restore
            if count != len(ours):
                raise StateError(
                    f"the saved optimizer has {count} variables, this one with"
                    f" {self.schedule.name} has {len(ours)}: it is another one"
                )
            theirs = next(store[str(i)] for i, one in enumerate(ours) if one is self._stamp)
            if np.shape(theirs) != self._stamp.shape:
                raise StateError(f"the state is of another schedule than {self.schedule.name}")
            _observe.check_stamp(np.asarray(theirs), self.schedule)
        super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` makes an equal optimizer of."""
        write = keras.saving.serialize_keras_object
        plain = ("name", "mode", "batch_size", "relative", "base_rate", "metric")
        return {name: getattr(self, name) for name in plain} | {
            "inner_optimizer": write(self.inner_optimizer),
            "schedule": encode(self.schedule),
            "scheduler": write(self.scheduler),
            "network": None if self.network is None else encode(self.network),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Make an optimizer, without variables, from what `get_config` returned."""
        read = keras.saving.deserialize_keras_object
        made: dict[str, Any] = {
            name: read(config[name], custom_objects=custom_objects)
            for name in ("inner_optimizer", "scheduler")
        }
        for name in ("schedule", "network"):
            made[name] = None if config[name] is None else decode(config[name])
        return cls(**config | made)

    def _number(self, name: str, value: Any) -> keras.Variable:
        """Add a variable that starts at a value, exactly."""
        start = np.asarray(value)
        start = start.astype("int32" if start.dtype.kind == "i" else self._real)
        return self.add_variable(
            shape=start.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(start, dtype=dtype),
            dtype=start.dtype.name,
            name=name,
        )

    def _wide(self, tensor: Array) -> Array:
        return ops.cast(ops.stop_gradient(tensor), self._real)

    def _values(self) -> State:
        # Copies: torch would change the old state under the new one while it is assigned.
        return map_state(lambda one: ops.copy(one.value), self._state)

    def _assign(self, state: State) -> None:
        map_state(lambda one, leaf: one.assign(leaf), self._state, state)

    def _follow(self, grads: list[Array], variables: list[keras.Variable]) -> Array:
        """Step the schedule and set the rate; return whether this is a real update."""
        inner = self.inner_optimizer
        scale, steps = inner.loss_scale_factor or 1.0, inner.gradient_accumulation_steps or 1
        known = {
            self._get_variable_index(variable): self._wide(grad) / scale
            for grad, variable in zip(grads, variables, strict=True)
            if grad is not None
        }
        every = {
            place: variable
            for place, variable in enumerate(self._trainable_variables)
            if not getattr(variable, "overwrite_with_gradient", False)
        }

        def read(memory: list[keras.Variable]) -> list[Array]:
            return [self._wide(memory[place].value) for place in every] if memory else []

        # A missing gradient counts as 0.
        gradient = [
            known[place] if place in known else 0.0 * self._wide(variable.value)
            for place, variable in every.items()
        ]
        xp = array_namespace(*gradient)
        done = self._wide(inner._iterations.value % steps)
        count = self._wide(inner._iterations.value // steps)
        updates = done == steps - 1.0
        moments = self.metric == "moments"
        products = space(weights(inner, read(second_moments(inner)), count) if moments else None)
        if steps > 1:
            # The optimizer's own sums: a second set would cost a copy of the gradient.
            sums = read(inner._accumulated_gradients)
            before = xp.where(done > 0.0, done, 1.0)
            apart = products.minus(gradient, [one / before for one in sums])
            # Welford's sum of squares; the first part of a batch has nothing to deviate from.
            deviations = self._deviations.value + done / (done + 1.0) * products.dot(apart, apart)
            self._deviations.assign(xp.where(done > 0.0, deviations, 0.0 * deviations))
            gradient = [(grad + one) / steps for grad, one in zip(gradient, sums, strict=True)]
        fields: Fields = {"step_length": ops.copy(self._length.value), "dim": self._size}
        kept = {"previous": read(self._previous) or None, "trail": read(self._trail) or None}
        fields |= _observe.measure(products, self.schedule.signals, gradient, **kept)
        if self.mode == "accumulation":
            square = products.dot(gradient, gradient)
            fields |= _observe.of_parts(square, ops.copy(self._deviations.value), float(steps))
        ahead = self._led(fields, gradient, every) if self._average else {}
        compares = moments or bool(self._previous)
        self._step(fields, updates, updates & (count > 0.0) if compares else updates)
        good = updates & xp.isfinite(space().dot(gradient, gradient))
        for place, (slow, lead) in ahead.items():
            self._average[place].assign(xp.where(good, slow + lead / HORIZON, slow))
        self._begun.assign(xp.where(good, xp.ones_like(count), self._begun.value))
        for place, grad in zip(every, gradient, strict=True):
            if self._trail:
                self._keep(self._trail[place], TRAIL, grad, good)
            if self._previous:
                self._keep(self._previous[place], 0.0, grad, updates)
        return updates

    def _led(
        self, fields: Fields, gradient: list[Array], every: dict[int, keras.Variable]
    ) -> dict[int, tuple[Array, Array]]:
        """Measure the weights' lead and length; return their average and lead, by place."""
        xp, plain, inner = array_namespace(*gradient), space(), self.inner_optimizer
        weights = [self._wide(variable.value) for variable in every.values()]
        # When the average begins, not when it is built: weights may be loaded in between.
        averages = [
            xp.where(self._begun.value > 0.0, self._average[place].value, weight)
            for place, weight in zip(every, weights, strict=True)
        ]
        ahead = plain.minus(weights, averages)
        fields["lead"] = plain.dot(gradient, ahead)
        fields["weights_sq"] = plain.dot(weights, weights)
        if is_adam_like(inner) or isinstance(inner, keras.optimizers.SGD):
            unit = self.base_rate if self.relative else 1.0
            square = plain.dot(gradient, gradient)
            fields["reach"] = _observe.reach(unit, is_adam_like(inner), square, self._size)
        return dict(zip(every, zip(averages, ahead, strict=True), strict=True))

    def _teller(self) -> _observe.Told:
        how = "optimizer.tell({name}=...) before each step"
        return _observe.Told(self.schedule, self.batch_size, how=how)

    def _keep(self, memory: keras.Variable, share: float, gradient: Array, commits: Array) -> None:
        """Let h ← share·h + g where `commits`."""
        xp, old = array_namespace(gradient), self._wide(memory.value)
        new = share * old + gradient if share else gradient
        memory.assign(ops.cast(xp.where(commits, new, old), memory.dtype))

    def _step(self, fields: Fields, updates: Array, commits: Array) -> None:
        """Give the schedule what was measured and told; keep what comes of it where `commits`."""
        old, xp = self._values(), array_namespace(updates)
        fields |= {name: ops.copy(one.value) for name, one in self._next.items()}
        reads = {name: fields[name] for name in self.schedule.signals if name in fields}
        state = select(xp, commits, self.schedule.update(old, Signal(**reads))[1], old)
        self._assign(state)
        for name, last in self._last.items():
            value = xp.where(commits, fields[name], xp.full_like(fields[name], math.nan))
            last.assign(xp.where(updates, value, last.value))
        for name, told in self._next.items():
            usual = xp.full_like(fields[name], self._told.usual.get(name, math.nan))
            told.assign(xp.where(updates, usual, fields[name]))
        self._set_rate(state["rate"])

    def _set_rate(self, rate: Array) -> None:
        """Turn the schedule's rate into the optimizer's."""
        rate = rate * self.base_rate if self.relative else rate
        if self.scheduler is not None:
            count = self.inner_optimizer.iterations
            rate = rate * self._wide(self.scheduler(count) / self.scheduler(0))
        self.inner_optimizer.learning_rate = rate

    def _forget(self, share: float) -> None:
        """Move the inner optimizer's moments back to where they started."""
        inner = self.inner_optimizer
        twin = inner.from_config(inner.get_config())
        twin.build(self._trainable_variables)
        others = [inner.learning_rate, inner._iterations]
        for name in ("_accumulated_gradients", "_model_variables_moving_average"):
            others += getattr(inner, name, [])
        for variable, first in zip(inner.variables, twin.variables, strict=True):
            if not any(variable is one for one in others):
                variable.assign(_observe.mixed(variable.value, first.value, share))
        if share == 0.0:
            inner._iterations.assign(0)
