"""`Pursuit` as a Keras optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from array_api_compat import array_namespace
from keras import ops

from driftrate.adapters import _pursuit as law
from driftrate.adapters._observe import check_version
from driftrate.errors import ConfigError, StateError
from driftrate.schedules.base import Array

# Bits of the exponent and of the mantissa.
_SHORT = {"bfloat16": (8, 7), "float16": (5, 10)}


@keras.saving.register_keras_serializable(package="driftrate")
class Pursuit(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Steps that follow a moving target, with a rate a tensor that finds itself.

    A fast point takes the steps of an AdaGrad that forgets, without momentum,

        v ← k v + g²,    Δ = -lr · 0.3 · s · c · g/√v,

    measured by the size s that the variable has when the optimizer is built, and by a rate c that
    follows the derivative of the loss by its own logarithm over the last 300 steps. Variables lie
    between the fast point and its slow average, a share of the way back that follows its own
    derivative. The same steps as `driftrate.torch.Pursuit`; state is float32 (float64 for float64
    variables), and what 16-bit variables drop is added to their next step. Coordinates of a
    gradient that are not finite are skipped.

    Args:
        learning_rate: A multiplier of all steps, or a schedule of Keras; 1 is meant to be right.
        weight_decay: What a matrix loses of itself while it could move by its own size: a step
            takes `weight_decay` · lr · ρ of it, ρ = 0.03 min(c, 1) the relative length of a
            step. Vectors do not decay, nor does what has no gradient or is named by
            `exclude_from_weight_decay`.
        **options: As of every Keras optimizer: `clipnorm`, `use_ema`,
            `gradient_accumulation_steps`, `loss_scale_factor`, `name` and the like.

    Example:
        >>> import keras, numpy as np
        >>> x = np.random.default_rng(0).standard_normal((64, 2))
        >>> dense = keras.layers.Dense(1, kernel_initializer="zeros")
        >>> model = keras.Sequential([keras.Input((2,)), dense])
        >>> model.compile(Pursuit(), loss="mse")
        >>> history = model.fit(x, x @ [1.0, -2.0], batch_size=64, epochs=100, verbose=0)
        >>> bool(history.history["loss"][-1] < 0.1)
        True

    Reference:
        Duchi, Hazan and Singer (2011), "Adaptive subgradient methods"; Sutton (1992), "Adapting
        bias by gradient descent".
    """

    def __init__(
        self,
        learning_rate: Any = 1.0,
        weight_decay: float = law.WEIGHT_DECAY,
        **options: Any,
    ) -> None:
        for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
            if isinstance(value, int | float) and not 0.0 <= value < float("inf"):
                raise ConfigError(f"Pursuit: {name} must be finite and not negative, got {value!r}")
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **options)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Make the state, for the variables of a model as they are now."""
        if self.built:
            return
        variables = list(variables)
        super().build(variables)
        scales = [law.scale(np, one.shape, _rms(one)) for one in variables]
        scales = law.settle(np, scales, [math.prod(one.shape) for one in variables])
        self._laws, self._squares, self._trails, self._leads, self._rests = [], [], [], [], []
        for one, scale in zip(variables, scales, strict=True):
            first = law.Law.start(scale).stacked(np)
            self._laws.append(self._add(one, "law", _wide(one), first))
            self._squares.append(self._add(one, "square", _wide(one)))
            self._trails.append(self._add(one, "trail", _wide(one)))
            self._leads.append(self._add(one, "lead", _wide(one)))
            short = one.dtype in _SHORT
            self._rests.append(self._add(one, "rest", one.dtype) if short else None)

    def _backend_apply_gradients(
        self, grads: Sequence[Array], trainable_variables: Sequence[keras.Variable]
    ) -> None:
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            shape, place = tuple(variable.value.shape), self._get_variable_index(variable)
            kept = (one[place].value for one in (self._squares, self._trails, self._leads))
            for one in (gradient, *kept):
                if tuple(one.shape) != shape:
                    raise StateError(
                        f"Pursuit: {variable.path} is of shape {shape}, its gradient or state of"
                        f" {tuple(one.shape)}: compile a model that has grown with a new Pursuit"
                    )
        super()._backend_apply_gradients(grads, trainable_variables)

    def update_step(self, gradient: Array, variable: keras.Variable, learning_rate: Array) -> None:
        """Move one variable."""
        place = self._get_variable_index(variable)
        kept = (self._laws, self._squares, self._trails, self._leads)
        numbers, square, trail, lead = (x[place] for x in kept)
        rest, kind = self._rests[place], square.dtype
        now = self._read(numbers)
        xp = array_namespace(square.value)
        rate = ops.cast(learning_rate, kind)
        decays = len(variable.shape) > 1 and self._use_weight_decay(variable)
        whole = wide = ops.cast(ops.stop_gradient(variable.value), kind)
        if rest is not None:
            whole = law.whole(xp, wide, ops.cast(rest.value, kind), 2.0 ** -_SHORT[rest.dtype][1])
        factors = law.factors(xp, now, rate, self.weight_decay if decays else 0.0)
        moved, after, trailing, leading, signals = law.move(
            xp,
            whole,
            ops.cast(gradient, kind),
            square.value,
            trail.value,
            lead.value,
            **{name: factors[i] for i, name in enumerate(law.FACTORS)},
        )
        then = law.follow(xp, now, signals[0], signals[1])
        square.assign(after)
        trail.assign(trailing)
        lead.assign(leading)
        numbers.assign(then.stacked(xp))
        if rest is not None:
            # The rest is rounded too: with it a weight that stays could round to its neighbour.
            kept = xp.where(moved == whole, wide, _rounded(moved, rest.dtype))
            dropped = ops.cast(moved - kept, rest.dtype)
            rest.assign(xp.where(moved == whole, rest.value, dropped))
            moved = kept
        variable.assign(ops.cast(moved, variable.dtype))

    def save_own_variables(self, store: Any) -> None:
        """Save the state, with the version of its form."""
        super().save_own_variables(store)
        store["version"] = np.array(law.VERSION)

    def load_own_variables(self, store: Any) -> None:
        """Take over a saved state, after a look at each of its variables."""
        saved = {name: np.asarray(store[name]) for name in store.keys()}  # noqa: SIM118  no dict
        check_version(int(saved.pop("version", 1)), "state", law.VERSION)
        if self.built and len(saved) != len(self.variables):
            raise StateError(
                f"Pursuit: the saved state has {len(saved)} variables, that of this model has"
                f" {len(self.variables)}: load that of the same model"
            )
        for place, one in enumerate(self.variables if self.built else ()):
            new = saved[str(place)]
            if (new.shape, str(new.dtype)) != (tuple(one.shape), one.dtype):
                raise StateError(
                    f"Pursuit: the saved {one.path} is {new.dtype}{new.shape}, not"
                    f" {one.dtype}{tuple(one.shape)}: load the state of the same model"
                )
            new = new.astype(np.float64)
            good = law.sound(np, law.Law(*new)) if _has(self._laws, one) else np.isfinite(new).all()
            if not good or (_has(self._squares, one) and (new < 0).any()):
                raise StateError(
                    f"Pursuit: the saved {one.path} holds a number that is not finite or below 0:"
                    " load a state of before"
                )
        super().load_own_variables(saved)

    def notify_shift(self, policy: str = "reset") -> None:
        """Say that the data have shifted.

        Args:
            policy: "reset" lets rates below 1 start from 1, follow as fast as at the start, and
                forget the trail and the average of before; "keep" does nothing.
        """
        if not law.forgets(policy) or not self.built:
            return
        for numbers in self._laws:
            xp, now = array_namespace(numbers.value), self._read(numbers)
            numbers.assign(law.renewed(xp, now).stacked(xp))
        for one in (*self._trails, *self._leads):
            one.assign(ops.zeros_like(one.value))

    @property
    def record(self) -> dict[str, float]:
        """What a logger wants; reads the device.

        `rate` and `memory` are the geometric means of c and of the memories in steps of the
        variables, `share` the mean of how far they lie back on the way to their average; NaN before
        the first step.
        """
        if not self.built:
            return dict.fromkeys(("rate", "memory", "share"), math.nan)
        every = np.stack([ops.convert_to_numpy(numbers.value) for numbers in self._laws])
        shown = law.shown(np, law.Law(*every.mean(axis=0)))
        return {name: float(value) for name, value in shown.items()}

    @staticmethod
    def _read(numbers: keras.Variable) -> law.Law:
        """Return a law: copies, as torch would change what was read while it is assigned."""
        return law.Law(*(ops.copy(numbers.value[i]) for i in range(law.NUMBERS)))

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        """Leave it to the step, whose length it is measured by."""

    def _add(
        self, like: keras.Variable, name: str, dtype: str, first: Any = None
    ) -> keras.Variable:
        """Add a variable beside one of the model, of its shape and 0, or with a first value."""

        def start(shape: Any, dtype: Any) -> Array:
            return ops.convert_to_tensor(np.zeros(shape) if first is None else first, dtype=dtype)

        # Keras 3.6 has no layouts, and knows no such argument.
        layout = getattr(like, "_layout", None) if first is None else None
        return self.add_variable(
            shape=like.shape if first is None else first.shape,
            initializer=start,
            dtype=dtype,
            **({} if layout is None else {"layout": layout}),
            name=f"{like.path.replace('/', '_')}_{name}",
        )


def _has(variables: Sequence[keras.Variable], one: keras.Variable) -> bool:
    return any(one is other for other in variables)


def _rms(variable: keras.Variable) -> float:
    """Return the root mean square, which is read once."""
    wide = ops.cast(ops.stop_gradient(variable.value), _wide(variable))
    return float(ops.sqrt(ops.mean(ops.square(wide)))) if math.prod(variable.shape) else 0.0


def _rounded(wide: Array, kind: str) -> Array:
    """Return numbers of a 16-bit type in their wider one."""
    if keras.backend.backend() != "jax":
        return ops.cast(ops.cast(wide, kind), wide.dtype)
    import jax

    # Its compiler leaves out a cast there and back.
    return jax.lax.reduce_precision(wide, *_SHORT[kind])


def _wide(variable: keras.Variable) -> str:
    """Return the type of the state."""
    return "float64" if variable.dtype == "float64" else "float32"
