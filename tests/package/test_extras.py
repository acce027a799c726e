"""Each extra alone, in an environment that holds nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TORCH = """
import torch
import driftrate as dr, driftrate.torch
torch.manual_seed(0)
x, model = torch.randn(32, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
driftrate.torch.attach(optimizer, dr.MeasuredRate(), batch_size=32)
before = model.weight.detach().clone()
for _ in range(5):
    optimizer.zero_grad()
    (model(x).squeeze() - x.sum(dim=1)).square().mean().backward()
    optimizer.step()
assert not torch.equal(model.weight, before)
print(optimizer.param_groups[0]["lr"])
"""
KERNELS = """
import torch, triton
import driftrate.torch
from driftrate.adapters.torch import kernel
print(float(kernel.squares([torch.full((300,), 2.0)])) == 1200.0 or exit("wrong"))
"""
OPTAX = """
import jax, jax.numpy as jnp, optax
import driftrate as dr, driftrate.optax
x, params = jax.random.normal(jax.random.key(0), (32, 4)), jnp.zeros(4)
optimizer = driftrate.optax.attach(optax.sgd(0.1), dr.MeasuredRate(), batch_size=32)
state = optimizer.init(params)
gradient = jax.grad(lambda one: jnp.mean((x @ one - x.sum(axis=1)) ** 2))
for _ in range(5):
    updates, state = optimizer.update(gradient(params), state, params)
    params = optax.apply_updates(params, updates)
assert (params != 0).all()
print(params)
"""
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
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")
LOOPS = ("module_child.py", "prepared_child.py", "trainer_child.py")
COMMANDS = {
    "paper": ["reproduce", "figure3", "--seeds", "2"],
    "race": ["race", "synthetic:walk", "--check"],
}


def run(executable, *arguments, folder=None, **variables):
    # A backend that the caller has chosen is none of the extra's.
    environment = {k: v for k, v in os.environ.items() if k not in ("KERAS_BACKEND", "PYTHONPATH")}
    environment |= variables
    command = [str(executable), *arguments]
    place = folder or executable.parent
    return subprocess.run(
        command, env=environment, cwd=place, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("torch", TORCH),
        pytest.param("kernels", KERNELS, marks=ON_LINUX),
        ("jax", OPTAX),
        ("river", RIVER),
        ("sklearn", SKLEARN),
    ],
)
def test_an_extra_takes_a_step_alone(extra, code, wheel, environment):
    done = run(environment(f"{wheel}[{extra}]"), "-c", code, TRITON_INTERPRET="1")
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


@pytest.mark.slow
def test_the_loops_of_others_run_with_their_extra_alone(wheel, unpacked, environment, tmp_path):
    executable = environment(f"{wheel}[loops]")
    for child in LOOPS:
        path = unpacked / "tests" / "adapters" / child
        done = run(executable, str(path), str(tmp_path), "attach", "whole", "1")
        assert done.returncode == 0, (child, done.stderr[-3000:])


@pytest.mark.slow
def test_the_site_is_built_with_its_extra_alone(wheel, unpacked, environment, tmp_path):
    executable = environment(f"{wheel}[docs]")
    command = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": "src"}  # as `make docs` does
    done = run(executable, *command, folder=unpacked, **quiet)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "index.html").exists()
