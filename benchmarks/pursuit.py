"""What a step of Pursuit costs, as ratios to torch's fused optimizers in the same run.

    python benchmarks/pursuit.py           # CPU: the step alone, 10 million weights and few
    python benchmarks/pursuit.py --gpu     # GPU: whole steps, 98 million, bf16, B = 256 and 4,096

Rows are interleaved and each row's figure is its fastest step, as in benchmarks/adapters.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import torch
from adapters import (
    Loop,
    Step,
    best_of,
    device_clock,
    network,
    peers,
    show,
    waiting_clock,
    wall_clock,
)
from torch import nn

import driftrate.torch
from driftrate.adapters.torch import pursuit_move, pursuit_step

Make = Callable[[Iterable[nn.Parameter]], Any]


def step_alone(widths: tuple[int, ...], make: Make) -> Step:
    """Return the step of an optimizer whose gradients stay as they are."""
    torch.manual_seed(0)
    net = network(widths)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    return make(net.parameters()).step  # type: ignore[no-any-return]


def readable(step: Step) -> Step:
    """Return the step taken as it is written to be read."""

    def slow() -> None:
        chosen = pursuit_move._way
        pursuit_move._way = lambda *_: pursuit_step
        try:
            step()
        finally:
            pursuit_move._way = chosen

    return slow


def fused_adam(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, fused=True)


def cpu() -> None:
    from parameterfree import COCOB

    threads = torch.get_num_threads()
    large = (1024, 1792, 1792, 1792, 1000)
    rows: dict[str, Step] = {
        "fused Adam": step_alone(large, fused_adam),
        "Pursuit (target 3)": step_alone(large, driftrate.torch.Pursuit),
        "Pursuit, without a compiler": readable(step_alone(large, driftrate.torch.Pursuit)),
        "COCOB": step_alone(large, COCOB),
    }
    title = f"CPU, {threads} threads, the step alone, 10 million weights"
    show(title, best_of(rows, wall_clock), "fused Adam")
    small = (20, 128, 128, 1)
    rows = {
        "COCOB": step_alone(small, COCOB),
        "Pursuit (target 1)": step_alone(small, driftrate.torch.Pursuit),
        "Pursuit, without a compiler": readable(step_alone(small, driftrate.torch.Pursuit)),
        "fused Adam": step_alone(small, fused_adam),
    }
    title = f"CPU, {threads} threads, the step alone, a network of six small tensors"
    show(title, best_of(rows, wall_clock), "COCOB")


def gpu() -> None:
    widths = (4096, 5632, 5632, 5632, 2048)
    place: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}

    def fused(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=1e-4, fused=True)

    size = sum(p.numel() for p in network(widths, device="meta").parameters())
    where = f"{torch.cuda.get_device_name()}, {size / 1e6:.0f} million weights, bf16"
    for batch in (4096, 256):
        rows = {
            "fused AdamW": Loop(widths, batch, fused, **place),
            "Pursuit (target 1.12 at B = 4096)": Loop(
                widths, batch, driftrate.torch.Pursuit, **place
            ),
        }
        rows |= {name: Loop(widths, batch, make, **place) for name, make in peers(1e-4).items()}
        for name, clock in (("host waits", waiting_clock), ("host ahead", device_clock)):
            show(f"{where}, B = {batch}, {name}", best_of(rows, clock), "fused AdamW")
    for name, loop in rows.items():
        kept = [t for state in loop.optimizer.state.values() for t in state.values()]
        count = sum(t.numel() * t.element_size() for t in kept)
        print(f"{name:<34}{count / size:>10.2f} bytes of state a weight")
    alone = {name: loop.optimizer.step for name, loop in rows.items()}
    show(f"{where}, the step alone", best_of(alone, device_clock), "fused AdamW")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true")
    gpu() if parser.parse_args().gpu else cpu()
