"""The gradients of parts of a batch, and what they say of signal and noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from driftrate.adapters._observe import Fields, Space, of_parts
from driftrate.adapters.optax.trees import Tree, numbers, real_type, space, wide
from driftrate.errors import ConfigError, SignalError
from driftrate.schedules.base import Array, Signal


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
    like = jnp.zeros((), real_type(numbers(gradients)))
    fields = compared(gradients, space(like), like)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), gradients), Signal(**fields)


def compared(gradients: Tree, metric: Space, like: Array) -> Fields:
    """Return the fields of stacked gradients in a metric."""
    leaves = numbers(gradients)
    shapes = [jnp.shape(leaf) for leaf in leaves if leaf is not None]
    counts = {shape[:1] for shape in shapes}
    if len(counts) != 1 or () in counts:
        raise SignalError(
            "from_parts: gradients must be arrays with the same number of parts on their first"
            f" axis, got shapes {shapes}"
        )
    ((count,),) = counts
    if count < 2:
        raise SignalError(f"from_parts: gradients must be of at least 2 parts, got {count}")
    every = [None if leaf is None else wide(leaf, like) for leaf in leaves]
    mean = [None if leaf is None else jnp.mean(leaf, axis=0) for leaf in every]
    apart, square = metric.minus(every, mean), metric.dot(mean, mean)
    return {"grad_sq": square} | of_parts(square, metric.dot(apart, apart), float(count))


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
        metric = space(like)
        # The running mean is kept in full precision: half would lose what the later parts add.
        mean = jax.tree.map(lambda g: wide(g, like), first)

        def add(carry: Any, item: Any) -> tuple[Any, None]:
            mean, value, deviations, count = carry
            loss, gradient = one(params, item)
            count = count + 1.0
            apart = jax.tree.map(lambda g, m: g.astype(m.dtype) - m, gradient, mean)
            mean = jax.tree.map(lambda m, a: m + a / count, mean, apart)
            apart = numbers(apart)
            deviations = deviations + (count - 1.0) / count * metric.dot(apart, apart)
            return (mean, value + (loss - value) / count, deviations, count), None

        start = (mean, value.astype(like.dtype), like, like + 1.0)
        (mean, value, deviations, _), _ = jax.lax.scan(
            add, start, jax.tree.map(lambda x: x[1:], cut)
        )
        square = metric.dot(numbers(mean), numbers(mean))
        fields = {"grad_sq": square} | of_parts(square, deviations, float(parts))
        signal = Signal(batch_size=size, loss=value, **fields)
        return (value, signal), jax.tree.map(lambda m, g: m.astype(g.dtype), mean, first)

    return measured
