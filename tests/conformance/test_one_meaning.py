"""One call, one meaning: the same problem takes the same steps in every framework."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
# Keras on each backend that it can have here.
KERAS = ("torch", "jax")
FRAMEWORKS = {"torch": "torch", "optax": None, "keras-torch": "torch", "keras-jax": "jax"}

spec = importlib.util.spec_from_file_location("meaning_problem", HERE / "meaning_problem.py")
problem = importlib.util.module_from_spec(spec)
spec.loader.exec_module(problem)


def run(name, folder):
    out = folder / f"{name}.npz"
    # Keras reads its variables in a way that NumPy 2.4 frowns upon.
    strict = ["-W", "error", "-W", "ignore:__array__ implementation:DeprecationWarning"]
    child = [str(HERE / "meaning_child.py"), name.split("-")[0], str(out)]
    environment = {
        **os.environ,
        "JAX_ENABLE_X64": "1",
        "KERAS_BACKEND": FRAMEWORKS[name] or "torch",
    }
    done = subprocess.run(
        [sys.executable, *strict, *child],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return run("torch", tmp_path_factory.mktemp("reference"))


# Keras on torch runs the schedule eagerly: two minutes.
OTHERS = ("optax", *(pytest.param(f"keras-{one}", marks=pytest.mark.slow) for one in KERAS))


@pytest.fixture(scope="module", params=OTHERS)
def found(request, tmp_path_factory):
    return run(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("run_of", problem.CASES)
def test_every_framework_takes_the_same_steps(reference, found, run_of):
    assert found[f"{run_of}/rates"].shape == (problem.STEPS,)
    for what in ("rates", "weights"):
        ours, theirs = found[f"{run_of}/{what}"], reference[f"{run_of}/{what}"]
        scale = np.abs(theirs).max()
        # A network enlarges the last digits in which frameworks place Adam's epsilon.
        tolerance = 1e-7 if run_of == "network Adam" else 1e-9
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale)


def test_the_schedule_s_rate_is_the_rate_whatever_that_of_sgd_was(reference):
    slow, fast = (reference[f"SGD {own}/weights"] for own in ("0.1", "1.0"))
    np.testing.assert_allclose(slow, fast, rtol=1e-9, atol=1e-9)


def test_a_network_s_rate_does_not_know_that_of_sgd(reference):
    first = reference["network SGD/rates"][0]
    assert 0.0 < first < 0.1


def test_the_rates_follow_the_jumps(reference):
    for case, (*_, network) in problem.CASES.items():
        if network:
            continue
        rates = reference[f"{case}/rates"]
        # A horizon of fifty steps says which rate serves, not what the newest step asks for.
        start, end, times = (20, 70, 1.05) if case == "Adam 0.01" else (0, 5, 1.3)
        jumps = range(problem.HOLD, problem.STEPS, problem.HOLD)
        rest = np.mean([rates[jump - 50 : jump].mean() for jump in jumps])
        after = np.mean([rates[jump + start : jump + end].mean() for jump in jumps])
        assert after > times * rest, case
