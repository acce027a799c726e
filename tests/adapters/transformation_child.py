"""Run in its own process: 64-bit numbers, or the second half of a run from a file."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import shifting_problem as problem

import driftrate as dr
import driftrate.optax

MODES = {
    "sequence": "sequence",
    "parts": "parts",
    "given": "given",
    "measured sequence": None,
    "measured parts": "given",
}


def loss(theta, batch):
    x, y = batch
    return jnp.mean((x @ theta - y) ** 2) / 2


def stepper(optimizer, mode):
    """A jitted step of training, and how often it was traced."""
    traces = []
    measure = driftrate.optax.split_value_and_grad(loss)

    def step(theta, state, batch, shift):
        traces.append(1)
        if "parts" in mode:
            (_, signal), gradient = measure(theta, batch)
            signal = signal._replace(loss=None)
        else:
            gradient, signal = jax.grad(loss)(theta, batch), dr.Signal(shift=shift)
        updates, state = optimizer.update(gradient, state, theta, signal=signal)
        return optax.apply_updates(theta, updates), state

    return jax.jit(step), traces


def run(optimizer, mode, dtype, theta=None, state=None, steps=range(problem.STEPS)):
    """Train; return the rates, the weights after each step and the last state."""
    x, y = (jnp.asarray(a, dtype) for a in problem.batches())
    theta = jnp.zeros(problem.DIM, dtype) if theta is None else theta
    state = optimizer.init(theta) if state is None else state
    step, traces = stepper(optimizer, mode)
    rates, weights = [], []
    for t in steps:
        theta, state = step(theta, state, (x[t], y[t]), problem.shift(t))
        rates.append(driftrate.optax.record(state)["rate"])
        weights.append(theta)
    assert len(traces) == 1, f"traced {len(traces)} times"
    return np.array(rates), np.array(weights), state


def attached(mode, inner=None, **options):
    """The optimizer of a mode."""
    inner = optax.sgd(0.1) if inner is None else inner
    options = {"mode": MODES.get(mode, mode), "batch_size": problem.BATCH} | options
    return driftrate.optax.attach(inner, problem.rule(mode), **options)


def main(task: str, source: str, out: str) -> None:
    if task == "wide":
        jax.config.update("jax_enable_x64", True)
        found = {}
        for mode in ("sequence", "parts", "given"):
            rates, weights, _ = run(attached(mode), mode, jnp.float64)
            assert rates.dtype == weights.dtype == np.float64
            found |= {f"{mode}/rates": rates, f"{mode}/weights": weights}
        np.savez(out, **found)
        return
    optimizer = attached("sequence", optax.adam(1.0))
    fresh = optimizer.init(jnp.zeros(problem.DIM))
    with np.load(Path(source, "state.npz")) as file:
        theta, *leaves = [file[name] for name in file.files]
    files = {"npz": (theta, leaves)}
    files["pickle"] = pickle.loads(Path(source, "state.pickle").read_bytes())
    found, steps = {}, range(problem.STEPS - 200, problem.STEPS)
    for kind, (theta, saved) in files.items():
        state = driftrate.optax.load(saved, like=fresh)
        start = jnp.asarray(theta), state, steps
        _, found[kind], _ = run(optimizer, "sequence", jnp.float32, *start)
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
