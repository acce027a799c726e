"""Run with eight devices on the CPU: the same runs with weights whole and over a mesh.

`sharded_arrays_child.py OUT` writes what `test_sharded_arrays.py` looks at.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from functools import cache
from pathlib import Path

# Eight devices; and machine code that is made quickly, which leaves the collectives as they are.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import driftrate as dr
import driftrate.optax

STEPS, HALF, BATCH = 20, 8, 32
SHAPES = {"first": (16, 8), "bias": (16,), "second": (16, 16), "last": (8, 16), "scale": ()}
MESHES = {"rows": ((8,), ("data",)), "grid": ((4, 2), ("data", "model"))}
SHIFT = dr.Estimated(dr.LinearRate(dim=4, noise_std=1.0), dr.estimate.DebiasedShift())
OPTIMIZERS = {
    "pursuit": driftrate.optax.pursuit(),
    "network": driftrate.optax.attach(optax.adam(0.01), dr.MeasuredRate()),
    # Products in the metric of moments, whether there are any, and the length of the last step.
    "lengths": driftrate.optax.attach(optax.rmsprop(0.01), SHIFT, batch_size=BATCH),
}
TRAINED = ("pursuit", "network")  # of the others the compiled text is looked at alone
COLLECTIVES = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-[a-z]+|ragged-[a-z-]+"


def spec(name, mesh):
    """Rows over the first axis of a mesh, columns over the second."""
    return P(*mesh.axis_names[: len(SHAPES[name])])


@cache
def weights():
    rng = np.random.default_rng(0)
    return {name: 0.3 * rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


@cache
def batch(t):
    rng = np.random.default_rng((1, t))
    x = rng.standard_normal((BATCH, 8), np.float32)
    return x, np.sin(x @ rng.standard_normal((8, 8), np.float32) * 0.1 + (t > STEPS // 2))


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["first"].T + params["bias"])
    hidden = jnp.tanh(hidden @ params["second"])
    return jnp.mean((params["scale"] * hidden @ params["last"].T - y) ** 2)


def placed(params, mesh):
    """Put the weights where a mesh says."""
    return {
        name: jax.device_put(leaf, NamedSharding(mesh, spec(name, mesh)))
        for name, leaf in params.items()
    }


@cache
def stepper(kind):
    """A jitted step of training: one, so that it is compiled once a layout."""

    @jax.jit
    def step(params, state, x, y):
        gradient = jax.grad(loss)(params, x, y)
        updates, state = OPTIMIZERS[kind].update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return step


def run(kind, params, state, steps, where=None):
    """Train; return weights and state."""
    for t in steps:
        x, y = batch(t) if where is None else jax.device_put(batch(t), where)
        params, state = stepper(kind)(params, state, x, y)
    return params, state


def collectives(text):
    """Return each collective of a compiled text with how many numbers it carries."""
    found = []
    for line in text.splitlines():
        told = re.search(rf"= (.*?) ({COLLECTIVES})(-start)?\(", line)
        if told:
            shapes = re.findall(r"\w+\[([\d,]*)\]", told[1])
            sizes = [math.prod(int(n) for n in shape.split(",") if n) for shape in shapes]
            found.append((told[2], sum(sizes)))
    return found


def strays(params, state, mesh):
    """Return the arrays of a weight's shape that do not lie as their weight does."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path((params, state))[0]:
        name = getattr(path[-1], "key", None)
        if name not in SHAPES or leaf.shape != SHAPES[name]:
            continue
        if not leaf.sharding.is_equivalent_to(NamedSharding(mesh, spec(name, mesh)), leaf.ndim):
            found.append(jax.tree_util.keystr(path))
    return found


def main(out):
    told, arrays = {}, {}

    def keep(name, params, state):
        arrays[f"{name}/rate"] = np.asarray(driftrate.optax.record(state)["rate"])
        arrays.update({f"{name}/{key}": np.asarray(leaf) for key, leaf in params.items()})

    for kind, optimizer in OPTIMIZERS.items():
        told[kind] = {}
        for place, (sides, names) in MESHES.items():
            mesh = Mesh(np.array(jax.devices()).reshape(sides), names)
            params = placed(weights(), mesh)
            state = optimizer.init(params)
            text = jax.jit(optimizer.update).lower(params, state, params).compile().as_text()
            told[kind][place] = {"collectives": collectives(text)}
            if kind not in TRAINED:
                break
            end = run(kind, params, state, range(STEPS), NamedSharding(mesh, P("data")))
            keep(f"{kind}/{place}", *end)
            told[kind][place]["strays"] = strays(*end, mesh)
        if kind in TRAINED:
            params = jax.tree.map(jnp.asarray, weights())
            half = run(kind, params, optimizer.init(params), range(HALF))
            keep(f"{kind}/whole", *run(kind, *half, range(HALF, STEPS)))
            saved = jax.tree.map(np.asarray, half)  # what a file holds
            params = placed(saved[0], mesh)
            state = driftrate.optax.load(saved[1], like=optimizer.init(params))
            told[kind]["resumed"] = {"strays": strays(params, state, mesh)}
            rest = range(HALF, STEPS)
            keep(f"{kind}/resumed", *run(kind, params, state, rest, NamedSharding(mesh, P("data"))))
    Path(out, "told.json").write_text(json.dumps(told))
    np.savez(Path(out, "arrays.npz"), **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
