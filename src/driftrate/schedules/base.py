"""The contract: what a step reveals (`Signal`), what a rule is, and the list of all schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from math import inf
from numbers import Real
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from array_api_compat import array_namespace, is_array_api_obj, is_numpy_namespace

from driftrate.errors import MissingSignal, SignalError
from driftrate.schedules import _codec, _scalars, _unrolled

# A Python float or an array of any library: frameworks share no base class to name here.
Array = Any
State = dict[str, Any]
TRAIL = 0.9  # the share that the trail of past gradients keeps of itself per step
HORIZON = 50.0  # steps that the slow average of the weights remembers


class Signal(NamedTuple):
    """What one step of a learner reveals, every field optional.

    A field is a Python number, or an array of the state's library (a scalar, or one entry per
    seed). The record has no strings or classes: JAX sees a pytree, torch sees a tuple.

    Args:
        batch_size: How many samples the step's gradient averages, B_t.
        shift: The newest shift revealed: at step t, γ_{t-1} = ‖θ*_t - θ*_{t-1}‖.
        loss: The loss at the current weights.
        loss_shift: How much the loss at the current weights changed by shift alone.
        step_length: The length of the learner's last step, ‖θ_t - θ_{t-1}‖.
        grad_sq: The squared norm of the whole batch's gradient.
        parts: How many independent parts of equal size the gradient was measured in.
        cross: Mean inner product of two different parts' gradients: unbiased for ‖∇‖².
        spread: The noise of the parts' mean, from their differences: unbiased for E‖g - ∇‖².
        dim: How many coordinates the gradient has.
        trail: Inner product of the batch's gradient with the trail of those before it,
            h_t = 0.9 h_{t-1} + g_{t-1} (the buffer of heavy-ball momentum); 0 at the first step.
        lead: Inner product of the batch's gradient with the weights' lead over their slow average,
            ⟨g_t, w_t - w̄_t⟩, w̄_{t+1} = w̄_t + (w_t - w̄_t)/50; 0 at the first step.
        weights_sq: The squared norm of the weights.
        reach: How far along the gradient a step goes at a rate of 1.

    Example:
        >>> Signal(batch_size=64, shift=0.1).shift
        0.1
    """

    batch_size: Array = None
    shift: Array = None
    loss: Array = None
    loss_shift: Array = None
    step_length: Array = None
    grad_sq: Array = None
    parts: Array = None
    cross: Array = None
    spread: Array = None
    dim: Array = None
    trail: Array = None
    lead: Array = None
    weights_sq: Array = None
    reach: Array = None


class _Domain(NamedTuple):
    low: float  # the smallest value allowed
    positive: bool  # whether `low` itself is excluded
    supply: str  # how a user supplies it

    def holds(self, value: float) -> bool:
        return self.low <= value < inf and not (self.positive and value == self.low)

    def among(self, xp: Any, array: Array) -> Array:
        """Return where an array's entries are finite and in the domain."""
        return xp.isfinite(array) & (array > self.low if self.positive else array >= self.low)


_DOMAINS = {
    "batch_size": _Domain(0.0, True, "the number of samples in the batch"),
    "shift": _Domain(
        0.0, False, "the true shift, or wrap the schedule in Estimated(..., DebiasedShift())"
    ),
    "loss": _Domain(0.0, False, "the batch loss at the current weights"),
    "loss_shift": _Domain(
        0.0, False, "|new loss - old loss| at the current weights, or a bound on it"
    ),
    "step_length": _Domain(0.0, False, "the norm of the last weight update"),
    "grad_sq": _Domain(0.0, False, "the squared norm of the batch gradient"),
    "parts": _Domain(2.0, False, "the number of independent parts of the batch"),
    "cross": _Domain(-inf, False, "estimate.from_parts on the gradients of the parts"),
    "spread": _Domain(0.0, False, "estimate.from_parts on the gradients of the parts"),
    "dim": _Domain(0.0, True, "the number of the gradient's coordinates"),
    "trail": _Domain(-inf, False, "⟨gradient, 0.9-decayed sum of those before⟩, 0 at the first"),
    "lead": _Domain(-inf, False, "⟨gradient, weights less their slow average⟩, 0 at the first"),
    "weights_sq": _Domain(0.0, False, "the squared norm of the weights"),
    "reach": _Domain(0.0, False, "how far along the gradient a step goes at a rate of 1"),
}
_PLAIN = frozenset({float, int})
# What `update` needs of a field, in one look-up: an update costs a microsecond or two.
_PLACES = {name: (i, *_DOMAINS[name][:2]) for i, name in enumerate(Signal._fields)}


