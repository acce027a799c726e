"""Run in its own process: the shared network through one framework, in the precision asked for."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np

# By its place: a test run that collects this file has another path.
spec = importlib.util.spec_from_file_location(
    "pursuit_problem", Path(__file__).with_name("pursuit_problem.py")
)
problem = importlib.util.module_from_spec(spec)
spec.loader.exec_module(problem)


def by_torch(dtype, turned):
    """Step torch's; kernels that are `turned` are outputs × inputs, as torch's layers have them."""
    import torch

    import driftrate.torch

    def turn(arrays):
        return [a.T if turned else a for a in arrays]

    def tensor(array):
        return torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, dtype))

    weights = [torch.nn.Parameter(tensor(w)) for w in turn(problem.first())]
    optimizer = driftrate.torch.Pursuit(weights, lr=problem.LR, weight_decay=problem.DECAY)

    def step(grads):
        for w, g in zip(weights, turn(grads), strict=True):
            w.grad = tensor(g)
        optimizer.step()
        return turn([w.detach().numpy() for w in weights])

    return step


def by_optax(dtype, turned):
    """Step optax's, jitted, its first state too; it must be traced once."""
    import jax
    import jax.numpy as jnp
    import optax

    import driftrate.optax

    optimizer = driftrate.optax.pursuit(problem.LR, problem.DECAY)
    traces = []

    def tree(arrays):
        return [jnp.asarray(a.T if turned else a, dtype) for a in arrays]

    @jax.jit
    def update(weights, state, grads):
        traces.append(1)
        updates, state = optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state

    weights = tree(problem.first())
    state = jax.jit(optimizer.init)(weights)

    def step(grads):
        nonlocal weights, state
        weights, state = update(weights, state, tree(grads))
        assert len(traces) == 1
        return [np.asarray(w).T if turned else np.asarray(w) for w in weights]

    return step


def by_keras(dtype, turned):
    """Step Keras's, as its trainer does: on JAX without side effects, in a jitted function."""
    import keras

    import driftrate.keras

    def tree(arrays):
        return [keras.ops.convert_to_tensor(a.T if turned else a, dtype) for a in arrays]

    weights = [keras.Variable(w, dtype=dtype) for w in tree(problem.first())]
    optimizer = driftrate.keras.Pursuit(problem.LR, problem.DECAY)
    optimizer.build(weights)
    if keras.backend.backend() == "jax":
        import jax

        apply = jax.jit(optimizer.stateless_apply)
        values = [w.value for w in weights]
        state = [v.value for v in optimizer.variables]

        def jitted(grads):
            nonlocal values, state
            values, state = apply(state, tree(grads), values)
            return [np.asarray(w).T if turned else np.asarray(w) for w in values]

        return jitted

    def step(grads):
        optimizer.apply(tree(grads), weights)
        arrays = [np.array(w.value.detach().tolist()) for w in weights]
        return [a.T if turned else a for a in arrays]

    return step


RUNS = {"torch": by_torch, "optax": by_optax, "keras": by_keras}


def main(framework: str, dtype: str, turned: str, out: str) -> None:
    np.save(out, problem.play(RUNS[framework](dtype, turned == "turned"), problem.first()))


if __name__ == "__main__":
    main(*sys.argv[1:])
