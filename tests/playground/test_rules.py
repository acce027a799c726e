"""What the playground's rules are made of; tests/pages runs them in a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import driftrate.torch
from driftrate.playground import adam, build
from driftrate.playground.long import trace_long
from driftrate.playground.rules import DIMENSIONS, pursued, pursuit_start, rules, scale


def test_adam_is_torch_s():
    rng = np.random.default_rng(0)
    weights = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    rival, state = torch.optim.Adam([weights], lr=0.05), adam.start(np.zeros(3))
    for _ in range(200):
        gradient = rng.standard_normal(3) * 10.0 ** rng.integers(-3, 3)
        weights.grad = torch.as_tensor(gradient)
        rival.step()
        state = adam.step(np, state, gradient, 0.05)
        np.testing.assert_allclose(state["weights"], weights.detach().numpy(), rtol=1e-12)


def test_pursuit_is_torch_s():
    rng = np.random.default_rng(0)
    weights = torch.nn.Parameter(torch.zeros(3))
    rival = driftrate.torch.Pursuit([weights])
    state = pursuit_start(np.zeros(3), scale(3))
    for _ in range(50):
        gradient = rng.standard_normal(3)
        weights.grad = torch.as_tensor(gradient, dtype=torch.float32)
        rival.step()
        state = pursued(np, state, gradient)
        np.testing.assert_allclose(state["weights"], weights.detach().numpy(), rtol=1e-3, atol=1e-5)


def test_the_page_is_small_and_stands_alone():
    page = build()
    assert len(page.encode()) < 200_000
    assert "http" not in page
    assert page.count("<script>") == page.count("</script>") == 1


def test_the_page_has_a_way_home_where_there_is_one():
    assert '<a href="../index.html">driftrate</a>' in build(home="../index.html")
    assert 'class="brand"><!--HOME-->driftrate' in build()


def test_the_page_is_the_same_whenever_it_is_built():
    code = "import hashlib; from driftrate.playground import build;"
    code += "print(hashlib.sha256(build().encode()).hexdigest())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(found) == 1


def test_the_page_says_which_rule_is_not_the_library_s():
    assert adam.__name__.startswith("driftrate.playground.")
    words = " ".join(re.sub(r"<.*?>", "", build().partition("<footer>")[2]).split())
    assert "driftrate's own code, and Adam, its rival, which was written for this page" in words


def test_every_rule_is_in_the_page():
    page = build()
    for name in rules():
        assert re.search(rf"\b{name}: {{\nstart\(", page), name
        assert f"--{name}:" in page, "its colour"
    scales = json.loads(re.sub(r"(\d+):", r'"\1":', re.search(r"SCALES = ({.*?})", page)[1]))
    assert [int(dim) for dim in scales] == list(DIMENSIONS)


class TestLongAxes:
    def test_a_sum_of_what_does_not_vary_is_a_product(self):
        graph = trace_long(lambda xp, x: xp.sum(xp.ones_like(x)) * 3.0, np.zeros(1))
        assert [node.op for node in graph.ops()] == ["mul"]

    def test_axes_of_known_length_are_unrolled(self):
        graph = trace_long(lambda xp, x: xp.sum(x * x, axis=0), np.zeros((3, 1)))
        assert sorted(node.op for node in graph.ops()) == ["add", "add", "mul", "mul", "mul"]

    @pytest.mark.parametrize(
        "function",
        [
            lambda xp, x: xp.max(x, axis=-1),
            lambda xp, x: xp.cumulative_sum(x, axis=-1),
            lambda xp, x: x[0],
        ],
        ids=["max", "cumulative_sum", "item"],
    )
    def test_what_needs_a_length_is_refused(self, function):
        with pytest.raises(TypeError, match="long axis"):
            trace_long(function, np.zeros(1))

    def test_an_entry_is_picked_where_the_length_is_known(self):
        graph = trace_long(lambda xp, x: x[-1] + x[1], np.zeros(1), length=8)
        picks = [node for node in graph.ops() if node.op == "pick"]
        assert sorted(node.args[1].value for node in picks) == [1, 7]
