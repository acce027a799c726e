"""Small learning tasks: `attach` beside the optimizer alone and COCOB, as docs/attach.md has them.

    python benchmarks/rest.py [NAME ...]

Names are those of tests/attacks/learning_tasks.py. Loss in the last tenth, mean of three seeds.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import parameterfree
import torch

import driftrate as dr
import driftrate.torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "attacks"))
TASKS = import_module("learning_tasks").TASKS
NAMES = (
    "long", "a learned deviation", "15 layers of ReLU", "inputs in mixed units", "new classes",
    "sparse inputs", "times 1e-3 at half time",
)  # fmt: skip
SEEDS = 3


def optimizer(name: str, parameters: Any) -> Any:
    """Return one of those that are compared."""
    if name == "COCOB":
        return parameterfree.COCOB(parameters)
    adam = name.startswith("Adam")
    one = torch.optim.Adam(parameters, 1e-3) if adam else torch.optim.SGD(parameters, 0.1)
    if name.endswith("attached"):
        driftrate.torch.attach(one, dr.MeasuredRate())
    return one


def end(task: Any, name: str) -> float:
    """Return the mean score of the last tenth of the steps."""
    taken, scores = optimizer(name, task.parameters()), []
    for step in range(task.steps):
        task.before(step, taken)
        taken.zero_grad()
        loss = task.loss(step)
        scores.append(task.score(step, loss))
        (loss * task.weight(step)).backward()
        task.clip()
        taken.step()
    return float(np.mean(scores[-(task.steps // 10) :]))


def main() -> None:
    """Print a row a task."""
    torch.set_num_threads(1)
    every = ("Adam attached", "Adam", "SGD attached", "SGD", "COCOB")
    print("", *every, sep=" | ")
    for name in sys.argv[1:] or NAMES:
        means = [np.mean([end(TASKS[name](seed), one) for seed in range(SEEDS)]) for one in every]
        print(name, *(f"{mean:.2g}" for mean in means), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
