"""The lines to copy: they run, and they are of the best that the loop has."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from driftrate.race import recipes as module
from driftrate.race.contestants import contestants
from driftrate.race.recipes import recipes

# Hedged keeps its weights apart; the others start from next to nothing.
SLOW = ("Hedged", "trac", "mechanic sgd")
DIM, ROWS, STEPS = 3, 16, 30
TASKS = ("regression", "binary", "classes")
FORMS = {
    "torch": [*module._TORCH, "Hedged"],
    "optax": list(module._OPTAX),
    "keras": list(module._KERAS),
    "river": ["HedgedFilter", "bayesian regression", *module._RIVER],
    "sklearn": ["HedgedFilter", "HedgedSGD"],
    "numpy": ["HedgedFilter"],
}


def batches(task):
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        x = rng.standard_normal((ROWS, DIM))
        y = {
            "regression": x.sum(axis=1),
            "binary": (x[:, 0] > 0).astype(float),
            "classes": np.arange(ROWS) % 3,
        }[task]
        yield x, y


def torch_names(task, method):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(DIM, 3 if task == "classes" else 1)
    if method == "Hedged":
        model = torch.nn.Sequential(torch.nn.Linear(DIM, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
        if task != "classes":
            model[2] = torch.nn.Linear(4, 1)
    kind = torch.int64 if task == "classes" else torch.float32
    pairs = [(torch.tensor(x).float(), torch.tensor(y).to(kind)) for x, y in batches(task)]
    return {"model": model, "batches": pairs}, lambda: list(model.parameters())


def optax_names(task, method):
    import jax.numpy as jnp
    import optax

    params = jnp.zeros((DIM, 3 if task == "classes" else 1))

    def loss(params, x, y):
        scores = x @ params
        one = scores[:, 0]
        return {
            "regression": lambda: optax.squared_error(one, y) / 2,
            "binary": lambda: optax.sigmoid_binary_cross_entropy(one, y),
            "classes": lambda: optax.softmax_cross_entropy_with_integer_labels(scores, y),
        }[task]().mean()

    pairs = [(jnp.asarray(x), jnp.asarray(y)) for x, y in batches(task)]
    return {"params": params, "loss": loss, "batches": pairs}, None


def keras_names(task, method):
    import keras

    out = keras.layers.Dense(3 if task == "classes" else 1)
    model = keras.Sequential([keras.layers.Input((DIM,)), out])
    pairs = [(x, y if task == "classes" else y[:, None]) for x, y in batches(task)]
    return {"model": model, "batches": pairs}, None


def row_names(task, method):
    rows = [(dict(enumerate(a)), b) for x, y in batches(task) for a, b in zip(x, y, strict=True)]
    kind = {"regression": float, "binary": bool, "classes": int}[task]
    return {"samples": [(a, kind(b)) for a, b in rows]}, None


def array_names(task, method):
    classes = {"sklearn": [0.0, 1.0] if task == "binary" else [0, 1, 2], "numpy": 3}
    return {"batches": list(batches(task)), "dim": DIM}, classes


NAMES = {
    "torch": torch_names, "optax": optax_names, "keras": keras_names, "river": row_names,
    "sklearn": array_names, "numpy": array_names,
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("loop", "method"), [(loop, method) for loop, methods in FORMS.items() for method in methods]
)
def test_the_lines_run(loop, method, task):
    pytest.importorskip(loop, reason="its loop is run")
    model = contestants()[method].models[0]
    if (reason := contestants()[method].available()) is not None:
        pytest.skip(f"{method} {reason}")
    if method == "bayesian regression" and task != "regression":
        pytest.skip("it is of numbers alone")
    code = module._code(loop, method, task, model, ROWS)
    names, extra = NAMES[loop](task, method)
    if isinstance(extra, dict):
        names["classes"] = extra[loop]
    before = [p.detach().clone() for p in extra()] if loop == "torch" else []
    exec(compile(code, method, "exec"), names)
    if loop == "torch" and method not in SLOW:
        assert any((a != b).any() for a, b in zip(extra(), before, strict=True))
    if "forecast" in code:
        assert np.size(names["forecast"]) or names["forecast"]
    assert f"for x, y in {'samples' if loop == 'river' else 'batches'}:" in code


def test_each_loop_has_the_best_of_what_it_has():
    losses = {"kalman forgetting": 0.9, "HedgedFilter": 1.0, "adam": 2.0, "sgd": 3.0}
    rows = [SimpleNamespace(method=name, status="ok", loss=loss) for name, loss in losses.items()]
    rows.insert(0, SimpleNamespace(method="adamw", status="diverged", loss=None))
    board = SimpleNamespace(of=lambda stream: rows)
    found = recipes(board, "a", "regression", "linear", 16)
    assert {loop: lines and lines.row.method for loop, lines in found.items()} == {
        "torch": "adam", "optax": "adam", "keras": "adam", "river": "HedgedFilter",
        "sklearn": "HedgedFilter", "numpy": "HedgedFilter",
    }  # fmt: skip
    found = recipes(board, "a", "regression", "mlp", 16)
    assert {loop for loop, lines in found.items() if lines is None} == {"river", "sklearn", "numpy"}


def test_a_constant_rate_means_the_same_step_as_in_the_race():
    """Half the squared error, by torch's lines: the gradient of the race's loss."""
    pytest.importorskip("torch", reason="its SGD is run")
    names, _ = torch_names("regression", "sgd")
    start = names["model"].weight.detach().numpy().copy(), names["model"].bias.item()
    names["batches"] = names["batches"][:1]
    exec(module._code("torch", "sgd", "regression", "linear", ROWS), names)
    ((x, y),) = [(a.numpy(), b.numpy()) for a, b in names["batches"]]
    gap = x @ start[0][0] + start[1] - y
    wanted = start[0][0] - 0.001 * (gap[:, None] * x).mean(axis=0)
    np.testing.assert_allclose(names["model"].weight.detach().numpy()[0], wanted, rtol=1e-5)
    assert not math.isclose(float(gap.mean()), 0.0)
