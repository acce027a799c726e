"""One rank of a small DDP run: `ranks_child.py OUT STEPS [die] [accumulate]`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import gloo_ranks
import small_loop
import torch

import driftrate.torch


def main(out: Path, steps: int, die: bool, accumulate: bool, rank: int, world: int) -> None:
    net = small_loop.model()
    # Buckets of a few numbers: more than one of them, as in a real model.
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1e-4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rate = driftrate.torch.attach(optimizer, small_loop.Fraction(max_rate=0.1), ddp=ddp)
    assert rate.mode == "ranks"
    share = small_loop.BATCH // world
    rates = []
    for step in range(steps):
        if die and rank == 1 and step == 5:
            os._exit(3)
        x, y = small_loop.batch(step)
        mine = slice(rank * share, (rank + 1) * share)
        optimizer.zero_grad()
        if accumulate:
            first = slice(mine.start, mine.start + share // 2)
            second = slice(first.stop, mine.stop)
            with ddp.no_sync():
                (small_loop.loss(ddp, x[first], y[first]) / 2).backward()
            (small_loop.loss(ddp, x[second], y[second]) / 2).backward()
        else:
            small_loop.loss(ddp, x[mine], y[mine]).backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    torch.save({"rates": rates, "model": net.state_dict()}, out / f"{world}-{rank}.pt")


if __name__ == "__main__":
    how = "die" in sys.argv, "accumulate" in sys.argv
    gloo_ranks.take_part(partial(main, Path(sys.argv[1]), int(sys.argv[2]), *how))
