"""Each extra alone, in an environment that holds nothing else."""

from __future__ import annotations

import os
import subprocess

import pytest

ATTACH = "import driftrate as dr, driftrate.{0}; print(driftrate.{0}.attach)"
KERAS = """
import keras
import driftrate as dr, driftrate.keras
import numpy as np
x = np.random.default_rng(0).standard_normal((320, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(driftrate.keras.attach(keras.optimizers.SGD(), dr.MeasuredRate()), loss="mse")
model.fit(x, x.sum(axis=1), batch_size=32, verbose=0)
print(keras.backend.backend())
"""
SKLEARN = """
import numpy as np
from driftrate.sklearn import ShiftRegressor
x = np.random.default_rng(0).standard_normal((320, 4))
print(ShiftRegressor().partial_fit(x, x.sum(axis=1)).predict(x[:1]).shape)
"""
RIVER = """
from driftrate.river import ShiftRegressor
model = ShiftRegressor()
model.learn_one({"x": 1.0}, 1.0)
print(model.predict_one({"x": 1.0}))
"""
COMMANDS = {"paper": ["reproduce", "--help"], "race": ["race", "synthetic:walk", "--check"]}


def run(executable, *arguments, **variables):
    # A backend that the caller has chosen is none of the extra's.
    environment = {k: v for k, v in os.environ.items() if k not in ("KERAS_BACKEND", "PYTHONPATH")}
    environment |= variables
    command = [str(executable), *arguments]
    return subprocess.run(
        command, env=environment, cwd=executable.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("torch", ATTACH.format("torch")),
        ("jax", ATTACH.format("optax")),
        ("river", RIVER),
        ("sklearn", SKLEARN),
    ],
)
def test_an_extra_works_alone(extra, code, wheel, environment):
    done = run(environment(f"{wheel}[{extra}]"), "-c", code)
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr


@pytest.mark.slow
def test_the_keras_extra_brings_a_backend_and_says_how_to_choose_it(wheel, environment, tmp_path):
    executable = environment(f"{wheel}[keras]")
    done = run(executable, "-c", KERAS, KERAS_BACKEND="jax", KERAS_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "jax\n"), done.stderr
    for chosen, package in (({}, "tensorflow"), ({"KERAS_BACKEND": "torch"}, "torch")):
        code = "import driftrate.keras"
        done = run(executable, "-c", code, KERAS_HOME=str(tmp_path), **chosen)
        assert (
            f"the backend {package}, which is not installed: set KERAS_BACKEND=jax"
            in (done.stderr.splitlines()[-1])
        )


@pytest.mark.slow
@pytest.mark.parametrize("extra", COMMANDS)
def test_a_command_works_alone(extra, wheel, environment):
    executable = environment(f"{wheel}[{extra}]")
    done = run(executable, "-m", "driftrate", *COMMANDS[extra])
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr
