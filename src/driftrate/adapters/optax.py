"""Optax: a rate that follows the shift, as a gradient transformation and as a stateful schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np

from driftrate.adapters._observe import Policy, check_policy
from driftrate.errors import ConfigError, MissingDependency, MissingSignal, SignalError, StateError
from driftrate.estimate import Estimated
from driftrate.estimate import from_parts as _from_parts
from driftrate.schedules.base import TRAIL, Array, Schedule, Signal, State, select
from driftrate.schedules.wrappers import Wrapper

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as error:
    hint = "pip install 'driftrate[jax]'"
    raise MissingDependency(f"driftrate.optax needs {error.name}: {hint}") from error

__all__ = [
    "RateState",
    "StatefulRate",
    "StatefulRateState",
    "attach",
    "from_parts",
    "load",
    "notify_shift",
    "record",
    "scale_by_rate",
    "split_value_and_grad",
]

VERSION = 1  # of the states below
Mode = Literal["sequence", "parts", "given"]
Tree = Any
_ALWAYS = ("step_length", "grad_sq", "dim", "trail")
# What each mode reads off the gradients by itself; every mode also takes `signal=`.
_MEASURES: dict[str, tuple[str, ...]] = {
    "sequence": (*_ALWAYS, "cross", "spread"),
    "parts": (*_ALWAYS, "parts", "cross", "spread"),
    "given": _ALWAYS,
}


class RateState(NamedTuple):
    """The state of `attach` and `scale_by_rate`: arrays alone, so that anything saves it.

    Args:
        stamp: The version of this record and a mark of the schedule's name, for `load`.
        schedule: The schedule's own state; its `"rate"` is the last rate.
        record: What the last update said of signal, noise and shift, as far as it is known.
        step_length: The length of the last update.
        seen: Whether there was an update before.
        previous: The last gradient where the mode is "sequence" and the schedule needs it, or ().
        trail: The trail of past gradients where the schedule needs it, or ().
        inner: The state of the wrapped optimizer.
    """

    stamp: Array
    schedule: State
    record: dict[str, Array]
    step_length: Array
    seen: Array
    previous: Tree
    trail: Tree
    inner: Tree


class StatefulRateState(NamedTuple):
    """The state of `StatefulRate`.

    Args:
        stamp: The version of this record and a mark of the schedule's name, for `load`.
        schedule: The schedule's own state.
    """

    stamp: Array
    schedule: State


_STATES = (RateState, StatefulRateState)


def attach(
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    *,
    mode: Mode | None = None,
    batch_size: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Let a schedule drive an optimizer: u_t = η_t · optimizer(g_t).

    The schedule's rate is a factor on the optimizer's own. With plain SGD build it with a learning
    rate of 1, `optax.sgd(1.0)`, so that the schedule's rate is the rate. With a preconditioner,
    whose steps are not rate times gradient, keep its usual rate and attach
    `MeasuredRate(relative=True)`, or another schedule with `max_rate=1.0`: it then says which share
    of that rate to use. A transformation does not tell which of the two it is.

    The schedule sees the raw gradient, before the optimizer preconditions or clips it, and η_t
    multiplies the very update that g_t led to. The rate is strong float32 (float64 for float64
    parameters) and multiplies in that precision; updates keep their dtype.

    By mode, `cross` and `spread` come from

    - "sequence": the gradients g_{t-1} and g_t of two successive updates, whose noises are
      independent: cross = ⟨g_t, g_{t-1}⟩, spread = ‖g_t - g_{t-1}‖²/2, the noise of one gradient.
      Nothing to do. Keeps a copy of the last gradient. The first update has none to compare with:
      the schedule stands still and the rate that it starts from is used.
    - "parts": `update(mean, state, params, parts=gradients)`, the gradients of k micro-batches of
      equal size stacked on a first axis; see `from_parts` and `split_value_and_grad`.
    - "given": `update(..., signal=dr.Signal(...))`.

    In every mode `grad_sq`, `trail`, `dim` and `step_length` (the norm of the last update) are
    measured where the schedule reads them, and fields given in `signal=` stand before measured
    ones. For accumulation put `optax.MultiSteps` around the result: it then steps on real updates
    alone.

    Args:
        optimizer: Any gradient transformation that ends in a descent direction.
        schedule: Any schedule of driftrate.
        mode: Where the signal comes from; by default "sequence" for schedules that read `cross` or
            `spread` or `trail`, else "given". Without parts, in "sequence", `MeasuredRate` reads
            `grad_sq` and `trail` alone, and a trail is kept instead of the last gradient.
        batch_size: B, for schedules that read it; `signal=` overrides it.

    Returns:
        A transformation that takes the extra arguments `signal` and `parts` and hands all extra
        arguments on to the optimizer. Its state is a `RateState`.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> import driftrate as dr
        >>> rate = dr.LinearRate(dim=2, noise_std=1.0)
        >>> optimizer = attach(optax.sgd(1.0), rate, batch_size=16)
        >>> params = jnp.ones(2)
        >>> state = optimizer.init(params)
        >>> step = jax.jit(optimizer.update)
        >>> updates, state = step(params, state, params, signal=dr.Signal(shift=0.5))
        >>> print(record(state)["shift"])
        0.5
    """
    _check(schedule)
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ConfigError(
            f"attach: optimizer must be an optax.GradientTransformation, got {optimizer!r}"
        )
    if mode is None:
        products = not {"cross", "spread", "trail"}.isdisjoint(schedule.signals)
        mode = "sequence" if products else "given"
    if mode not in _MEASURES:
        raise ConfigError(f"attach: mode must be one of {sorted(_MEASURES)}, got {mode!r}")
    if batch_size is not None and not (isinstance(batch_size, Real) and batch_size > 0):
        raise ConfigError(f"attach: batch_size must be a number > 0, got {batch_size!r}")
    inner = optax.with_extra_args_support(optimizer)
    # The sequence's `cross` is of two batches, not of parts of one; else anything can be given.
    schedule = schedule.reading(_ALWAYS if mode == "sequence" else Signal._fields)
    reads = {*schedule.signals}
    remembers = mode == "sequence" and not reads.isdisjoint({"cross", "spread"})

    def init(params: Tree) -> RateState:
        leaves = jax.tree.leaves(params)
        if not leaves:
            raise ConfigError("attach: the optimizer has no parameters")
        # Half precision would round away slow changes of a schedule's state.
        real = jnp.promote_types(jnp.float32, jnp.result_type(*leaves))
        zero = jnp.zeros((), real)
        start, below = schedule.init(like=zero), inner.init(params)
        for node in _nodes(below, *_STATES, optax.MultiStepsState):
            if isinstance(node, optax.MultiStepsState):
                raise ConfigError(
                    "attach: the schedule would count mini-steps as updates: put MultiSteps"
                    " outside, optax.MultiSteps(attach(optimizer, schedule), k)"
                )
            raise ConfigError("attach: the optimizer is already attached to a schedule")
        return RateState(
            stamp=_stamp(schedule),
            schedule=start,
            record=_noted(schedule, dict.fromkeys(reads, zero), start),
            step_length=zero,
            seen=jnp.zeros((), bool),
            previous=jax.tree.map(jnp.zeros_like, params) if remembers else (),
            trail=jax.tree.map(_still, params) if "trail" in reads else (),
            inner=below,
        )

    def update(
        updates: Tree,
        state: RateState,
        params: Tree = None,
        *,
        signal: Signal | None = None,
        parts: Tree = None,
        **extra: Any,
    ) -> tuple[Tree, RateState]:
        _check_state(schedule, state, RateState)
        if parts is not None and mode != "parts":
            raise SignalError(
                f"attach: parts= was given in mode {mode!r}: attach(..., mode='parts')"
            )
        last = state.schedule["rate"]
        given = _merged(Signal(batch_size=batch_size), signal)
        missing = {name for name in schedule.signals if getattr(given, name) is None}
        if parts is not None:
            missing -= {"grad_sq"}
        given = given._replace(**_measured(missing, state, updates))
        if parts is not None:
            _, measured = from_parts(parts)
            given = _merged(measured, given)
        if remembers:
            given = _merged(_sequence(state.previous, updates, last), given)
        _require(schedule, given, mode)
        rate, after = schedule.update(state.schedule, given)
        if remembers:
            rate = jnp.where(state.seen, rate, last)
            after = select(jnp, state.seen, after, state.schedule)
        out, below = inner.update(updates, state.inner, params, signal=signal, parts=parts, **extra)
        out = jax.tree.map(lambda u: (rate * u.astype(rate.dtype)).astype(u.dtype), out)
        return out, RateState(
            stamp=state.stamp,
            schedule=after,
            record=_noted(schedule, given._asdict(), after),
            step_length=jnp.sqrt(_dot(out, out, last)),
            seen=jnp.ones_like(state.seen),
            previous=jax.tree.map(lambda g, old: g.astype(old.dtype), updates, state.previous)
            if remembers
            else (),
            trail=_lengthened(state.trail, updates, last) if "trail" in reads else (),
            inner=below,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_rate(
    schedule: Schedule,
    *,
    mode: Mode | None = None,
    batch_size: float | None = None,
    flip_sign: bool = True,
) -> optax.GradientTransformationExtraArgs:
    r"""Scale updates by a schedule's rate: u_t ↦ -η_t u_t, the last link of an `optax.chain`.

    It measures what reaches it. Behind a preconditioner that is not the gradient any more: where
    the schedule is to see gradients, use `attach`, or give `signal=` or `parts=`.

    Args:
        schedule: Any schedule of driftrate.
        mode: Where the signal comes from, as in `attach`.
        batch_size: B, for schedules that read it.
        flip_sign: Whether to descend, as in `optax.scale_by_learning_rate`.

    Returns:
        A transformation as `attach` returns it.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import driftrate as dr
        >>> chain = optax.chain(optax.clip(1.0), scale_by_rate(dr.ConstantRate(0.5)))
        >>> params = jnp.array([4.0])
        >>> updates, _ = chain.update(params, chain.init(params), params)
        >>> print(updates)
        [-0.5]
    """
    sign = optax.scale(-1.0) if flip_sign else optax.identity()
    return attach(sign, schedule, mode=mode, batch_size=batch_size)


@dataclass(frozen=True)
class StatefulRate:
    """A schedule as Optax's `StatefulSchedule`, for `optax.inject_hyperparams`.

    There the rate is a hyperparameter like any other; the signal comes as an extra argument,
    `update(grads, state, params, signal=dr.Signal(...))` or `parts=` as in `attach`. Optax shows a
    stateful schedule no gradients, so the sequence of gradients cannot be measured here.

    Args:
        schedule: Any schedule of driftrate.
        dtype: The precision of state and rate.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import driftrate as dr
        >>> rate = StatefulRate(dr.ConvexRate(smoothness=2.0, noise_std=1.0, diameter=1.0))
        >>> optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=rate)
        >>> params = jnp.ones(2)
        >>> state = optimizer.init(params)
        >>> signal = dr.Signal(batch_size=16, shift=0.1)
        >>> _, state = optimizer.update(params, state, params, signal=signal)
        >>> bool(state.hyperparams["learning_rate"] > 0)
        True
    """

    schedule: Schedule
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        _check(self.schedule)

    def init(self) -> StatefulRateState:
        """Return the initial state."""
        like = jnp.zeros((), self.dtype)
        return StatefulRateState(_stamp(self.schedule), self.schedule.init(like=like))

    def update(self, state: StatefulRateState, **extra: Any) -> StatefulRateState:
        """Return the next state.

        Args:
            state: The present one.
            extra: `signal` or `parts`; others are not looked at.

        Returns:
            The state after the step.
        """
        return self._step(state, extra)[1]

    def __call__(self, state: StatefulRateState, **extra: Any) -> Array:
        """Return the rate of this step.

        Args:
            state: The present state.
            extra: `signal` or `parts`; without them, as Optax asks at the start, the last rate.

        Returns:
            η, of `dtype`.
        """
        _check_state(self.schedule, state, StatefulRateState)
        if self.schedule.signals and not extra.keys() & {"signal", "parts"}:
            return state.schedule["rate"]
        return self._step(state, extra)[0]

    def _step(
        self, state: StatefulRateState, extra: dict[str, Any]
    ) -> tuple[Array, StatefulRateState]:
        _check_state(self.schedule, state, StatefulRateState)
        given, parts = extra.get("signal"), extra.get("parts")
        signal = _merged(Signal() if parts is None else from_parts(parts)[1], given)
        _require(self.schedule, signal, "given" if parts is None else "parts")
        rate, after = self.schedule.update(state.schedule, signal)
        return rate, StatefulRateState(state.stamp, after)


def from_parts(gradients: Tree) -> tuple[Tree, Signal]:
    r"""Return the mean gradient of k micro-batches and what they say of signal and noise.

    The sums of `driftrate.estimate.from_parts` over all arrays of the tree.

    Args:
        gradients: A tree of arrays (k, ...), the gradients of k >= 2 micro-batches of equal size,
            as `jax.vmap(jax.grad(loss), (None, 0))` stacks them.

    Returns:
        The tree of means, and a `Signal` with `parts`, `cross`, `spread` and `grad_sq`.

    Example:
        >>> import jax.numpy as jnp
        >>> mean, signal = from_parts({"w": jnp.array([[3.0], [1.0]]), "b": jnp.array([1.0, 1.0])})
        >>> print(mean["w"], signal.cross, signal.spread)
        [2.] 4.0 1.0
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(gradients)]
    counts = {leaf.shape[:1] for leaf in leaves}
    if len(counts) != 1:
        raise SignalError(
            "from_parts: gradients must be arrays with the same number of parts on their first"
            f" axis, got shapes {[leaf.shape for leaf in leaves]}"
        )
    found = [_from_parts(leaf.reshape(*leaf.shape[:1], -1)) for leaf in leaves]
    total = {
        name: sum((getattr(one, name) for one in found[1:]), getattr(found[0], name))
        for name in ("grad_sq", "cross", "spread")
    }
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), gradients)
    return mean, Signal(parts=found[0].parts, **total)


def split_value_and_grad(
    loss: Callable[..., Array], parts: int = 2
) -> Callable[..., tuple[tuple[Array, Signal], Tree]]:
    r"""Return `jax.value_and_grad` of a mean loss that also measures signal and noise.

    The batch is cut into k parts of equal size, one after the other through the same program;
    with ḡ_j the mean of the first j gradients

        Σ_i ‖g_i - ḡ_k‖² = Σ_j (j - 1)/j ‖g_j - ḡ_{j-1}‖²,

    so that no more than one gradient beside the mean is in memory, however many parts there are.

    Args:
        loss: A function `(params, batch) -> scalar` that averages over the batch.
        parts: k >= 2, which must divide the batch.

    Returns:
        A function `(params, batch) -> ((value, signal), gradient)`, the batch any tree of arrays
        with the samples on the first axis; `signal` has `batch_size`, `loss`, `parts`, `cross`,
        `spread` and `grad_sq`.

    Example:
        >>> import jax.numpy as jnp
        >>> gradient = split_value_and_grad(lambda w, x: jnp.mean((w - x) ** 2) / 2)
        >>> (value, signal), mean = gradient(jnp.array(2.0), jnp.array([-1.0, 1.0]))
        >>> print(mean, signal.cross, signal.spread)
        2.0 3.0 1.0
    """
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 2:
        raise ConfigError(f"split_value_and_grad: parts must be an integer >= 2, got {parts!r}")
    one = jax.value_and_grad(loss)

    def measured(params: Tree, batch: Tree) -> tuple[tuple[Array, Signal], Tree]:
        sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
        size = next(iter(sizes))[0] if len(sizes) == 1 and () not in sizes else 0
        if size == 0 or size % parts:
            raise SignalError(
                f"split_value_and_grad: {parts} equal parts need arrays with one first axis that"
                f" {parts} divides, got {sorted(sizes)}"
            )
        cut = jax.tree.map(lambda x: jnp.reshape(x, (parts, size // parts, *x.shape[1:])), batch)
        value, first = one(params, jax.tree.map(lambda x: x[0], cut))
        like = jnp.zeros((), jnp.promote_types(jnp.float32, value.dtype))
        # The running mean is kept in full precision: half would lose what the later parts add.
        mean = jax.tree.map(lambda g: g.astype(like.dtype), first)

        def add(carry: Any, item: Any) -> tuple[Any, None]:
            mean, value, deviations, count = carry
            loss, gradient = one(params, item)
            count = count + 1.0
            apart = jax.tree.map(lambda g, m: g.astype(m.dtype) - m, gradient, mean)
            mean = jax.tree.map(lambda m, a: m + a / count, mean, apart)
            deviations = deviations + (count - 1.0) / count * _dot(apart, apart, like)
            return (mean, value + (loss - value) / count, deviations, count), None

        start = (mean, value.astype(like.dtype), like, like + 1.0)
        rest = jax.tree.map(lambda x: x[1:], cut)
        (mean, value, deviations, _), _ = jax.lax.scan(add, start, rest)
        grad_sq = _dot(mean, mean, like)
        spread = deviations / (parts * (parts - 1.0))
        signal = Signal(
            batch_size=size,
            loss=value,
            grad_sq=grad_sq,
            parts=parts,
            cross=grad_sq - spread,
            spread=spread,
        )
        return (value, signal), jax.tree.map(lambda m, g: m.astype(g.dtype), mean, first)

    return measured


def record(state: Tree) -> dict[str, Array]:
    """Return the last update in numbers, for any logger.

    Args:
        state: A state that holds one of `attach` or `scale_by_rate` anywhere, in a chain or in
            `MultiSteps`.

    Returns:
        `rate`: the rate that the schedule gave; `signal`: the measured squared gradient (`cross`);
        `noise`: the measured noise of the gradient (`spread`); `shift`: the shift that was given
        or estimated. What the schedule does not read is not there. Arrays, not read back.

    Example:
        >>> import jax.numpy as jnp
        >>> import driftrate as dr
        >>> transformation = scale_by_rate(dr.ConstantRate(0.5))
        >>> record(transformation.init(jnp.ones(2)))
        {'rate': Array(0.5, dtype=float32)}
    """
    for node in _nodes(state, RateState):
        return {"rate": node.schedule["rate"], **node.record}
    raise StateError(f"record: no state of attach or scale_by_rate in {type(state).__name__}")


def notify_shift(
    state: Tree,
    fresh: Tree,
    policy: Policy = "reset",
    *,
    moments: Policy | None = None,
    decay: float = 0.5,
) -> Tree:
    """Say that the data have shifted, and what to do with what was learned before.

    Args:
        state: The optimizer's state.
        fresh: A fresh one, `optimizer.init(params)`.
        policy: For the schedule's state. "keep": nothing; "reset": it starts afresh; "decay":
            each number goes the share 1 - `decay` of its way back to where it started.
        moments: For the rest of the state, moments and their counts, by default as `policy`.
            "decay" leaves counts as they are.
        decay: What is left of the past, in [0, 1].

    Returns:
        The state to go on with.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import driftrate as dr
        >>> optimizer = attach(optax.sgd(1.0), dr.InverseTimeRate(0.5))
        >>> fresh = state = optimizer.init(jnp.ones(2))
        >>> for _ in range(5):
        ...     _, state = optimizer.update(jnp.ones(2), state)
        >>> _, state = optimizer.update(jnp.ones(2), notify_shift(state, fresh))
        >>> print(record(state)["rate"])
        0.5
    """
    chosen = policy if moments is None else moments
    check_policy(decay, policy, chosen)

    def move(how: str, old: Tree, start: Tree, *, counts: bool) -> Tree:
        def one(leaf: Array, first: Array) -> Array:
            if how == "reset":
                return first
            if not (counts or jnp.issubdtype(leaf.dtype, jnp.inexact)):
                return leaf
            return (decay * leaf + (1.0 - decay) * first).astype(leaf.dtype)

        return old if how == "keep" else jax.tree.map(one, old, start)

    def node(old: Any, start: Any) -> Any:
        if not isinstance(old, _STATES):
            return move(chosen, old, start, counts=False)
        new: Any = old._replace(schedule=move(policy, old.schedule, start.schedule, counts=True))
        if isinstance(old, RateState):
            new = new._replace(inner=move(chosen, old.inner, start.inner, counts=False))
        return new

    return jax.tree.map(node, state, fresh, is_leaf=lambda one: isinstance(one, _STATES))


def load(saved: Tree, like: Tree) -> Tree:
    """Return a saved optimizer state, bit by bit, after checking that it can be gone on from.

    States are trees of arrays: save them with pickle, Orbax or `numpy.savez(file, *leaves)`.

    Args:
        saved: The tree that was saved, of JAX or NumPy arrays, or the list of its leaves.
        like: A fresh state, `optimizer.init(params)`, of the transformation that is to go on.

    Returns:
        The state, of the structure of `like`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import driftrate as dr
        >>> transformation = scale_by_rate(dr.InverseTimeRate(0.5))
        >>> fresh = transformation.init(jnp.ones(2))
        >>> _, state = transformation.update(jnp.ones(2), fresh)
        >>> record(load(jax.tree.leaves(state), like=fresh))
        {'rate': Array(0.5, dtype=float32)}
    """
    places, structure = jax.tree.flatten_with_path(like)
    leaves = jax.tree.leaves(saved)
    flat = isinstance(saved, list | tuple) and len(saved) == len(leaves)
    found: Any = jax.tree.structure(saved)
    if len(leaves) != len(places) or not (flat or found == structure):
        raise StateError(
            f"load: the saved state has {len(leaves)} arrays in another structure than the"
            f" {len(places)} of `like`: it is of another optimizer or schedule"
        )
    restored = []
    for (path, fresh), leaf in zip(places, leaves, strict=True):
        array = np.asarray(leaf)
        if array.dtype.kind == "V" and array.dtype.itemsize == fresh.dtype.itemsize:
            array = array.view(fresh.dtype)  # numpy.savez forgets the names of half precisions
        if array.shape != fresh.shape or array.dtype != fresh.dtype:
            raise StateError(
                f"load: {jax.tree_util.keystr(path)} must be {fresh.dtype}{fresh.shape}, the saved"
                f" one is {array.dtype}{array.shape}"
            )
        restored.append(jnp.asarray(array))
    state = jax.tree.unflatten(structure, restored)
    for old, new in zip(_nodes(state, *_STATES), _nodes(like, *_STATES), strict=True):
        theirs, ours = np.asarray(old.stamp), np.asarray(new.stamp)
        if np.any(theirs[..., 0] != ours[..., 0]):
            raise StateError(
                f"load: the state is of version {theirs[..., 0].max()}; this driftrate reads"
                f" version {ours[..., 0].max()}"
            )
        if np.any(theirs != ours):
            raise StateError("load: the state is of another schedule than that of `like`")
    return state


def _check(schedule: object) -> None:
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"schedule must be a driftrate Schedule, got {schedule!r}")


def _check_state(schedule: Schedule, state: Any, kind: type[Any]) -> None:
    """Refuse the state of something else; values are not looked at, they may be traced."""
    if not isinstance(state, kind):
        raise StateError(f"{schedule.name} got a state of {type(state).__name__}: use init(params)")
    fresh: Any = jax.tree.structure(schedule._start())
    if jax.tree.structure(state.schedule) != fresh:
        raise StateError(f"the state is of another schedule than {schedule.name}")


def _stamp(schedule: Schedule) -> Array:
    # A number, because trees of arrays hold no strings.
    mark = crc32(f"{schedule.name} {schedule.version}".encode())
    return jnp.asarray(np.array([VERSION, mark], np.uint32))


def _nodes(tree: Tree, *kinds: type) -> list[Any]:
    """Find the records of the given kinds, in a chain or in a wrapper's state."""
    found = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kinds))
    return [node for node in found if isinstance(node, kinds)]


