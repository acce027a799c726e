"""One optimizer, one meaning: `Pursuit` takes the same steps in every framework and layout."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from driftrate.adapters import _pursuit as law

HERE = Path(__file__).parent
# The network feeds rounding back: 2e-5 was seen over this run.
NEAR = {"float32": 1e-4, "float64": 1e-9}


def _load(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


problem, child = _load("pursuit_problem"), _load("pursuit_child")


@pytest.fixture(scope="module")
def reference():
    with np.errstate(all="raise", invalid="ignore"):
        return problem.reference()


def agree(found, reference, dtype):
    assert found.shape == (problem.STEPS, sum(w.size for w in problem.first()))
    apart = np.abs(found - reference).max() / np.abs(reference).max()
    assert apart < NEAR[dtype]


def spawn(folder, backend, *case):
    # Keras reads its variables in a way that NumPy 2.4 frowns upon.
    strict = ["-W", "error", "-W", "ignore:__array__ implementation:DeprecationWarning"]
    out = folder / "found.npy"
    environment = {**os.environ, "JAX_ENABLE_X64": "1", "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, *strict, str(HERE / "pursuit_child.py"), *case, str(out)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(out)


@pytest.mark.parametrize("turned", [False, True], ids=["in × out", "out × in"])
@pytest.mark.parametrize("framework", ["torch", "optax", "keras"])
def test_single_precision(framework, turned, reference):
    """Keras on the backend of this process."""
    found = problem.play(child.RUNS[framework]("float32", turned), problem.first())
    agree(found, reference, "float32")


@pytest.mark.parametrize(
    ("framework", "backend"),
    [
        ("optax", "torch"),
        pytest.param("keras", "torch", marks=pytest.mark.slow),
        pytest.param("keras", "jax", marks=pytest.mark.slow),
    ],
)
def test_double_precision(framework, backend, reference, tmp_path):
    agree(spawn(tmp_path, backend, framework, "float64", "turned"), reference, "float64")


@pytest.mark.slow
def test_single_precision_on_the_other_backend(reference, tmp_path):
    agree(spawn(tmp_path, "jax", "keras", "float32", "plain"), reference, "float32")


def test_the_network_asks_for_every_branch(reference, monkeypatch):
    """A spike, infinite numbers, unvisited rows and decay are seen, else agreeing says little."""
    for name, other in (("SPIKE", 1e9), ("KEEP", 0.98), ("PACE", 0.02), ("HORIZON", 100.0)):
        with monkeypatch.context() as patch:
            patch.setattr(law, name, other)
            assert np.abs(problem.reference() - reference).max() > 1e-3, name
    with monkeypatch.context() as patch:
        patch.setattr(problem, "DECAY", 0.0)
        assert np.abs(problem.reference() - reference).max() > 1e-3