def map_state(function: Callable[..., Any], state: State, *others: State) -> State:
    """Apply a function leaf by leaf to states of the same keys; return the state it gives."""
    return {
        key: map_state(function, leaf, *(other[key] for other in others))
        if isinstance(leaf, dict)
        else function(leaf, *(other[key] for other in others))
        for key, leaf in state.items()
    }


def select(xp: Any, condition: Array, new: State, old: State) -> State:
    """Choose between two states, leaf by leaf."""
    return map_state(lambda one, other: xp.where(condition, one, other), new, old)


class Rule(ABC):
    """A pure rule `(state, signal) -> (value, state)`; the base of schedules and estimators.

    A subclass is a frozen dataclass of constants. It says which fields of `Signal` it reads
    (`signals`), what its state starts from (`_start`) and how it steps (`_step`, written once on
    the array API's names). This class checks, broadcasts, guards and saves.
    """

    version: ClassVar[int] = 1
    output: ClassVar[str]  # the state's key that holds the last good value
    _heavy: bool = False  # whether an update on floats is worth a compilation

    @property
    def name(self) -> str:
        """The rule's name, with the names of what it wraps."""
        return type(self).__name__

    @property
    @abstractmethod
    def signals(self) -> tuple[str, ...]:
        """The fields of `Signal` that the rule needs."""

    @property
    def optional(self) -> frozenset[str]:
        """The fields among `signals` that the rule can do without."""
        return frozenset()

    @abstractmethod
    def _start(self) -> State:
        """Return the initial state: floats, ints for counters, and new NumPy vectors of floats.

        A vector is one leaf: a vector in a state of Python floats, an array of shape
        (length, *like.shape) in a state of arrays.
        """

    @abstractmethod
    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        """Return the value and the next state; `signal` is checked and of the state's library."""

    def init(self, like: Array = None) -> State:
        """Return the initial state.

        Args:
            like: None for Python floats, or an array whose library, dtype, device and shape (a
                scalar, or an axis of seeds) the state takes.

        Returns:
            A dictionary of numbers or arrays, nested for wrappers. A leaf may be a vector: a NumPy
            array among Python floats, with its axis before those of `like` among arrays.
        """
        start = self._start()
        if like is None or not is_array_api_obj(like):
            return start
        xp = array_namespace(like)
        defaults = xp.__array_namespace_info__().default_dtypes()
        real = like.dtype if xp.isdtype(like.dtype, "real floating") else defaults["real floating"]

        def fill(leaf: Any) -> Array:
            if is_array_api_obj(leaf):  # filled, not copied: a device would wait for the host
                return xp.stack([fill(value) for value in leaf.tolist()])
            kind = defaults["integral"] if isinstance(leaf, int) else real
            return xp.full_like(like, leaf, dtype=kind)

        return map_state(fill, start)

    def update(self, state: State, signal: Signal) -> tuple[Array, State]:
        """Take one step.

        Args:
            state: What `init`, `load` or the last `update` returned; it is not modified.
            signal: What the step reveals. Python and NumPy values are checked; values of other
                libraries are never read back: there a bad one (NaN, infinite, out of range) leaves
                the state and the last good value as they were.

        Returns:
            The value (for a schedule: the rate of this step) and the next state.
        """
        last = state[self.output]
        if type(last) is float:
            for name in self.signals:
                index, low, positive = _PLACES[name]
                value = signal[index]
                # The common case costs one chain; NaN fails every comparison.
                plain = type(value) in _PLAIN and low <= value < inf
                if not plain or (positive and value == low):
                    signal = self._as_float(name, signal)
            if self._heavy:
                return _unrolled.step(self, state, signal)
            return self._step(_scalars, state, signal)
        xp = array_namespace(last)
        arrays = {
            name: self._as_array(xp, name, signal, last)
            for name in self.signals
            if getattr(signal, name) is not None or name not in self.optional
        }
        value, new = self._step(xp, state, Signal(**arrays))
        if is_numpy_namespace(xp) or not arrays:
            return value, new
        good = True
        for name, array in arrays.items():
            good = _DOMAINS[name].among(xp, array) & good
        return xp.where(good, value, last), select(xp, good, new, state)

    def dump(self, state: State) -> dict[str, Any]:
        """Return the state as a JSON-ready dictionary that `load` restores bit by bit."""
        return _codec.dump(self, state)

    def load(self, saved: Mapping[str, Any], like: Array = None) -> State:
        """Restore a state.

        Args:
            saved: What `dump` returned, or the same after a round trip through JSON.
            like: None to restore the library, dtype and device that the state had, or an array
                whose library, dtype and device it takes instead; a Python float for Python floats.

        Returns:
            The state, equal to the saved one bit by bit.
        """
        return _codec.load(self, saved, like)

    def _missing(self, name: str) -> MissingSignal:
        supply = _DOMAINS[name].supply
        return MissingSignal(f"{type(self).__name__} needs Signal({name}=...): {supply}")

    def _refuse(self, name: str, value: object) -> SignalError:
        low, positive, _ = _DOMAINS[name]
        bound = "" if low == -inf else f" {'>' if positive else '>='} {low:g}"
        want = f"Signal.{name} must be a finite number{bound}"
        return SignalError(f"{type(self).__name__}: {want}, got {value!r}")

    def _as_float(self, name: str, signal: Signal) -> Signal:
        value = getattr(signal, name)
        if value is None:
            if name in self.optional:
                return signal
            raise self._missing(name)
        if isinstance(value, bool) or not isinstance(value, Real):
            hint = "; for arrays start from init(like=array)" if is_array_api_obj(value) else ""
            raise SignalError(
                f"{type(self).__name__}: Signal.{name} must be a Python number, got {value!r}{hint}"
            )
        if not _DOMAINS[name].holds(float(value)):
            raise self._refuse(name, value)
        return signal._replace(**{name: float(value)})

    def _as_array(self, xp: Any, name: str, signal: Signal, last: Array) -> Array:
        value = getattr(signal, name)
        if value is None:
            raise self._missing(name)
        if isinstance(value, Real):
            if isinstance(value, bool) or not _DOMAINS[name].holds(float(value)):
                raise self._refuse(name, value)
            # full_like, not asarray: a copy from the host would make the device wait.
            return xp.full_like(last, float(value))
        if not is_array_api_obj(value):
            raise self._refuse(name, value)
        array = xp.asarray(value, dtype=last.dtype)
        if is_numpy_namespace(xp):
            bad = ~_DOMAINS[name].among(xp, array)
            if xp.any(bad):
                raise self._refuse(name, array[bad].flat[0])
        return array


