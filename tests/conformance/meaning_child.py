"""Run in its own process: the shared problem through one framework, in double precision."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np

# By its place: a test run that collects this file has another path.
spec = importlib.util.spec_from_file_location(
    "meaning_problem", Path(__file__).with_name("meaning_problem.py")
)
problem = importlib.util.module_from_spec(spec)
spec.loader.exec_module(problem)


def flat(arrays):
    return np.concatenate([np.ravel(np.asarray(one)) for one in arrays])


def by_torch(kind, own, schedule, network):
    import torch

    import driftrate.torch

    weights = [torch.nn.Parameter(torch.from_numpy(one)) for one in problem.start(network)]
    make = {
        "sgd": lambda: torch.optim.SGD(weights, lr=own),
        "adam": lambda: torch.optim.Adam(weights, lr=own, eps=problem.EPSILON),
    }
    optimizer = make[kind]()
    rate = driftrate.torch.attach(optimizer, schedule, batch_size=problem.BATCH)
    for x, y, shift in zip(*problem.batches(), problem.shifts(), strict=True):
        optimizer.zero_grad()
        out = torch.from_numpy(x) @ weights[0]
        out = (out / (1.0 + out * out)) @ weights[1] if network else out
        errors = out[:, 0] - torch.from_numpy(y)
        (errors.square().mean() / 2).backward()
        if "shift" in schedule.signals:
            rate.tell(shift=float(shift))
        optimizer.step()
        yield optimizer.param_groups[0]["lr"], flat(one.detach().numpy() for one in weights)


def by_optax(kind, own, schedule, network):
    import jax
    import jax.numpy as jnp
    import optax

    import driftrate as dr
    import driftrate.optax

    make = {"sgd": lambda: optax.sgd(own), "adam": lambda: optax.adam(own, eps=problem.EPSILON)}
    optimizer = driftrate.optax.attach(make[kind](), schedule, batch_size=problem.BATCH)
    traces = []

    @jax.jit
    def step(theta, state, x, y, shift):
        traces.append(1)

        def loss(theta):
            out = x @ theta[0]
            out = (out / (1.0 + out * out)) @ theta[1] if network else out
            return jnp.mean((out[:, 0] - y) ** 2) / 2

        gradient = jax.grad(loss)(theta)
        updates, state = optimizer.update(gradient, state, theta, signal=dr.Signal(shift=shift))
        return optax.apply_updates(theta, updates), state

    theta = [jnp.asarray(one) for one in problem.start(network)]
    state = optimizer.init(theta)
    for x, y, shift in zip(*problem.batches(), problem.shifts(), strict=True):
        theta, state = step(theta, state, x, y, shift)
        yield float(driftrate.optax.record(state)["rate"]), flat(theta)
    assert len(traces) == 1


def by_keras(kind, own, schedule, network):
    import keras

    import driftrate.keras

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")

    class Layers(keras.layers.Layer):
        """Keeps double precision, where keras.ops.matmul would not on torch."""

        def build(self, shape):
            self.kernels = []
            for one in problem.start(network):
                self.kernels.append(self.add_weight(shape=one.shape))
                self.kernels[-1].assign(one)

        def call(self, inputs):
            out = inputs @ self.kernels[0].value
            return (out / (1.0 + out * out)) @ self.kernels[1].value if network else out

    class Watch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.rows = []

        def on_train_batch_begin(self, batch, logs=None):
            if "shift" in schedule.signals:
                self.model.optimizer.tell(shift=float(shifts[batch]))

        def on_train_batch_end(self, batch, logs=None):
            weights = flat(one.value.tolist() for one in self.model.layers[-1].kernels)
            self.rows.append((self.model.optimizer.record["rate"], weights))

    make = {
        "sgd": lambda: keras.optimizers.SGD(own),
        "adam": lambda: keras.optimizers.Adam(own, epsilon=problem.EPSILON),
    }
    optimizer = driftrate.keras.attach(make[kind](), schedule, batch_size=problem.BATCH)
    model = keras.Sequential([keras.Input((problem.DIM,)), Layers()])
    model.compile(optimizer, loss=lambda y, out: ((out - y) ** 2).mean(-1) / 2)
    (x, y), shifts, watch = problem.batches(), problem.shifts(), Watch()
    model.fit(
        x.reshape(-1, problem.DIM),
        y.reshape(-1, 1),
        batch_size=problem.BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[watch],
    )
    return watch.rows


def main(framework: str, out: str) -> None:
    found = {}
    run = {"torch": by_torch, "optax": by_optax, "keras": by_keras}[framework]
    for name, case in problem.CASES.items():
        rows = list(run(*case))
        found[f"{name}/rates"] = np.array([rate for rate, _ in rows], np.float64)
        found[f"{name}/weights"] = np.array([weights for _, weights in rows])
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
