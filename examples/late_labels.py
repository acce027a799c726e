"""Labels that arrive late: what the delay does to the signal, the rate and the regret.

A batch's labels arrive 20 steps after its features. "Fresh" takes the gradient when they arrive, at
the weights of that time: the rate rises 20 steps late. "Stale" takes it at the weights of 20 steps
before: the weights oscillate, that is measured as shift, and only a cap on the rate helps.

python examples/late_labels.py [PICTURE]
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np
import torch
from torch import Tensor

import driftrate as dr
import driftrate.torch
from driftrate.paper import style

DIM, BATCH, STEPS, DELAY, NOISE = 32, 16, 900, 20, 1.0


def follow(
    delay: int, stale: bool, cap: float | None
) -> tuple[list[float], list[float], list[float]]:
    """Return the rate, the measured signal and the regret of each step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(DIM, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = dr.Clip(dr.MeasuredRate(), max=cap)
    rate = driftrate.torch.attach(optimizer, schedule, mode="parts", batch_size=BATCH)
    waiting: deque[tuple[Tensor, Tensor, Tensor]] = deque()
    target, rates, signals, regret = torch.ones(DIM, 1) / DIM**0.5, [], [], [0.0]
    for step in range(STEPS):
        target = -3.0 * target if step == STEPS // 2 else target
        weights = model.weight.detach().clone()
        regret.append(regret[-1] + float((weights.T - target).square().sum() / 2))
        x = torch.randn(BATCH, DIM)
        waiting.append((x, x @ target + NOISE * torch.randn(BATCH, 1), weights))
        if len(waiting) > delay:
            x, y, old = waiting.popleft()
            offset = (old - weights) if stale else torch.zeros_like(weights)
            optimizer.zero_grad()
            rate.backward(
                lambda x, y, o=offset: ((x @ (model.weight + o).T - y) ** 2).mean() / 2, x, y
            )
            optimizer.step()
        rates.append(rate.record["rate"])
        signals.append(rate.record["signal"])
    mean = np.convolve(np.nan_to_num(signals), np.ones(15) / 15, mode="same")
    return rates, mean.tolist(), regret


@style.styled
def main(picture: str) -> None:
    """Draw the three ways to learn from late labels."""
    late = f"{DELAY} steps late"
    ways: dict[tuple[str, str], tuple[int, bool, float | None]] = {
        ("labels at once", "the paper's rule"): (0, False, None),
        (f"{late}, fresh gradient", "exact form"): (DELAY, False, None),
        (f"{late}, stale gradient, rate at most {0.5 / DELAY}", "best constant rate"): (
            DELAY,
            True,
            0.5 / DELAY,
        ),
    }
    figure, ((one, two, three),) = style.canvas(1, 3, width=12, height=3.6)
    for (name, colour), way in ways.items():
        for axis, values in zip((one, two, three), follow(*way), strict=True):
            axis.plot(values, color=style.COLOURS[colour], label=name if axis is one else None)
        print(f"{name:<50} regret {values[-1]:10.1f}")
    print(
        f"{late + ', stale gradient, no cap':<50} regret {follow(DELAY, True, None)[-1][-1]:10.3g}"
    )
    one.set(title="learning rate", xlabel="step")
    two.set(title="measured signal, mean of 15 steps", xlabel="step")
    three.set(title="cumulative regret", xlabel="step")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/late_labels.png")
