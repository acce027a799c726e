"""A linear stream that rests, drifts and jumps: three filters, and a pool that hedges memory.

python examples/forget_as_it_serves.py [PICTURE]
"""

from __future__ import annotations

import sys

import numpy as np

import driftrate as dr
from driftrate.paper import style
from driftrate.race.contestants import Setup
from driftrate.race.contestants.filters import ForgettingFilter
from driftrate.race.models import Model

DIM, BATCH, STEPS, SEEDS = 16, 16, 1500, 8
PHASES = ("rest", "a jump", "rest", "drift", "rest")
FILTERS = {
    "a filter that never forgets": (1.0, "rate 0"),
    "remembers 330 rows": (0.997, "best constant rate"),
    "remembers 33 rows": (0.97, "exact form"),
}
POOL = "HedgedFilter, nothing to tune"


def path(seed: int) -> np.ndarray:
    """Return the weights at every step: fifths of the stream rest, jump, rest, drift, rest."""
    rng = np.random.default_rng(seed)
    target, fifth, steps = rng.standard_normal(DIM), STEPS // len(PHASES), []
    for step in range(STEPS):
        phase = PHASES[min(step // fifth, len(PHASES) - 1)]
        if phase == "a jump" and step % fifth == 0:
            target = -target
        if phase == "drift":
            target = target + 0.1 * rng.standard_normal(DIM)
        steps.append(target)
    return np.array(steps)


def play(seed: int) -> tuple[dict[str, list[float]], list[float]]:
    """Return each learner's excess loss at every step, and how many rows the pool believes in."""
    rng, pool = np.random.default_rng(1000 + seed), dr.HedgedFilter()
    setup = Setup(Model("regression", DIM, 1), BATCH, STEPS, seed)
    filters = {name: ForgettingFilter(setup, keep) for name, (keep, _) in FILTERS.items()}
    found: dict[str, list[float]] = {name: [] for name in (POOL, *FILTERS)}
    state, memory = pool.init(DIM), []
    for target in path(seed):
        x = rng.standard_normal((BATCH, DIM))
        truth = x @ target
        y = truth + rng.standard_normal(BATCH)
        found[POOL].append(float(np.mean((pool.predict(state, x) - truth) ** 2) / 2))
        state = pool.update(state, x, y)
        memory.append(pool.memory(state))
        for name, one in filters.items():
            found[name].append(float(np.mean((one.step(x, y) - truth) ** 2) / 2))
    return found, memory


@style.styled
def main(picture: str) -> None:
    """Draw the excess loss of each learner, and what the pool remembers."""
    played = [play(seed) for seed in range(SEEDS)]
    figure, ((top,), (bottom,)) = style.canvas(2, 1, width=10, height=3.2)
    width = max(STEPS // 150, 1)
    colours = {POOL: "the paper's rule"} | {name: colour for name, (_, colour) in FILTERS.items()}
    for name, colour in colours.items():
        every = np.mean([found[name] for found, _ in played], axis=0)
        means = every[: len(every) // width * width].reshape(-1, width).mean(1)
        top.plot(np.arange(len(means)) * width, means, color=style.COLOURS[colour], label=name)
        print(f"{name:<30} excess loss {every.mean():7.3f}")
    memory = np.exp(np.mean([np.log(np.maximum(rows, 1.0)) for _, rows in played], axis=0))
    bottom.plot(memory, color=style.COLOURS["the paper's rule"])
    for edge, name in enumerate(PHASES):
        for axis in (top, bottom):
            axis.axvline(edge * STEPS / len(PHASES), color="0.8", lw=0.8, zorder=0)
        middle = (edge + 0.5) / len(PHASES)
        top.text(middle, 0.93, name, transform=top.transAxes, ha="center", color="0.4")
    top.set(title="loss above the least that is possible", yscale="log")
    bottom.set(title="rows that the pool believes in", xlabel="step", yscale="log")
    figure.legend(loc="outside lower center", ncols=4)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/forget_as_it_serves.png")
