"""States as users save them, of everything that keeps one; a script writes those of this version.

`python tests/adapters/saved_states.py` writes what tests/saved/VERSION lacks. Files of a version
that is out are never written again: they are what users have on their disks.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import driftrate as dr

SAVED = Path(__file__).parent.parent / "saved"
DIM, BATCH, BEFORE, AFTER = 4, 8, 40, 20


def batch(step):
    """Features and labels of a linear stream that jumps twice; no generator that may change."""
    place = np.arange(BATCH * (DIM + 1), dtype=np.float64) + 1.0
    waves = 1.7 * np.sin(place * (step + 1) * 0.6180339887 + place**2 * 0.31)
    x = waves[: BATCH * DIM].reshape(BATCH, DIM)
    target = np.sin(np.arange(DIM) + 2.0 * (step // 25))
    return x, x @ target + 0.3 * waves[BATCH * DIM :]


class Case(NamedTuple):
    """One thing that keeps a state.

    `fresh()` makes it, `step(it, x, y)` learns from a batch and returns a number that depends on
    the whole state, `save(it, path)` and `load(path)` are what a user would write.
    """

    package: str
    suffix: str
    fresh: Callable[[], Any]
    step: Callable[[Any, Any, Any], float]
    save: Callable[[Any, Path], None]
    load: Callable[[Path], Any]
    tolerance: float = 1e-9


CASES: dict[str, Case] = {}


def case(name, package, suffix, tolerance=1e-9):
    """Register the class's four functions as a case."""

    def take(cls):
        made = cls()
        CASES[name] = Case(package, suffix, made.fresh, made.step, made.save, made.load, tolerance)
        return cls

    return take


# Schedules and pools: dump, then JSON.


