"""Rows per second of the estimators against scikit-learn's SGD and River, in one run.

Targets are for the SGD copies (`schedule=HedgedSGD()`). The pool of memories is timed beside them,
in its steps of 16 rows, and row by row in River, at 8 and at 100 features.

OMP_NUM_THREADS=1 python benchmarks/estimators.py
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from river import linear_model, optim
from sklearn.linear_model import SGDClassifier, SGDRegressor

from driftrate import river as by_rows
from driftrate.learners import HedgedSGD
from driftrate.sklearn import ShiftClassifier, ShiftRegressor

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

    def one_by_one(model: Any, targets: Any, rows: Any = samples) -> Callable[[], None]:
        known = targets.tolist()

        def run() -> None:
            for a, b in zip(rows, known, strict=True):
                for sample, target in zip(a, b, strict=True):
                    model.learn_one(sample, target)

        return run

    def copies(kind: Any, *loss: str) -> Any:
        return kind(*loss, schedule=HedgedSGD(), batch_size=ROWS)

    classes = {"classes": [0, 1]}
    runs = {
        "ShiftClassifier(SGD)": batches(copies(ShiftClassifier), labels, **classes),
        "SGDClassifier": batches(SGDClassifier(loss="log_loss"), labels, **classes),
        "LogisticRegression.learn_one": one_by_one(
            linear_model.LogisticRegression(optim.SGD(0.01)), labels
        ),
        "ShiftClassifier(hinge)": batches(copies(ShiftClassifier, "hinge"), labels, **classes),
        "SGDClassifier(hinge)": batches(SGDClassifier(), labels, **classes),
        "ShiftRegressor(SGD)": batches(copies(ShiftRegressor), y),
        "SGDRegressor": batches(SGDRegressor(), y),
        "LinearRegression.learn_one": one_by_one(
            linear_model.LinearRegression(optim.SGD(0.001)), y
        ),
    }
    pools = {
        "ShiftRegressor": batches(ShiftRegressor(), y),
        "ShiftClassifier": batches(ShiftClassifier(), labels, **classes),
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
    for name, run in pools.items():
        print(f"{name:<30} {BATCHES * ROWS / least(run):12,.0f} rows/s")
    for width in (8, FEATURES):
        few = [[dict(list(sample.items())[:width]) for sample in samples[0]]]
        for kind, targets in (
            (by_rows.ShiftRegressor, y[:1]),
            (by_rows.ShiftClassifier, labels[:1]),
        ):
            seconds = least(one_by_one(kind(), targets, few)) / ROWS
            print(f"{kind.__name__}.learn_one, {width:>3} features {1e3 * seconds:8.2f} ms")


def least(run: Callable[[], None], rounds: int = 5) -> float:
    """Return the least time of some runs, after one."""
    times = []
    for _ in range(1 + rounds):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times[1:])


if __name__ == "__main__":
    main()