class Schedule(Rule):
    """A learning rate as a pure rule: `(state, signal) -> (rate, state)`."""

    output: ClassVar[str] = "rate"

    @classmethod
    @abstractmethod
    def example(cls) -> Self:
        """Return a configuration for tests, docs and races that enumerate all schedules."""

    def reading(self, fields: Collection[str]) -> Schedule:
        """Return the form of this schedule for a loop that supplies only these fields."""
        return self


class Estimator(Rule):
    """An estimate of what a schedule needs: `(state, signal) -> (value, state)`."""

    output: ClassVar[str] = "estimate"

    @property
    @abstractmethod
    def provides(self) -> str:
        """The field of `Signal` that the estimate stands in for."""


_REGISTRY: dict[str, type[Schedule]] = {}
_S = TypeVar("_S", bound=Schedule)


def register(cls: type[_S]) -> type[_S]:
    """Add a schedule to the list through which tests, races and docs enumerate all of them."""
    _REGISTRY[cls.__name__] = cls
    return cls


def registry() -> dict[str, type[Schedule]]:
    """Return all schedules by name.

    Example:
        >>> from driftrate.schedules.base import registry
        >>> "LinearRate" in registry()
        True
    """
    return dict(_REGISTRY)


def counted(count: Array, xp: Any) -> Array:
    """Return the counter plus one; it stops at 2^31 - 1 instead of turning negative."""
    return xp.where(count < 2**31 - 1, count + 1, count)


def real(xp: Any, count: Array, like: Array) -> Array:
    """Return a counter as a float of the state's own dtype; promotion would choose another."""
    return float(count) if xp is _scalars else xp.astype(count, like.dtype)