class _Rule:
    """A schedule, fed the signals of gradients at weights that it moves itself."""

    def __init__(self, rule):
        self.rule = rule

    def fresh(self):
        zeros = np.zeros(DIM)
        return {"state": self.rule.init(), "weights": zeros, "trail": zeros, "slow": zeros}

    def step(self, it, x, y):
        weights, slow = it["weights"], it["slow"]
        each = (x @ weights - y)[:, None] * x
        gradient = each.mean(axis=0)
        signal = dr.estimate.from_parts(each.reshape(2, BATCH // 2, DIM).mean(axis=1))
        signal = signal._replace(
            batch_size=float(BATCH), dim=float(DIM), shift=0.1, loss=0.5, loss_shift=0.1,
            step_length=0.1, cross=float(signal.cross), spread=float(signal.spread), parts=2.0,
            grad_sq=float(gradient @ gradient), trail=float(gradient @ it["trail"]),
            lead=float(gradient @ (weights - slow)), weights_sq=float(weights @ weights),
            reach=float(np.sqrt(gradient @ gradient)),
        )  # fmt: skip
        eta, it["state"] = self.rule.update(it["state"], signal)
        it["trail"] = 0.9 * it["trail"] + gradient
        it["slow"] = slow + (weights - slow) / 50
        # A rate that is not for this stream is made small enough for it.
        it["weights"] = weights - min(float(eta), 0.3) * gradient
        return float(eta)

    def save(self, it, path):
        own = {name: it[name].tolist() for name in ("weights", "trail", "slow")}
        path.write_text(json.dumps({**own, "state": self.rule.dump(it["state"])}))

    def load(self, path):
        saved = json.loads(path.read_text())
        own = {name: np.array(saved[name]) for name in ("weights", "trail", "slow")}
        return {**own, "state": self.rule.load(saved["state"])}


def _rules():
    rules = {name: cls.example() for name, cls in dr.schedules.base.registry().items()}
    rules["MeasuredRate-default"] = dr.MeasuredRate()
    rules["MeasuredRate-sequence"] = dr.MeasuredRate(mode="sequence", relative=True)
    rules["LongHorizonRate-relative"] = dr.LongHorizonRate(relative=True)
    rules["Estimated"] = dr.Estimated(
        dr.LinearRate(dim=DIM, noise_std=0.3), dr.estimate.DebiasedShift()
    )
    return rules


for _name, _one in _rules().items():
    CASES[f"schedule-{_name}"] = Case("numpy", "json", *(
        getattr(_Rule(_one), word) for word in ("fresh", "step", "save", "load")
    ))  # fmt: skip


@case("HedgedSGD", "numpy", "json")
class _HedgedSGD:
    pool = dr.HedgedSGD()

    def fresh(self):
        return {"state": self.pool.init(np.zeros(DIM))}

    def step(self, it, x, y):
        state = it["state"]
        residual = self.pool.members(state) @ x.T - y
        losses, gradients = 0.5 * (residual**2).mean(axis=-1), residual @ x / BATCH
        it["state"] = self.pool.update(state, losses, gradients)
        return float(self.pool.mixture(it["state"]).sum())

    def save(self, it, path):
        path.write_text(json.dumps(self.pool.dump(it["state"])))

    def load(self, path):
        saved = json.loads(path.read_text())
        return {"state": self.pool.load(saved, like=np.zeros(DIM))}


class _HedgedFilter:
    pool = dr.HedgedFilter()

    def __init__(self, classes):
        self.classes = classes

    def fresh(self):
        return {"state": self.pool.init(DIM, classes=self.classes)}

    def step(self, it, x, y):
        y = y if self.classes is None else (y > 0).astype(np.int64)
        it["state"] = self.pool.update(it["state"], x, y)
        forecast = self.pool.predict(it["state"], x)
        return float(np.sum(forecast if self.classes is None else forecast[:, 0]))

    def save(self, it, path):
        path.write_text(json.dumps(self.pool.dump(it["state"])))

    def load(self, path):
        return {"state": self.pool.load(json.loads(path.read_text()))}


for _name, _classes in (("HedgedFilter", None), ("HedgedFilter-classes", 2)):
    CASES[_name] = Case("numpy", "json", *(
        getattr(_HedgedFilter(_classes), word) for word in ("fresh", "step", "save", "load")
    ))  # fmt: skip


# torch: state_dict, then torch.save.


class _Torch:
    """A model, its optimizer, and the rate where one is attached."""

    def __init__(self, optimizer, mode, network=False, schedule=None):
        self.optimizer, self.mode, self.network = optimizer, mode, network
        self.schedule = schedule or dr.MeasuredRate()

    def fresh(self):
        import torch

        import driftrate.torch

        torch.manual_seed(0)
        layers = [torch.nn.Linear(DIM, 1)]
        if self.network:
            layers = [torch.nn.Linear(DIM, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)]
        model = torch.nn.Sequential(*layers).double()
        if self.optimizer == "Pursuit":
            return {"model": model, "optimizer": driftrate.torch.Pursuit(model.parameters())}
        optimizer = getattr(torch.optim, self.optimizer)(model.parameters(), lr=0.05)
        rate = driftrate.torch.attach(optimizer, self.schedule, mode=self.mode, batch_size=BATCH)
        return {"model": model, "optimizer": optimizer, "rate": rate}

    def step(self, it, x, y):
        import torch

        x, y = torch.from_numpy(x), torch.from_numpy(y)[:, None]
        model, optimizer = it["model"], it["optimizer"]

        def loss(x, y):
            return ((model(x) - y) ** 2).mean() / 2

        optimizer.zero_grad()
        if self.mode == "parts":
            it["rate"].backward(loss, x, y)
        elif self.mode == "accumulation":
            for half in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH)):
                (loss(x[half], y[half]) / 2).backward()
        else:
            loss(x, y).backward()
        optimizer.step()
        return float(sum(p.detach().sum() for p in model.parameters()))

    def save(self, it, path):
        import torch

        torch.save({name: one.state_dict() for name, one in it.items()}, path)

    def load(self, path):
        import torch

        it, saved = self.fresh(), torch.load(path, weights_only=True)
        for name, one in it.items():
            one.load_state_dict(saved[name])
        return it


