"""What attach, Pursuit and Hedged cost: a model in two parts, checked on small sizes.

    python benchmarks/cost_model.py            # the tables of docs/cost_at_scale.md
    python benchmarks/cost_model.py --paper    # those that need no measuring

The arithmetic is in functions of numbers alone. Steps on the CPU are interleaved, one thread, and
each figure is the fastest of many, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import driftrate as dr
import driftrate.torch
from driftrate.adapters.torch.hedged import MEMBERS

Step = Callable[[], object]
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
STEPS = 100


@dataclass(frozen=True)
class Machine:
    """A device and what joins it to the others.

    Args:
        flops: Operations a second that training reaches.
        bandwidth: Bytes of its memory a second.
        alpha: Seconds that a message takes, however short.
        beta: Seconds that a byte of it takes.
        disk: Bytes a second that a device writes of a checkpoint.
    """

    flops: float = 4e14
    bandwidth: float = 4e12
    alpha: float = 5e-6
    beta: float = 1 / 25e9
    disk: float = 1e9


@dataclass(frozen=True)
class Run:
    """A training run.

    Args:
        weights: n.
        devices: P.
        shards: Over how many of them one copy of the weights is cut.
        tokens: In the batch of a step.
        tensors: How many tensors the weights are.
    """

    weights: float = 1e11
    devices: int = 10_000
    shards: int = 10_000
    tokens: float = 4e6
    tensors: int = 1000


@dataclass(frozen=True)
class Method:
    """What a method keeps, moves and adds up.

    Args:
        state: Bytes of state a weight.
        traffic: Bytes of memory read and written a weight and step on shards.
        each: Bytes that the devices add up for every tensor.
        once: Bytes that they add up for all of them together.
        copies: Of the network, each with a forward and a backward pass.
    """

    name: str
    state: float
    traffic: float
    each: float = 0.0
    once: float = 0.0
    copies: int = 1


POOL = len(MEMBERS)
# Weights and gradients of two bytes. Each comment: gradient, state there and back, weights.
METHODS = (
    # 2 + 2 (4 + 4 + 4) + 2: moments, and a copy of the weights in single precision.
    Method("AdamW, mixed precision", 12, 28),
    # On top of the optimizer: the gradient's square, 2; its product with the lead, 2 + 2 + 4; and
    # when all know that it is finite, the slow average of the weights follows, 2 + 2 (4).
    Method("`attach(..., MeasuredRate())`, on top", 4, 20, once=4 * 8),
    # 2 + 2 (4 + 4 + 4 + 2 + 2): v, h, u, what 16 bits drop, the weights.
    Method("`Pursuit`", 14, 34, each=3 * 4),
    # A copy: 4 + 2 (4 + 4) in single precision; once the scales, and the weights as they came.
    Method("`Hedged`", 8.0 * POOL + 4, 20.0 * POOL + 4, copies=POOL),
)
# On one device attach reads the gradient's square, 2, and does the rest at once, 2 + 2 + 2 (4).
WHOLE = 14.0


def passes(run: Run, machine: Machine) -> float:
    """Return the seconds of a forward and a backward pass: 6 n operations a token."""
    return 6 * run.weights * run.tokens / (run.devices * machine.flops)


def memory(method: Method, run: Run, machine: Machine) -> float:
    """Return the seconds in which a device reads and writes its shard."""
    return method.traffic * run.weights / run.shards / machine.bandwidth


def ring(ranks: int, size: float, machine: Machine) -> float:
    """Return the seconds of an all-reduce of so many bytes round a ring: 2 (P - 1) messages."""
    return 2 * (ranks - 1) * (machine.alpha + size / ranks * machine.beta)


def tree(ranks: int, size: float, machine: Machine) -> float:
    """Return the same up and down a binary tree: 2 log2 P messages of the whole size."""
    return 2 * math.ceil(math.log2(ranks)) * (machine.alpha + size * machine.beta)


def reduced(method: Method, run: Run) -> float:
    """Return the bytes that the devices add up in a step."""
    return method.once + method.each * run.tensors


def bytes_of(size: float) -> str:
    """Return a number of bytes as the tables show it."""
    return f"{size:.0f} B" if size < 1000 else f"{size / 1e3:.0f} kB"


def ratio(extra: float, base: float, tokens: float, balance: float) -> float:
    r"""Return a whole step over one with the base optimizer, where nothing waits.

    $1 + e/(b + 6 B\,W/F)$, with extra and base traffic e and b in bytes a weight.

    Args:
        extra: e.
        base: b.
        tokens: B, samples or tokens on a device.
        balance: W/F, bytes of memory an operation.
    """
    return 1 + extra / (base + 6 * tokens * balance)


def balance_of(found: float, extra: float, base: float, tokens: float) -> float:
    """Return the W/F at which `ratio` is what was found."""
    return (extra / (found - 1) - base) / (6 * tokens)


def line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return a and b of a + b n, nearest to what was measured by the squares of relative errors."""
    took = np.asarray(seconds)
    table = np.stack([np.ones(len(took)), np.asarray(sizes)], 1) / took[:, None]
    start, slope = np.linalg.lstsq(table, np.ones(len(took)))[0]
    return float(start), float(slope)


