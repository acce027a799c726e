"""Rows per second of `partial_fit` against scikit-learn's SGD and River, in one run.

OMP_NUM_THREADS=1 python benchmarks/estimators.py
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from river import linear_model, optim
from sklearn.linear_model import SGDClassifier, SGDRegressor

from driftrate.sklearn import ShiftSGDClassifier, ShiftSGDRegressor

ROWS, FEATURES, BATCHES, ROUNDS = 64, 100, 20, 40
TARGETS = {"SGDClassifier": 2.0, "SGDRegressor": 1.0, "learn_one": 4.0}


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCHES, ROWS, FEATURES))
    y = x @ (rng.standard_normal(FEATURES) / 10) + rng.standard_normal((BATCHES, ROWS))
    labels = (y > 0).astype(int)
    samples = [[dict(enumerate(row)) for row in batch.tolist()] for batch in x]

    def batches(model: Any, targets: Any, **first: Any) -> Callable[[], None]:
        model.partial_fit(x[0], targets[0], **first)

        def run() -> None:
            for a, b in zip(x, targets, strict=True):
                model.partial_fit(a, b)

        return run

    def one_by_one(model: Any, targets: Any) -> Callable[[], None]:
        known = targets.tolist()

        def run() -> None:
            for a, b in zip(samples, known, strict=True):
                for sample, target in zip(a, b, strict=True):
                    model.learn_one(sample, target)

        return run

    classes = {"classes": [0, 1]}
    runs = {
        "ShiftSGDClassifier": batches(ShiftSGDClassifier(), labels, **classes),
        "SGDClassifier": batches(SGDClassifier(loss="log_loss"), labels, **classes),
        "LogisticRegression.learn_one": one_by_one(
            linear_model.LogisticRegression(optim.SGD(0.01)), labels
        ),
        "ShiftSGDClassifier(hinge)": batches(ShiftSGDClassifier("hinge"), labels, **classes),
        "SGDClassifier(hinge)": batches(SGDClassifier(), labels, **classes),
        "ShiftSGDRegressor": batches(ShiftSGDRegressor(), y),
        "SGDRegressor": batches(SGDRegressor(), y),
        "LinearRegression.learn_one": one_by_one(
            linear_model.LinearRegression(optim.SGD(0.001)), y
        ),
    }
    best = dict.fromkeys(runs, np.inf)
    for _ in range(ROUNDS):  # interleaved, so that a busy moment slows all alike
        for name, run in runs.items():
            start = perf_counter()
            run()
            best[name] = min(best[name], perf_counter() - start)
    ours = ""
    for name, seconds in best.items():
        speed = BATCHES * ROWS / seconds
        if name.startswith("Shift"):
            ours = name
            print(f"{name:<30} {speed:12,.0f} rows/s")
        else:
            target = TARGETS[name.partition("(")[0].rpartition(".")[2]]
            ratio = seconds / best[ours]
            print(f"{name:<30} {speed:12,.0f} rows/s   ratio {ratio:5.2f}, target {target:.0f}")


if __name__ == "__main__":
    main()
