"""Small tasks of every kind: where an optimizer without a rate to choose falls behind, we know it.

A fault is a loss of more than 1.3 times that of Adam at 0.001 and more than COCOB's, at the end
(the last tenth of the steps) or over the whole task, and any divergence where Adam has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
parameterfree = pytest.importorskip("parameterfree")

from learning_tasks import TASKS  # noqa: E402

import driftrate as dr  # noqa: E402
import driftrate.torch  # noqa: E402

SEEDS = 3
WORSE = 1.3


def attached(parameters: Any) -> Any:
    adam = torch.optim.Adam(parameters, lr=1e-3)
    adam.rate = driftrate.torch.attach(adam, dr.MeasuredRate())
    return adam


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Pursuit": driftrate.torch.Pursuit,
    "attach": attached,
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "COCOB": parameterfree.COCOB,
}

FIRST_STEP = "the first step moves every weight by 0.3 of its size at once"
SCALE = "the scale is the size of the first weights for ever"
BOLD = "it has learned more before a shift, and pays in the first batches after; it rests as well"
FAULTS = {
    "Pursuit": {
        "inputs about 100": FIRST_STEP,
        "30 layers of ReLU": FIRST_STEP + ": one of three seeds never learns",
        "40 residual blocks": FIRST_STEP,
        "recurrent ReLU from the identity": FIRST_STEP,
        "linear from 1e-6": SCALE,
        "linear from sparse weights": SCALE,
        "head of 1e-4": SCALE,
        "LoRA from 1e-6": SCALE,
        "table of 1e-4 and a network": SCALE,
        "inputs in mixed units": "columns of all units move alike, and the rate falls slowly",
        "sparse inputs": "a rate that rose at the start takes 2,000 steps to fall",
        "new classes": BOLD,
        "a learned deviation": BOLD,
    },
    "attach": {
        "new classes": BOLD,
        "a learned deviation": "the factor takes over 1,000 steps to rise with the noise",
    },
}


def case(name: str, method: str) -> Any:
    """Return a task for one of ours; all of a task's run in one process, rivals once."""
    marks = [pytest.mark.xdist_group(name)]
    if name in FAULTS[method]:
        marks.append(pytest.mark.xfail(reason=FAULTS[method][name], raises=AssertionError))
    return pytest.param(name, method, marks=marks)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tasks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def curve(name: str, method: str, seed: int, steps: int | None = None) -> np.ndarray:
    """Return the score before each step; from where it is not finite on, infinity."""
    task = TASKS[name](seed)
    optimizer = OPTIMIZERS[method](task.parameters())
    scores = np.full(steps or task.steps, math.inf)
    for step in range(len(scores)):
        task.before(step, optimizer)
        optimizer.zero_grad()
        loss = task.loss(step)
        score = task.score(step, loss)
        if not math.isfinite(score):
            break
        scores[step] = score
        (loss * task.weight(step)).backward()
        task.clip()
        optimizer.step()
    return scores


@cache
def figures(name: str, method: str) -> dict[str, float]:
    """Return the mean scores of an optimizer."""
    scores = np.stack([curve(name, method, seed) for seed in range(SEEDS)])
    last = scores[:, -(scores.shape[1] // 10) :]
    return {"in the end": float(last.mean()), "over all": float(scores.mean())}


def complaints(name: str, method: str) -> list[str]:
    """Return in what an optimizer is worse than both rivals."""
    found = []
    for when, mine in figures(name, method).items():
        adam = figures(name, "Adam")[when]
        if mine > WORSE * adam:
            cocob = figures(name, "COCOB")[when]
            if mine > cocob or mine == math.inf:
                found.append(f"{mine:.4g} {when}, Adam {adam:.4g}, COCOB {cocob:.4g}")
    return found


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "method"), [case(name, method) for name in TASKS for method in FAULTS]
)
def test_is_not_far_behind(name: str, method: str) -> None:
    assert complaints(name, method) == []


def test_every_task_can_be_learned() -> None:
    """A step or two of each, so that the slow tests find their tasks whole."""
    for method, faults in FAULTS.items():
        assert faults.keys() <= TASKS.keys()
        for name in TASKS:
            assert np.isfinite(curve(name, method, seed=0, steps=2)).all(), (name, method)
