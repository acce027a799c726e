"""Trees of gradients as lists of arrays: products in a metric, the trail, records within a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from driftrate.adapters._observe import Space
from driftrate.schedules.base import Array

Tree = Any
Leaves = list[Any]  # of arrays; None where there is no gradient, which counts as 0


def inexact(leaf: Any) -> bool:
    """Whether a leaf holds real or complex numbers."""
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def numbers(tree: Tree) -> Leaves:
    """Return the leaves of a tree, None for those that hold no real or complex numbers.

    Whole numbers have gradients of type float0, which nothing can be computed with.
    """
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None)
    return [leaf if leaf is not None and inexact(leaf) else None for leaf in leaves]


def real_type(leaves: Leaves) -> Any:
    """Return the precision for a schedule: half precision would round away slow changes."""
    kinds = [jnp.real(jnp.zeros((), jnp.result_type(x))).dtype for x in leaves if x is not None]
    return jnp.result_type(jnp.float32, *kinds)


def space(like: Array, weights: Leaves | None = None) -> Space:
    r"""Return how gradients are multiplied: ⟨a, b⟩ = Re Σ_i conj(a_i) b_i w_i, w = 1 by default.

    Products have the precision of the scalar `like`.
    """

    def dot(a: Leaves, b: Leaves) -> Array:
        total = jnp.zeros_like(like)
        for x, y, w in zip(a, b, weights or [None] * len(a), strict=True):
            if x is None or y is None:
                continue
            # Not jnp.vdot: on accelerators it may multiply in fewer bits.
            product = jnp.real(jnp.conj(wide(x, like)) * wide(y, like))
            total = total + jnp.sum(product if w is None else product * w)
        return total

    def minus(a: Leaves, b: Leaves) -> Leaves:
        def one(x: Any, y: Any) -> Any:
            if y is None:
                return x
            return -wide(y, like) if x is None else wide(x, like) - wide(y, like)

        return [one(x, y) for x, y in zip(a, b, strict=True)]

    return Space(dot, minus)


def still(params: Tree, least: Any = jnp.bfloat16) -> Tree:
    """Return a sum of 0, in a precision that has the range and digits of the least one too.

    A sum of ten gradients may leave the range of float16, and one of fifty steps needs the digits
    of single precision.
    """

    def one(leaf: Array) -> Array:
        kind = jnp.result_type(leaf)
        return jnp.zeros_like(leaf, dtype=jnp.promote_types(kind, least) if inexact(leaf) else kind)

    return jax.tree.map(one, params)


def replaced(function: Callable[[Any, Any], Any], tree: Tree, gradient: Leaves) -> Tree:
    """Return a tree of the parameters' structure, its arrays functions of themselves and gradients.

    The gradients are what `numbers` returned, and come in the precision of the arrays.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda leaf: leaf is None)
    some = [
        leaf
        if known is None
        else function(leaf, jnp.zeros_like(leaf) if g is None else g.astype(leaf.dtype))
        for leaf, known, g in zip(leaves, numbers(tree), gradient, strict=True)
    ]
    return jax.tree.unflatten(structure, some)


def scaled(updates: Tree, factor: Array) -> Tree:
    """Return the updates times a factor, multiplied in its precision, of their own type."""

    def one(update: Any) -> Any:
        if not inexact(update):
            return update
        return (factor * wide(update, factor)).astype(update.dtype)

    return jax.tree.map(one, updates)


def nodes(tree: Tree, *kinds: type | str) -> list[Any]:
    """Find the records of the given classes in a tree; by name those that Optax does not show."""

    def found(node: Any) -> bool:
        return type(node) in kinds or type(node).__name__ in kinds

    return [node for node in jax.tree.leaves(tree, is_leaf=found) if found(node)]


def wide(leaf: Array, like: Array) -> Array:
    """Return the array in the precision of `like`; a complex one stays complex."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, like.dtype))
