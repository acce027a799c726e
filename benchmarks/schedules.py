"""What one update costs, compared with torch's `StepLR.step()` in the same run.

    python benchmarks/schedules.py

Every figure is the smallest of many short, interleaved rounds, so that a busy machine slows all
alike. A second table has what the rules cost that are compiled for Python floats: one update, the
same as it is written, both as ratios to `LinearRate`'s, and the first update of a process, which
compiles.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import driftrate as dr
from driftrate.schedules import _scalars, _unrolled

ROUNDS, CALLS, BEFORE = 60, 200, 20
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
    "lead": 0.1,
    "weights_sq": 9.0,
    "reach": 1.0,
}
FORMS = {
    "LinearRate flow": dr.LinearRate(dim=16, noise_std=0.5, max_rate=0.5, form="flow"),
    "LinearRate euler": dr.LinearRate(dim=16, noise_std=0.5, max_rate=0.5, form="euler"),
    "MeasuredRate": dr.MeasuredRate(),
    "MeasuredRate max_rate": dr.MeasuredRate(max_rate=1.0),
    "MeasuredRate sequence": dr.MeasuredRate(mode="sequence"),
    "MeasuredRate sequence max_rate": dr.MeasuredRate(max_rate=1.0, mode="sequence"),
    "KnownShifts(MeasuredRate)": dr.KnownShifts(dr.MeasuredRate(), times=(20, 40)),
}
LIBRARIES = {
    "floats": None,
    "NumPy, 32 seeds": np.zeros(32),
    "torch, 32 seeds": torch.zeros(32),
}


def peer() -> Callable[[], object]:
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000)
    optimizer.step()
    return scheduler.step


def begun(rate: dr.Schedule, like: object = None) -> tuple[dict[str, float], Any]:
    """Return a row of signals and the state after some steps: the first may cost less."""
    row, state = {name: ROW[name] for name in rate.signals}, rate.init(like=like)
    for _ in range(BEFORE):
        state = rate.update(state, dr.Signal(**row))[1]
    return row, state


def update(rate: dr.Schedule, like: object = None) -> Callable[[], object]:
    """Build the signal inside, as a loop would."""
    row, state = begun(rate, like)
    return lambda: rate.update(state, dr.Signal(**row))


def as_written(rate: dr.Schedule) -> Callable[[], object]:
    row, state = begun(rate)
    return lambda: rate._step(_scalars, state, dr.Signal(**row))


def first_update(rate: dr.Schedule) -> float:
    """Return the seconds of an update that nothing was compiled for."""
    row, state = begun(rate)
    _unrolled._compiled.cache_clear()
    start = time.perf_counter()
    rate.update(state, dr.Signal(**row))
    return time.perf_counter() - start


def all_forms(rates: dict[str, dr.Schedule], best: dict[tuple[str, str], float]) -> Table:
    yardstick = best["StepLR.step()", "floats"]
    table = Table(title="one update, microseconds (and as a ratio to StepLR.step())")
    table.add_column("schedule")
    for lib in LIBRARIES:
        table.add_column(lib, justify="right")
    for name in ["StepLR.step()", *sorted(rates)]:
        cells = [best.get((name, lib)) for lib in LIBRARIES]
        table.add_row(name, *(f"{c * 1e6:.2f} ({c / yardstick:.2f})" if c else "" for c in cells))
    return table


def compiled_forms(rates: dict[str, dr.Schedule], best: dict[tuple[str, str], float]) -> Table:
    yardstick = best["LinearRate", "floats"]
    table = Table(title="compiled for Python floats, microseconds (and as a ratio to LinearRate)")
    table.add_column("schedule")
    for column in ("one update", "as it is written", "the first, milliseconds"):
        table.add_column(column, justify="right")
    for name in sorted(name for name, rate in rates.items() if rate._heavy):
        cells = [best[name, way] for way in ("floats", "as written")]
        first = min(first_update(rates[name]) for _ in range(5))
        texts = [f"{c * 1e6:.1f} ({c / yardstick:.0f})" for c in cells]
        table.add_row(name, *texts, f"{first * 1e3:.0f}")
    return table


def main() -> None:
    rates = {name: cls.example() for name, cls in dr.schedules.base.registry().items()} | FORMS
    jobs = {
        (name, lib): update(r, like) for name, r in rates.items() for lib, like in LIBRARIES.items()
    }
    jobs |= {(name, "as written"): as_written(r) for name, r in rates.items() if r._heavy}
    calls = {
        key: (40 if rates[key[0]]._heavy else CALLS)
        for key in jobs
        if key[1] == "floats" and "flow" not in key[0]
    }
    jobs["StepLR.step()", "floats"], calls["StepLR.step()", "floats"] = peer(), CALLS
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(ROUNDS):
        for key, job in jobs.items():
            count = calls.get(key, 4)
            best[key] = min(best[key], timeit.timeit(job, number=count) / count)
    Console().print(all_forms(rates, best))
    Console().print(compiled_forms(rates, best))


if __name__ == "__main__":
    main()
