"""One line in a PyTorch loop: the rate rises when the target jumps, and falls when it rests.

python examples/attach_to_a_loop.py [PICTURE]
"""

from __future__ import annotations

import sys

import torch

import driftrate as dr
import driftrate.torch
from driftrate.paper import style

DIM, BATCH, STEPS, NOISE = 32, 16, 2000, 1.0


@style.styled
def main(picture: str) -> None:
    """Follow a target that jumps half way with three rates, and draw rate and regret."""
    rules: dict[tuple[str, str], dr.Schedule] = {
        ("follows the shift", "the paper's rule"): dr.MeasuredRate(),
        ("constant rate 0.1", "best constant rate"): dr.ConstantRate(0.1),
        ("decaying rate", "rate 0"): dr.InverseTimeRate(0.3, decay=0.05),
    }
    figure, ((left, right),) = style.canvas(1, 2, width=10, height=3.6)
    for (name, colour), rule in rules.items():
        torch.manual_seed(0)
        model = torch.nn.Linear(DIM, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rate = driftrate.torch.attach(optimizer, rule, mode="parts", batch_size=BATCH)
        target, rates, regret = torch.ones(DIM, 1) / DIM**0.5, [], [0.0]
        for step in range(STEPS):
            target = -3.0 * target if step == STEPS // 2 else target
            x = torch.randn(BATCH, DIM)
            y = x @ target + NOISE * torch.randn(BATCH, 1)
            regret.append(regret[-1] + float((model.weight.detach().T - target).square().sum() / 2))
            optimizer.zero_grad()
            rate.backward(lambda x, y, m=model: torch.nn.functional.mse_loss(m(x), y) / 2, x, y)
            optimizer.step()
            rates.append(rate.record["rate"])
        left.plot(rates, color=style.COLOURS[colour], label=name)
        right.plot(regret, color=style.COLOURS[colour])
        print(f"{name:<20} regret {regret[-1]:7.1f}")
    left.set(title="learning rate", xlabel="step")
    right.set(title="cumulative regret", xlabel="step")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/attach_to_a_loop.png")
