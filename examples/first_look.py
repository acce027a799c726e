"""A rate that follows the shift: the picture of the README.

python examples/first_look.py [PICTURE]
"""

from __future__ import annotations

import sys

import numpy as np

import driftrate as dr
from driftrate.paper import style

DIM, STEPS, NOISE = 32, 1000, 1.0


@style.styled
def main(picture: str) -> None:
    """Chase a target that jumps every 250 steps with four rates, and draw the chase."""
    path = dr.streams.bursty(dim=DIM, steps=STEPS, size=3.0, every=250, seed=4)
    stream = dr.streams.LinearStream(path, batch_size=16, noise_std=NOISE)
    rules: dict[str, dr.Schedule] = {
        "LinearRate, told the shift": dr.LinearRate(dim=DIM, noise_std=NOISE),
        "MeasuredRate, told nothing": dr.MeasuredRate(),
        "constant rate 0.1": dr.ConstantRate(0.1),
        "decaying rate": dr.InverseTimeRate(0.3, decay=0.05),
    }
    colours = ("the paper's rule", "exact form", "best constant rate", "rate 0")
    runs = dr.simulate(stream, list(rules.values()), seeds=64, seed=0)
    figure, ((top, right),) = style.canvas(1, 2, width=10, height=3.6)
    for (name, run), colour in zip(zip(rules, runs, strict=True), colours, strict=True):
        style.band(top, run.step, run.rates, style.COLOURS[colour], name)
        style.band(right, run.step, run.regret, style.COLOURS[colour], name)
        print(f"{name:<28} regret {run.total.mean():7.1f} ± {run.total.std() / 8:.1f}")
    for jump in np.flatnonzero(dr.streams.shifts(path) > 0) + 1:
        top.axvline(jump, color=style.GRID, zorder=0)
        right.axvline(jump, color=style.GRID, zorder=0)
    top.set(title="learning rate", xlabel="step")
    right.set(title="cumulative regret", xlabel="step")
    figure.legend(*top.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/first_look.png")
