"""`partial_fit` on a stream whose classes jump: nothing to choose, unlike scikit-learn's SGD.

python examples/partial_fit_stream.py [PICTURE]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

import driftrate as dr
from driftrate.paper import style
from driftrate.sklearn import ShiftClassifier

DIM, STEPS, BATCH = 20, 600, 64


@style.styled
def main(picture: str) -> None:
    """Predict each batch, then learn from it; draw the pool's memory and the regrets."""
    rng = np.random.default_rng(0)
    path = dr.streams.bursty(dim=DIM, steps=STEPS, size=3.0, every=200, seed=1)
    models: dict[tuple[str, str], Any] = {
        ("follows the shift", "the paper's rule"): ShiftClassifier(),
        ("SGDClassifier, rate 0.01", "best constant rate"): SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=0.01, random_state=0
        ),
        ("SGDClassifier, its own rate", "rate 0"): SGDClassifier(loss="log_loss", random_state=0),
    }
    regret: dict[tuple[str, str], list[float]] = {key: [0.0] for key in models}
    for target in path:
        x = rng.standard_normal((BATCH, DIM))
        truth = 1.0 / (1.0 + np.exp(-x @ target))
        y = (rng.random(BATCH) < truth).astype(int)
        least = log_loss(y, truth, labels=[0, 1])
        for key, model in models.items():
            chance = model.predict_proba(x) if hasattr(model, "coef_") else np.full((BATCH, 2), 0.5)
            regret[key].append(regret[key][-1] + log_loss(y, chance, labels=[0, 1]) - least)
            model.partial_fit(x, y, classes=[0, 1])
    figure, ((left, right),) = style.canvas(1, 2, width=10, height=3.6)
    models["follows the shift", "the paper's rule"].plot_memory(left)
    for (name, colour), sums in regret.items():
        right.plot(sums, color=style.COLOURS[colour], label=name)
        print(f"{name:<28} regret {sums[-1]:8.1f}")
    left.set(title="rows that the pool believes in")
    right.set(title="cumulative regret", xlabel="batch", yscale="log")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/partial_fit_stream.png")
