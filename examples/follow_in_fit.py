"""`model.fit` on a stream whose target jumps, with a rate that follows it.

KERAS_BACKEND=torch python examples/follow_in_fit.py [PICTURE]
"""

from __future__ import annotations

import os
import sys

import numpy as np

import driftrate as dr
from driftrate.paper import style

os.environ.setdefault("KERAS_BACKEND", "torch")
DIM, STEPS, BATCH, NOISE = 16, 1200, 32, 1.0


@style.styled
def main(picture: str) -> None:
    """Train with three rates, one of which measures the shift, and draw rate and regret."""
    import keras

    import driftrate.keras

    rng = np.random.default_rng(0)
    path = dr.streams.bursty(dim=DIM, steps=STEPS, size=3.0, every=600, seed=1)
    x = rng.standard_normal((STEPS, BATCH, DIM))
    y = np.einsum("tbd,td->tb", x, path) + NOISE * rng.standard_normal((STEPS, BATCH))
    rules: dict[tuple[str, str], dr.Schedule] = {
        ("follows the shift", "the paper's rule"): dr.MeasuredRate(),
        ("constant rate 0.1", "best constant rate"): dr.ConstantRate(0.1),
        ("decaying rate", "rate 0"): dr.InverseTimeRate(0.3, decay=0.05),
    }
    figure, ((left, right),) = style.canvas(1, 2, width=10, height=3.6)
    for (name, colour), rule in rules.items():
        # Signal and noise are measured from two half-batches per step.
        sgd = keras.optimizers.SGD(gradient_accumulation_steps=2)
        optimizer = driftrate.keras.attach(sgd, rule, mode="accumulation", batch_size=BATCH)
        linear = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((DIM,)), linear])
        model.compile(optimizer, loss=lambda y, out: keras.ops.mean((out - y) ** 2, -1) / 2)
        rates, seen = driftrate.keras.RecordRate(), [np.zeros((DIM, 1))]
        watch = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, k=linear, s=seen: s.append(
                k.kernel.value.tolist()
            )
        )
        flat = {"x": x.reshape(-1, DIM), "y": y.reshape(-1, 1), "batch_size": BATCH // 2}
        model.fit(**flat, shuffle=False, verbose=0, callbacks=[rates, watch])
        regret = np.cumsum(((np.array(seen)[:-1:2, :, 0] - path) ** 2).sum(axis=1) / 2)
        left.plot(rates.history["rate"][1::2], color=style.COLOURS[colour], label=name)
        right.plot(regret, color=style.COLOURS[colour])
        print(f"{name:<20} regret {regret[-1]:7.1f}")
    left.set(title="learning rate", xlabel="step")
    right.set(title="cumulative regret", xlabel="step", yscale="log")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/follow_in_fit.png")
