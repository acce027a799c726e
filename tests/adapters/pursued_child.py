"""One rank of a small DDP run with Pursuit: `torchrun pursued_child.py OUT STEPS`."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pursued
import torch
import torch.distributed as dist


def main(out: Path, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    net = pursued.network()
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = pursued.pursuit(net)
    share = pursued.BATCH // world
    for step in range(steps):
        x, y = pursued.batch(step)
        mine = slice(rank * share, (rank + 1) * share)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(ddp(x[mine]), y[mine]).backward()
        optimizer.step()
    torch.save(pursued.everything(net, optimizer), out / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
