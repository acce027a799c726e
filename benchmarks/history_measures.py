"""What benchmarks/history.py measures: few and quick ratios, each the better the lower."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import driftrate as dr
import driftrate.torch

Floats = npt.NDArray[np.float64]
Work = Callable[[], object]
SEEDS, ROUNDS = 64, 30
CONSTANTS = [dr.ConstantRate(rate) for rate in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)]


class Measure(NamedTuple):
    """One figure.

    Args:
        name: What is measured.
        over: What it is divided by, in the same run.
        kind: "regret", which is the same on every machine up to rounding, or "speed".
        value: The ratio.
        error: Its standard error, over seeds or over rounds of time.
    """

    name: str
    over: str
    kind: str
    value: float
    error: float


def measures() -> Iterator[Measure]:
    """Measure everything, the regrets first."""
    yield from _rates()
    yield _memories()
    yield _network()
    yield from _speeds()


def _measure(name: str, over: str, ratios: Floats) -> Measure:
    error = ratios.std(ddof=1) / np.sqrt(len(ratios))
    return Measure(name, over, "regret", float(ratios.mean()), float(error))


def _timed(name: str, over: str, ours: Sequence[float], theirs: Sequence[float]) -> Measure:
    """Return the ratio of the fastest runs, and as its error half of what two halves differ by.

    Processor time is counted, and the fastest of many: other work on the machine makes some slow.
    """
    odd, even = (min(ours[i::2]) / min(theirs[i::2]) for i in (0, 1))
    return Measure(name, over, "speed", min(ours) / min(theirs), abs(odd - even) / 2)


def _speeds() -> Iterator[Measure]:
    """Time all works in turn, many rounds, so that each is tried at many moments."""
    works = list(_works())
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in works]
    for _ in range(ROUNDS):
        for (_, _, *pair), seen in zip(works, times, strict=True):
            for work, kept in zip(pair, seen, strict=True):
                kept.append(_fastest(work))
    for (name, over, *_), (ours, theirs) in zip(works, times, strict=True):
        yield _timed(name, over, ours, theirs)


def _rates() -> Iterator[Measure]:
    """Regret on linear streams over that of the best of six constant rates, seed by seed."""
    paths = {
        "jumps": dr.streams.bursty(dim=32, steps=800, size=3.0, every=200, seed=4),
        "drift": dr.streams.random_walk(dim=32, steps=800, size=0.1, seed=4),
        "spiral": dr.streams.spiral(dim=32, steps=800),
    }
    for name, path in paths.items():
        stream = dr.streams.LinearStream(path, batch_size=16, noise_std=1.0)
        runs = dr.simulate(stream, [dr.MeasuredRate(), *CONSTANTS], seeds=SEEDS, seed=0)
        pool = dr.simulate(stream, dr.HedgedSGD(), seeds=SEEDS, seed=0)
        best = min((run.total for run in runs[1:]), key=lambda total: float(total.mean()))
        over = "best of six constant rates"
        yield _measure(f"MeasuredRate, {name}", over, runs[0].total / best)
        yield _measure(f"HedgedSGD, {name}", over, pool.total / best)


def _memories() -> Measure:
    """Squared loss of the pool of memories over that of the true target, test then train."""
    ratios = []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        target, pool = rng.standard_normal(8), dr.HedgedFilter()
        state, ours, least = pool.init(8), 0.0, 0.0
        for step in range(100):
            if step in (40, 70):
                target = target + rng.standard_normal(8)
            x = rng.standard_normal((16, 8))
            noise = rng.standard_normal(16)
            y = x @ target + noise
            ours += float(((pool.predict(state, x) - y) ** 2).sum())
            least += float((noise**2).sum())
            state = pool.update(state, x, y)
        ratios.append(ours / least)
    return _measure("HedgedFilter, jumps", "the true target", np.array(ratios))


def _network() -> Measure:
    """Loss of Pursuit over Adam's at 0.001 on a random network that is drawn anew."""

    def loss(seed: int, make: Callable[[Any], Any]) -> float:
        torch.manual_seed(seed)
        net, total = _net(8, 32), 0.0
        optimizer = make(net.parameters())
        for step in range(600):
            if step % 200 == 0:
                teacher = _net(8, 32)
            x = torch.randn(32, 8)
            with torch.no_grad():
                y = teacher(x)
            optimizer.zero_grad()
            now = nn.functional.mse_loss(net(x), y)
            now.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(now.detach())
        return total

    def adam(parameters: Any) -> Any:
        return torch.optim.Adam(parameters, lr=1e-3)

    pairs = [(loss(seed, driftrate.torch.Pursuit), loss(seed, adam)) for seed in range(8)]
    ratios = np.array([ours / theirs for ours, theirs in pairs])
    return _measure("Pursuit, networks drawn anew", "Adam 0.001", ratios)


