"""A jitted loop whose rate follows the shift: regression on a target that jumps twice.

python examples/follow_in_jit.py [PICTURE]
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import optax

import driftrate as dr
import driftrate.optax
from driftrate.paper import style

DIM, STEPS, BATCH, NOISE = 16, 3000, 32, 1.0


@style.styled
def main(picture: str) -> None:
    """Train with three rates, one of which measures the shift, and draw rate and regret."""
    path = jnp.asarray(dr.streams.bursty(dim=DIM, steps=STEPS, size=3.0, every=1000, seed=1))

    def loss(theta: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.mean((batch[0] @ theta - batch[1]) ** 2) / 2

    rules: dict[tuple[str, str], dr.Schedule] = {
        ("follows the shift", "the paper's rule"): dr.MeasuredRate(),
        ("constant rate 0.1", "best constant rate"): dr.ConstantRate(0.1),
        ("decaying rate", "rate 0"): dr.InverseTimeRate(0.3, decay=0.05),
    }
    figure, ((left, right),) = style.canvas(1, 2, width=10, height=3.6)
    gradient = driftrate.optax.split_value_and_grad(loss, parts=2)
    for (name, colour), rule in rules.items():
        optimizer = driftrate.optax.attach(optax.sgd(1.0), rule, mode="given")

        def step(carry, item, optimizer=optimizer):  # type: ignore[no-untyped-def]
            (theta, state), (target, key) = carry, item
            x, noise = jnp.split(jax.random.normal(key, (BATCH, DIM + 1)), [DIM], axis=1)
            (_, signal), mean = gradient(theta, (x, x @ target + NOISE * noise[:, 0]))
            updates, state = optimizer.update(mean, state, theta, signal=signal)
            row = driftrate.optax.record(state)["rate"], jnp.sum((theta - target) ** 2) / 2
            return (optax.apply_updates(theta, updates), state), row

        theta, keys = jnp.zeros(DIM), jax.random.split(jax.random.key(0), STEPS)
        _, (rates, excess) = jax.lax.scan(step, (theta, optimizer.init(theta)), (path, keys))
        left.plot(rates, color=style.COLOURS[colour], label=name)
        right.plot(jnp.cumsum(excess), color=style.COLOURS[colour])
        print(f"{name:<20} regret {jnp.sum(excess):7.1f}")
    left.set(title="learning rate", xlabel="step")
    right.set(title="cumulative regret", xlabel="step", yscale="log")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/follow_in_jit.png")
