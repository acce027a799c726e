"""Keras 3: an optimizer whose rate follows the shift, on the torch and JAX backends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Self, get_args
from zlib import crc32

import numpy as np
from array_api_compat import array_namespace

from driftrate import estimate
from driftrate.adapters._observe import Policy, capped, check_policy, is_factor
from driftrate.errors import ConfigError, MissingDependency, MissingSignal, SignalError, StateError
from driftrate.estimate import Estimated
from driftrate.schedules.base import (
    TRAIL,
    Array,
    Estimator,
    Rule,
    Schedule,
    Signal,
    State,
    registry,
    select,
)
from driftrate.schedules.wrappers import Wrapper

try:
    import keras
    from keras import ops
except ImportError as error:
    hint = "pip install 'driftrate[keras]', with KERAS_BACKEND=torch or KERAS_BACKEND=jax set"
    raise MissingDependency(f"driftrate.keras needs {error.name}: {hint}") from error

__all__ = ["RecordRate", "ScheduledOptimizer", "attach"]

VERSION = 1  # of the optimizer's variables
Mode = Literal["sequence", "accumulation"]
_ALWAYS = ("step_length", "grad_sq", "dim", "trail")
# What each mode measures; what nobody can measure is told.
_MEASURES: dict[str | None, tuple[str, ...]] = {
    "sequence": (*_ALWAYS, "cross", "spread"),
    "accumulation": (*_ALWAYS, "parts", "cross", "spread"),
    None: _ALWAYS,
}
_TOLD = ("batch_size", "shift", "loss", "loss_shift")


def attach(
    optimizer: keras.optimizers.Optimizer,
    schedule: Schedule,
    *,
    mode: Mode | None = None,
    batch_size: float | None = None,
    relative: bool | None = None,
) -> ScheduledOptimizer:
    r"""Let a schedule drive a Keras optimizer; hand the result to `model.compile`.

    Before each update the schedule sees the gradient and sets `optimizer.learning_rate` for that
    very update. It sees the gradient as the loss gives it, before the optimizer clips it, and
    freed of a loss scale. By mode, `cross` and `spread` come from

    - "sequence": the gradients g_{t-1} and g_t of two successive updates, whose noises are
      independent: cross = ⟨g_t, g_{t-1}⟩, spread = ‖g_t - g_{t-1}‖²/2, the noise of one gradient.
      Nothing to do. Keeps a copy of the last gradient. The first update has none to compare with:
      the schedule stands still and the rate that it starts from is used.
    - "accumulation": the micro-batches of an optimizer with `gradient_accumulation_steps=k`, k >=
      2, which are k independent parts of one batch. To split a batch of 64 in two, `fit` with
      batches of 32 and k = 2: no second backward pass, and no gradient is kept that the optimizer
      does not keep anyway. Keras shows an optimizer no samples, so it cannot split a batch itself.

    In every mode `grad_sq`, `trail`, `dim` and `step_length` (how far the last update moved the
    weights) are measured where the schedule reads them; for `trail` one gradient is kept. With
    `gradient_accumulation_steps` the schedule steps on real updates alone. A signal that is not
    finite leaves the schedule's state and rate as they were.

    All state is in Keras variables: a `.keras` file holds it and restores it bit by bit, `fit`
    goes on where the last `fit` ended. Import `driftrate.keras` before `load_model`.

    Args:
        optimizer: A fresh Keras optimizer.
        schedule: Any schedule of driftrate. What it reads and no mode can measure (`shift`, `loss`,
            `loss_shift`) is told by `ScheduledOptimizer.tell`.
        mode: Where the signal comes from; by default "sequence" for schedules that read `cross` or
            `spread`, else nothing is measured.
        batch_size: B, for schedules that read it; with accumulation that of all k micro-batches.
        relative: Whether the schedule's rate is a factor on the rate that the optimizer came with;
            one with `max_rate=None` then gets 1, `MeasuredRate` `relative=True`, which lowers a
            rate that is too high. None: True for schedules with no `max_rate` that measure products
            of gradients under an optimizer other than plain SGD, whose steps are not rate times
            gradient; else False. So `MeasuredRate()` measures the
            curvature under SGD and multiplies the rate of Adam by the measured factor, 0 to 1;
            `MeasuredRate(max_rate=lr)` is `lr` times it under any.

    Returns:
        The optimizer to train with.

    Example:
        >>> import keras
        >>> import driftrate as dr
        >>> rate = dr.Estimated(dr.LinearRate(dim=8, noise_std=1.0), dr.estimate.DebiasedShift())
        >>> sgd = keras.optimizers.SGD(gradient_accumulation_steps=2)
        >>> optimizer = attach(sgd, rate, mode="accumulation", batch_size=64)
        >>> optimizer.mode
        'accumulation'
    """
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"attach: schedule must be a Schedule, got {schedule!r}")
    products = not {"cross", "spread", "trail"}.isdisjoint(schedule.signals)
    if mode is None and products:
        mode = "sequence"
    if relative is None:
        plain = isinstance(optimizer, keras.optimizers.SGD) and not optimizer.momentum
        relative = products and is_factor(schedule, plain)
    told = {} if batch_size is None else {"batch_size": batch_size}
    return ScheduledOptimizer(
        optimizer, capped(schedule) if relative else schedule, mode, told, relative=relative
    )


@keras.saving.register_keras_serializable(package="driftrate")
class ScheduledOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """A Keras optimizer and the schedule that sets its rate; `attach` makes it.

    Args:
        inner_optimizer: A fresh Keras optimizer.
        schedule: Any schedule of driftrate.
        mode: Where the signal comes from, as in `attach`.
        told: Fields of `Signal` that no mode measures.
        relative: Whether the schedule's rate is a factor on `base_rate`.
        base_rate: The rate that the inner optimizer came with; by default, the one that it has.
        name: The optimizer's name.

    Example:
        >>> import keras
        >>> import driftrate as dr
        >>> optimizer = attach(keras.optimizers.SGD(), dr.ConstantRate(0.5))
        >>> optimizer.build([keras.Variable([2.0])])
        >>> optimizer.record
        {'rate': 0.5}
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        schedule: Schedule,
        mode: Mode | None = None,
        told: Mapping[str, float] | None = None,
        *,
        relative: bool = False,
        base_rate: float | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(schedule, Schedule) and mode in _MEASURES:
            # The sequence's `cross` is of two batches, not of parts of one.
            found = _ALWAYS if mode == "sequence" else _MEASURES[mode]
            schedule = schedule.reading((*_TOLD, *found))
        _check(inner_optimizer, schedule, mode)
        told = dict(told or {})
        _check_told(schedule, told)
        # The base class asks for a rate; what trains is the inner optimizer's.
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.schedule = schedule
        self.mode = mode
        self.relative = relative
        if base_rate is None:
            base_rate = float(inner_optimizer.learning_rate.value)
        self.base_rate = base_rate
        self._told = told

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
        """Make the variables of the schedule and of the inner optimizer.

        Args:
            variables: The trainable variables of the model.
        """
        variables = list(variables)
        if not variables:
            raise ConfigError("attach: the optimizer has no variables to train")
        if self.inner_optimizer.built:
            raise ConfigError("attach: the optimizer has trained before: attach a new one")
        # Half precision would round away slow changes of a schedule's state.
        wide = any(variable.dtype == "float64" for variable in variables)
        self._real = "float64" if wide else "float32"
        self._stamp = self._number("stamp", _stamp(self.schedule), "int32")
        self._state = {
            path: self._number(path, leaf, "int32" if isinstance(leaf, int) else self._real)
            for path, leaf in _flat(self.schedule._start())
        }
        self._seen = {
            field: self._number(f"signal_{field}", self._told.get(field, 0.0), self._real)
            for field in self.schedule.signals
            if field in _MEASURES[self.mode] or field in self._told
        }
        if "dim" in self._seen:
            self._seen["dim"].assign(float(sum(math.prod(v.shape) for v in variables)))
        self._deviations = self._number("deviations", 0.0, self._real)
        remembers = self.mode == "sequence" and {"cross", "spread"} & {*self.schedule.signals}
        self._trail = [
            self.add_variable_from_reference(variable, name="trail")
            for variable in (variables if "trail" in self._seen else ())
        ]
        self._previous = [
            self.add_variable_from_reference(variable, name="previous_gradient")
            for variable in (variables if remembers else ())
        ]
        self.inner_optimizer.build(variables)
        super().build(variables)

    def apply(
        self,
        grads: Sequence[Array],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Set the rate from the gradients, then let the inner optimizer use both.

        Args:
            grads: One gradient a variable, None where there is none.
            trainable_variables: The variables; None for those that the optimizer was built with.
        """
        if trainable_variables is None:
            if not self.built:
                raise StateError("apply: build the optimizer, or pass its variables")
            trainable_variables = self._trainable_variables
        for name in self.schedule.signals:
            if name in _TOLD and name not in self._told and name not in self.schedule.optional:
                raise MissingSignal(
                    f"{self.schedule.name} needs {name}: call optimizer.tell({name}=...) before"
                    f" training{', or attach(batch_size=...)' if name == 'batch_size' else ''}"
                )
        variables = list(trainable_variables)
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        self._check_variables_are_known(variables)
        updates = self._follow(list(grads), variables)
        before = []
        if "step_length" in self._seen:
            before = [ops.copy(variable.value) for variable in variables]
        self.inner_optimizer.apply(grads, variables)
        if before:
            moved = [
                self._wide(variable.value) - self._wide(old)
                for variable, old in zip(variables, before, strict=True)
            ]
            length, xp = self._seen["step_length"], array_namespace(*moved)
            length.assign(xp.where(updates, xp.sqrt(_dot(moved, moved)), length.value))

    def tell(self, **fields: float) -> None:
        """Say what the schedule cannot measure, before training or between two batches.

        It stays said until it is told anew. In a callback of `fit` reach the optimizer through
        `self.model.optimizer`: on JAX that brings the variables up to date.

        Args:
            **fields: Any of `batch_size`, `shift`, `loss` and `loss_shift`, as numbers.

        Example:
            >>> import keras
            >>> import driftrate as dr
            >>> rate = dr.LinearRate(dim=2, noise_std=1.0)
            >>> optimizer = attach(keras.optimizers.SGD(), rate, batch_size=16)
            >>> optimizer.tell(shift=0.5)
            >>> weight = keras.Variable([2.0, 4.0])
            >>> optimizer.apply([keras.ops.convert_to_tensor([2.0, 4.0])], [weight])
            >>> optimizer.record["shift"]
            0.5
        """
        _check_told(self.schedule, fields)
        late = (
            sorted({*self.schedule.signals} & fields.keys() - self._seen.keys())
            if self.built
            else []
        )
        if late:
            raise SignalError(f"tell: {late} must be told before training, or in attach")
        self._told.update(fields)
        if self.built:
            for name in fields.keys() & self._seen.keys():
                self._seen[name].assign(fields[name])

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
            >>> optimizer = attach(keras.optimizers.SGD(), dr.InverseTimeRate(0.5))
            >>> weight, gradient = keras.Variable([2.0]), keras.ops.ones(1)
            >>> for _ in range(5):
            ...     optimizer.apply([gradient], [weight])
            >>> optimizer.notify_shift("reset", moments="keep")
            >>> optimizer.apply([gradient], [weight])
            >>> optimizer.record["rate"]
            0.5
        """
        chosen = policy if moments is None else moments
        check_policy(decay, policy, chosen)
        if not self.built:
            return
        if policy != "keep":
            for path, first in _flat(self.schedule._start()):
                _move(self._state[path], first, 0.0 if policy == "reset" else decay)
        if chosen != "keep":
            self._forget(0.0 if chosen == "reset" else decay)

    @property
    def record(self) -> dict[str, float]:
        """The last update in numbers, for any logger; reads the device.

        `rate`: the rate that the schedule gave; `signal`: the measured squared gradient (`cross`);
        `noise`: the measured noise of the gradient (`spread`); `shift`: the shift that was told or
        estimated. What the schedule does not read is not there.
        """
        if not self.built:
            return {}
        known = {"signal": "cross", "noise": "spread", "shift": "shift"}
        read = {name: self._seen[field] for name, field in known.items() if field in self._seen}
        schedule, prefix = self.schedule, ""
        while isinstance(schedule, Wrapper):
            if isinstance(schedule, Estimated) and schedule.estimator.provides == "shift":
                read["shift"] = self._state[f"{prefix}estimator.estimate"]
            schedule, prefix = schedule.schedule, f"{prefix}inner."
        read = {"rate": self._state["rate"], **read}
        return {name: float(variable.value) for name, variable in read.items()}

    def scale_loss(self, loss: Array) -> Array:
        """Return the loss times the inner optimizer's scale."""
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """Let the inner optimizer put its averages in place at the end of a `fit`."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Restore all variables, or refuse and leave them as they are.

        Args:
            store: What `save_own_variables` wrote.
        """
        if self.built:
            if len(store.keys()) == len(self.from_config(self.get_config()).variables):
                return  # saved before the first step: there is nothing to restore
            if len(store.keys()) != len(self.variables):
                raise StateError(
                    f"the saved optimizer has {len(store.keys())} variables, this one with"
                    f" {self.schedule.name} has {len(self.variables)}: it is another one"
                )
            place = next(i for i, v in enumerate(self.variables) if v is self._stamp)
            theirs, ours = np.asarray(store[str(place)]), _stamp(self.schedule)
            if theirs.shape != ours.shape or theirs[1] != ours[1]:
                raise StateError(f"the state is of another schedule than {self.schedule.name}")
            if theirs[0] != ours[0]:
                raise StateError(
                    f"the state of {self.schedule.name} is of version {theirs[0]}; this driftrate"
                    f" reads version {ours[0]}"
                )
        super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` makes an equal optimizer of."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "schedule": _encode(self.schedule),
            "mode": self.mode,
            "told": dict(self._told),
            "relative": self.relative,
            "base_rate": self.base_rate,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Make an optimizer from what `get_config` returned.

        Args:
            config: The configuration.
            custom_objects: Classes by name, for an inner optimizer of the user's own.

        Returns:
            The optimizer, without variables.
        """
        inner = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        schedule: Any = _decode(config["schedule"])
        return cls(**{**config, "inner_optimizer": inner, "schedule": schedule})

    def _number(self, name: str, value: Any, dtype: str) -> keras.Variable:
        """Add a variable that starts at a value, exactly."""
        start = np.asarray(value, dtype)
        return self.add_variable(
            shape=start.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(start, dtype=dtype),
            dtype=dtype,
            name=name,
        )

    def _wide(self, tensor: Array) -> Array:
        return ops.cast(ops.stop_gradient(tensor), self._real)

    def _follow(self, grads: list[Array], variables: list[keras.Variable]) -> Array:
        """Step the schedule and set the rate; return whether this is a real update."""
        inner = self.inner_optimizer
        scale, steps = inner.loss_scale_factor or 1.0, inner.gradient_accumulation_steps or 1
        there = [
            (self._get_variable_index(variable), self._wide(grad) / scale)
            for grad, variable in zip(grads, variables, strict=True)
            if grad is not None and not getattr(variable, "overwrite_with_gradient", False)
        ]
        places, gradient = [place for place, _ in there], [grad for _, grad in there]
        xp, found = array_namespace(*gradient), {}
        done = self._wide(inner._iterations.value % steps)
        updates = commits = done == steps - 1.0
        if steps > 1:
            # The optimizer's own sums: a second set would cost a copy of the gradient.
            sums = [self._wide(inner._accumulated_gradients[place].value) for place in places]
            apart = _minus(gradient, [one / xp.where(done > 0.0, done, 1.0) for one in sums])
            # Welford's sum of squares; the first part of a batch has nothing to deviate from.
            deviations = self._deviations.value + done / (done + 1.0) * _dot(apart, apart)
            deviations = xp.where(done > 0.0, deviations, 0.0 * deviations)
            self._deviations.assign(deviations)
            gradient = [(grad + one) / steps for grad, one in zip(gradient, sums, strict=True)]
        if not {"grad_sq", "cross", "trail"}.isdisjoint(self._seen):
            found["grad_sq"] = _dot(gradient, gradient)
        if self._trail:
            trail = [self._wide(self._trail[place].value) for place in places]
            found["trail"] = _dot(trail, gradient)
            self._lengthen(
                dict(zip(places, gradient, strict=True)), updates & xp.isfinite(found["grad_sq"])
            )
        if self.mode == "accumulation":
            found["parts"] = xp.full_like(done, float(steps))
            found["spread"] = deviations / (steps * (steps - 1.0))
            if "cross" in self._seen:
                found["cross"] = found["grad_sq"] - found["spread"]
        elif self._previous:
            previous = [self._wide(self._previous[place].value) for place in places]
            apart = _minus(gradient, previous)
            found |= {"cross": _dot(previous, gradient), "spread": 0.5 * _dot(apart, apart)}
            commits = updates & (inner._iterations.value >= steps)
            for place, grad in zip(places, gradient, strict=True):
                memory = self._previous[place]
                memory.assign(xp.where(updates, ops.cast(grad, memory.dtype), memory.value))
        self._step(found, commits)
        return updates

    def _lengthen(self, gradient: dict[int, Array], commits: Array) -> None:
        """Let h ← 0.9 h + g on real updates; where there is no gradient it is 0."""
        xp = array_namespace(commits)
        for place, memory in enumerate(self._trail):
            old = self._wide(memory.value)
            new = TRAIL * old + gradient[place] if place in gradient else TRAIL * old
            memory.assign(ops.cast(xp.where(commits, new, old), memory.dtype))

    def _step(self, found: dict[str, Array], commits: Array) -> None:
        """Give the schedule what was found and told; keep what comes of it where `commits`."""
        for name in self._seen.keys() & found.keys():
            self._seen[name].assign(found[name])
        # Copies: torch would change the old state under the new one while it is assigned.
        old = _nested({path: ops.copy(one.value) for path, one in self._state.items()})
        told = {name: ops.copy(one.value) for name, one in self._seen.items()}
        _, new = self.schedule.update(old, Signal(**told))
        state = dict(_flat(select(array_namespace(old["rate"]), commits, new, old)))
        for path, variable in self._state.items():
            variable.assign(state[path])
        factor = self.base_rate if self.relative else 1.0
        self.inner_optimizer.learning_rate = state["rate"] * factor

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
                _move(variable, first.value, share)
        if share == 0.0:
            inner._iterations.assign(0)


class RecordRate(keras.callbacks.Callback):  # type: ignore[misc]
    """Keep the rate and the signal of every batch that `fit` trains on.

    Reads a few numbers from the device each batch; on JAX that also brings the model's variables
    up to date each time.

    Example:
        >>> import keras, numpy as np
        >>> import driftrate as dr
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile(attach(keras.optimizers.SGD(), dr.InverseTimeRate(0.5)), loss="mse")
        >>> rates = RecordRate()
        >>> x = np.ones((8, 1), "float32")
        >>> _ = model.fit(x, x, batch_size=4, verbose=0, callbacks=[rates])
        >>> rates.history
        {'rate': [0.5, 0.25]}
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {}

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Append what `ScheduledOptimizer.record` says."""
        optimizer = self.model.optimizer
        while not isinstance(optimizer, ScheduledOptimizer):
            if not hasattr(optimizer, "inner_optimizer"):
                raise ConfigError(f"RecordRate: {optimizer!r} is not attached to a schedule")
            optimizer = optimizer.inner_optimizer
        for name, value in optimizer.record.items():
            self.history.setdefault(name, []).append(value)


def _check(optimizer: Any, schedule: Any, mode: str | None) -> None:
    """Refuse what cannot work, before anything is touched."""
    if keras.backend.backend() not in ("torch", "jax"):
        raise ConfigError(
            f"driftrate.keras needs the torch or jax backend, not {keras.backend.backend()}: set"
            " KERAS_BACKEND before Keras is imported"
        )
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"attach: schedule must be a Schedule, got {schedule!r}")
    if mode not in _MEASURES:
        raise ConfigError(f"attach: mode must be one of {get_args(Mode)}, got {mode!r}")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(f"attach: optimizer must be a Keras optimizer, got {optimizer!r}")
    kind = type(optimizer).__name__
    if isinstance(optimizer, ScheduledOptimizer):
        raise ConfigError(f"attach: the optimizer already follows {optimizer.schedule.name}")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigError(
            "attach: gradients inside a LossScaleOptimizer are scaled: put it outside,"
            " LossScaleOptimizer(attach(optimizer, schedule))"
        )
    if optimizer.built:
        raise ConfigError("attach: the optimizer has trained before: attach a new one")
    if not isinstance(optimizer.learning_rate, keras.Variable):
        raise ConfigError(
            f"attach: two schedules for one rate: give {kind} a number as its learning_rate"
        )
    if mode == "accumulation" and (optimizer.gradient_accumulation_steps or 1) < 2:
        raise ConfigError(
            f'attach: mode="accumulation" needs {kind}(gradient_accumulation_steps=2) or more, and'
            ' smaller batches; else use mode="sequence"'
        )
    lacking = sorted({*schedule.signals} - {*_TOLD} - {*_MEASURES[mode]} - schedule.optional)
    if lacking:
        able = [m for m in get_args(Mode) if {*lacking} <= {*_MEASURES[m]}]
        raise MissingSignal(
            f'{schedule.name} needs {lacking}, which mode="{mode}" cannot give: use '
            + " or ".join(f'mode="{one}"' for one in able)
        )


def _check_told(schedule: Schedule, fields: Mapping[str, float]) -> None:
    """Let the schedule itself check what it is told; on tensors it could only hold still."""
    unknown = sorted(fields.keys() - {*_TOLD})
    if unknown:
        raise SignalError(f"tell: {unknown} cannot be told, only {sorted(_TOLD)} can")
    known = fields.keys() & {*schedule.signals}
    signal = dict.fromkeys(schedule.signals, 2.0) | {name: fields[name] for name in known}
    schedule.update(schedule.init(), Signal(**signal))


def _move(variable: keras.Variable, first: Array, share: float) -> None:
    """Leave the share of a variable's value, and let the rest be where it started."""
    if share == 0.0:
        variable.assign(first)  # not a product: NaN times 0 would stay
    else:
        old = ops.cast(variable.value, "float32" if "int" in variable.dtype else variable.dtype)
        variable.assign(ops.cast(share * old + (1.0 - share) * first, variable.dtype))


def _stamp(schedule: Schedule) -> Any:
    # Numbers, because variables hold no strings; 31 bits, because int32 is known everywhere.
    mark = crc32(f"{schedule.name} {schedule.version}".encode()) & 0x7FFFFFFF
    return np.array([VERSION, mark], np.int32)


def _flat(state: State, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Walk over the leaves of a nested state, as `inner.rate`."""
    for key, leaf in state.items():
        if isinstance(leaf, dict):
            yield from _flat(leaf, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", leaf


def _nested(leaves: dict[str, Any]) -> State:
    """Undo `_flat`."""
    state: State = {}
    for path, leaf in leaves.items():
        *above, key = path.split(".")
        node = state
        for name in above:
            node = node.setdefault(name, {})
        node[key] = leaf
    return state


def _minus(a: list[Array], b: list[Array]) -> list[Array]:
    # Subtract before squaring: a difference of squares would drown in rounding.
    return [x - y for x, y in zip(a, b, strict=True)]


def _dot(a: list[Array], b: list[Array]) -> Array:
    """Return ⟨a, b⟩ over all tensors of two lists."""
    # Not keras.ops.sum: some of these turn double precision into single.
    xp = array_namespace(*a)
    products = [xp.sum(x * y) for x, y in zip(a, b, strict=True)]
    return sum(products[1:], products[0])


def _encode(rule: Rule) -> dict[str, Any]:
    """Write a schedule's constants for JSON."""
    constants = {field.name: getattr(rule, field.name) for field in fields(rule)}  # type: ignore[arg-type]
    return {
        "rule": type(rule).__name__,
        "constants": {
            name: _encode(value)
            if isinstance(value, Rule)
            else list(value)
            if isinstance(value, tuple)
            else value
            for name, value in constants.items()
        },
    }


def _decode(saved: Mapping[str, Any]) -> Rule:
    """Make a schedule or estimator; a file must not choose which module is imported."""
    known: dict[str, type[Rule]] = dict(registry())
    for value in vars(estimate).values():
        if isinstance(value, type) and issubclass(value, Estimator):
            known[value.__name__] = value
    if saved["rule"] not in known:
        raise StateError(
            f"the saved optimizer follows {saved['rule']!r}, which is not a registered schedule"
        )
    return known[saved["rule"]](
        **{
            name: _decode(value)
            if isinstance(value, dict)
            else tuple(value)
            if isinstance(value, list)
            else value
            for name, value in saved["constants"].items()
        }
    )
