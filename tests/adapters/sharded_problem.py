"""A small network and stream for sharded runs, and how it is sharded: shared by all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import mse_loss

import driftrate as dr
import driftrate.torch

BATCH = 24


def network(dtype=torch.float64, seed=0):
    """Of 13 rows, which no number of ranks divides, and of one, where most ranks get none."""
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 13), nn.Tanh(), nn.LayerNorm(13)]
    return nn.Sequential(*layers, nn.Linear(13, 1)).to(dtype)


def batch(step, dtype=torch.float64):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
    sign = 1.0 if step < 12 else -1.0
    return x.to(dtype), (sign * x[:, :1] + x[:, 1:2] * x[:, 2:3]).to(dtype)


def wrapped(net, mesh=None):
    """FSDP2, layer by layer."""
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    return net


def split(net, mesh):
    """Tensor-parallel: the first layer by its outputs, the second by its inputs."""
    return parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def fsdp(net):
    return wrapped(net)


def flat(net, **options):
    """FSDP1, in two flat parameters."""
    net[2] = FullyShardedDataParallel(net[2], device_id=torch.device("cpu"), **options)
    return FullyShardedDataParallel(net, device_id=torch.device("cpu"), **options)


def tensor_parallel(net):
    return split(net, init_device_mesh("cpu", (dist.get_world_size(),)))


def both(net):
    """Tensor-parallel within pairs of ranks, FSDP2 across."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "model"))
    split(net, mesh["model"])
    return wrapped(net, mesh["data"])


def copies(net):
    """Two copies of the model, each spread over half of the ranks."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copy", "shard"))
    return wrapped(net, mesh)


# How a model is spread, and over how many ranks' worth of different rows of a batch.
WAYS = {
    "fsdp": (fsdp, lambda world, rank: (world, rank)),
    "tensor_parallel": (tensor_parallel, lambda world, rank: (1, 0)),
    "both": (both, lambda world, rank: (world // 2, rank // 2)),
    "copies": (copies, lambda world, rank: (world, rank)),
}


def rows(way, half=None):
    """Return which rows of a batch this rank sees, or of its first or second half."""
    shares, place = WAYS[way][1](dist.get_world_size(), dist.get_rank())
    if half is not None:
        start = half * BATCH // 2 + place * BATCH // (2 * shares)
        return slice(start, start + BATCH // (2 * shares))
    return slice(place * BATCH // shares, (place + 1) * BATCH // shares)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99)),
}
SCHEDULES = {
    "long": dr.LongHorizonRate(),
    "measured": dr.MeasuredRate(max_rate=0.05),
    "shift": dr.Estimated(dr.LinearRate(dim=300, noise_std=1.0), dr.estimate.DebiasedShift()),
}


def pursuit(params):
    return driftrate.torch.Pursuit(params)


def whole(tensor):
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


def train(net, optimizer, rate, steps, rows, halves=None, spoil=None, most=None):
    """Take the steps and return the rates; `halves` are the rows of a batch's two parts."""
    rates = []
    kind = next(net.parameters()).dtype
    for step in steps:
        x, y = batch(step, kind)
        optimizer.zero_grad()
        if rate is not None and rate.mode == "parts":
            for half in halves:
                with rate.part():
                    (mse_loss(net(x[half]), y[half]) / 2).backward()
        else:
            mse_loss(net(x[rows]), y[rows]).backward()
        if most is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), most)
        if spoil is not None:
            spoil(step, net)
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates
