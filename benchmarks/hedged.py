"""What a step of `driftrate.torch.Hedged` costs: over as many networks, each with an Adam.

    python benchmarks/hedged.py            # CPU, one thread
    python benchmarks/hedged.py --gpu

Steps of both are interleaved and each figure is the fastest of its kind, so that a busy machine
slows both alike. Batches of 16 rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from driftrate.adapters.torch.hedged import MEMBERS
from driftrate.torch import Hedged

STEPS, BATCH = 60, 16
WIDTHS = ((20, 128, 128, 1), (784, 300, 150, 10))


def network(widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size, following in pairwise(widths):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def fastest(rows: list[Callable[[], object]], device: str) -> list[float]:
    """Return the seconds of the fastest step of each row."""
    best = [float("inf")] * len(rows)
    for _ in range(STEPS):
        for number, row in enumerate(rows):
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            row()
            if device == "cuda":
                torch.cuda.synchronize()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def compare(widths: tuple[int, ...], device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(BATCH, widths[0], device=device)
    y = torch.randn(BATCH, widths[-1], device=device)
    nets = [network(widths).to(device) for _ in MEMBERS]
    optimizers = [torch.optim.Adam(net.parameters(), fused=True) for net in nets]
    pool = Hedged(nets[0], loss="squared")

    def apart() -> None:
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(net(x), y))
            optimizer.step()

    alone, pooled = fastest([apart, lambda: pool.learn(x, y)], device)
    ratio = f"{pooled / alone:.2f} of {len(MEMBERS)} networks with a fused Adam each"
    print(f"{'-'.join(map(str, widths)):>16}  learn {1e3 * pooled:.2f} ms: {ratio}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    where = "cuda" if parser.parse_args().gpu else "cpu"
    torch.set_num_threads(1)
    for each in WIDTHS:
        compare(each, where)
