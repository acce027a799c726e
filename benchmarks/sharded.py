"""What a step under FSDP2 costs with a rate attached, or with Pursuit, beside bare Adam.

    python benchmarks/sharded.py               # 1, 2 and 4 gloo processes on the CPU
    python benchmarks/sharded.py --nccl 8      # the same rows on so many GPUs of this machine

Each run starts its own processes. Steps of all rows are interleaved; the time of a step is that of
its slowest process, and each row's figure is its fastest step. The collectives of a step are
counted, with the bytes that one process gives to them, and those of bare Adam are taken off.
Below them stands what one reduction takes by itself: the latency in docs/cost_at_scale.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import driftrate as dr
import driftrate.torch

STEPS = 30
# Widths and rows over all processes: one that computes, and one where a step is all overhead.
SIZES = {
    "large": ((256, 1024, 1024, 1024, 64), 512),
    "small": ((32, 64, 64, 8), 64),
}
REDUCED = (32, 12_000, 16_000)  # bytes, as 1,000 tensors would have them
ROWS = ("Adam", "Adam, MeasuredRate()", "Adam, MeasuredRate(max_rate=1.0)", "Pursuit")


class Collectives(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Counts the collectives inside, and the bytes that this process gives to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.calls, self.bytes = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if str(func).startswith("c10d."):
            self.calls += 1
            self.bytes += sum(one.nbytes for one in _given(args[-1 if "base" in str(func) else 0]))
        return func(*args, **(kwargs or {}))


def _given(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [one for each in value for one in _given(each)] if isinstance(value, list) else []


def step_of(name: str, size: str, rank: int, world: int, place: str) -> Callable[[], None]:
    """Return a whole training step: forward, backward, optimizer."""
    torch.manual_seed(0)
    widths, batch = SIZES[size]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).to(place)
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    x = torch.randn(batch, widths[0], device=place).chunk(world)[rank]
    y = torch.randint(widths[-1], (batch,), device=place).chunk(world)[rank]
    optimizer: torch.optim.Optimizer
    if name == "Pursuit":
        optimizer = driftrate.torch.Pursuit(net.parameters())
    else:
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    if "MeasuredRate" in name:
        schedule = dr.MeasuredRate(max_rate=1.0) if "max_rate" in name else dr.MeasuredRate()
        # The optimizer's hooks hold the rate.
        driftrate.torch.attach(optimizer, schedule)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def measure(size: str, rank: int, world: int, place: str) -> None:
    """Print the rows of a table, in the first process."""
    steps = {name: step_of(name, size, rank, world, place) for name in ROWS}
    found = {}
    for name, step in steps.items():
        for _ in range(3):
            step()
        with Collectives() as seen:
            step()
        found[name] = (seen.calls, seen.bytes)
    took = torch.zeros(STEPS, len(ROWS), dtype=torch.float64, device=place)
    for turn in range(STEPS):
        for column, step in enumerate(steps.values()):
            dist.barrier()
            start = time.perf_counter()
            step()
            if place != "cpu":
                torch.cuda.synchronize()
            took[turn, column] = time.perf_counter() - start
    dist.all_reduce(took, dist.ReduceOp.MAX)
    best = took.min(0).values.tolist()
    if rank == 0:
        calls, sent = found["Adam"]
        for name, seconds in zip(ROWS, best, strict=True):
            more, bytes_ = found[name][0] - calls, found[name][1] - sent
            row = f"{size:<7}{world:>9}  {name:<34}{seconds * 1e3:>9.2f}{seconds / best[0]:>8.2f}"
            print(f"{row}{more:>8}{bytes_:>8}", flush=True)


def reductions(rank: int, world: int, place: str) -> None:
    """Print the fastest and the median all-reduce of a few numbers, in the first process."""
    for size in REDUCED:
        table = torch.zeros(size // 4, device=place)
        took = []
        for _ in range(20 * STEPS):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(table)
            if place != "cpu":
                torch.cuda.synchronize()
            took.append(time.perf_counter() - start)
        if rank == 0:
            row = f"{'':<7}{world:>9}  {f'all_reduce of {size:,} bytes':<34}"
            print(f"{row}{min(took) * 1e3:>9.3f}{median(took) * 1e3:>8.3f} median", flush=True)


def child(rank: int, world: int, rendezvous: str, backend: str) -> None:
    place = "cpu" if backend == "gloo" else f"cuda:{rank}"
    if place != "cpu":
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world)
    for size in SIZES:
        measure(size, rank, world, place)
    reductions(rank, world, place)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's threads and the interpreter's end can wait for each other


def launch(world: int, backend: str) -> None:
    """Run the processes, and end them all if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        meet = f"file://{Path(folder) / 'rendezvous'}"
        command = [sys.executable, __file__, "--child", str(world), meet, backend]
        ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(world)]
        try:
            while any(one.poll() is None for one in ranks):
                if any(one.poll() for one in ranks):
                    break
                time.sleep(0.05)
        finally:
            for one in ranks:
                if one.poll() is None:
                    one.kill()
                one.wait()
    if any(one.returncode for one in ranks):
        raise SystemExit("a process failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nccl", type=int, metavar="GPUS", help="so many GPUs instead of the CPU")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.child:
        world, meet, backend, rank = told.child
        child(int(rank), int(world), meet, backend)
    for size, (widths, batch) in SIZES.items():
        weights = sum(n * m + m for n, m in pairwise(widths))
        print(f"{size}: {weights:,} weights, {batch} rows a step over all processes")
    print(f"{'':<7}processes  {'':<34}{'ms':>9}{'ratio':>8}{'calls':>8}{'bytes':>8}")
    for world in [told.nccl] if told.nccl else [1, 2, 4]:
        launch(world, "nccl" if told.nccl else "gloo")


if __name__ == "__main__":
    main()
