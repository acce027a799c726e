"""Run in its own process: the pool under jit, with 64-bit numbers on or off."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from driftrate.learners import HedgedSGD


def main(out: str, batches: str, wide: str) -> None:
    jax.config.update("jax_enable_x64", wide == "wide")
    pool, traces = HedgedSGD(), 0

    def update(state, x, y):
        nonlocal traces
        traces += 1
        residual = pool.members(state) @ x.T - y
        return pool.update(state, 0.5 * jnp.mean(residual**2, axis=-1), residual @ x / len(x))

    step = jax.jit(update)
    with np.load(batches) as data:
        rows = list(zip(data["x"], data["y"], strict=True))
    state = pool.init(jnp.zeros(rows[0][0].shape[1]))
    for x, y in rows:
        state = step(state, jnp.asarray(x), jnp.asarray(y))
    assert traces == 1, f"traced {traces} times"
    assert len({leaf.dtype for leaf in state.values()}) == 1
    saved = pool.load(json.loads(json.dumps(pool.dump(state))))
    assert all(saved[key].tobytes() == leaf.tobytes() for key, leaf in state.items())
    kept = step(state, jnp.full_like(jnp.asarray(rows[0][0]), jnp.nan), jnp.asarray(rows[0][1]))
    assert all(bool((kept[key] == leaf).all()) for key, leaf in state.items())
    np.savez(out, **state)


if __name__ == "__main__":
    main(*sys.argv[1:])
