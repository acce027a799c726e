"""A schedule inside `fit`: each backend in processes of its own, for it is chosen at import."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}

spec = importlib.util.spec_from_file_location("shifting_problem", HERE / "shifting_problem.py")
problem = importlib.util.module_from_spec(spec)
spec.loader.exec_module(problem)


def spawn(backend, *arguments):
    # Keras reads its variables in a way that NumPy 2.4 frowns upon.
    strict = ["-W", "error", "-W", "ignore:__array__ implementation:DeprecationWarning"]
    command = [sys.executable, *strict, str(HERE / "fit_child.py"), *map(str, arguments)]
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_ENABLE_X64": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module", params=["torch", "jax"])
def trained(request, tmp_path_factory):
    """All that one process can check: it asserts states, precisions and refusals itself."""
    folder = tmp_path_factory.mktemp(request.param)
    spawn(request.param, "train", folder)
    return request.param, folder, np.load(folder / "found.npz")


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        ("float64", "sequence"),
        ("float64", "accumulation"),
        ("float64", "given"),
        ("float32", "sequence"),
    ],
)
def test_trajectory_is_the_core_s(trained, dtype, mode):
    _, _, found = trained
    rates, weights = problem.core({"accumulation": "parts"}.get(mode, mode))
    near = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    np.testing.assert_allclose(found[f"{dtype}/{mode}/rates"], rates, **near)
    np.testing.assert_allclose(found[f"{dtype}/{mode}/weights"], weights, **near)


def test_resumed_in_a_new_process_bit_by_bit(trained):
    backend, folder, found = trained
    spawn(backend, "resume", folder)
    with np.load(folder / "rest.npz") as rest:
        for mode, updates in (("sequence", 200), ("accumulation", 400)):
            assert len(rest[mode]) == updates
            assert rest[mode].tobytes() == found[f"{mode}/rest"].tobytes()