def _merged(signal: Signal, over: Signal | None) -> Signal:
    """Return the fields of both; where both have one, that of `over`."""
    if over is None:
        return signal
    return Signal(*(b if b is not None else a for a, b in zip(signal, over, strict=True)))


def _require(schedule: Schedule, signal: Signal, mode: str) -> None:
    """Say which modes give what is missing."""
    for name in schedule.signals:
        if getattr(signal, name) is not None or name in schedule.optional:
            continue
        if name in _MEASURES[mode]:
            how = f'mode="{mode}" measures it from update(..., parts=...), the stacked gradients'
        else:
            able = " or ".join(f'mode="{one}"' for one in _MEASURES if name in _MEASURES[one])
            use = f"attach(..., {able}), or " if able else ""
            how = (
                f'mode="{mode}" cannot give it: use {use}update(..., signal=dr.Signal({name}=...))'
            )
        raise MissingSignal(f"{schedule.name} needs Signal({name}=...): {how}")


def _noted(schedule: Schedule, given: dict[str, Array], state: State) -> dict[str, Array]:
    """Return what `record` tells beside the rate."""
    known = {"signal": "cross", "noise": "spread", "shift": "shift"}
    seen = {name: given[field] for name, field in known.items() if field in schedule.signals}
    while isinstance(schedule, Wrapper):
        if isinstance(schedule, Estimated) and schedule.estimator.provides == "shift":
            seen["shift"] = state["estimator"]["estimate"]
        schedule, state = schedule.schedule, state["inner"]
    return {name: jnp.asarray(value, state["rate"].dtype) for name, value in seen.items()}


