"""A small stream, a schedule that reads products of gradients, and a loop over both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

import driftrate as dr
import driftrate.torch

DIM, BATCH = 6, 8
STEPS = 200


@dataclass(frozen=True)
class Fraction(dr.Schedule):
    """The share of signal in an average of products: a stand-in for any measured rate."""

    max_rate: float | None = None
    memory: float = 0.5

    signals: ClassVar[tuple[str, ...]] = ("cross", "spread")

    @classmethod
    def example(cls):
        return cls(max_rate=0.1)

    def _start(self):
        return {"rate": 0.0, "cross": 0.0, "spread": 0.0, "count": 0}

    def _step(self, xp, state, signal):
        cross = self.memory * state["cross"] + (1.0 - self.memory) * signal.cross
        spread = self.memory * state["spread"] + (1.0 - self.memory) * signal.spread
        positive = xp.where(cross > 0.0, cross, 0.0 * cross)
        share = positive / (positive + spread + 1e-12)
        rate = share * (0.2 if self.max_rate is None else self.max_rate)
        return rate, {"rate": rate, "cross": cross, "spread": spread, "count": state["count"] + 1}


@cache
def batch(step, dtype=torch.float64, size=BATCH):
    """A batch of a regression whose target jumps half way, the same in every process."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(size, DIM, generator=generator, dtype=torch.float64)
    truth = torch.linspace(-1.0, 1.0, DIM, dtype=torch.float64) * (1.0 if step < 120 else -2.0)
    noise = 0.1 * torch.randn(size, generator=generator, dtype=torch.float64)
    return x.to(dtype), (x @ truth + noise).to(dtype)


def model(dtype=torch.float64):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(DIM, 4, dtype=dtype), torch.nn.Tanh(), torch.nn.Linear(4, 1, dtype=dtype)
    )


def loss(net, x, y):
    return (net(x).squeeze(-1) - y).square().mean()


def backward(rate, net, step, dtype=torch.float64):
    """Backward as the rate's mode wants it."""
    x, y = batch(step, dtype)
    if rate is not None and rate.mode == "parts":
        return rate.backward(lambda x, y: loss(net, x, y), x, y)
    if rate is not None and rate.mode == "accumulation":
        for part in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH)):
            (loss(net, x[part], y[part]) / 2).backward()
        return None
    value = loss(net, x, y)
    value.backward()
    return value


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "AdamW-fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "AdamW-tensor": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(0.05, dtype=torch.float64), foreach=False
    ),
}
MODES = ("sequence", "parts", "accumulation")


def start(kind, mode):
    net = model()
    optimizer = OPTIMIZERS[kind](net.parameters())
    return net, optimizer, driftrate.torch.attach(optimizer, Fraction(), mode=mode)


def run(net, optimizer, rate, steps):
    rates = []
    for step in steps:
        optimizer.zero_grad()
        backward(rate, net, step)
        optimizer.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates
