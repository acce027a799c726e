"""The picture of the home page: rates that follow jumps, as lines that take the page's colours.

python docs/_site/hero.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import driftrate as dr

OUT = Path(__file__).parent / "hero.svg"
DIM, STEPS, EVERY, NOISE = 32, 1000, 250, 1.0
WIDTH, HEIGHT, LEFT, FOOT = 640, 300, 8, 30


def main() -> None:
    """Run the stream of examples/first_look.py, and write medians over 64 seeds."""
    path = dr.streams.bursty(dim=DIM, steps=STEPS, size=3.0, every=EVERY, seed=4)
    stream = dr.streams.LinearStream(path, batch_size=16, noise_std=NOISE)
    rules: dict[str, dr.Schedule] = {
        "decaying": dr.InverseTimeRate(0.3, decay=0.05),
        "constant": dr.ConstantRate(0.1),
        "measured": dr.MeasuredRate(),
    }
    runs = dr.simulate(stream, list(rules.values()), seeds=64, seed=0)
    medians = {name: np.median(run.rates, axis=0) for name, run in zip(rules, runs, strict=True)}
    top = max(float(one.max()) for one in medians.values()) * 1.08
    ground = HEIGHT - FOOT
    lines = [
        f'<svg class="hero-picture" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Learning rates over 1,000 steps of a target that jumps three times">'
    ]
    for k in range(1, STEPS // EVERY):
        x = LEFT + (WIDTH - LEFT) * k * EVERY / STEPS
        lines.append(f'<line class="jump" x1="{x:.0f}" x2="{x:.0f}" y1="12" y2="{ground}"/>')
        note, word = ("note", "the target jumps") if k == 1 else ("note again", "jumps")
        lines.append(f'<text class="{note}" x="{x + 6:.0f}" y="20">{word}</text>')
    lines.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{ground}" y2="{ground}"/>')
    lines.append(f'<text class="title" x="{LEFT}" y="20">learning rate</text>')
    lines.append(f'<text class="title end" x="{WIDTH}" y="{HEIGHT - 8}">{STEPS:,} steps</text>')
    for name, values in medians.items():
        keep = np.unique(np.r_[0:STEPS:4, [k * EVERY + j for k in range(4) for j in range(40)]])
        across = LEFT + (WIDTH - LEFT) * keep / STEPS
        up = ground - (ground - 26) * values[keep] / top
        way = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
        lines.append(f'<polyline class="{name}" pathLength="1" points="{way}"/>')
    lines.append("</svg>")
    labels = {
        "measured": "MeasuredRate, told nothing",
        "constant": "constant",
        "decaying": "decaying",
    }
    lines.append('<p class="hero-names">')
    lines += [f'<span class="{name}">{label}</span>' for name, label in labels.items()]
    lines.append("</p>")
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
