"""Run in its own process, KERAS_BACKEND set: train, save, refuse; or go on from a file."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import shifting_problem as problem

import driftrate as dr
import driftrate.keras
from driftrate.adapters._observe import KEYS
from driftrate.errors import ConfigError, DriftrateError, MissingSignal, SignalError, StateError

DIM, BATCH, STEPS = problem.DIM, problem.BATCH, problem.STEPS


def data(dtype, start=0, stop=STEPS):
    """All batches one after the other, as `fit` takes them."""
    x, y = problem.batches()
    return (
        x[start:stop].reshape(-1, DIM).astype(dtype),
        y[start:stop].reshape(-1, 1).astype(dtype),
    )


MODES = {
    "sequence": "sequence",
    "parts": "accumulation",
    "accumulation": "accumulation",
    "given": None,
    "measured sequence": None,
    "measured parts": "accumulation",
}


def attached(mode, inner=keras.optimizers.SGD, **options):
    """The optimizer of a mode."""
    steps = 2 if MODES[mode] == "accumulation" else None
    optimizer = driftrate.keras.attach(
        inner(gradient_accumulation_steps=steps),
        problem.rule(mode),
        mode=MODES[mode],
        batch_size=BATCH,
        **options,
    )
    if mode == "given":
        optimizer.tell(shift=0.0)
    return optimizer


def regression(optimizer, dtype="float32"):
    """Linear regression with weights from 0, and the loss of the core."""
    model = keras.Sequential([keras.Input((DIM,)), Linear(dtype=dtype)])
    model.compile(optimizer, loss=half_square)
    return model


@keras.saving.register_keras_serializable(package="tests")
class Linear(keras.layers.Layer):
    """A linear model that keeps double precision, where keras.ops.matmul would not on torch."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 1), initializer="zeros")

    def call(self, inputs):
        return inputs @ keras.ops.cast(self.kernel, inputs.dtype)


@keras.saving.register_keras_serializable(package="tests")
def half_square(y, out):
    return ((out - y) ** 2).mean(-1) / 2


class Watch(driftrate.keras.RecordRate):
    """Keeps the weights too, and tells the shift."""

    def __init__(self, shift=False):
        super().__init__()
        self.shift, self.weights = shift, []

    def on_train_batch_begin(self, batch, logs=None):
        if self.shift:
            self.model.optimizer.tell(shift=problem.shift(batch))

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self.weights.append(np.array(self.model.layers[-1].kernel.value.tolist())[:, 0])


def fit(model, dtype="float32", start=0, stop=STEPS, size=BATCH, shift=False):
    """Train on the batches in order; return what was watched."""
    watch = Watch(shift)
    x, y = data(dtype, start, stop)
    model.fit(x, y, batch_size=size, shuffle=False, verbose=0, callbacks=[watch])
    return watch


def raised(kind, call):
    """Return the message of the error that a call must raise."""
    with pytest.raises(kind) as info:
        call()
    assert "\n" not in str(info.value)
    return str(info.value)


