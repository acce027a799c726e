"""The README's code runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

TEXT = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
LOOPS = ("torch", "optax", "keras", "river", "sklearn")


def block(word):
    (found,) = (one for one in BLOCKS if word in one)
    return found


def rows(count=20, size=32):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, size, 8))
    return [(one, one.sum(axis=1)) for one in x]


def surroundings(loop):
    """What a reader's own program has before the snippet: data, a model, imports."""
    batches = rows()
    if loop == "torch":
        import torch

        pairs = [(torch.from_numpy(x), torch.from_numpy(y)[:, None]) for x, y in batches]
        model = torch.nn.Linear(8, 1, dtype=torch.float64)
        loss = torch.nn.functional.mse_loss
        return {"torch": torch, "model": model, "loss": loss, "batches": pairs}
    if loop == "optax":
        import jax
        import jax.numpy as jnp
        import optax

        def loss(params, x, y):
            return jnp.mean((x @ params - y) ** 2) / 2

        pairs = [tuple(jnp.asarray(part, jnp.float32) for part in pair) for pair in batches]
        return {"jax": jax, "optax": optax, "loss": loss, "params": jnp.zeros(8), "batches": pairs}
    if loop == "keras":
        import keras

        x, y = (np.concatenate(part).astype("float32") for part in zip(*batches, strict=True))
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        return {"keras": keras, "model": model, "x": x, "y": y}
    if loop == "river":
        from river import linear_model, optim

        samples = [
            (dict(enumerate(row)), label)
            for x, y in batches
            for row, label in zip(x.tolist(), y.tolist(), strict=True)
        ]
        return {"linear_model": linear_model, "optim": optim, "samples": samples}
    return {"batches": batches}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.parametrize("loop", LOOPS)
def test_pick_your_loop(loop, capsys):
    names = surroundings(loop)
    exec(block("driftrate.torch.attach" if loop == "torch" else f"driftrate.{loop}"), names)
    if loop == "sklearn":  # a pool of memories has no rate
        assert 0.0 < names["model"].memory_ <= 20 * 32
        return
    follower = {"torch": "rate"}.get(loop, "optimizer")
    if loop == "optax":
        record = names["driftrate"].optax.record(names["state"])
    else:
        record = names[follower].record
    assert 0.0 < float(record["rate"]) < 10.0


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.parametrize("loop", LOOPS)
def test_the_line_on_the_home_page(loop):
    """The site's first page has one line a loop, in tabs."""
    text = (Path(__file__).parent.parent / "docs" / "index.md").read_text()
    blocks = re.findall(r"^    ```python\n(.*?)^    ```", text, re.MULTILINE | re.DOTALL)
    (found,) = (dedent(one) for one in blocks if f"driftrate.{loop}." in one)
    names = surroundings(loop)
    exec(f"import driftrate as dr\nimport driftrate.{loop}\n{found}", names)
    made = names["optimizer"] if loop in {"torch", "optax", "keras"} else names["model"]
    module = type(names["rate"] if loop == "torch" else made).__module__
    assert module.startswith("driftrate.") or hasattr(made, "update")


def test_a_network_for_ever():
    names = surroundings("torch")
    exec(block("driftrate.torch.Pursuit"), names)
    model, optimizer, losses = names["model"], names["optimizer"], []
    for x, y in names["batches"] * 10:
        loss = names["loss"](model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]


def test_the_rest_of_the_code():
    names = {}
    for one in BLOCKS:
        if not any(f"driftrate.{loop}" in one for loop in LOOPS):
            exec(one, names)
    assert names["run"].regret.shape == (32, 2000)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (Path(__file__).parent.parent / target).exists(), target
