"""`Pursuit` inside `fit`: saved and loaded with the model, accumulation, short floats, decay."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from driftrate.errors import ConfigError, StateError
from driftrate.keras import Pursuit

# Keras reads its variables in a way that NumPy 2.4 frowns upon.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((320, 5)).astype("float32")
Y = np.tanh(X @ RNG.standard_normal((5, 1))).astype("float32")


def network(optimizer, dtype="float32"):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "tanh", dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.compile(optimizer, loss="mse")
    return model


def fit(model, x=X, y=Y, batch=16):
    return model.fit(x, y, batch_size=batch, shuffle=False, verbose=0).history["loss"][-1]


def values(model):
    return [np.array(w.value.tolist()) for w in model.weights]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_and_loaded_with_the_model_bit_by_bit(tmp_path, dtype):
    """In single precision, whatever that of the weights."""
    whole, half = (network(Pursuit(0.7, 0.1), dtype) for _ in range(2))
    fit(whole)
    fit(half, X[:160], Y[:160])
    half.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.optimizer, Pursuit)
    assert loaded.optimizer.weight_decay == 0.1
    kept = (*loaded.optimizer._laws, *loaded.optimizer._squares, *loaded.optimizer._trails)
    assert {one.dtype for one in kept} == {"float32"}
    fit(loaded, X[160:], Y[160:])
    for one, other in zip(values(loaded), values(whole), strict=True):
        assert one.tobytes() == other.tobytes()


def test_the_configuration_makes_an_equal_one():
    falling = keras.optimizers.schedules.ExponentialDecay(1.0, 10, 0.9)
    first = Pursuit(falling, 0.2, clipnorm=3.0, name="mine")
    again = Pursuit.from_config(first.get_config())
    assert again.get_config() == first.get_config()
    assert (again.weight_decay, again.clipnorm, again.name) == (0.2, 3.0, "mine")


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ConfigError, match="learning_rate must be finite"):
        Pursuit(bad)
    with pytest.raises(ConfigError, match="weight_decay must be finite"):
        Pursuit(weight_decay=bad)


def test_a_shift_that_is_told_lets_rates_rise():
    model = network(Pursuit())
    assert np.isnan(model.optimizer.record["rate"])
    fit(model)
    optimizer = model.optimizer
    for numbers in optimizer._laws:
        numbers.assign([20.0, -0.5, 1.0, 0.1, 0.4, 0.4, 1.0])
    shown = {"rate": np.exp(-0.5), "memory": 100 * np.exp(1.0), "share": 0.4}
    assert optimizer.record == pytest.approx(shown, rel=1e-5)
    before = values(model)
    optimizer.notify_shift("keep")
    assert optimizer.record == pytest.approx(shown, rel=1e-5)
    optimizer.notify_shift()
    assert optimizer.record == {"rate": 1.0, "memory": pytest.approx(100.0), "share": 0.0}
    assert not any(np.any(one.value.tolist()) for one in (*optimizer._trails, *optimizer._leads))
    for one, other in zip(values(model), before, strict=True):
        assert one.tobytes() == other.tobytes()
    with pytest.raises(ConfigError, match='policy must be "keep" or "reset"'):
        optimizer.notify_shift("decay")


def test_accumulated_batches_are_one_step():
    whole = network(Pursuit())
    parts = network(Pursuit(gradient_accumulation_steps=4))
    fit(whole, batch=64)
    fit(parts, batch=16)
    for one, other in zip(values(whole), values(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def step(optimizer, first, gradients, dtype="float32"):
    """Apply gradients to one variable; return it and its last value."""
    variable = keras.Variable(np.asarray(first, "float32"), dtype=dtype)
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient, dtype)], [variable])
    return np.array(keras.ops.cast(variable.value, "float32").tolist())


def test_decay_is_the_law_s_alone():
    """A matrix loses wd · lr · 0.03 in a step; a vector, or one left out, nothing."""
    left_out = Pursuit(0.5, 0.1)
    left_out.exclude_from_weight_decay(var_names=["variable"])
    lost = []
    for shape, optimizer in (
        ((3, 2), Pursuit(0.5, 0.1)),
        ((3, 2), left_out),
        (3, Pursuit(0.5, 0.1)),
    ):
        ones = np.ones(shape, "float32")
        lost.append(step(Pursuit(0.5, 0.0), ones, [ones]) - step(optimizer, ones, [ones]))
    np.testing.assert_allclose(lost[0], 0.1 * 0.5 * 0.03, rtol=1e-4)
    assert not np.any(lost[1])
    assert not np.any(lost[2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_has_no_gradient_stays_as_it_is(dtype):
    rng = np.random.default_rng(0)
    grads, rows = rng.standard_normal((20, 512, 32)), np.arange(512)[:, None]
    first = rng.standard_normal((512, 32))
    found = [
        step(Pursuit(1.0, 0.5), first, [*grads, *(g * (rows < n) for g in grads)], dtype)
        for n in (0, 4)
    ]
    before = step(Pursuit(1.0, 0.5), first, grads, dtype)
    np.testing.assert_array_equal(found[0], before)
    np.testing.assert_array_equal(found[1][4:], before[4:])
    assert np.all(found[1][:4] != before[:4])


def test_short_floats_lose_nothing():
    ones = [np.ones((4, 4), "float32")] * 200
    wide, short = (step(Pursuit(0.01), np.eye(4), ones, kind) for kind in ("float32", "bfloat16"))
    assert np.abs(wide - short).max() < 2.0**-7 < np.abs(wide - np.eye(4)).max()


def test_coordinates_that_are_not_finite_are_skipped():
    good = np.array([0.5, 1.0, -2.0], "float32")
    found = step(Pursuit(), np.zeros(3), [good * [np.nan, 1, 1], good * [np.inf, 1, 1], good])
    want = step(Pursuit(), np.zeros(3), [good * [0, 1, 1], good * [0, 1, 1], good])
    np.testing.assert_allclose(found, want)
    assert np.all(np.isfinite(found))


def test_a_variable_that_grew_is_refused():
    model = network(Pursuit())
    fit(model)
    *others, kernel, _ = model.trainable_variables
    optimizer = model.optimizer
    grads = [keras.ops.ones(one.shape) for one in model.trainable_variables]
    kernel.value.data = kernel.value.data.repeat(2, 1)
    kept = [*optimizer.variables, *others]
    before = [np.array(one.value.tolist()) for one in kept]
    words = r"kernel is of shape \(16, 1\), its gradient or state of \(8, 1\)"
    with pytest.raises(StateError, match=words):
        optimizer.apply(grads, model.trainable_variables)
    assert all(map(np.array_equal, before, (np.array(one.value.tolist()) for one in kept)))


def spoil(number, place=1):
    def change(array):
        array = array.copy()
        array.reshape(-1)[place] = number
        return array

    return change


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("law", spoil(np.nan), "not finite"),
        ("law", spoil(-1.0, 2), "below 0"),
        ("square", spoil(-1.0), "below 0"),
        ("trail", spoil(np.inf), "not finite"),
        ("lead", spoil(np.nan), "not finite"),
        ("learning_rate", spoil(np.nan, 0), "not finite"),
        ("lead", lambda array: array[:-1], r"float32\(.*\), not float32\("),
        ("square", lambda array: array.astype(np.float16), "is float16"),
        ("law", None, "state has 17 variables|state has 21 variables"),
    ],
)
def test_a_damaged_state_is_refused_at_load(name, change, words, dtype):
    """As one of another version; 0.1.0 told none."""
    model, store = network(Pursuit(), dtype), {}
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    optimizer.save_own_variables(store)
    assert store["version"] == 1
    optimizer.load_own_variables({**store})
    optimizer.load_own_variables({key: one for key, one in store.items() if key != "version"})
    with pytest.raises(StateError, match="of version 2; this driftrate reads version 1"):
        optimizer.load_own_variables({**store, "version": np.array(2)})
    place = next(str(i) for i, one in enumerate(optimizer.variables) if one.path.endswith(name))
    if change is None:
        del store[place]
    else:
        store[place] = change(store[place])
    with pytest.raises(StateError, match=words):
        optimizer.load_own_variables(store)