for _name, _made in {
    "attach-sequence": _Torch("SGD", "sequence"),
    "attach-parts": _Torch("SGD", "parts"),
    "attach-accumulation": _Torch("SGD", "accumulation"),
    "attach-Adam": _Torch("Adam", None),
    "attach-network": _Torch("SGD", None, network=True),
    "attach-short-horizon": _Torch("Adam", None, schedule=dr.MeasuredRate(relative=True)),
    "Pursuit": _Torch("Pursuit", None, network=True),
}.items():
    # Pursuit's own state is float32, whose sums differ from processor to processor.
    CASES[f"torch-{_name}"] = Case("torch", "pt", *(
        getattr(_made, word) for word in ("fresh", "step", "save", "load")
    ), 1e-5 if _name == "Pursuit" else 1e-9)  # fmt: skip


@case("torch-Hedged", "torch", "pt", 1e-7)
class _Hedged:
    def fresh(self):
        import torch

        import driftrate.torch

        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(DIM, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
        ).double()
        return driftrate.torch.Hedged(model, loss="squared")

    def step(self, it, x, y):
        import torch

        return float(it.learn(torch.from_numpy(x), torch.from_numpy(y)[:, None]))

    def save(self, it, path):
        import torch

        torch.save(it.state_dict(), path)

    def load(self, path):
        import torch

        it = self.fresh()
        it.load_state_dict(torch.load(path, weights_only=True))
        return it


# Optax: the leaves of the state, then numpy.savez; in single precision, JAX's own default.


class _Optax:
    def __init__(self, make):
        self.make = make

    def fresh(self):
        import jax.numpy as jnp

        optimizer = self.make()
        theta = {"w": jnp.zeros(DIM, jnp.float32), "b": jnp.zeros((), jnp.float32)}
        return {"optimizer": optimizer, "theta": theta, "state": optimizer.init(theta)}

    def step(self, it, x, y):
        import jax
        import jax.numpy as jnp
        import optax

        x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
        if "gradient" not in it:
            it["gradient"] = jax.jit(
                jax.grad(lambda t, x, y: jnp.mean((x @ t["w"] + t["b"] - y) ** 2) / 2)
            )
            it["update"] = jax.jit(it["optimizer"].update)
        gradient = it["gradient"](it["theta"], x, y)
        updates, it["state"] = it["update"](gradient, it["state"], it["theta"])
        it["theta"] = optax.apply_updates(it["theta"], updates)
        return float(it["theta"]["w"].sum())

    def save(self, it, path):
        import jax

        theta = it["theta"]
        np.savez_compressed(path, theta["w"], theta["b"], *jax.tree.leaves(it["state"]))

    def load(self, path):
        import jax.numpy as jnp

        import driftrate.optax

        it = self.fresh()
        with np.load(path) as saved:
            w, b, *leaves = (saved[name] for name in saved.files)
        it["theta"] = {"w": jnp.asarray(w), "b": jnp.asarray(b)}
        it["state"] = driftrate.optax.load(leaves, like=it["state"])
        return it


def _attached(name):
    def make():
        import optax

        import driftrate.optax

        inner = getattr(optax, name)(0.05)
        return driftrate.optax.attach(inner, dr.MeasuredRate(), batch_size=BATCH)

    return make


def _pursuit():
    import driftrate.optax

    return driftrate.optax.pursuit()


for _name, _make in {
    "attach-sgd": _attached("sgd"),
    "attach-adam": _attached("adam"),
    "pursuit": _pursuit,
}.items():
    CASES[f"optax-{_name}"] = Case("optax", "npz", *(
        getattr(_Optax(_make), word) for word in ("fresh", "step", "save", "load")
    ), 1e-4)  # fmt: skip


# Keras: the .keras file.


class _Keras:
    def __init__(self, name):
        self.name = name

    def fresh(self):
        import keras

        import driftrate.keras

        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(1)])
        if self.name == "Pursuit":
            optimizer = driftrate.keras.Pursuit()
        else:
            inner = getattr(keras.optimizers, self.name)(0.05)
            optimizer = driftrate.keras.attach(inner, dr.MeasuredRate(), batch_size=BATCH)
        model.compile(optimizer, loss="mse")
        return model

    def step(self, it, x, y):
        it.train_on_batch(x.astype(np.float32), y.astype(np.float32)[:, None])
        return float(sum(np.sum(one) for one in it.get_weights()))

    def save(self, it, path):
        it.save(path)

    def load(self, path):
        import keras

        import driftrate.keras  # noqa: F401

        return keras.saving.load_model(path)


