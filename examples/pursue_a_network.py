"""A network whose task is drawn anew now and then: Adam at three rates, and Pursuit with none.

python examples/pursue_a_network.py [PICTURE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn

import driftrate.torch
from driftrate.paper import style

DIM, BATCH, STEPS, TASKS, SEEDS = 20, 16, 4000, 8, 3


def task(seed: int) -> nn.Module:
    """Return what is to be learned: a random network."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, 1)).requires_grad_(False)


def losses(
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], seed: int
) -> list[float]:
    """Return the loss of each batch before it is learned from."""
    tasks = [task(100 * seed + k) for k in range(TASKS)]
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    optimizer, found = make(model.parameters()), []
    for step in range(STEPS):
        x = torch.randn(BATCH, DIM)
        y = 5 * tasks[step * TASKS // STEPS](x) + 0.1 * torch.randn(BATCH, 1)
        loss = nn.functional.mse_loss(model(x), y) / 2
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@style.styled
def main(picture: str) -> None:
    """Draw the loss of each rule over time."""
    rules: dict[tuple[str, str], Callable[..., torch.optim.Optimizer]] = {
        ("Pursuit, nothing to tune", "the paper's rule"): driftrate.torch.Pursuit,
        ("Adam 0.001", "rate 0"): lambda p: torch.optim.Adam(p, lr=0.001),
        ("Adam 0.01", "best constant rate"): lambda p: torch.optim.Adam(p, lr=0.01),
        ("SGD 0.03", "exact form"): lambda p: torch.optim.SGD(p, lr=0.03),
    }
    figure, ((left,),) = style.canvas(1, 1, width=10, height=4.2)
    width = max(STEPS // 160, 1)
    for (name, colour), make in rules.items():
        every = np.mean([losses(make, seed) for seed in range(SEEDS)], axis=0)
        means = every[: len(every) // width * width].reshape(-1, width).mean(1)
        left.plot(np.arange(len(means)) * width, means, color=style.COLOURS[colour], label=name)
        print(f"{name:<26} mean loss {every.mean():7.3f}")
    left.set(title="loss before learning from a batch", xlabel="step", yscale="log")
    figure.legend(loc="outside lower center", ncols=4)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/pursue_a_network.png")
