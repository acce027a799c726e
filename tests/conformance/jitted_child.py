"""Run in its own process: JAX with 64-bit numbers on, which the library never switches itself."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import driftrate as dr

spec = importlib.util.spec_from_file_location("cases", Path(__file__).with_name("cases.py"))
cases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cases)


def main(out: str) -> None:
    jax.config.update("jax_enable_x64", True)
    found = {}
    for name, rate in cases.schedules().items():
        rows = cases.signals(cases.steps(name))
        for dtype in (jnp.float64, jnp.float32):
            traces = 0

            def update(state, signal, rate=rate):
                nonlocal traces
                traces += 1
                return rate.update(state, signal)

            step = jax.jit(update)
            state, rates = rate.init(like=jnp.zeros((), dtype)), []
            for row in rows:
                eta, state = step(state, dr.Signal(**row))
                rates.append(eta)
            assert all(eta.dtype == dtype for eta in rates), name
            key = f"{name}/{np.dtype(dtype).name}"
            found[key] = np.array(rates, np.float64)

            saved = json.loads(json.dumps(rate.dump(state), allow_nan=False))
            pairs = zip(jax.tree.leaves(state), jax.tree.leaves(rate.load(saved)), strict=True)
            for a, b in pairs:
                assert a.dtype == b.dtype, name
                assert a.tobytes() == b.tobytes(), name

            if rate.signals:  # a bad signal leaves the state and the last good rate as they were
                first = rate.signals[0]
                negative = () if first in cases.SIGNED else (-1.0,)
                for bad in (float("nan"), float("inf"), *negative):
                    eta, kept = step(state, dr.Signal(**{**rows[0], first: bad}))
                    assert eta == state["rate"], (name, bad)
                    same = jax.tree.map(lambda a, b: (a == b).all(), kept, state)
                    assert jax.tree.all(same), (name, bad)
            assert traces == 1, f"{name} was traced {traces} times"

    # A whole axis of seeds under vmap and scan, as a simulator would run it.
    rate, rows = dr.LinearRate.example(), cases.signals(cases.steps("LinearRate"))

    def body(state, row):
        eta, state = rate.update(state, dr.Signal(**row))
        return state, eta

    table = {key: jnp.array([row[key] for row in rows]) for key in rows[0]}
    _, scanned = jax.lax.scan(body, rate.init(like=jnp.zeros(3)), table)
    np.testing.assert_allclose(scanned[:, 1], found["LinearRate/float64"], rtol=1e-12)
    np.savez(out, **found)


if __name__ == "__main__":
    main(sys.argv[1])
