"""A small network that Pursuit trains: shared by the tests and their child processes."""

from __future__ import annotations

import torch

import driftrate.torch

BATCH = 16


def network(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(6, 24), torch.nn.ReLU(), torch.nn.Linear(24, 24), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(24, 1)).to(dtype)


def batch(step, seed=0, size=BATCH):
    generator = torch.Generator().manual_seed(1000 * seed + step)
    x = torch.randn(size, 6, generator=generator)
    # The target turns slowly, so that there is something to follow.
    turn = torch.tensor(step / 300.0)
    return x, (turn.cos() * x[:, 0] + turn.sin() * x[:, 1] + x[:, 2] * x[:, 3]).unsqueeze(1)


def loss_of(net, step, seed=0, size=BATCH):
    x, y = batch(step, seed, size)
    kind = next(net.parameters()).dtype
    return torch.nn.functional.mse_loss(net(x.to(kind)).float(), y)


def train(net, optimizer, steps, seed=0, spoil=None):
    """Take the steps and return the losses; `spoil` may change the gradients of one."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(net, step, seed)
        loss.backward()
        if spoil is not None:
            spoil(step, net)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def pursuit(net, **options):
    return driftrate.torch.Pursuit(net.parameters(), **options)


def everything(net, optimizer):
    """Return the weights and the state, to be compared bit by bit."""
    state = optimizer.state_dict()["state"]
    kept = [value for one in state.values() for value in one.values()]
    return [t.detach().clone() for t in (*net.parameters(), *kept)]


def same(one, other):
    return len(one) == len(other) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )
