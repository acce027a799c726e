"""The states that transformations carry: what they show, how a shift moves them, how they load."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from driftrate.adapters import _pursuit as law
from driftrate.adapters._observe import KEYS, Policy, blend, mixed, policies, stamp
from driftrate.adapters._observe import check_version as _check_version
from driftrate.adapters.optax.pursuit import PursuitState, sound, told
from driftrate.adapters.optax.trees import Tree, inexact, nodes
from driftrate.errors import StateError
from driftrate.schedules.base import Array, Schedule, State


class RateState(NamedTuple):
    """The state of `attach` and `scale_by_rate`: arrays alone, so that anything saves it."""

    stamp: Array  # the version of this record and a mark of the schedule's name, for `load`
    schedule: State  # the schedule's own
    record: dict[str, Array]  # what the last update said, as far as it can be known
    known: Array  # whether the last update measured something
    step_length: Array  # of the last update where the schedule reads it, or 0
    seen: Array  # whether there was an update before
    previous: Tree  # the last gradient where it is compared with, or ()
    trail: Tree  # of past gradients where the schedule reads it, or ()
    lead: Tree  # of the weights over their slow average where the schedule reads it, or ()
    inner: Tree  # the state of the wrapped optimizer


class StatefulRateState(NamedTuple):
    """The state of `StatefulRate`; as the first fields of `RateState`."""

    stamp: Array
    schedule: State


STATES = (RateState, StatefulRateState)


def stamped(schedule: Schedule) -> Array:
    """Return the schedule's stamp as an array."""
    return jnp.asarray(np.array(stamp(schedule), np.int32))


def check_state(schedule: Schedule, state: Any, kind: type[Any]) -> None:
    """Refuse the state of something else; values are not looked at, they may be traced."""
    if not isinstance(state, kind):
        raise StateError(f"{schedule.name} got a state of {type(state).__name__}: use init(params)")
    fresh: Any = jax.tree.structure(schedule._start())
    if jax.tree.structure(state.schedule) != fresh:
        raise StateError(f"the state is of another schedule than {schedule.name}")


