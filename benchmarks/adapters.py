"""What an attached rate costs: whole training steps, as ratios to the bare loop in the same run.

    python benchmarks/adapters.py               # CPU: MLP of 10 million parameters, B = 256
    python benchmarks/adapters.py --small       # CPU: small models in torch, River and Optax
    python benchmarks/adapters.py --gpu         # GPU: 100 million, bf16, fused AdamW; --batch 256

Steps of all rows are interleaved and each row's figure is its fastest step, so that a busy machine
slows all alike. Prodigy and schedule-free are timed too where they are installed.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import driftrate as dr
import driftrate.torch

STEPS = 40
Step = Callable[[], object]
# Optimizers that people would use instead: name, package, class.
PEERS = (
    ("Prodigy", "prodigyopt", "Prodigy"),
    ("schedule-free AdamW", "schedulefree", "AdamWScheduleFree"),
)


def network(widths: Iterable[int], **options: Any) -> nn.Sequential:
    sizes = list(widths)
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following, **options), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Loop:
    """A bare training loop, or one with an attached rate; `parts` splits its batches."""

    def __init__(
        self,
        widths: tuple[int, ...],
        batch: int,
        make: Callable[[Iterable[nn.Parameter]], Any],
        mode: Any = None,
        metric: Any = None,
        max_rate: float | None = None,
        parts: int = 1,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.net = network(widths, **options)
        self.optimizer = make(self.net.parameters())
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        self.x = torch.randn(batch, widths[0], **options)
        self.y = torch.randint(widths[-1], (batch,), device=options.get("device"))
        self.parts = parts
        schedule = dr.MeasuredRate(max_rate=max_rate)
        self.rate = mode and driftrate.torch.attach(
            self.optimizer, schedule, mode=mode, batch_size=batch, metric=metric
        )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss in single precision."""
        return nn.functional.cross_entropy(self.net(x).float(), y)

    def __call__(self) -> None:
        """Take one whole training step."""
        self.optimizer.zero_grad()
        if self.rate and self.rate.mode == "parts":
            self.rate.backward(self.loss, self.x, self.y)
        else:
            for x, y in zip(self.x.chunk(self.parts), self.y.chunk(self.parts), strict=True):
                (self.loss(x, y) / self.parts).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def best_of(rows: Mapping[str, Step], clock: Callable[[Step], float]) -> dict[str, float]:
    """Return each row's fastest of `STEPS` interleaved steps in seconds, after a warm-up."""
    for step in rows.values():
        for _ in range(3):
            step()
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(STEPS):
        for name, step in rows.items():
            best[name] = min(best[name], clock(step))
    return best


