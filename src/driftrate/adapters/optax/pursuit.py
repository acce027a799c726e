"""`Pursuit` as a gradient transformation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from driftrate.adapters import _pursuit as law
from driftrate.adapters.optax.trees import Leaves, Tree, real_type
from driftrate.errors import ConfigError, StateError
from driftrate.schedules.base import Array

_limits: Any = jnp.finfo  # it has no types


class PursuitState(NamedTuple):
    """The state of `pursuit`: arrays alone, so that anything saves it."""

    count: Array  # updates so far, for a learning rate that is a schedule
    law: Array  # a row a tensor, in the order of the leaves, see `driftrate.adapters._pursuit.Law`
    square: Tree  # v
    trail: Tree  # h
    lead: Tree  # u
    rest: Tree  # what 16-bit weights dropped; None beside wider ones
    version: Array | tuple[()] = ()  # of this record, for `load`; 0.1.0 had none


def pursuit(
    learning_rate: float | Callable[[Array], Any] = 1.0,
    weight_decay: float = law.WEIGHT_DECAY,
) -> optax.GradientTransformation:
    """Steps that follow a moving target, with a rate a tensor that finds itself.

    A fast point takes the steps of an AdaGrad that forgets, without momentum,

        v ← k v + g²,    Δ = -lr · 0.3 · s · c · g/√v,

    measured by the size s of the tensor's first weights, those that `init` sees, and by a rate c
    that follows the derivative of the loss by its own logarithm over the last 300 steps. The
    weights lie between the fast point and its slow average, a share of the way back that follows
    its own derivative. The same steps as `driftrate.torch.Pursuit`.

    State is float32 (float64 for float64 weights), updates have the type of the weights; what 16
    bits drop is kept and added to the next update, so that this is the last link of a chain and
    `optax.apply_updates` follows. A missing gradient (None) leaves its tensor alone. Coordinates
    that are not finite are skipped.

    Args:
        learning_rate: A multiplier of all steps, or a function of the count of updates; 1 is meant
            to be right.
        weight_decay: What a matrix loses of itself while it could move by its own size: a step
            takes `weight_decay` · lr · ρ of it, ρ = 0.03 min(c, 1) the relative length of a
            step. Vectors do not decay, nor does what has no gradient.

    Returns:
        A transformation whose `update` needs `params`. Its state is a `PursuitState`.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> x = jax.random.normal(jax.random.key(0), (64, 2))
        >>> def loss(w):
        ...     return jnp.mean((x @ w - x @ jnp.array([1.0, -2.0])) ** 2)
        >>> optimizer, w = pursuit(), jnp.zeros(2)
        >>> @jax.jit
        ... def step(w, state):
        ...     updates, state = optimizer.update(jax.grad(loss)(w), state, w)
        ...     return optax.apply_updates(w, updates), state
        >>> state = optimizer.init(w)
        >>> for _ in range(300):
        ...     w, state = step(w, state)
        >>> bool(loss(w) < 1e-2)
        True

    Reference:
        Duchi, Hazan and Singer (2011), "Adaptive subgradient methods"; Sutton (1992), "Adapting
        bias by gradient descent".
    """
    for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
        # What is injected may be traced: only Python's numbers are looked at.
        if isinstance(value, int | float) and not 0.0 <= value < float("inf"):
            raise ConfigError(f"pursuit: {name} must be finite and not negative, got {value!r}")

    def init(params: Tree) -> PursuitState:
        leaves = jax.tree.leaves(params)
        for leaf in leaves:
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise ConfigError(
                    f"pursuit: weights must be real, got {jnp.result_type(leaf)}: leave others"
                    " out with optax.masked"
                )
        kind = real_type(leaves)
        scales = [law.scale(jnp, jnp.shape(leaf), _rms(leaf, kind)) for leaf in leaves]
        scales = law.settle(jnp, scales, [jnp.size(leaf) for leaf in leaves])
        rows = [law.Law.start(s).stacked(jnp).astype(kind) for s in scales]
        return PursuitState(
            count=jnp.zeros((), jnp.int32),
            law=jnp.stack(rows) if rows else jnp.zeros((0, law.NUMBERS), kind),
            square=jax.tree.map(_still, params),
            trail=jax.tree.map(_still, params),
            lead=jax.tree.map(_still, params),
            rest=jax.tree.map(lambda p: jnp.zeros_like(p) if _short(p) else None, params),
            version=jnp.full((), law.VERSION, jnp.int32),
        )

    def update(
        updates: Tree, state: PursuitState, params: Tree | None = None
    ) -> tuple[Tree, PursuitState]:
        if params is None:
            raise StateError("pursuit: call update(gradients, state, params): it needs the weights")
        structure: Any = jax.tree.structure(params)
        weights = [jnp.asarray(p) for p in jax.tree.leaves(params)]
        gradients, squares, trails, leads, rests = (
            structure.flatten_up_to(tree)
            for tree in (updates, state.square, state.trail, state.lead, state.rest)
        )
        every = weights, gradients, squares, trails, leads, rests
        for (path, _), *some in zip(
            jax.tree_util.tree_leaves_with_path(params), *every, strict=True
        ):
            _check(jax.tree_util.keystr(path), *some)
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        now = law.Law(*state.law.T)
        factors = law.factors(jnp, now, rate, weight_decay)
        signals: Leaves = []
        out: Leaves = []
        for i, (p, g) in enumerate(zip(weights, gradients, strict=True)):
            signals.append(jnp.zeros(2, now.scale.dtype))
            out.append(g)
            if g is None:
                continue
            kind = squares[i].dtype
            wide = whole = p.astype(kind)
            if rests[i] is not None:
                eps = float(_limits(p.dtype).eps)
                whole = law.whole(jnp, wide, rests[i].astype(kind), eps)
            told = dict(zip(law.FACTORS, factors[i].astype(kind), strict=True))
            if jnp.ndim(p) < 2:
                told["keep"] = 1.0
            moved, squares[i], trails[i], leads[i], signals[i] = law.move(
                jnp, whole, g.astype(kind), squares[i], trails[i], leads[i], **told
            )
            out[i] = _rounded(moved - wide, p.dtype)
            if rests[i] is not None:
                # The rest is rounded too: with it a weight that stays could round to its neighbour.
                out[i] = jnp.where(moved == whole, 0, out[i])
                # Against what `apply_updates` makes of it, which rounds a second time.
                dropped = (moved - _rounded(wide + out[i], p.dtype)).astype(p.dtype)
                rests[i] = jnp.where(moved == whole, rests[i], dropped)
            out[i] = out[i].astype(p.dtype)
        after = law.follow(jnp, now, *jnp.stack(signals).T) if signals else now
        seen = jnp.array([g is not None for g in gradients], bool)
        return jax.tree.unflatten(structure, out), PursuitState(
            count=jnp.minimum(state.count, np.iinfo(np.int32).max - 1) + 1,
            law=jnp.where(seen[:, None], after.stacked(jnp).astype(state.law.dtype), state.law),
            square=jax.tree.unflatten(structure, squares),
            trail=jax.tree.unflatten(structure, trails),
            lead=jax.tree.unflatten(structure, leads),
            rest=jax.tree.unflatten(structure, rests),
            version=state.version,
        )

    return optax.GradientTransformation(init, update)


def told(state: PursuitState, policy: str) -> PursuitState:
    """Return the state after a shift that was told, see `driftrate.optax.notify_shift`."""
    if not law.forgets(policy):
        return state
    after = law.renewed(jnp, law.Law(*state.law.T)).stacked(jnp)
    trail, lead = (jax.tree.map(jnp.zeros_like, one) for one in (state.trail, state.lead))
    return state._replace(law=after, trail=trail, lead=lead)


def sound(state: PursuitState) -> bool:
    """Return whether a state that was saved holds numbers that can be gone on from."""
    kept = jax.tree.leaves(state._replace(law=()))
    squares = jax.tree.leaves(state.square)
    return (
        bool(law.sound(jnp, law.Law(*state.law.T)))
        and all(bool(jnp.all(jnp.isfinite(one))) for one in kept)
        and all(bool(jnp.all(one >= 0)) for one in squares)
    )


def _check(where: str, p: Array, gradient: Array | None, *kept: Array | None) -> None:
    """Raise `StateError` where something is of another shape or type than the weights."""
    if gradient is not None and jnp.shape(gradient) != p.shape:
        raise StateError(
            f"pursuit: the weights{where} are of shape {p.shape}, their gradient of"
            f" {jnp.shape(gradient)}: take it at these weights"
        )
    kinds = [jnp.promote_types(p.dtype, jnp.float32)] * 3 + [p.dtype if _short(p) else None]
    for name, one, kind in zip(("square", "trail", "lead", "rest"), kept, kinds, strict=True):
        has = None if one is None else f"{one.dtype}{one.shape}"
        wanted = None if kind is None else f"{kind}{p.shape}"
        if has != wanted:
            raise StateError(
                f"pursuit: {name}{where} is {has}, not {wanted}: where weights have grown, append"
                " zeros to their square, trail, lead and rest; or begin anew with init(params)"
            )


def _rms(leaf: Array, kind: Any) -> Array:
    """Return the root mean square, traced if the weights are."""
    if jnp.size(leaf) == 0:
        return jnp.zeros((), kind)
    return jnp.sqrt(jnp.mean(jnp.square(leaf.astype(kind))))


def _short(leaf: Array) -> bool:
    """Whether a step may round to nothing."""
    return jnp.result_type(leaf).itemsize < 4


def _rounded(leaf: Array, kind: Any) -> Array:
    """Return numbers of a type in their wider one: compilers leave out a cast there and back."""
    bits = _limits(kind)
    return jax.lax.reduce_precision(leaf, exponent_bits=bits.nexp, mantissa_bits=bits.nmant)


def _still(leaf: Array) -> Array:
    """Return zeros of a weight's shape, in float32 at least."""
    return jnp.zeros_like(leaf, dtype=jnp.promote_types(jnp.result_type(leaf), jnp.float32))