def record(state: Tree) -> dict[str, Array]:
    """Return the last update in numbers, for any logger.

    Args:
        state: A state that holds one of `attach`, `scale_by_rate` or `pursuit` anywhere, in a
            chain or in `MultiSteps`; of several, pass the one that is meant.

    Returns:
        `rate`: the learning rate that the optimizer used; `factor`: that over the rate that it
        came with; `signal`: the measured squared gradient (`cross`); `noise`: the measured noise
        of the gradient (`spread`); `shift`: the shift that was given or estimated. What is unknown
        is NaN. Arrays, not read back. Of `pursuit`: `rate` and `memory`, the geometric means of the
        rates and of the memories in steps of its tensors, and `share`, the mean of how far the
        weights lie back on the way to their average.
    """
    found = nodes(state, RateState, PursuitState)
    if len(found) != 1:
        raise StateError(
            f"record: {len(found) or 'no'} states of attach, scale_by_rate or pursuit in"
            f" {type(state).__name__}: pass {'one of them' if found else 'a state that has one'}"
        )
    (node,) = found
    if isinstance(node, PursuitState):
        return law.shown(jnp, law.Law(*node.law.mean(axis=0)))
    # NaN is made here: in the state it would trip jax_debug_nans at every step.
    unknown = jnp.full_like(node.step_length, math.nan)
    seen = {
        name: value if name in ("rate", "factor") else jnp.where(node.known, value, unknown)
        for name, value in node.record.items()
    }
    return {name: seen.get(name, unknown) for name in KEYS}


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
            each number goes the share 1 - `decay` of its way back to where it started. `pursuit`
            knows "keep" and "reset", which lets its rates rise and forgets trail and average.
        moments: For the rest of the state, moments and their counts, by default as `policy`.
            "decay" leaves counts as they are.
        decay: What is left of the past, in [0, 1].

    Returns:
        The state to go on with.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import driftrate as dr
        >>> from driftrate.optax import attach
        >>> optimizer = attach(optax.sgd(0.1), dr.InverseTimeRate(0.5))
        >>> fresh = state = optimizer.init(jnp.ones(2))
        >>> for _ in range(5):
        ...     _, state = optimizer.update(jnp.ones(2), state)
        >>> _, state = optimizer.update(jnp.ones(2), notify_shift(state, fresh))
        >>> print(record(state)["rate"])
        0.5
    """
    share, rest = policies(policy, moments, decay)

    def moment(old: Array, first: Array) -> Array:
        return mixed(old, first, rest) if inexact(old) or rest == 0.0 else old

    def node(old: Any, first: Any) -> Any:
        if isinstance(old, PursuitState):
            return told(old, policy)
        if not isinstance(old, STATES):
            return moment(old, first)
        new: Any = old._replace(schedule=blend(old.schedule, first.schedule, share))
        if isinstance(old, RateState):
            new = new._replace(inner=jax.tree.map(moment, old.inner, first.inner))
        return new

    kinds = (*STATES, PursuitState)
    return jax.tree.map(node, state, fresh, is_leaf=lambda one: isinstance(one, kinds))


def load(saved: Tree, like: Tree) -> Tree:
    """Return a saved optimizer state, bit by bit, after checking that it can be gone on from.

    States are trees of arrays: save them with pickle, Orbax or `numpy.savez(file, *leaves)`.

    Args:
        saved: The tree that was saved, of JAX or NumPy arrays; the list of its leaves; or the tree
            of dictionaries and lists that Orbax restores without a target.
        like: A fresh state, `optimizer.init(params)`, of the transformation that is to go on.

    Returns:
        The state, of the structure of `like`; what lies on several devices there, does so here.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import driftrate as dr
        >>> from driftrate.optax import scale_by_rate
        >>> transformation = scale_by_rate(dr.InverseTimeRate(0.5))
        >>> fresh = transformation.init(jnp.ones(2))
        >>> _, state = transformation.update(jnp.ones(2), fresh)
        >>> print(record(load(jax.tree.leaves(state), like=fresh))["rate"])
        0.5
    """
    first = _renewed(like, lambda one: one._replace(version=()))
    if len(jax.tree.leaves(saved)) == len(jax.tree.leaves(first)) < len(jax.tree.leaves(like)):
        version = jnp.ones((), jnp.int32)  # of 0.1.0, which did not save it
        return _renewed(load(saved, first), lambda one: one._replace(version=version))
    places, structure = jax.tree_util.tree_flatten_with_path(like)
    restored = []
    for (path, fresh), leaf in zip(places, _arranged(saved, places), strict=True):
        array = np.asarray(leaf)
        if array.dtype.kind == "V" and array.dtype.itemsize == fresh.dtype.itemsize:
            array = array.view(fresh.dtype)  # numpy.savez forgets the names of half precisions
        if array.shape != fresh.shape or array.dtype != fresh.dtype:
            raise StateError(
                f"load: {jax.tree_util.keystr(path)} must be {fresh.dtype}{fresh.shape}, the saved"
                f" one is {array.dtype}{array.shape}"
            )
        restored.append(_laid(array, fresh))
    state = jax.tree.unflatten(structure, restored)
    for old, new in zip(nodes(state, *STATES), nodes(like, *STATES), strict=True):
        for version in np.unique(old.stamp[..., 0]):
            _check_version(int(version))
        if np.any(old.stamp != new.stamp):
            raise StateError("load: the state is of another schedule than that of `like`")
    for node in nodes(state, PursuitState):
        for version in np.unique(node.version):
            _check_version(int(version), "state", law.VERSION)
        if not sound(node):
            raise StateError(
                "load: the state of pursuit holds a number that is not finite or below 0: load one"
                " of before"
            )
    return state


def _renewed(tree: Tree, change: Callable[[PursuitState], PursuitState]) -> Tree:
    """Return a state in which those of `pursuit` are changed."""

    def ours(one: Any) -> bool:
        return isinstance(one, PursuitState)

    return jax.tree.map(lambda one: change(one) if ours(one) else one, tree, is_leaf=ours)


def _laid(array: np.ndarray[Any, Any], fresh: Any) -> Array:
    """Return an array of JAX, over the devices of a fresh one where that lies on several."""
    where = getattr(fresh, "sharding", None)
    if where is None or where.num_devices < 2:
        return jnp.asarray(array)  # free to go where the others are
    return jax.device_put(array, where)


def _arranged(saved: Tree, places: list[Any]) -> list[Any]:
    """Return the leaves of a saved tree in the order of `like`, matched by their paths."""
    found = [(_names(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(saved)[0]]
    ours = [_names(path) for path, _ in places]
    leaves, named = [leaf for _, leaf in found], dict(found)
    if named.keys() == {*ours}:
        return [named[names] for names in ours]  # by name: dictionaries have another order
    flat = isinstance(saved, list | tuple) and len(saved) == len(leaves)
    if len(ours) == len(found) and (flat or all(map(_same, ours, named))):
        return leaves
    raise StateError(
        f"load: the saved state has {len(leaves)} arrays in another structure than the"
        f" {len(places)} of `like`: it is of another optimizer or schedule, or was restored without"
        " its structure: restore with target=optimizer.init(params)"
    )


def _names(path: Any) -> tuple[str, ...]:
    kinds = ("name", "key", "idx")
    return tuple(str(getattr(key, k)) for key in path for k in kinds if hasattr(key, k))


def _same(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Whether two paths lead to the same place; records may have become lists."""
    same = (a == b or (b.isdigit() and not a.isdigit()) for a, b in zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(same)