def _net(dim: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 1))


def _works() -> Iterator[tuple[str, str, Work, Work]]:
    """What is timed: a name, that of its yardstick, and both."""
    rate = dr.MeasuredRate()
    signal = dr.Signal(batch_size=64.0, dim=10.0, parts=2.0, cross=0.5, spread=0.5, trail=0.1)
    floats = [1.0 + 1e-3 * i for i in range(1000)]
    state = rate.init()
    yield (
        "MeasuredRate, a step in floats",
        "1,000 products in a Python loop",
        lambda: rate.update(state, signal),
        lambda: [a * b for a, b in zip(floats, floats, strict=True)],
    )
    path = dr.streams.spiral(dim=32, steps=200)
    stream = dr.streams.LinearStream(path, batch_size=64, noise_std=1.0)
    linear = dr.LinearRate(dim=32, noise_std=1.0)
    rng = np.random.default_rng(0)
    yield (
        "simulate, 200 steps of 32 seeds",
        "drawing its normal numbers",
        lambda: dr.simulate(stream, linear, seeds=32),
        lambda: rng.standard_normal((200, 32, 32)),
    )
    x, y = rng.standard_normal((32, 16)), rng.standard_normal(32)
    pool = dr.HedgedFilter()
    memories = pool.init(16)
    many = rng.standard_normal((14, 17, 17))
    yield (
        "HedgedFilter, 32 rows of 16",
        "14 inverses of 17 by 17",
        lambda: pool.update(memories, x, y),
        lambda: np.linalg.inv(many),
    )
    plain, attached = _loop(None), _loop("attach")
    yield "attach(SGD), a step of a network", "without it", attached, plain
    yield "Pursuit, a step of a network", "Adam's", _loop("Pursuit"), _loop("Adam")


def _loop(kind: str | None) -> Work:
    """Return a training step of a network of 330,000 weights."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), _net(512, 64)
    )
    x, y = torch.randn(128, 64), torch.randn(128, 1)
    optimizer: Any
    if kind == "Pursuit":
        optimizer = driftrate.torch.Pursuit(net.parameters())
    elif kind == "Adam":
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    if kind == "attach":
        driftrate.torch.attach(optimizer, dr.MeasuredRate(), batch_size=128)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _fastest(work: Work) -> float:
    """Return the fastest run of a fiftieth of a second, three at least."""
    best, end, count = float("inf"), process_time() + 0.02, 0
    while count < 3 or process_time() < end:
        start = process_time()
        work()
        best, count = min(best, process_time() - start), count + 1
    return best


def imported() -> Measure:
    """Time `import driftrate` over `import numpy`, each in a process of its own."""
    code = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"

    def took(name: str) -> float:
        call = [sys.executable, "-c", code.format(name)]
        return float(subprocess.run(call, check=True, capture_output=True, text=True).stdout)

    times = [(took("driftrate"), took("numpy")) for _ in range(12)]
    ours, theirs = zip(*times, strict=True)
    return _timed("import driftrate", "import numpy", ours, theirs)
