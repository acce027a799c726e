"""Learners of online-learning packages, which take one row at a time."""

from __future__ import annotations

from functools import partial
from math import log
from typing import Any

import numpy as np

from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Player, Setup, grid
from driftrate.race.models import Floats, Labels

# Chances are kept this far from 0 and 1 before their logarithm is taken.
_LEAST = 1e-12


class _Rabbit:
    """Vowpal Wabbit: all rows of a batch are predicted before the first of them is learnt."""

    rate: float | None = None

    def __init__(self, setup: Setup, **options: Any) -> None:
        from vowpalwabbit import Workspace

        self.task = setup.linear.task
        kind = {
            "regression": "",
            "binary": "--loss_function logistic",
            "classes": f"--oaa {setup.linear.outputs} --probabilities --loss_function logistic",
        }[self.task]
        given = " ".join(f"--{key} {value}" for key, value in options.items())
        # The batch has a column of ones where the model has a bias.
        self.workspace: Any = Workspace(f"--quiet --no_stdin --noconstant {kind} {given}")

    def step(self, x: Floats, y: Labels) -> Floats:
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


class _Stream:
    """A linear model of River: all rows of a batch are predicted before the first is learnt."""

    def __init__(self, setup: Setup, lr: float = 0.01) -> None:
        from river import linear_model, optim

        self.task, self.outputs = setup.linear.task, setup.linear.outputs
        self.rate: float | None = lr
        # The batch has a column of ones where the model has a bias.
        kinds: dict[str, Any] = {
            "regression": partial(linear_model.LinearRegression, intercept_lr=0.0),
            "binary": partial(linear_model.LogisticRegression, intercept_lr=0.0),
            "classes": linear_model.SoftmaxRegression,
        }
        self.model = kinds[self.task](optim.SGD(lr))

    def step(self, x: Floats, y: Labels) -> Floats:
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


def _log(chance: float) -> float:
    return log(max(chance, _LEAST))


def _vw_constant(setup: Setup, **options: Any) -> Player:
    return _Rabbit(setup, power_t=0, **options)


def _online(name: str, build: Any, package: str, settings: Any) -> Contestant:
    packages = ((package, package),)
    return Contestant(name, "online", build, settings, packages=packages, models=LINEAR_MODELS)


_VW_RATES = grid("learning_rate", [0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
_RIVER_RATES = grid("lr", [1e-4, 3e-4, 1e-3, 3e-3, 0.03, 0.1, 0.3])
CONTESTANTS = (
    _online("vowpal wabbit", _Rabbit, "vowpalwabbit", _VW_RATES),
    _online("vowpal wabbit power_t 0", _vw_constant, "vowpalwabbit", _VW_RATES),
    _online("river linear", _Stream, "river", _RIVER_RATES),
)
