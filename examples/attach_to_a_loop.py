"""One line in a PyTorch loop: the rate rises when the target jumps, and falls when it rests.

python examples/attach_to_a_loop.py [PICTURE]
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import torch

import driftrate as dr
import driftrate.torch

DIM, BATCH, STEPS, NOISE = 32, 16, 600, 1.0


def main(picture: str) -> None:
    """Follow a target that jumps at step 300, and draw the rate and the regret."""
    torch.manual_seed(0)
    model = torch.nn.Linear(DIM, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = dr.Estimated(dr.LinearRate(dim=DIM, noise_std=NOISE), dr.estimate.DebiasedShift())
    rate = driftrate.torch.attach(optimizer, schedule, mode="parts", batch_size=BATCH)
    target, rates, regret = torch.ones(DIM, 1) / DIM**0.5, [], [0.0]
    for step in range(STEPS):
        target = -3.0 * target if step == 300 else target
        x = torch.randn(BATCH, DIM)
        y = x @ target + NOISE * torch.randn(BATCH, 1)
        regret.append(regret[-1] + float((model.weight.detach().T - target).square().sum() / 2))
        optimizer.zero_grad()
        rate.backward(lambda x, y: torch.nn.functional.mse_loss(model(x), y) / 2, x, y)
        optimizer.step()
        rates.append(rate.record["rate"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.plot(rates)
    left.set(title="learning rate", xlabel="step", yscale="log")
    right.plot(regret)
    right.set(title="cumulative regret", xlabel="step")
    figure.savefig(picture, dpi=130)
    print(f"regret {regret[-1]:.1f}, rate before the jump {rates[299]:.3f}, after {rates[301]:.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "attach_to_a_loop.png")
