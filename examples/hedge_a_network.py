"""A pool of six copies of a small network follows a target that is drawn anew twice.

python examples/hedge_a_network.py [PICTURE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

import driftrate.torch
from driftrate.paper import style

DIM, BATCH, STEPS, NOISE = 8, 16, 1500, 0.3
Method = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], object]]


def network() -> nn.Module:
    """Return a network of 32 hidden units."""
    return nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, 1))


def alone(lr: float) -> Method:
    """Return how one network with Adam predicts, and how it learns."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)

    def learn(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(net(x), y))
        optimizer.step()

    return net, learn


@style.styled
def main(picture: str) -> None:
    """Follow a target with the pool and with Adam at two rates; draw regret and shares."""
    torch.manual_seed(0)
    pool = driftrate.torch.Hedged(network(), loss="squared")
    methods: dict[tuple[str, str], Method] = {
        ("Hedged", "the paper's rule"): (pool, pool.learn),
        ("Adam 0.01", "best constant rate"): alone(0.01),
        ("Adam 0.001", "rate 0"): alone(0.001),
    }
    regrets: dict[str, list[float]] = {name: [0.0] for name, _ in methods}
    shares, target = [], torch.zeros(DIM, 2)
    for step in range(STEPS):
        if step % (STEPS // 3) == 0:
            target = torch.randn(DIM, 2)
        x = torch.randn(BATCH, DIM)
        truth = (x @ target).tanh().prod(dim=1, keepdim=True)
        y = truth + NOISE * torch.randn(BATCH, 1)
        for (name, _), (predict, learn) in methods.items():
            with torch.no_grad():
                error = float((predict(x) - truth).square().mean())
            regrets[name].append(regrets[name][-1] + error)
            learn(x, y)
        shares.append(pool.record["shares"])
    figure, ((left, right),) = style.canvas(1, 2, width=10, height=3.6)
    for name, colour in methods:
        left.plot(regrets[name], color=style.COLOURS[colour], label=name)
        print(f"{name:<12} regret {regrets[name][-1]:7.1f}")
    rates = [f"rate {rate:.1f}" for rate in pool.copies.rates.tolist()]
    right.stackplot(range(STEPS), *zip(*shares, strict=True), labels=rates)
    left.set(title="cumulative regret", xlabel="step")
    right.set(title="shares of the copies", xlabel="step", ylim=(0, 1))
    figure.legend(loc="outside lower center", ncols=9, fontsize="small")
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/hedge_a_network.png")
