"""Learners of online-learning packages, which take one row at a time.

Vowpal Wabbit and River are both under the 3-clause BSD licence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from math import log
from typing import Any

import numpy as np

from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Player, Setup, grid
from driftrate.race.models import Floats, Labels

# Chances are kept this far from 0 and 1 before their logarithm is taken.
_LEAST = 1e-12


class Rabbit:
    """Vowpal Wabbit: all rows of a batch are predicted before the first of them is learnt.

    Args:
        setup: The model.
        options: Those of the command line; a flag is there if it is True.
    """

    rate: float | None = None

    def __init__(self, setup: Setup, **options: Any) -> None:
        from vowpalwabbit import Workspace

        self.task = setup.linear.task
        kind = {
            "regression": "",
            "binary": "--loss_function logistic",
            "classes": f"--oaa {setup.linear.outputs} --probabilities --loss_function logistic",
        }[self.task]
        flags = [f"--{key}" for key, value in options.items() if value is True]
        told = [(key, value) for key, value in options.items() if not isinstance(value, bool)]
        given = " ".join([*flags, *(f"--{key} {value}" for key, value in told)])
        # The batch has a column of ones where the model has a bias.
        self.workspace: Any = Workspace(f"--quiet --no_stdin --noconstant {kind} {given}")

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        parse = self.workspace.parse
        examples = [
            parse(f"{self._label(label)} | " + " ".join(f"{i}:{v:.9g}" for i, v in enumerate(row)))
            for row, label in zip(x.tolist(), y.tolist(), strict=True)
        ]
        scores = np.array([self.workspace.predict(example) for example in examples])
        for example in examples:
            self.workspace.learn(example)
            self.workspace.finish_example(example)
        return np.log(np.maximum(scores, _LEAST)) if self.task == "classes" else scores

    def _label(self, value: float) -> str:
        if self.task == "regression":
            return f"{value:.9g}"
        if self.task == "binary":
            return "1" if value > 0.5 else "-1"
        return str(int(value) + 1)


class Stream(ABC):
    """A linear model of River: all rows of a batch are predicted before the first is learnt."""

    rate: float | None = None

    def __init__(self, setup: Setup, **options: Any) -> None:
        from river import linear_model

        self.task, self.outputs = setup.linear.task, setup.linear.outputs
        # The batch has a column of ones where the model has a bias.
        kinds: dict[str, Any] = {
            "regression": partial(linear_model.LinearRegression, intercept_lr=0.0),
            "binary": partial(linear_model.LogisticRegression, intercept_lr=0.0),
            "classes": linear_model.SoftmaxRegression,
        }
        self.model = kinds[self.task](self.optimizer(**options))

    @abstractmethod
    def optimizer(self, **options: Any) -> Any:
        """Return the optimizer of River that moves the weights."""

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""
        rows = [dict(enumerate(row)) for row in x.tolist()]
        scores = np.array([self._score(row) for row in rows])
        for row, label in zip(rows, y.tolist(), strict=True):
            self.model.learn_one(row, label > 0.5 if self.task == "binary" else label)
        return scores

    def _score(self, row: dict[int, float]) -> Any:
        if self.task == "regression":
            return self.model.predict_one(row)
        chances = self.model.predict_proba_one(row)
        if self.task == "binary":
            return _log(chances[True]) - _log(chances[False])
        # A class that was never seen has no chance yet; before the first all have the same.
        return [_log(chances.get(k, 0.0 if chances else 1.0)) for k in range(self.outputs)]


class _SGD(Stream):
    def __init__(self, setup: Setup, lr: float = 0.01) -> None:
        super().__init__(setup, lr=lr)
        self.rate = lr

    def optimizer(self, **options: Any) -> Any:
        from river import optim

        return optim.SGD(**options)


def _log(chance: float) -> float:
    return log(max(chance, _LEAST))


def _vw_constant(setup: Setup, **options: Any) -> Player:
    return Rabbit(setup, power_t=0, **options)


def _online(name: str, build: Any, package: str, settings: Any) -> Contestant:
    return Contestant(
        name,
        "online",
        build,
        settings,
        packages=((package, package),),
        models=LINEAR_MODELS,
        by_row=True,
    )


_VW_RATES = grid("learning_rate", [0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
_RIVER_RATES = grid("lr", [1e-4, 3e-4, 1e-3, 3e-3, 0.03, 0.1, 0.3])
CONTESTANTS = (
    _online("vowpal wabbit", Rabbit, "vowpalwabbit", _VW_RATES),
    _online("vowpal wabbit power_t 0", _vw_constant, "vowpalwabbit", _VW_RATES),
    _online("river linear", _SGD, "river", _RIVER_RATES),
)
