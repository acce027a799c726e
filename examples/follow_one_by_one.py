"""`learn_one` on a stream whose target jumps, with rates that follow it.

One rate measures the shift from the gradients; one decays and restarts when ADWIN sees a shift.

python examples/follow_one_by_one.py [PICTURE]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from river import linear_model, optim

import driftrate as dr
import driftrate.river
from driftrate.paper import style

DIM, STEPS, NOISE = 8, 4000, 0.5


@style.styled
def main(picture: str) -> None:
    """Learn with four rates, and draw rate and regret."""
    rng = np.random.default_rng(0)
    path = dr.streams.bursty(dim=DIM, steps=STEPS, size=3.0, every=2000, seed=1)
    x = rng.standard_normal((STEPS, DIM))
    y = (x * path).sum(axis=1) + NOISE * rng.standard_normal(STEPS)
    rules: dict[tuple[str, str], dr.Schedule] = {
        ("MeasuredRate", "the paper's rule"): dr.MeasuredRate(),
        ("decaying rate, told of shifts", "exact form"): dr.InverseTimeRate(0.05, decay=0.02),
        ("constant rate 0.01", "best constant rate"): dr.ConstantRate(0.01),
        ("decaying rate", "rate 0"): dr.InverseTimeRate(0.05, decay=0.02),
    }
    figure, ((left, right),) = style.canvas(1, 2, width=10, height=3.6)
    for (name, colour), rule in rules.items():
        optimizer = driftrate.river.attach(optim.SGD(), rule)
        model: Any = linear_model.LinearRegression(optimizer, intercept_lr=0.0)
        notifier = driftrate.river.ShiftNotifier(optimizer, "reset")
        rates, regret = [], [0.0]
        for row, label, truth in zip(x.tolist(), y.tolist(), path, strict=True):
            sample = dict(enumerate(row))
            weights = np.array([model.weights.get(i, 0.0) for i in range(DIM)])
            regret.append(regret[-1] + float(((weights - truth) ** 2).sum()))
            if name.endswith("told of shifts"):
                notifier.update(abs(label - model.predict_one(sample)))
            model.learn_one(sample, label)
            rates.append(optimizer.learning_rate)
        left.plot(rates, color=style.COLOURS[colour], label=name)
        right.plot(regret, color=style.COLOURS[colour])
        print(f"{name:<30} regret {regret[-1]:8.1f}, shifts noticed {notifier.shifts}")
    left.set(title="learning rate", xlabel="sample", yscale="log")
    right.set(title="cumulative regret", xlabel="sample", yscale="log")
    figure.legend(loc="outside lower center", ncols=4)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/follow_one_by_one.png")
