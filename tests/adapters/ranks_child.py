"""One rank of a small DDP run: `torchrun ranks_child.py OUT STEPS [die] [accumulate]`."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import small_loop
import torch
import torch.distributed as dist

import driftrate.torch


def main(out: Path, steps: int, die: bool, accumulate: bool) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, world = dist.get_rank(), dist.get_world_size()
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
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), "die" in sys.argv, "accumulate" in sys.argv)