def trajectories(found):
    cases = [("float64", mode) for mode in ("sequence", "accumulation", "given")]
    for dtype, mode in [*cases, ("float32", "sequence")]:
        keras.config.set_floatx(dtype)  # of the rate's own variable
        keras.config.set_dtype_policy(dtype)  # of the model, which casts what its layers give
        parts = 2 if mode == "accumulation" else 1
        model = regression(attached(mode), dtype)
        watch = fit(model, dtype, size=BATCH // parts, shift=mode == "given")
        rates = watch.history["rate"][parts - 1 :: parts]
        found[f"{dtype}/{mode}/rates"] = np.array(rates)
        found[f"{dtype}/{mode}/weights"] = np.array(watch.weights[parts - 1 :: parts])
        assert float(model.optimizer.learning_rate.value) == rates[-1]
        assert int(model.optimizer.iterations) == STEPS


def saving(found, folder):
    stop = STEPS - 200
    for mode in ("sequence", "accumulation"):
        model = regression(attached(mode, keras.optimizers.Adam, relative=False))
        size = BATCH // (2 if mode == "accumulation" else 1)
        fit(model, stop=stop // 2, size=size)
        fit(model, start=stop // 2, stop=stop, size=size)  # a second fit goes on
        model.save(folder / f"{mode}.keras")
        found[f"{mode}/rest"] = np.array(fit(model, start=stop, size=size).weights)

    whole = regression(attached("sequence"))
    once = fit(whole, stop=40)
    twice = regression(attached("sequence"))
    halves = fit(twice, stop=20).weights + fit(twice, start=20, stop=40).weights
    assert np.array_equal(once.weights, halves)

    # The same number of variables, another schedule; another version; another mode.
    model.save_weights(folder / "one.weights.h5")
    other = regression(driftrate.keras.attach(keras.optimizers.SGD(), dr.InverseTimeRate(1.0)))
    other.optimizer.build(other.trainable_variables)
    twin = driftrate.keras.attach(keras.optimizers.SGD(), dr.InverseSqrtRate(1.0))
    twin.build(other.trainable_variables)
    store = {}
    other.optimizer.save_own_variables(store)
    assert "another schedule" in raised(StateError, lambda: twin.load_own_variables(store))
    place = next(i for i, v in enumerate(other.optimizer.variables) if v.name == "stamp")
    aged = {**store, str(place): np.array([99, store[str(place)][1]], np.int32)}
    text = raised(StateError, lambda: other.optimizer.load_own_variables(aged))
    assert "version 99; this driftrate reads version 3" in text
    missing = {key: store[key] for key in list(store)[:-1]}
    assert "variables" in raised(StateError, lambda: twin.load_own_variables(missing))
    copy = driftrate.keras.ScheduledOptimizer.from_config(attached("sequence").get_config())
    assert (copy.schedule, copy.mode) == (problem.SCHEDULE, "sequence")
    nested = dr.KnownShifts(dr.InverseTimeRate(1.0), times=(3, 5))
    config = driftrate.keras.attach(keras.optimizers.SGD(), nested).get_config()
    assert driftrate.keras.ScheduledOptimizer.from_config(config).schedule == nested
    config["schedule"]["rule"] = "os.system"
    raised(StateError, lambda: driftrate.keras.ScheduledOptimizer.from_config(config))


def precision():
    """Half-precision layers, a loss scaler around, weight decay, None gradients."""
    model = regression(attached("sequence"), "mixed_bfloat16")
    fit(model, stop=10)
    assert {v.dtype for v in model.optimizer.variables} <= {"float32", "int32", "int64"}
    scaled = keras.optimizers.LossScaleOptimizer(attached("sequence"))
    model, plain = regression(scaled), regression(attached("sequence"))
    np.testing.assert_allclose(fit(model, stop=20).weights, fit(plain, stop=20).weights, rtol=1e-4)
    factor = driftrate.keras.attach(
        keras.optimizers.SGD(loss_scale_factor=8.0), problem.SCHEDULE, batch_size=BATCH
    )
    np.testing.assert_allclose(
        fit(regression(factor), stop=20).weights,
        fit(regression(attached("sequence")), stop=20).weights,
        rtol=1e-4,
    )
    half = [keras.Variable([1.0, 2.0], dtype="bfloat16"), keras.Variable([1.0], dtype="float32")]
    optimizer = attached("sequence", relative=False)
    for _ in range(3):
        optimizer.apply([keras.ops.ones(2, "bfloat16"), keras.ops.ones(1, "float32")], half)
    assert optimizer.record["noise"] == 0.0
    assert [v.dtype for v in half] == ["bfloat16", "float32"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras says that a gradient is missing
        optimizer.apply([None, keras.ops.ones(1)], half)


def shifts():
    optimizer = attached("sequence", keras.optimizers.Adam)
    assert optimizer.relative
    assert optimizer.schedule.schedule.schedule.max_rate == 1.0
    model = regression(optimizer)
    fit(model, stop=20)
    assert optimizer.metric == "moments"
    assert tuple(optimizer.record) == KEYS
    np.testing.assert_allclose(
        float(optimizer.learning_rate.value), 0.001 * optimizer.record["factor"], rtol=1e-6
    )
    before = [np.array(v.value.tolist()) for v in optimizer.variables]
    optimizer.notify_shift("keep")
    after = [np.array(v.value.tolist()) for v in optimizer.variables]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    moment = optimizer.inner_optimizer.variables[2]
    old = np.array(moment.value.tolist())
    optimizer.notify_shift("keep", moments="decay", decay=0.25)
    np.testing.assert_allclose(moment.value.tolist(), 0.25 * old, rtol=1e-6)
    optimizer.notify_shift()
    assert float(optimizer._state["rate"].value) == 0.0
    assert int(optimizer.iterations) == 0
    assert not np.any(moment.value.tolist())
    fit(model, stop=20)
    for bad in ({"policy": "forget"}, {"decay": 2.0}):
        raised(ConfigError, lambda bad=bad: optimizer.notify_shift(**bad))
    clock = driftrate.keras.attach(keras.optimizers.SGD(), dr.InverseTimeRate(1.0))
    weight = keras.Variable([1.0])
    for _ in range(9):
        clock.apply([keras.ops.ones(1)], [weight])
    clock.notify_shift("decay", moments="keep", decay=0.5)
    clock.apply([keras.ops.ones(1)], [weight])
    np.testing.assert_allclose(clock.record["rate"], 0.2, rtol=1e-6)


def refusals():
    attach, sgd, clock = driftrate.keras.attach, keras.optimizers.SGD, dr.InverseTimeRate(1.0)
    used = sgd()
    used.build([keras.Variable([1.0])])
    falling = sgd(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    for call, text in [
        (lambda: attach(sgd(), 0.1), "must be a Schedule, got 0.1"),
        (lambda: attach(0.1, clock), "must be a Keras optimizer, got 0.1"),
        (lambda: attach(sgd(), clock, mode="ranks"), "got 'ranks'"),
        (lambda: attach(attach(sgd(), clock), clock), "already follows InverseTimeRate"),
        (lambda: attach(keras.optimizers.LossScaleOptimizer(sgd()), clock), "put it outside"),
        (lambda: attach(used, clock), "attach a new one"),
        (lambda: attach(falling, clock), "two schedules for one rate"),
        (lambda: attach(sgd(), problem.SCHEDULE, mode="accumulation"), "accumulation_steps=2"),
        (lambda: attach(sgd(), clock).build([]), "no variables"),
        (lambda: setattr(attach(sgd(), clock), "learning_rate", 0.1), "cannot be 0.1"),
    ]:
        assert text in raised(ConfigError, call), text
    for bad in (0, -1, "32", True):
        text = raised(ConfigError, lambda bad=bad: attach(sgd(), problem.GIVEN, batch_size=bad))
        assert "batch_size must be a number > 0" in text
    assert "metric" in raised(ConfigError, lambda: attach(sgd(), clock, metric="moments"))
    raised(SignalError, lambda: attach(sgd(), problem.GIVEN).tell(cross=1.0))
    told = attach(sgd(), problem.GIVEN, batch_size=8)
    weight = keras.Variable([1.0])
    text = raised(MissingSignal, lambda: told.apply([keras.ops.ones(1)], [weight]))
    assert "optimizer.tell(shift=...)" in text
    assert weight.value.tolist() == [1.0]
    raised(StateError, lambda: told.apply([keras.ops.ones(1)]))
    assert issubclass(StateError, DriftrateError)

    class NeedsParts(type(clock)):
        signals = ("parts", "cross", "spread")

    text = raised(MissingSignal, lambda: attach(sgd(), NeedsParts(1.0)))
    assert 'which mode="sequence" cannot give: use mode="accumulation"' in text


def told_for_one_step():
    """What is told holds for the next step; a compiled step that lacks it stands still."""
    optimizer = driftrate.keras.attach(keras.optimizers.SGD(), problem.GIVEN, batch_size=8)
    weight, gradient = keras.Variable([1.0]), keras.ops.ones(1)
    optimizer.tell(shift=0.5)
    optimizer.apply([gradient], [weight])
    assert optimizer.record["shift"] == 0.5
    before = [np.array(v.value.tolist()) for v in (*optimizer.variables, weight)]
    raised(MissingSignal, lambda: optimizer.apply([gradient], [weight]))
    after = [np.array(v.value.tolist()) for v in (*optimizer.variables, weight)]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
    optimizer.tell(batch_size=16, shift=0.5)
    optimizer.apply([gradient], [weight])
    assert float(optimizer._next["batch_size"].value) == 8.0
    assert np.isnan(float(optimizer._next["shift"].value))

    # In `fit`, told before the first batch alone.
    model = regression(attached("given"))
    if keras.backend.backend() == "torch":
        raised(MissingSignal, lambda: fit(model, stop=3))
        return
    rates = fit(model, stop=3).history
    assert rates["rate"][0] == rates["rate"][1] == rates["rate"][2] > 0.0
    assert rates["shift"][0] == 0.0
    assert np.isnan(rates["shift"][1:]).all()


def metric():
    """Under Adam products are taken in its metric, with the moments before the step."""
    optimizer = driftrate.keras.attach(keras.optimizers.Adam(0.01), dr.MeasuredRate(relative=True))
    assert optimizer.relative
    core = dr.MeasuredRate(relative=True, mode="sequence")
    state, trail, v = core.init(), np.zeros(3), np.zeros(3)
    weight = keras.Variable([1.0, 1.0, 1.0])
    for t, g in enumerate(np.random.default_rng(0).standard_normal((6, 3))):
        optimizer.apply([keras.ops.convert_to_tensor(g, "float32")], [weight])
        if t:
            scale = np.sqrt(1.0 - 0.999**t) / (np.sqrt(v) + 1e-7)
            fields = {"grad_sq": g @ (scale * g), "trail": g @ (scale * trail), "dim": 3.0}
            _, state = core.update(state, dr.Signal(**fields))
        trail, v = 0.9 * trail + g, 0.999 * v + 0.001 * g**2
        np.testing.assert_allclose(optimizer.record["factor"], state["rate"], rtol=1e-3)
    assert state["rate"] > 0.0
    for kind in (keras.optimizers.RMSprop, keras.optimizers.Nadam, keras.optimizers.AdamW):
        optimizer = driftrate.keras.attach(kind(0.01), dr.MeasuredRate(relative=True))
        for _ in range(3):
            optimizer.apply([keras.ops.ones(3)], [weight])
        assert 0.0 < optimizer.record["factor"] <= 1.0


def a_network():
    """Variables of two layers have the rate that serves in the long run, also once it is saved."""
    optimizer = driftrate.keras.attach(keras.optimizers.SGD(), dr.MeasuredRate())
    layers = [keras.Variable(0.5 * np.ones(shape)) for shape in ((3, 2), (2, 1))]
    for _ in range(3):
        optimizer.apply([keras.ops.ones(one.shape) for one in layers], layers)
    assert optimizer.schedule == dr.LongHorizonRate()
    again = type(optimizer).from_config(optimizer.get_config())
    again.build(layers)
    assert again.schedule == optimizer.schedule
    assert len(again.variables) == len(optimizer.variables)
    alone = driftrate.keras.attach(keras.optimizers.SGD(), dr.MeasuredRate())
    alone.build(layers[:1])
    assert alone.schedule == dr.MeasuredRate(mode="sequence")


def two_schedules():
    falls = keras.optimizers.schedules.ExponentialDecay(0.2, 1, 0.5)
    optimizer = driftrate.keras.attach(
        keras.optimizers.SGD(falls), dr.ConstantRate(0.4), scheduler="multiply"
    )
    optimizer = type(optimizer).from_config(optimizer.get_config())
    weight, rates = keras.Variable([1.0]), []
    for _ in range(3):
        optimizer.apply([keras.ops.ones(1)], [weight])
        rates.append(optimizer.record["rate"])
    np.testing.assert_allclose(rates, [0.4, 0.2, 0.1], rtol=1e-6)


def main(task: str, folder: Path) -> None:
    if task == "train":
        found = {}
        trajectories(found)
        saving(found, folder)
        precision()
        shifts()
        told_for_one_step()
        metric()
        a_network()
        two_schedules()
        refusals()
        np.savez(folder / "found.npz", **found)
        return
    rest = {}
    for mode in ("sequence", "accumulation"):
        model = keras.models.load_model(folder / f"{mode}.keras")
        size = BATCH // (2 if mode == "accumulation" else 1)
        rest[mode] = np.array(fit(model, start=STEPS - 200, size=size).weights)
    np.savez(folder / "rest.npz", **rest)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
