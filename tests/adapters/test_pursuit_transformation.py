"""`pursuit` as a gradient transformation: jit, short floats, schedules, masks, faults."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from driftrate.adapters import _pursuit as law
from driftrate.errors import ConfigError, StateError
from driftrate.optax import load, notify_shift, pursuit, record


def first(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    made = {"kernel": rng.standard_normal((6, 3)), "bias": np.zeros(3)}
    return {name: jnp.asarray(0.3 * w, dtype) for name, w in made.items()}


def gradient(t, dtype=jnp.float32):
    rng = np.random.default_rng((1, t))
    made = {"kernel": rng.standard_normal((6, 3)), "bias": rng.standard_normal(3)}
    return {name: jnp.asarray(g + 0.5, dtype) for name, g in made.items()}


def play(optimizer, params, steps=30, grads=gradient):
    """Step, jitted; return weights and state."""
    state = jax.jit(optimizer.init)(params)

    @jax.jit
    def step(params, state, g):
        updates, state = optimizer.update(g, state, params)
        assert jax.tree.map(jnp.result_type, updates) == jax.tree.map(jnp.result_type, params)
        return optax.apply_updates(params, updates), state

    for t in range(steps):
        params, state = step(params, state, grads(t))
    return params, state


def same(one, other, **near):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), **{"rtol": 1e-5, **near})


def test_the_weights_are_needed():
    optimizer = pursuit()
    with pytest.raises(StateError, match=r"update\(gradients, state, params\)"):
        optimizer.update(gradient(0), optimizer.init(first()))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ConfigError, match="learning_rate must be finite"):
        pursuit(bad)
    with pytest.raises(ConfigError, match="weight_decay must be finite"):
        pursuit(weight_decay=bad)


@pytest.mark.parametrize("leaf", [np.arange(3), np.ones(3, np.complex64)])
def test_what_is_not_real_is_refused(leaf):
    with pytest.raises(ConfigError, match="must be real"):
        pursuit().init([jnp.asarray(leaf)])


def test_scales_are_those_of_the_law():
    params = {"a": jnp.full((4, 9), 0.1), "b": jnp.zeros(9), "c": jnp.zeros((9, 2))}
    state = jax.jit(pursuit().init)(params)
    np.testing.assert_allclose(state.law[:, 3], [0.1, 0.1, 27**-0.5], rtol=1e-6)


def test_schedules_and_injected_rates():
    """A rate that falls is a function of the count, or set from outside."""
    falls = play(pursuit(lambda count: 0.5**count), first(), 5)[0]
    injected = optax.inject_hyperparams(pursuit)(learning_rate=lambda count: 0.5**count)
    same(falls, play(injected, first(), 5)[0])
    optimizer = optax.inject_hyperparams(pursuit)(learning_rate=1.0)
    params = first()
    state = optimizer.init(params)
    for t in range(5):
        state.hyperparams["learning_rate"] = jnp.asarray(0.5**t)
        updates, state = jax.jit(optimizer.update)(gradient(t), state, params)
        params = optax.apply_updates(params, updates)
    same(falls, params)


def test_parts_of_the_weights():
    """Behind a mask or a label the steps of a tensor are as alone."""
    alone = play(pursuit(), {"kernel": first()["kernel"]}, grads=lambda t: only(t, "kernel"))[0]
    masked = optax.masked(pursuit(), {"kernel": True, "bias": False})
    labels = {"kernel": "net", "bias": "rest"}
    kinds = {"net": pursuit(), "rest": optax.set_to_zero()}
    several = optax.multi_transform(kinds, labels)
    for optimizer in (masked, several):
        same(play(optimizer, first())[0]["kernel"], alone["kernel"])


def only(t, name):
    return {name: gradient(t)[name]}


def test_missing_weights_and_gradients():
    """None among the weights is no tensor; a gradient of None leaves its tensor alone."""
    holes, _ = play(
        pursuit(), first() | {"none": None}, grads=lambda t: gradient(t) | {"none": None}
    )
    same(holes, play(pursuit(), first())[0] | {"none": None})
    optimizer, params = pursuit(), first()
    state = optimizer.init(params)
    updates, after = optimizer.update({"kernel": None, "bias": gradient(0)["bias"]}, state, params)
    assert updates["kernel"] is None
    assert np.count_nonzero(updates["bias"]) == 3
    assert after.law[:, 0].tolist() == [1.0, 0.0]  # bias, kernel
    assert not np.any(after.square["kernel"])


def test_short_floats_lose_nothing():
    """Steps below the spacing of bfloat16 add up, and the state is single."""
    grads = {"kernel": jnp.ones((6, 3)), "bias": jnp.ones(3)}
    wide, _ = play(pursuit(0.01), first(), 200, lambda t: grads)
    short, state = play(pursuit(0.01), first(jnp.bfloat16), 200, lambda t: grads)
    assert state.square["kernel"].dtype == state.trail["bias"].dtype == jnp.float32
    assert state.rest["kernel"].dtype == short["kernel"].dtype == jnp.bfloat16
    for name in grads:
        moved = np.abs(np.asarray(wide[name]) - np.asarray(first()[name])).max()
        apart = np.abs(np.asarray(short[name], np.float32) - np.asarray(wide[name]))
        assert apart.max() < 2.0**-7 < moved


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_resumed_run_is_an_uninterrupted_one(dtype):
    """Bit by bit, from a state that was pickled as arrays of NumPy."""
    optimizer = pursuit()
    whole, end = play(optimizer, first(dtype), 40, lambda t: gradient(t, dtype))
    saved = play(optimizer, first(dtype), 15, lambda t: gradient(t, dtype))
    loaded = pickle.loads(pickle.dumps(jax.tree.map(np.asarray, saved)))
    params, state = jax.tree.map(jnp.asarray, loaded)
    update = jax.jit(optimizer.update)
    for t in range(15, 40):
        updates, state = update(gradient(t, dtype), state, params)
        params = optax.apply_updates(params, updates)
    for one, other in zip(*map(jax.tree.leaves, ((whole, end), (params, state))), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_a_rest_of_other_weights_is_dropped():
    optimizer = pursuit(0.0)
    params, state = play(optimizer, first(jnp.bfloat16), 1)
    state = state._replace(rest=jax.tree.map(lambda r: r + 10.0, state.rest))
    updates, _ = jax.jit(optimizer.update)(gradient(0), state, params)
    assert not any(np.any(np.asarray(u, np.float32)) for u in jax.tree.leaves(updates))


def test_coordinates_that_are_not_finite_are_skipped():
    def spoiled(t):
        bias = gradient(t)["bias"]
        return gradient(t) | {"bias": bias.at[0].set(jnp.array([jnp.nan, jnp.inf, 1e30])[t % 3])}

    clean, _ = play(pursuit(), first(), 9, clear)
    found, state = play(pursuit(), first(), 9, spoiled)
    same(found, clean)
    assert float(found["bias"][0]) == 0.0
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_has_no_gradient_stays_as_it_is(dtype):
    """Bit by bit: no decay moves it, nor what a short float dropped."""
    table = {"table": 0.3 * jax.random.normal(jax.random.key(0), (64, 16), dtype)}

    def grads(t):
        g = jax.random.normal(jax.random.key(t), (64, 16), dtype)
        return {"table": g if t < 20 else g.at[4:].set(0.0) if t < 40 else 0 * g}

    first, few, none = (
        np.asarray(play(pursuit(1.0, 0.5), table, steps, grads)[0]["table"])
        for steps in (20, 40, 60)
    )
    np.testing.assert_array_equal(few[4:], first[4:])
    assert np.all(few[:4] != first[:4])
    np.testing.assert_array_equal(none, few)


def clear(t):
    return gradient(t) | {"bias": gradient(t)["bias"].at[0].set(0.0)}


@pytest.mark.parametrize("size", [1e-17, 1e-19, 1e-23, 1e-28, 1e-40])
def test_a_tiny_first_gradient_is_no_leap(size):
    """The square of 1e-23 is 0: a step of g/√v would be a million."""
    params, _ = play(pursuit(), first(), 1, lambda t: jax.tree.map(lambda w: 0 * w + size, first()))
    longest = law.FIRST * 0.4 * 1.1
    assert np.abs(params["kernel"] - first()["kernel"]).max() < longest


def test_seeds_side_by_side():
    """Under vmap every copy is as alone."""
    optimizer = pursuit()
    many = jax.tree.map(lambda w: jnp.stack([w, 2 * w, 0 * w]), first())
    state = jax.jit(jax.vmap(optimizer.init))(many)
    update = jax.jit(jax.vmap(optimizer.update, (None, 0, 0)))
    for t in range(5):
        updates, state = update(gradient(t), state, many)
        many = optax.apply_updates(many, updates)
    alone, _ = play(optimizer, jax.tree.map(lambda w: 2 * w, first()), 5)
    same(jax.tree.map(lambda w: w[1], many), alone)


def test_a_shift_that_is_told_lets_rates_rise():
    optimizer = optax.chain(optax.clip_by_global_norm(1e3), pursuit())
    params, state = play(optimizer, first(), 40)
    fresh = optimizer.init(params)
    before = record(state)
    assert set(before) == {"rate", "memory", "share"}
    np.testing.assert_allclose(before["memory"], 100 / before["rate"] ** 2, rtol=1e-5)
    kept = notify_shift(state, fresh, "keep")
    same(kept[1]._asdict(), state[1]._asdict())
    (_, after) = notify_shift(state, fresh)
    assert after.law[:, [0, 2, 4, 5, 6]].tolist() == [[0.0] * 5] * 2
    np.testing.assert_array_equal(after.law[:, 1], np.maximum(state[1].law[:, 1], 0.0))
    np.testing.assert_array_equal(after.law[:, 3], state[1].law[:, 3])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((after.trail, after.lead)))
    same(after.square, state[1].square)
    with pytest.raises(ConfigError, match='policy must be "keep" or "reset"'):
        notify_shift(state, fresh, "decay")


def test_what_belongs_to_a_weight_is_known():
    """Tools that shard a state find v and the trail beside their weights, not the law."""
    optimizer, params = pursuit(), first()
    marked = optax.tree_map_params(optimizer, lambda leaf: "weight", optimizer.init(params))
    assert marked.square == marked.trail == marked.lead == {"kernel": "weight", "bias": "weight"}
    assert marked.law.shape == (2, law.NUMBERS)


def longer(tree, rows=2):
    return tree | {"kernel": jnp.concatenate([tree["kernel"], 0 * tree["kernel"][:rows]])}


@pytest.mark.parametrize("way", [jax.jit, lambda update: update])
def test_weights_that_grew_are_refused_and_told_how_to_grow(way):
    optimizer = pursuit()
    params, state = play(optimizer, first(), 3)
    update = way(optimizer.update)
    words = r"square\['kernel'\] is float32\(6, 3\), not float32\(8, 3\): .* append zeros"
    with pytest.raises(StateError, match=words):
        update(longer(gradient(0)), state, longer(params))
    with pytest.raises(
        StateError, match=r"weights\['kernel'\] are of shape \(6, 3\), their gradient"
    ):
        update(longer(gradient(0)), state, params)
    with pytest.raises(StateError, match=r"rest\['bias'\] is None, not bfloat16\(3,\)"):
        update(gradient(0), state, jax.tree.map(lambda w: w.astype(jnp.bfloat16), params))
    grown = {name: longer(getattr(state, name)) for name in ("square", "trail", "lead")}
    after, _ = update(longer(gradient(0)), state._replace(**grown), longer(params))
    plain, _ = update(gradient(0), state, params)
    same(after["kernel"][:6], plain["kernel"])


def test_a_state_tells_its_version():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), pursuit())
    params, state = play(optimizer, first(), 3)
    fresh = optimizer.init(params)
    assert int(state[1].version) == 1
    old = state[1]._replace(version=())  # as of 0.1.0
    for saved in ((state[0], old), jax.tree.leaves(old)):
        loaded = load(saved, like=fresh)
        assert int(loaded[1].version) == 1
        same(loaded, state)
    newer = state[1]._replace(version=jnp.array(2))
    with pytest.raises(StateError, match="of version 2; this driftrate reads version 1"):
        load((state[0], newer), like=fresh)


@pytest.mark.parametrize("name", ["law", "square", "trail", "lead", "rest"])
@pytest.mark.parametrize("number", [jnp.nan, jnp.inf, -1.0])
def test_a_damaged_state_is_refused_at_load(name, number):
    optimizer = pursuit()
    params, state = play(optimizer, first(jnp.bfloat16), 3, lambda t: gradient(t, jnp.bfloat16))
    fresh = optimizer.init(params)
    same(load(state, like=fresh), state)
    if number == -1.0 and name not in ("law", "square"):
        return
    spoiled = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(number), getattr(state, name))
    with pytest.raises(StateError, match="not finite or below 0"):
        load(state._replace(**{name: spoiled}), like=fresh)
