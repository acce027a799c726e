"""One rank of a small DDP run with Pursuit: `pursued_child.py OUT STEPS`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import gloo_ranks
import pursued
import torch


def main(out: Path, steps: int, rank: int, world: int) -> None:
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


if __name__ == "__main__":
    gloo_ranks.take_part(partial(main, Path(sys.argv[1]), int(sys.argv[2])))
