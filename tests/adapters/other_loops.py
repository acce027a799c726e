"""What the training loops of other frameworks are run on, each in a process of its own.

A child is `CHILD FOLDER WHAT PART`. `WHAT` is "attach", "pursuit", or "ranks" where the ranks of a
DDP model are compared. `PART` is "whole", two epochs with a checkpoint after the first, or "rest",
the second one alone from that checkpoint. What came out is written into the folder.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import torch

import driftrate as dr
import driftrate.torch

STEPS, BATCH, DIM = 80, 16, 12  # of an epoch
START: list[float] = []  # of the loop, after all imports, in the processor's time


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(DIM, 24), torch.nn.Tanh(), torch.nn.Linear(24, 24), torch.nn.Tanh(),
        torch.nn.Linear(24, 1),
    )  # fmt: skip


def loss(net, x, y):
    return (net(x).squeeze(-1) - y).square().mean()


def rows():
    """An epoch of a regression whose target is drawn anew half way, in order."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS * BATCH, DIM, generator=generator)
    before, after = torch.randn(2, DIM, generator=generator)
    first = torch.arange(len(x)) < len(x) // 2
    y = torch.where(first, (x @ before).tanh(), (x @ after).tanh())
    return torch.utils.data.TensorDataset(x, y + 0.1 * torch.randn(len(x), generator=generator))


def made(what, parameters, ddp=None):
    """Return the optimizer, and what sets its rate: the line that a user writes."""
    if what == "pursuit":
        return driftrate.torch.Pursuit(parameters), None
    if what == "ranks":
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        return optimizer, driftrate.torch.attach(optimizer, dr.MeasuredRate(max_rate=0.1), ddp=ddp)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    return optimizer, driftrate.torch.attach(optimizer, dr.MeasuredRate())


def rate_of(optimizer, rate):
    """Return the rate of the last step, as a logger takes it."""
    return float(optimizer.record["rate"].mean()) if rate is None else rate.record["rate"]


def asked():
    """Return the arguments; what is said of rates or by this library is an error from here on."""
    warnings.filterwarnings("error", module="driftrate")
    warnings.filterwarnings("error", message=".*(scheduler|learning rate|lr_)")
    folder, what, part = sys.argv[1:4]
    START.append(time.process_time())
    return Path(folder), what, part


def told(folder, what, part, rank, model, rates, logged):
    """Write what came out: weights, the rate of each step, and what the framework's logger has."""
    weights = {name: p.detach().clone() for name, p in model.state_dict().items()}
    out = {"weights": weights, "rates": rates, "logged": logged}
    out["seconds"] = time.process_time() - START[0]
    torch.save(out, folder / f"{what}-{part}-{rank}.pt")