for _name in ("SGD", "Adam", "Pursuit"):
    CASES[f"keras-{_name}"] = Case("keras", "keras", *(
        getattr(_Keras(_name), word) for word in ("fresh", "step", "save", "load")
    ), 1e-4)  # fmt: skip


# River and scikit-learn: pickle.


class _Pickled:
    def __init__(self, make, step):
        self.fresh, self.step = make, step

    def save(self, it, path):
        path.write_bytes(pickle.dumps(it, protocol=4))

    def load(self, path):
        return pickle.loads(path.read_bytes())


def _one_by_one(it, x, y):
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        it.learn_one(dict(enumerate(row)), label)
    return float(it.predict_one(dict(enumerate(x[0].tolist()))))


def _classes_one_by_one(it, x, y):
    for row, label in zip(x.tolist(), (y > 0).tolist(), strict=True):
        it.learn_one(dict(enumerate(row)), label)
    return float(it.predict_proba_one(dict(enumerate(x[0].tolist())))[True])


def _in_batches(it, x, y):
    return float(it.partial_fit(x, y).predict(x).sum())


def _classes_in_batches(it, x, y):
    return float(it.partial_fit(x, y > 0, classes=[False, True]).predict_proba(x)[:, 1].sum())


def _rows_as_batches(it, x, y):
    for row, label in zip(x, y, strict=True):
        it.partial_fit(row[None], [label > 0], classes=[False, True])
    return float(it.decision_function(x).sum())


def _of(door, name, **settings):
    def make():
        from importlib import import_module

        return getattr(import_module(f"driftrate.{door}"), name)(**settings)

    return make


def _river_attached():
    from river import linear_model, optim

    import driftrate.river

    optimizer = driftrate.river.attach(optim.SGD(), dr.MeasuredRate())
    return driftrate.river.with_intercept(linear_model.LinearRegression(optimizer))


for _name, _package, _make, _step in (
    ("river-ShiftRegressor", "river", _of("river", "ShiftRegressor"), _one_by_one),
    ("river-ShiftClassifier", "river", _of("river", "ShiftClassifier"), _classes_one_by_one),
    ("river-attach", "river", _river_attached, _one_by_one),
    ("sklearn-ShiftRegressor", "sklearn", _of("sklearn", "ShiftRegressor"), _in_batches),
    ("sklearn-ShiftClassifier", "sklearn", _of("sklearn", "ShiftClassifier"), _classes_in_batches),
    (
        "sklearn-HedgedSGD",
        "sklearn",
        _of("sklearn", "ShiftRegressor", schedule=dr.HedgedSGD()),
        _in_batches,
    ),
    (
        "sklearn-row-by-row",
        "sklearn",
        _of("sklearn", "ShiftClassifier", schedule=dr.HedgedSGD()),
        _rows_as_batches,
    ),
    (
        "sklearn-schedule",
        "sklearn",
        _of("sklearn", "ShiftRegressor", schedule=dr.MeasuredRate()),
        _in_batches,
    ),
):
    CASES[_name] = Case(_package, "pickle", *(
        getattr(_Pickled(_make, _step), word) for word in ("fresh", "step", "save", "load")
    ))  # fmt: skip


def go_on(case, it, first=BEFORE, last=BEFORE + AFTER):
    """Learn from some batches; return the number of each step."""
    return [case.step(it, *batch(step)) for step in range(first, last)]


def write():
    """Write what this version lacks: each state after the first batches, and what came then."""
    folder = SAVED / dr.__version__
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "went_on.json"
    numbers = json.loads(written.read_text()) if written.exists() else {}
    for name, one in CASES.items():
        if name not in numbers:
            it = one.fresh()
            go_on(one, it, 0, BEFORE)
            one.save(it, folder / f"{name}.{one.suffix}")
            numbers[name] = go_on(one, it)
            print(name)
    written.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "torch")
    write()