def wall_clock(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def waiting_clock(step: Step) -> float:
    """Return the time for a step with the device idle before and after it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def device_clock(step: Step) -> float:
    """Return the device's time for a step, with the host one step ahead as in a long run."""
    torch.cuda.synchronize()
    ticks: list[Any] = []
    for _ in range(3):
        ticks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        ticks[-1].record()
        step()
    torch.cuda.synchronize()
    return float(ticks[1].elapsed_time(ticks[2])) / 1e3


def peers(base: float) -> dict[str, Callable[[Iterable[nn.Parameter]], Any]]:
    found: dict[str, Callable[[Iterable[nn.Parameter]], Any]] = {}
    for name, package, cls in PEERS:
        try:
            made = getattr(importlib.import_module(package), cls)
        except ImportError:
            print(f"{name}: {package} is not installed")
            continue
        found[name] = partial(made, lr=base)
    return found


def show(title: str, best: dict[str, float], base: str) -> None:
    print(f"\n{title}\n{'':<34}{'ms':>10}{'ratio':>9}")
    for name, seconds in best.items():
        print(f"{name:<34}{seconds * 1e3:>10.3f}{seconds / best[base]:>9.3f}")


def cpu() -> None:
    widths = (1024, 1792, 1792, 1792, 1000)

    def adamw(p: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(p, lr=1e-4, fused=True)

    rows: dict[str, Step] = {
        "bare": Loop(widths, 256, adamw),
        "sequence (target 1.12)": Loop(widths, 256, adamw, mode="sequence"),
        "sequence, plain metric": Loop(widths, 256, adamw, mode="sequence", metric="plain"),
        "half-batches (target 1.45)": Loop(widths, 256, adamw, mode="parts"),
    }
    rows |= {name: Loop(widths, 256, make) for name, make in peers(1e-4).items()}
    threads = torch.get_num_threads()
    title = f"CPU, {threads} threads, MLP of 10 million parameters, B = 256, fused AdamW"
    show(title, best_of(rows, wall_clock), "bare")


def gpu(batches: Iterable[int]) -> None:
    show_compiled()
    widths = (4096, 5632, 5632, 5632, 2048)
    place: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}

    def tensor(p: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(p, lr=torch.tensor(1e-4, device="cuda"), fused=True)

    def plain(p: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(p, lr=1e-4, fused=True)

    for batch in batches:
        after, halves = {"mode": "sequence", **place}, {"mode": "parts", **place}
        rows = {
            "bare": Loop(widths, batch, tensor, **place),
            "bare, in halves": Loop(widths, batch, tensor, parts=2, **place),
            "MeasuredRate()": Loop(widths, batch, tensor, **after),
            "MeasuredRate(), float rate": Loop(widths, batch, plain, **after),
            "MeasuredRate(), in halves": Loop(widths, batch, tensor, **halves),
            "max_rate=1": Loop(widths, batch, tensor, max_rate=1.0, **after),
            "max_rate=1, float rate": Loop(widths, batch, plain, max_rate=1.0, **after),
            "max_rate=1, in halves": Loop(widths, batch, tensor, max_rate=1.0, **halves),
        }
        rows |= {name: Loop(widths, batch, make, **place) for name, make in peers(1e-4).items()}
        size = sum(p.numel() for p in network(widths, device="meta").parameters())
        title = f"{torch.cuda.get_device_name()}, {size / 1e6:.0f} million parameters, bf16"
        if batch == 256:
            show_memory(rows, 2 * size)
        # Both clocks are shown: which one flatters depends on whether host or device waits.
        for name, clock in (("host waits", waiting_clock), ("host ahead", device_clock)):
            show(f"{title}, fused AdamW, B = {batch}, {name}", best_of(rows, clock), "bare")
        del rows
        torch.cuda.empty_cache()


def show_memory(rows: Mapping[str, Loop], gradient: int) -> None:
    """Print the memory that a step needs beyond what stays allocated between steps."""
    for name, step in rows.items():
        step()
        step()
        step.optimizer.zero_grad()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        most = (torch.cuda.max_memory_allocated() - before) / gradient
        print(f"{name:<34}{most:>10.3f} gradients of bytes at the peak of a step")


def show_compiled() -> None:
    """Print what compiling an update takes, and an update after it."""
    from driftrate.adapters.torch.program import Program

    schedule = dr.MeasuredRate(max_rate=1.0, mode="sequence")
    fast = Program(schedule, torch.zeros((), device="cuda"))
    values = 1.0 + torch.rand(2, device="cuda")
    told = dr.Signal(batch_size=64, dim=1e4, grad_sq=values[0], trail=values[1])
    with torch.no_grad():
        took = [waiting_clock(lambda: fast.update(told)) for _ in range(100)]
    print(f"compiled update: {took[0]:.1f} s once, then {min(took) * 1e6:.0f} us")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--small", action="store_true")
    sizes: dict[str, Any] = {"type": int, "nargs": "+", "default": (256, 4096, 16384)}
    parser.add_argument("--batch", **sizes, help="sizes of the --gpu runs")
    args = parser.parse_args()
    if args.small:
        # Late: it needs River and Optax, which a machine with a GPU may lack.
        importlib.import_module("adapters_small").show()
    elif args.gpu:
        gpu(args.batch)
    else:
        cpu()
