"""What an attached rate costs where the model costs next to nothing: `adapters.py --small` runs it.

Steps of all rows of a table are interleaved and each row's figure is its fastest step. Compilation
is told in seconds of the processor, of which other programs on the machine take fewer than of the
wall clock; it happens once, and is the fastest of `COMPILED`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from river import linear_model
from river import optim as river_optim
from torch import Tensor, nn

import driftrate as dr
import driftrate.optax
import driftrate.river
import driftrate.torch

STEPS = 3000
COMPILED = 3
BATCH = 64
LOCAL, CAPPED = dr.MeasuredRate(), dr.MeasuredRate(max_rate=1.0)
# Not for jax.config: the step itself is compiled with it.
QUICK = {"xla_cpu_use_fusion_emitters": False}
Step = Callable[[], object]
Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def show() -> None:
    """Print all tables."""
    torch.set_num_threads(1)
    makes: dict[str, Make] = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.001),
    }
    for name, make in makes.items():
        rows = {
            "bare": network(make),
            "MeasuredRate()": network(make, LOCAL),
            "MeasuredRate(max_rate=1)": network(make, CAPPED),
            "bare, half-batches": network(make, mode="parts"),
            "MeasuredRate(), half-batches": network(make, LOCAL, "parts"),
            "MeasuredRate(max_rate=1), half-batches": network(make, CAPPED, "parts"),
        }
        table(f"torch, MLP 16-64-64-1, B = {BATCH}, {name}, one thread", fastest(rows))
    for dim in (10, 100):
        for name in ("SGD", "Adam"):
            river = partial(getattr(river_optim, name), 0.01)
            rows = {
                "bare": regression(river(), dim),
                "MeasuredRate()": regression(driftrate.river.attach(river(), LOCAL), dim),
            }
            table(f"River, linear regression of {dim} features, {name}, a row", fastest(rows))
    compilation()


def network(make: Make, schedule: Any = None, mode: Any = None) -> Step:
    """Return a step of a small network."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
    net = nn.Sequential(*layers)
    optimizer = make(net.parameters())
    x, y = torch.randn(BATCH, 16), torch.randn(BATCH, 1)
    rate = schedule and driftrate.torch.attach(optimizer, schedule, mode=mode)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(net(x), y)

    def step() -> None:
        optimizer.zero_grad()
        if rate and mode == "parts":
            rate.backward(loss, x, y)
        elif mode == "parts":
            for part in range(0, BATCH, BATCH // 2):
                half = slice(part, part + BATCH // 2)
                (0.5 * loss(x[half], y[half])).backward()  # type: ignore[no-untyped-call]
        else:
            loss(x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def regression(optimizer: Any, dim: int) -> Step:
    """Return a step of River's linear regression on one of a hundred rows."""
    draw = random.Random(0)
    rows = [{f"x{place}": draw.gauss(0.0, 1.0) for place in range(dim)} for _ in range(100)]
    model = linear_model.LinearRegression(optimizer, intercept_lr=0.0)
    return lambda: model.learn_one(draw.choice(rows), draw.gauss(0.0, 1.0))


def fastest(rows: Mapping[str, Step]) -> dict[str, float]:
    """Return each row's fastest of `STEPS` interleaved steps in seconds, after a warm-up."""
    best = dict.fromkeys(rows, float("inf"))
    for index in range(STEPS + 20):
        for name, step in rows.items():
            start = time.perf_counter()
            step()
            if index >= 20:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def table(title: str, best: dict[str, float]) -> None:
    """Print steps in microseconds, what a rate adds to the bare one, and the ratio."""
    print(f"\n{title}\n{'':<40}{'us':>9}{'added':>9}{'ratio':>9}")
    bare = best["bare"]
    for name, seconds in best.items():
        added = (seconds - bare) * 1e6
        print(f"{name:<40}{seconds * 1e6:>9.0f}{added:>9.0f}{seconds / bare:>9.2f}")


def compilation() -> None:
    """Print what an update takes to trace, to lower and to compile."""
    head = f"{'':<44}{'trace':>8}{'lower':>8}{'compile':>9}{'in all':>8}"
    print(f"\nOptax, seconds of the processor, fastest of {COMPILED}\n{head}")
    shapes: dict[str, list[tuple[int, ...]]] = {
        "layer": [(16, 1)],
        "network": [(16, 64), (64,), (64, 64), (64,), (64, 1), (1,)],
    }
    for place, sizes in shapes.items():
        for name, bare in (("SGD", optax.sgd(0.1)), ("Adam", optax.adam(0.1))):
            row = f"{place}, {name}"
            times(f"{row}, bare", bare, sizes)
            for schedule in (LOCAL, CAPPED):
                cap = "" if schedule is LOCAL else "max_rate=1"
                attached = driftrate.optax.attach(bare, schedule)
                times(f"{row}, MeasuredRate({cap})", attached, sizes)
        times(f"{row}, the last, no fusion emitters", attached, sizes, QUICK)


def times(
    name: str, optimizer: Any, shapes: list[tuple[int, ...]], options: dict[str, Any] | None = None
) -> None:
    params = [jnp.ones(shape) for shape in shapes]
    state = optimizer.init(params)
    best = [float("inf")] * 3
    for _ in range(COMPILED):
        jax.clear_caches()  # type: ignore[no-untyped-call]
        ticks = [time.process_time()]
        traced = jax.jit(optimizer.update).trace(params, state, params)
        ticks.append(time.process_time())
        lowered = traced.lower()
        ticks.append(time.process_time())
        lowered.compile(compiler_options=options)
        ticks.append(time.process_time())
        taken = [after - before for before, after in pairwise(ticks)]
        best = [min(pair) for pair in zip(best, taken, strict=True)]
    print(f"{name:<44}" + "".join(f"{one:>8.2f}" for one in (*best, sum(best))))