def at_scale(machine: Machine) -> str:
    """Return what each method costs at 10^11 weights."""
    rows = [
        "| | shards | bytes a weight | state a device | memory time | extra passes | reduced |"
        " over the passes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for shards in (10_000, 64):
        run = replace(Run(), shards=shards)
        both = passes(run, machine)
        for method in METHODS:
            took, more = memory(method, run, machine), (method.copies - 1) * both
            size = reduced(method, run)
            hop = tree(run.devices, size, machine) if size else 0.0
            share = 100 * (took + more + hop) / both
            kept = method.state * run.weights / shards / 1e9
            told = bytes_of(size) if size else "-"
            rows.append(
                f"| {method.name} | {shards:,} | {method.state:g} | {kept:.2f} GB |"
                f" {1e3 * took:.2f} ms | {more:.1f} s | {told} | {share:.2f} % |"
            )
    return "\n".join(rows)


def reductions(machine: Machine) -> str:
    """Return what the one reduction takes, round a ring and in a tree."""
    rows = ["| ranks | reduced | tree | ring |", "|---|---|---|---|"]
    for ranks in (8, 64, 1000, 10_000):
        # In Optax attach adds up four numbers a tensor, which XLA sends together.
        for size in (*(reduced(method, Run()) for method in METHODS[1:3]), 4.0 * 4 * Run().tensors):
            took = (1e3 * form(ranks, size, machine) for form in (tree, ring))
            told = " | ".join(f"{ms:.2f} ms" for ms in took)
            rows.append(f"| {ranks:,} | {bytes_of(size)} | {told} |")
    return "\n".join(rows)


def checkpoints(machine: Machine) -> str:
    """Return what a checkpoint holds, weights of two bytes with the state."""
    rows = ["| | all | a device | written in |", "|---|---|---|---|"]
    run = Run()
    for method, beside in zip(METHODS[:3], (2, 0, 2), strict=True):
        size = (method.state + beside) * run.weights
        each = size / run.devices
        rows.append(
            f"| {method.name} | {size / 1e12:.1f} TB | {each / 1e6:.0f} MB |"
            f" {each / machine.disk:.2f} s |"
        )
    return "\n".join(rows)


def on_a_device() -> str:
    """Return the model beside what an H200 took, the host running ahead.

    The ratios are those of `pursuit.py --gpu` and `adapters.py --gpu`, in docs/pursuit.md and
    docs/attach.md.
    """
    base = 14.0  # fused AdamW, everything in 16 bits
    # Weights in 16 bits, samples on the device, bytes over AdamW's 14, measured ratio.
    points = (
        ("`Pursuit`, B = 4,096", 4096, 20.0, 1.136),
        ("`attach`, B = 4,096", 4096, WHOLE, 1.096),
        ("`Pursuit`, B = 256", 256, 20.0, 2.142),
        ("`attach`, B = 256", 256, WHOLE, 1.594),
        ("`Pursuit`, the optimizer's step alone", 0, 20.0, 2.325),
    )
    _, tokens, extra, found = points[0]
    balance = balance_of(found, extra, base, tokens)
    rows = ["| | measured | by the model |", "|---|---|---|"]
    for number, (name, tokens, extra, found) in enumerate(points):
        told = "fitted" if number == 0 else f"{ratio(extra, base, tokens, balance):.2f}"
        rows.append(f"| {name} | {found:.2f} | {told} |")
    return f"W/F = {1e3 * balance:.2f} bytes a thousand operations\n\n" + "\n".join(rows)


class Fixed:
    """A matrix whose gradient stays as it is, and the step of an optimizer on it."""

    def __init__(self, size: int, make: Callable[[Iterable[nn.Parameter]], Any]) -> None:
        torch.manual_seed(0)
        # A second matrix makes it a network, for which attach looks far ahead.
        shapes = ((size // 100 - 1, 100), (10, 10))
        self.owners = [nn.Parameter(0.1 * torch.randn(shape)) for shape in shapes]
        for owner in self.owners:
            owner.grad = torch.randn_like(owner)
        self.optimizer = make(self.owners)
        self.rate: Any = None

    def attached(self) -> Fixed:
        """Attach a rate, and return this."""
        self.rate = driftrate.torch.attach(self.optimizer, dr.MeasuredRate())
        return self

    def __call__(self) -> None:
        """Take a step."""
        self.optimizer.step()


def adam(owners: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(owners, lr=1e-6, fused=True)


ROWS: dict[str, Callable[[int], Fixed]] = {
    "fused Adam": lambda size: Fixed(size, adam),
    "Adam, attached": lambda size: Fixed(size, adam).attached(),
    "Pursuit": lambda size: Fixed(size, driftrate.torch.Pursuit),
}

# Bytes of traffic a weight in single precision, at least: gradient, state there and back, weights.
SINGLE = {"fused Adam": 28, "Adam, attached": 28 + 20, "Pursuit": 36}


def held(tree: Any, least: int) -> int:
    """Return the bytes of all tensors in a state that have so many numbers or more."""
    if isinstance(tree, Tensor):
        return tree.nbytes if tree.numel() >= least else 0
    if isinstance(tree, dict | list | tuple):
        every = tree.values() if isinstance(tree, dict) else tree
        return sum(held(one, least) for one in every)
    return 0


def state_bytes(size: int = 100_000) -> dict[str, float]:
    """Return the bytes of state a weight, counted in what each method saves."""
    found = {}
    for name, make in ROWS.items():
        row = make(size)
        row()
        row()
        kept = row.optimizer.state_dict() if row.rate is None else row.rate.state_dict()
        found[name] = held(kept, 100) / size
    short = Fixed(size, adam)
    owners = [nn.Parameter(owner.detach().bfloat16()) for owner in short.owners]
    for owner in owners:
        owner.grad = torch.randn_like(owner)
    optimizer = driftrate.torch.Pursuit(owners)
    optimizer.step()
    found["Pursuit, bfloat16"] = held(optimizer.state_dict(), 100) / size
    net = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10))
    pool = driftrate.torch.Hedged(net, loss="cross_entropy")
    pool.learn(torch.randn(4, 300), torch.tensor([0, 1, 2, 3]))
    count = sum(p.numel() for p in net.parameters())
    found["Hedged"] = held(pool.state_dict(), 100) / count
    return found


def timed() -> dict[str, list[float]]:
    """Return the seconds of the fastest step, by method and size."""
    found: dict[str, list[float]] = {name: [] for name in ROWS}
    for size in SIZES:
        steps = {name: make(size) for name, make in ROWS.items()}
        best = dict.fromkeys(ROWS, math.inf)
        for number in range(STEPS + 3):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                if number >= 3:
                    best[name] = min(best[name], time.perf_counter() - start)
        for name in ROWS:
            found[name].append(best[name])
    return found


def on_the_cpu(found: dict[str, list[float]]) -> str:
    """Return measured steps in ms beside those of a line."""
    rows = [
        "| weights | " + " | ".join(f"{name}: measured | model" for name in found) + " |",
        "|---|" + "---|" * (2 * len(found)),
    ]
    lines = {name: line(SIZES, seconds) for name, seconds in found.items()}
    for place, size in enumerate(SIZES):
        cells = []
        for name, seconds in found.items():
            start, slope = lines[name]
            cells.append(f"{1e3 * seconds[place]:.3f} | {1e3 * (start + slope * size):.3f}")
        rows.append(f"| {size:,} | " + " | ".join(cells) + " |")
    _, pace = lines["fused Adam"]
    told = []
    for name, (start, slope) in lines.items():
        text = f"{name}: {1e3 * start:.3f} ms + {1e9 * slope:.2f} ns a weight,"
        bound = pace * SINGLE[name] / SINGLE["fused Adam"]
        told.append(f"{text} {slope / bound:.1f} times what its bytes take at Adam's pace")
    return "\n".join([*rows, "", *told])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--paper", action="store_true")
    paper = parser.parse_args().paper
    machine = Machine()
    print(f"forward and backward: {passes(Run(), machine):.2f} s\n\n{at_scale(machine)}\n")
    print(f"{reductions(machine)}\n\n{checkpoints(machine)}\n\n{on_a_device()}\n")
    if not paper:
        torch.set_num_threads(1)
        for name, count in state_bytes().items():
            print(f"{name}: {count:.2f} bytes of state a weight")
        print(f"\n{on_the_cpu(timed())}")
