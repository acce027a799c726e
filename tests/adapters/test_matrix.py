"""All adapters, one suite: the trajectory of the pure core, and bitwise resume at any step.

The matrix is adapter x mode. What an adapter cannot do stands in it as the reason why.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import fit_child
import jax
import jax.numpy as jnp
import joblib
import keras
import numpy as np
import pytest
import shifting_problem as problem
import torch
import transformation_child
from river import optim

import driftrate.keras
import driftrate.optax
import driftrate.river
import driftrate.torch
from driftrate.sklearn import ShiftRegressor

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # What Keras says of any optimizer that was saved before its first step.
    pytest.mark.filterwarnings("ignore:Skipping variable loading:UserWarning"),
]


class PyTorch:
    modes = {  # noqa: RUF012
        "sequence": "sequence",
        "parts": "parts",
        "given": None,
        "measured sequence": None,
        "measured parts": "parts",
    }

    def __init__(self, mode):
        self.mode = mode
        self.model = torch.nn.Linear(problem.DIM, 1, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.follower = driftrate.torch.attach(
            self.optimizer, problem.rule(mode), mode=self.modes[mode], batch_size=problem.BATCH
        )

    def loss(self, x, y):
        return (self.model(x)[:, 0] - y).square().mean() / 2

    def step(self, x, y, shift):
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        self.optimizer.zero_grad()
        self.follower.tell(shift=shift)
        if self.follower.mode == "parts":
            self.follower.backward(self.loss, x, y)
        else:
            self.loss(x, y).backward()
        self.optimizer.step()
        return self.follower.record["rate"], self.model.weight.detach().numpy()[0].copy()

    def save(self):
        things = (self.model, self.optimizer, self.follower)
        torch.save([thing.state_dict() for thing in things], file := io.BytesIO())
        return file.getvalue()

    def load(self, saved):
        states = torch.load(io.BytesIO(saved), weights_only=True)
        things = (self.model, self.optimizer, self.follower)
        for thing, state in zip(things, states, strict=True):
            thing.load_state_dict(state)


class Optax:
    modes = transformation_child.MODES

    def __init__(self, mode):
        self.optimizer = transformation_child.attached(mode)
        self.update, _ = transformation_child.stepper(self.optimizer, mode)
        self.theta = jnp.zeros(problem.DIM)
        self.state = self.optimizer.init(self.theta)

    def step(self, x, y, shift):
        self.theta, self.state = self.update(self.theta, self.state, (x, y), shift)
        return float(driftrate.optax.record(self.state)["rate"]), np.array(self.theta)

    def save(self):
        return pickle.dumps((np.array(self.theta), jax.tree.map(np.array, self.state)))

    def load(self, saved):
        theta, state = pickle.loads(saved)
        self.theta = jnp.asarray(theta)
        self.state = driftrate.optax.load(jax.tree.leaves(state), like=self.state)


class Keras:
    modes = fit_child.MODES

    def __init__(self, mode):
        self.parts = 2 if "parts" in mode else 1
        self.model = fit_child.regression(fit_child.attached(mode), "float64")

    def step(self, x, y, shift):
        if self.model.optimizer.schedule == problem.GIVEN:
            self.model.optimizer.tell(shift=shift)
        for a, b in zip(np.split(x, self.parts), np.split(y, self.parts), strict=True):
            self.model.train_on_batch(a, b[:, None])
        weights = np.array(self.model.layers[-1].kernel.value.tolist())[:, 0]
        return self.model.optimizer.record["rate"], weights

    def save(self):
        self.model.save(FOLDER / "model.keras")
        return (FOLDER / "model.keras").read_bytes()

    def load(self, saved):
        (FOLDER / "model.keras").write_bytes(saved)
        self.model = keras.models.load_model(FOLDER / "model.keras")


class River:
    modes = dict.fromkeys(("sequence", "given", "measured sequence"), "sequence")

    def __init__(self, mode):
        self.optimizer = driftrate.river.attach(
            optim.SGD(), problem.rule(mode), batch_size=problem.BATCH
        )
        self.weights = np.zeros(problem.DIM)

    def step(self, x, y, shift):
        self.optimizer.tell(shift=shift)
        gradient = x.T @ (x @ self.weights - y) / problem.BATCH
        self.weights = self.optimizer.step(self.weights, gradient)
        return self.optimizer.learning_rate, self.weights.copy()

    def save(self):
        return pickle.dumps((self.optimizer, self.weights))

    def load(self, saved):
        self.optimizer, self.weights = pickle.loads(saved)


class ScikitLearn:
    modes = {  # noqa: RUF012
        "sequence": "sequence",
        "parts": "parts",
        "given": "parts",
        "measured sequence": "sequence",
        "measured parts": "parts",
    }

    def __init__(self, mode):
        self.model = ShiftRegressor(
            schedule=problem.rule(mode), mode=self.modes[mode], fit_intercept=False
        )

    def step(self, x, y, shift):
        if self.model.schedule == problem.GIVEN:
            self.model.tell(shift=shift)
        self.model.partial_fit(x, y)
        return self.model.record["rate"], self.model.coef_.copy()

    def save(self):
        joblib.dump(self.model, file := io.BytesIO())
        return file.getvalue()

    def load(self, saved):
        self.model = joblib.load(io.BytesIO(saved))


ADAPTERS = {cls.__name__: cls for cls in (PyTorch, Optax, Keras, River, ScikitLearn)}
MODES = ("sequence", "parts", "given", "measured sequence", "measured parts")
ONE = "River shows an optimizer one gradient a step, never a batch"
# Whoever cannot do a thing says why.
EXCEPTIONS = {("River", "parts"): ONE, ("River", "measured parts"): ONE}
MATRIX = [
    pytest.param(
        name,
        mode,
        id=f"{name}-{mode}",
        marks=[pytest.mark.skip(EXCEPTIONS[name, mode])] if (name, mode) in EXCEPTIONS else [],
    )
    for name in ADAPTERS
    for mode in MODES
]
FOLDER = Path()  # of the test that runs


@pytest.fixture(autouse=True)
def double(tmp_path, monkeypatch):
    """Double precision everywhere, and a place for files."""
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    with jax.enable_x64(True):
        yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def run(learner, steps):
    """Return rates and weights, a row a step."""
    x, y = problem.batches()
    rows = [learner.step(x[t], y[t], problem.shift(t)) for t in steps]
    return np.array([rate for rate, _ in rows]), np.array([weights for _, weights in rows])


def test_no_exception_is_out_of_date():
    assert all(mode not in ADAPTERS[name].modes for name, mode in EXCEPTIONS)


@pytest.mark.parametrize(("name", "mode"), MATRIX)
def test_the_trajectory_is_that_of_the_core(name, mode):
    rates, weights = problem.core(mode)
    found, moved = run(ADAPTERS[name](mode), range(problem.STEPS))
    np.testing.assert_allclose(found, rates, rtol=1e-10)
    np.testing.assert_allclose(moved, weights, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stop", [0, 1, 87])
@pytest.mark.parametrize(("name", "mode"), MATRIX)
def test_a_resumed_run_is_bitwise_the_same(name, mode, stop):
    """Through the framework's own saving, into a learner that was made anew, for 200 steps.

    A schedule whose update takes a hundred times as long is followed for 50.
    """
    steps = 50 if mode.startswith("measured") else 200
    learner, other = ADAPTERS[name](mode), ADAPTERS[name](mode)
    run(learner, range(stop))
    saved = learner.save()
    other.load(saved)
    ours, theirs = (run(one, range(stop, stop + steps)) for one in (learner, other))
    assert ours[0].tobytes() == theirs[0].tobytes()
    assert ours[1].tobytes() == theirs[1].tobytes()
