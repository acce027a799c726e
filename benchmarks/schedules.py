"""What one update costs, compared with torch's `StepLR.step()` in the same run.

    python benchmarks/schedules.py

Every figure is the smallest of many short, interleaved rounds, so that a busy machine slows all
alike.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import driftrate as dr

ROUNDS, CALLS = 60, 200
ROW = {
    "batch_size": 64.0,
    "shift": 0.1,
    "loss": 0.5,
    "loss_shift": 0.1,
    "step_length": 0.1,
    "grad_sq": 1.0,
    "parts": 2.0,
    "cross": 0.2,
    "spread": 0.5,
    "dim": 16.0,
    "trail": 0.5,
}


def peer() -> Callable[[], object]:
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000)
    optimizer.step()
    return scheduler.step


def update(rate: dr.Schedule, like: object = None) -> Callable[[], object]:
    """Build the signal inside, as a loop would."""
    state = rate.init(like=like)
    row = {name: ROW[name] for name in rate.signals}
    return lambda: rate.update(state, dr.Signal(**row))


def main() -> None:
    rates = {name: cls.example() for name, cls in dr.schedules.base.registry().items()}
    rates["LinearRate flow"] = dr.LinearRate(dim=16, noise_std=0.5, max_rate=0.5, form="flow")
    rates["LinearRate euler"] = dr.LinearRate(dim=16, noise_std=0.5, max_rate=0.5, form="euler")
    libraries = {
        "floats": None,
        "NumPy, 32 seeds": np.zeros(32),
        "torch, 32 seeds": torch.zeros(32),
    }
    jobs = {
        (name, lib): update(r, like) for name, r in rates.items() for lib, like in libraries.items()
    }
    jobs["StepLR.step()", "floats"] = peer()
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(ROUNDS):
        for key, job in jobs.items():
            calls = CALLS if key[1] == "floats" and "flow" not in key[0] else 4
            best[key] = min(best[key], timeit.timeit(job, number=calls) / calls)

    yardstick = best["StepLR.step()", "floats"]
    table = Table(title="one update, microseconds (and as a ratio to StepLR.step())")
    table.add_column("schedule")
    for lib in libraries:
        table.add_column(lib, justify="right")
    for name in ["StepLR.step()", *sorted(rates)]:
        cells = [best.get((name, lib)) for lib in libraries]
        table.add_row(name, *(f"{c * 1e6:.2f} ({c / yardstick:.2f})" if c else "" for c in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