def _dot(a: Tree, b: Tree, like: Array) -> Array:
    """Return ⟨a, b⟩ over all arrays of two trees, in the precision of `like`."""

    def one(x: Array, y: Array) -> Array:
        # Not jnp.vdot: on accelerators it may multiply in fewer bits.
        return jnp.sum(x.astype(like.dtype) * y.astype(like.dtype))

    return sum(jax.tree.leaves(jax.tree.map(one, a, b)), jnp.zeros_like(like))


def _measured(names: set[str], state: RateState, gradient: Tree) -> dict[str, Array]:
    """Return those of the fields that every mode measures."""
    last = state.schedule["rate"]
    found = {"step_length": state.step_length} if "step_length" in names else {}
    if "grad_sq" in names:
        found["grad_sq"] = _dot(gradient, gradient, last)
    if "dim" in names:
        found["dim"] = sum(leaf.size for leaf in jax.tree.leaves(gradient))
    if "trail" in names:
        found["trail"] = _dot(state.trail, gradient, last)
    return found


def _sequence(previous: Tree, gradient: Tree, like: Array) -> Signal:
    """Measure signal and noise from two successive gradients."""
    # Subtract before squaring: a difference of squares would drown in rounding.
    apart = jax.tree.map(
        lambda new, old: new.astype(like.dtype) - old.astype(like.dtype), gradient, previous
    )
    return Signal(
        cross=_dot(previous, gradient, like),
        spread=0.5 * _dot(apart, apart, like),
    )


def _still(leaf: Array) -> Array:
    """Return a trail of 0; in single precision for float16, whose range a sum of ten may leave."""
    return jnp.zeros_like(leaf, dtype=jnp.promote_types(leaf.dtype, jnp.bfloat16))


def _lengthened(trail: Tree, gradient: Tree, like: Array) -> Tree:
    """Return 0.9 h + g; a gradient that is not finite leaves the trail as it was."""
    good = jnp.isfinite(_dot(gradient, gradient, like))
    return jax.tree.map(
        lambda h, g: jnp.where(good, TRAIL * h + g.astype(h.dtype), h), trail, gradient
    )
