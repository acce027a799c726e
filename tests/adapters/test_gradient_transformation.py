"""A schedule as a gradient transformation: the core's trajectory, jit, vmap, scan, resuming."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import driftrate as dr
import driftrate.optax as adapter
from driftrate.adapters._observe import KEYS
from driftrate.adapters.optax.own import inspect
from driftrate.errors import ConfigError, DriftrateError, MissingSignal, SignalError, StateError

HERE = Path(__file__).parent
MODES = ("sequence", "parts", "given")


def _load(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


problem = _load("shifting_problem")
child = _load("transformation_child")


def spawn(*arguments):
    command = [sys.executable, str(HERE / "transformation_child.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    out = tmp_path_factory.mktemp("wide") / "found.npz"
    spawn("wide", "-", out)
    return np.load(out)


class TestTrajectory:
    @pytest.mark.parametrize("mode", MODES)
    def test_double_equals_the_core(self, wide, mode):
        rates, weights = problem.core(mode)
        np.testing.assert_allclose(wide[f"{mode}/rates"], rates, rtol=1e-10)
        np.testing.assert_allclose(wide[f"{mode}/weights"], weights, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("mode", MODES)
    def test_single_equals_the_core(self, mode):
        rates, weights = problem.core(mode)
        found, moved, _ = child.run(child.attached(mode), mode, jnp.float32)
        np.testing.assert_allclose(found, rates, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(moved, weights, rtol=1e-5, atol=1e-5)

    def test_the_rate_follows_the_jump(self):
        rates, _, _ = child.run(child.attached("parts"), "parts", jnp.float32)
        assert rates[problem.JUMP - 20 : problem.JUMP].max() < 0.1
        assert rates[problem.JUMP : problem.JUMP + 10].max() > 0.3

    @pytest.mark.parametrize("name", sorted(dr.schedules.base.registry()))
    def test_every_schedule_drives_an_optimizer(self, name):
        schedule = dr.schedules.base.registry()[name].example()
        optimizer = adapter.attach(optax.sgd(1.0), schedule, mode="given")
        told = {"batch_size": 8.0, "shift": 0.3, "loss": 0.5, "loss_shift": 0.1, "parts": 2.0}
        told |= {"step_length": 0.2, "grad_sq": 2.0, "cross": 0.5, "spread": 1.0}
        told |= {"lead": -0.1, "weights_sq": 4.0, "reach": 0.5}
        state, core = optimizer.init(jnp.ones(3)), schedule.init()
        step = jax.jit(optimizer.update)
        trail = 0.0
        for _ in range(5):
            updates, state = step(jnp.ones(3), state, jnp.ones(3), signal=dr.Signal(**told))
            eta, core = schedule.update(core, dr.Signal(**told, dim=3.0, trail=3.0 * trail))
            trail = 0.9 * trail + 1.0
            np.testing.assert_allclose(updates, -eta * np.ones(3), rtol=1e-5)
        assert step._cache_size() == 1

    def test_two_ways_to_hand_over_parts(self):
        gradients = {"w": jnp.arange(6.0).reshape(3, 2), "b": jnp.array([1.0, 3.0, 2.0])}
        optimizer = child.attached("parts")
        mean, signal = adapter.from_parts(gradients)
        state = optimizer.init(mean)
        one, _ = optimizer.update(mean, state, parts=gradients)
        other, _ = optimizer.update(mean, state, signal=signal)
        assert jax.tree.all(jax.tree.map(np.array_equal, one, other))
        flat = np.concatenate([gradients["w"], gradients["b"][:, None]], axis=1)
        direct = dr.estimate.from_parts(flat)
        for name in ("parts", "cross", "spread", "grad_sq"):
            np.testing.assert_allclose(getattr(signal, name), getattr(direct, name), rtol=1e-6)

    @pytest.mark.parametrize("parts", [2, 4, 8])
    def test_split_gradients_are_the_gradients_of_parts(self, parts):
        x, y = (jnp.asarray(a[0], jnp.float32) for a in problem.batches())
        theta = jnp.ones(problem.DIM)
        split = jax.jit(adapter.split_value_and_grad(child.loss, parts))
        (value, signal), gradient = split(theta, (x, y))
        cut = (x.reshape(parts, -1, problem.DIM), y.reshape(parts, -1))
        mean, direct = adapter.from_parts(jax.vmap(jax.grad(child.loss), (None, 0))(theta, cut))
        np.testing.assert_allclose(gradient, mean, rtol=1e-5)
        np.testing.assert_allclose(value, child.loss(theta, (x, y)), rtol=1e-6)
        for name in ("cross", "spread", "grad_sq"):
            np.testing.assert_allclose(getattr(signal, name), getattr(direct, name), rtol=1e-5)
        assert (signal.parts, signal.batch_size) == (parts, problem.BATCH)


class TestTransforms:
    def test_chain_and_wrapper_agree(self):
        chain = optax.chain(
            optax.identity(), adapter.scale_by_rate(problem.SCHEDULE, batch_size=problem.BATCH)
        )
        one = child.run(chain, "sequence", jnp.float32)
        other = child.run(child.attached("sequence"), "sequence", jnp.float32)
        # The length of a step is taken before its rate: -1 and -0.1 round differently.
        np.testing.assert_allclose(one[1], other[1], rtol=1e-5, atol=1e-6)

    def test_the_schedule_sees_raw_gradients(self):
        """Adam's own normalisation must not reach the schedule."""
        optimizer = child.attached("sequence", optax.adam(1.0), metric="plain")
        gradient = jnp.array([3.0, 4.0, 0.0, 0.0, 0.0, 0.0])
        state = optimizer.init(gradient)
        for _ in range(2):
            _, state = optimizer.update(gradient, state, gradient)
        assert adapter.record(state)["noise"] == 0.0
        _, state = optimizer.update(-gradient, state, gradient)
        assert adapter.record(state)["noise"] == 50.0

    def test_scan(self):
        optimizer = child.attached("sequence")
        x, y = (jnp.asarray(a, jnp.float32) for a in problem.batches())

        def body(carry, batch):
            theta, state = carry
            updates, state = optimizer.update(jax.grad(child.loss)(theta, batch), state, theta)
            return (optax.apply_updates(theta, updates), state), adapter.record(state)["rate"]

        theta = jnp.zeros(problem.DIM)
        _, rates = jax.lax.scan(body, (theta, optimizer.init(theta)), (x, y))
        expected, _, _ = child.run(optimizer, "sequence", jnp.float32)
        np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-5)

    def test_several_learners_under_vmap(self):
        optimizer = child.attached("sequence")
        x, y = (jnp.asarray(a, jnp.float32) for a in problem.batches())
        thetas = jnp.stack([jnp.zeros(problem.DIM), jnp.ones(problem.DIM)])
        alone = [optimizer.init(theta) for theta in thetas]
        together = jax.vmap(optimizer.init)(thetas)

        def step(theta, state, batch):
            updates, state = optimizer.update(jax.grad(child.loss)(theta, batch), state, theta)
            return optax.apply_updates(theta, updates), state

        many, one = jax.jit(jax.vmap(step, (0, 0, None))), jax.jit(step)
        moved, single = thetas, list(thetas)
        for t in range(20):
            moved, together = many(moved, together, (x[t], y[t]))
            for i in range(2):
                single[i], alone[i] = one(single[i], alone[i], (x[t], y[t]))
        np.testing.assert_allclose(moved, jnp.stack(single), rtol=1e-5)
        rates = adapter.record(together)["rate"]
        assert rates.shape == (2,)
        assert rates[0] != rates[1]
        fresh = jax.vmap(optimizer.init)(thetas)
        loaded = adapter.load(jax.tree.map(np.asarray, together), like=fresh)
        assert jax.tree.all(jax.tree.map(np.array_equal, loaded, together))

    def test_accumulation_steps_on_real_updates_alone(self):
        inner = child.attached("sequence")
        x, y = (jnp.asarray(a, jnp.float32) for a in problem.batches())
        multi = optax.MultiSteps(inner, every_k_schedule=2)
        theta = whole = jnp.zeros(problem.DIM)
        state, direct = multi.init(theta), inner.init(theta)
        step, once = jax.jit(multi.update), jax.jit(inner.update)
        for t in range(20):
            gradients = [
                jax.grad(child.loss)(theta, (x[t, part], y[t, part]))
                for part in (slice(8), slice(8, 16))
            ]
            for gradient in gradients:
                updates, state = step(gradient, state, theta)
                theta = optax.apply_updates(theta, updates)
            updates, direct = once(sum(gradients) / 2, direct, whole)
            whole = optax.apply_updates(whole, updates)
        np.testing.assert_allclose(theta, whole, rtol=1e-5)
        assert adapter.record(state)["rate"] == pytest.approx(adapter.record(direct)["rate"])
        assert step._cache_size() == 1

    def test_half_precision_parameters_keep_a_single_precision_rate(self):
        optimizer = child.attached("sequence", optax.sgd(1.0, momentum=0.9))
        params = {"w": jnp.ones((4, 2), jnp.bfloat16), "b": jnp.ones(2, jnp.float32)}
        state = optimizer.init(params)
        kinds = jax.tree.map(lambda leaf: (leaf.dtype, leaf.weak_type), state)
        step = jax.jit(optimizer.update)
        for _ in range(3):
            updates, state = step(params, state, params)
            params = optax.apply_updates(params, updates)
        assert jax.tree.map(lambda leaf: (leaf.dtype, leaf.weak_type), state) == kinds
        rate = adapter.record(state)["rate"]
        assert (rate.dtype, rate.weak_type) == (jnp.float32, False)
        assert updates["w"].dtype == params["w"].dtype == jnp.bfloat16
        assert step._cache_size() == 1

    def test_the_rate_is_not_rounded_to_half_precision(self):
        optimizer = adapter.attach(optax.sgd(1.0), dr.ConstantRate(1.0 / 3.0))
        gradient = jnp.array([3.0], jnp.bfloat16)
        updates, _ = optimizer.update(gradient, optimizer.init(gradient))
        assert updates.tolist() == [-1.0]  # 3 times bfloat16(1/3) would be 1.0039

    def test_a_bad_gradient_holds_the_rate(self):
        optimizer = child.attached("parts")
        theta = jnp.ones(problem.DIM)
        parts = jnp.stack([theta, 2.0 * theta])
        _, state = optimizer.update(theta, optimizer.init(theta), parts=parts)
        _, after = optimizer.update(theta, state, parts=parts * jnp.nan)
        assert adapter.record(after)["rate"] == adapter.record(state)["rate"]
        assert jax.tree.all(jax.tree.map(np.array_equal, after.schedule, state.schedule))

    def test_a_shift_can_be_announced(self):
        optimizer = adapter.attach(optax.adam(1.0), dr.InverseTimeRate(1.0))
        theta = jnp.ones(2)
        fresh = state = optimizer.init(theta)
        for _ in range(9):
            _, state = optimizer.update(theta, state, theta)
        kept = adapter.notify_shift(state, fresh, "keep")
        assert jax.tree.all(jax.tree.map(np.array_equal, kept, state))
        again = adapter.notify_shift(state, fresh)
        assert jax.tree.all(jax.tree.map(np.array_equal, again.schedule, fresh.schedule))
        assert jax.tree.all(jax.tree.map(np.array_equal, again.inner, fresh.inner))
        half = adapter.notify_shift(state, fresh, "decay", moments="keep", decay=0.5)
        assert half.schedule["count"] == 4
        assert jax.tree.all(jax.tree.map(np.array_equal, half.inner, state.inner))
        less = adapter.notify_shift(state, fresh, "keep", moments="decay", decay=0.25)
        assert less.inner[0].count == 9
        np.testing.assert_allclose(less.inner[0].mu, 0.25 * state.inner[0].mu)
        for bad in ({"policy": "forget"}, {"moments": "forget"}, {"decay": 2.0}):
            with pytest.raises(ConfigError, match="notify_shift"):
                adapter.notify_shift(state, fresh, **bad)

    def test_the_estimated_shift_is_on_record(self):
        _, _, state = child.run(child.attached("parts"), "parts", jnp.float32, steps=range(5))
        record = adapter.record(state)
        assert tuple(record) == KEYS
        assert record["shift"] == state.schedule["inner"]["estimator"]["estimate"]
        assert np.isnan(record["signal"])  # which this schedule does not read
        assert record["factor"] == pytest.approx(10.0 * record["rate"])

    def test_nothing_is_nan_before_the_first_gradient(self):
        with jax.debug_nans(True):
            optimizer = child.attached("sequence")
            gradient = jnp.ones(problem.DIM)
            _, state = jax.jit(optimizer.update)(gradient, optimizer.init(gradient))
        assert adapter.record(state)["rate"] == 0.0


class TestOwnRate:
    """What a transformation hides: its rate, and how its moments divide."""

    @pytest.mark.parametrize(
        ("optimizer", "plain", "rate", "eps"),
        [
            (optax.sgd(0.1), True, 0.1, None),
            (optax.chain(optax.clip(1.0), optax.sgd(0.1)), True, 0.1, None),
            (optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)), True, 0.1, None),
            (optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1)), True, 0.1, None),
            (optax.inject_hyperparams(optax.sgd)(learning_rate=0.1), True, 0.1, None),
            (optax.sgd(0.1, momentum=0.9), False, 0.1, None),
            (optax.sgd(0.1, momentum=0.9, nesterov=True), False, 0.1, None),
            (optax.adam(0.01), False, 0.01, 1e-8),
            (optax.adamw(0.01, weight_decay=0.1), False, 0.01, 1e-8),
            (optax.nadam(0.01, eps=1e-6), False, 0.01, 1e-6),
            (optax.rmsprop(0.01, eps_in_sqrt=False), False, 0.01, 1e-8),
            (optax.rmsprop(0.01), False, 0.01, 0.0),
            (optax.inject_hyperparams(optax.lion)(learning_rate=0.1), False, 0.1, None),
            (optax.lion(0.1), False, None, None),
            (optax.adagrad(0.1), False, None, None),
            (optax.lars(0.1), False, None, None),
            (optax.masked(optax.sgd(0.1), {"a": True}), False, None, None),
            (optax.multi_transform({"a": optax.sgd(0.1)}, {"x": "a"}), False, None, None),
        ],
    )
    def test_it_is_found_or_stays_hidden(self, optimizer, plain, rate, eps):
        own = inspect(optimizer)
        assert own.base.plain == plain
        assert own.base.rate == (None if rate is None else pytest.approx(rate, rel=1e-4))
        assert (own.moments is None) == (eps is None)
        if eps is not None:
            assert own.moments.eps == pytest.approx(eps, rel=1e-3)

    def test_root_and_decay_of_the_moments(self):
        assert inspect(optax.adam(0.01, b2=0.99)).moments.decay == pytest.approx(0.99)
        rms = inspect(optax.rmsprop(0.01)).moments
        assert rms.root == pytest.approx(1e-8, rel=1e-3)
        assert rms.decay is None

    def test_a_rate_stands_instead_of_it(self):
        gradient = jnp.array([3.0, -1.0])
        for own in (optax.sgd(0.1), optax.sgd(1.0), optax.chain(optax.clip(5.0), optax.sgd(0.3))):
            optimizer = adapter.attach(own, dr.ConstantRate(0.5))
            updates, state = optimizer.update(gradient, optimizer.init(gradient))
            np.testing.assert_allclose(updates, -0.5 * gradient, rtol=1e-6)
            assert adapter.record(state)["rate"] == 0.5

    def test_a_factor_multiplies_it(self):
        gradient = jnp.array([3.0, -1.0])
        optimizer = adapter.attach(optax.lion(0.1), dr.ConstantRate(0.5), relative=True)
        updates, state = optimizer.update(gradient, optimizer.init(gradient), gradient)
        np.testing.assert_allclose(
            updates,
            optax.lion(0.05).update(gradient, optax.lion(0.05).init(gradient), gradient)[0],
            rtol=1e-6,
        )
        assert np.isnan(adapter.record(state)["rate"])
        assert adapter.record(state)["factor"] == 0.5

    def test_an_injected_rate_is_read_at_each_step(self):
        gradient = jnp.array([3.0, -1.0])
        own = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
        optimizer = adapter.attach(own, dr.ConstantRate(0.5))
        state = optimizer.init(gradient)
        state.inner.hyperparams["learning_rate"] = jnp.asarray(0.2)
        updates, state = optimizer.update(gradient, state, gradient)
        np.testing.assert_allclose(updates, -0.5 * gradient, rtol=1e-6)

    @pytest.mark.parametrize("inject", [False, True])
    def test_a_schedule_of_its_own_is_multiplied(self, inject):
        falls = optax.piecewise_constant_schedule(0.2, {1: 0.5})
        own = optax.inject_hyperparams(optax.sgd)(falls) if inject else optax.sgd(falls)
        optimizer = adapter.attach(own, dr.ConstantRate(0.5), scheduler="multiply")
        gradient, found = jnp.array([2.0]), []
        state = optimizer.init(gradient)
        for _ in range(3):
            updates, state = optimizer.update(gradient, state, gradient)
            found.append(float(updates[0]))
        np.testing.assert_allclose(found, [-1.0, -0.5, -0.5], rtol=1e-6)
        rate = float(adapter.record(state)["rate"])
        assert rate == pytest.approx(0.25) if inject else np.isnan(rate)

    def test_gradients_are_compared_in_the_metric_of_adam(self):
        schedule = dr.Clip(dr.MeasuredRate(relative=True), max=1.0)
        optimizer = adapter.attach(optax.adam(0.01), schedule)
        rng = np.random.default_rng(0)
        rows = jnp.asarray(rng.standard_normal((6, 3)), jnp.float32)
        state = optimizer.init(rows[0])
        core = dr.Clip(dr.MeasuredRate(relative=True, mode="sequence"), max=1.0)
        own, trail, v = core.init(), np.zeros(3), np.zeros(3)
        for t, g in enumerate(np.asarray(rows, np.float64)):
            _, state = optimizer.update(jnp.asarray(g, jnp.float32), state, rows[0])
            if t:
                weight = np.sqrt(1.0 - 0.999**t) / (np.sqrt(v) + 1e-8)
                fields = {"grad_sq": g @ (weight * g), "trail": g @ (weight * trail), "dim": 3.0}
                _, own = core.update(own, dr.Signal(**fields))
            trail, v = 0.9 * trail + g, 0.999 * v + 0.001 * g**2
            np.testing.assert_allclose(adapter.record(state)["factor"], own["rate"], rtol=1e-4)
        assert own["rate"] > 0.0

    def test_two_layers_are_a_network_and_need_their_weights(self):
        optimizer = adapter.attach(optax.sgd(0.1), dr.MeasuredRate())
        layers = [jnp.full((3, 2), 0.5), jnp.full((2, 1), 0.5)]
        state = optimizer.init(layers)
        assert state.schedule.keys() == dr.LongHorizonRate().init().keys()
        with pytest.raises(MissingSignal, match=r"update\(gradients, state, params\)"):
            optimizer.update(layers, state)
        updates, state = optimizer.update(layers, state, layers)
        # 2.5 % of the weights, along the gradient: here they are the same.
        np.testing.assert_allclose(updates[1], -0.025 * layers[1], rtol=1e-6)
        _, state = optimizer.update(layers, state, layers)
        assert adapter.record(state)["rate"] > 0.025  # the way so far leads on downhill
        alone = optimizer.init(layers[:1])
        assert alone.schedule.keys() == dr.MeasuredRate().init().keys()

    def test_complex_parameters(self):
        """The steps of the same numbers as pairs of real ones."""
        rng = np.random.default_rng(1)
        rows = jnp.asarray(rng.standard_normal((8, 4)), jnp.float32)
        schedule = problem.SCHEDULE
        one = adapter.attach(optax.sgd(0.1), schedule, batch_size=8)
        states = [one.init(rows[0]), one.init(jax.lax.complex(rows[0, :2], rows[0, 2:]))]
        for row in rows:
            real, states[0] = one.update(row, states[0])
            pair, states[1] = one.update(jax.lax.complex(row[:2], row[2:]), states[1])
            assert pair.dtype == jnp.complex64
            np.testing.assert_allclose(jnp.concatenate([pair.real, pair.imag]), real, rtol=1e-5)
            assert not jnp.iscomplexobj(adapter.record(states[1])["rate"])
        assert adapter.record(states[1])["rate"] > 0.0

    def test_leaves_without_a_gradient_stay_as_they_are(self):
        params = {"w": jnp.ones(2), "none": None, "count": jnp.arange(3), "late": jnp.ones(1)}
        gradient = {
            "w": jnp.ones(2),
            "none": None,
            "count": np.zeros(3, jax.dtypes.float0),
            "late": None,
        }
        keep = optax.GradientTransformation(
            lambda params: optax.EmptyState(), lambda updates, state, params=None: (updates, state)
        )
        for schedule in (problem.MEASURED, problem.SCHEDULE):
            optimizer = adapter.attach(keep, schedule, batch_size=8, relative=True)
            state = optimizer.init(params)
            for _ in range(3):
                updates, state = optimizer.update(gradient, state)
            assert updates["count"] is gradient["count"]
            assert updates["none"] is updates["late"] is None
            assert np.isfinite(adapter.record(state)["factor"])


class TestStatefulSchedule:
    def test_it_is_one(self):
        assert isinstance(adapter.StatefulRate(problem.GIVEN), optax.schedules.StatefulSchedule)

    def test_injected_rates_are_the_core_s(self):
        optimizer = optax.inject_hyperparams(optax.sgd)(
            learning_rate=adapter.StatefulRate(problem.GIVEN)
        )
        theta = jnp.zeros(3, jnp.bfloat16)
        state, core = optimizer.init(theta), problem.GIVEN.init()
        kinds = jax.tree.map(lambda leaf: (leaf.dtype, leaf.weak_type), state)
        step = jax.jit(optimizer.update)
        for t in range(140, 200):
            signal = dr.Signal(batch_size=problem.BATCH, shift=problem.shift(t))
            _, state = step(theta, state, theta, signal=signal)
            eta, core = problem.GIVEN.update(core, signal)
            assert state.hyperparams["learning_rate"] == pytest.approx(eta, rel=1e-5)
        assert jax.tree.map(lambda leaf: (leaf.dtype, leaf.weak_type), state) == kinds
        assert step._cache_size() == 1
        loaded = adapter.load(jax.tree.leaves(state), like=optimizer.init(theta))
        assert jax.tree.all(jax.tree.map(np.array_equal, loaded, state))

    def test_a_clocked_schedule_needs_no_signal(self):
        optimizer = optax.inject_hyperparams(optax.sgd)(
            learning_rate=adapter.StatefulRate(dr.InverseTimeRate(1.0))
        )
        theta, rates = jnp.ones(2), []
        state = optimizer.init(theta)
        for _ in range(3):
            _, state = optimizer.update(theta, state, theta)
            rates.append(float(state.hyperparams["learning_rate"]))
        assert rates == pytest.approx([1.0, 1 / 2, 1 / 3])

    def test_parts(self):
        rate = adapter.StatefulRate(problem.SCHEDULE)
        parts = {"w": jnp.array([[3.0, 1.0], [1.0, 1.0]])}
        signal = dr.Signal(batch_size=problem.BATCH, step_length=0.0)
        state = rate.update(rate.init(), parts=parts, signal=signal)
        assert rate(state) == state.schedule["rate"]
        with pytest.raises(MissingSignal, match=r"needs spread.*signal=dr.Signal\(spread="):
            rate.update(rate.init(), signal=signal._replace(grad_sq=1.0))
        with pytest.raises(StateError, match="InverseTimeRate got a state of dict"):
            adapter.StatefulRate(dr.InverseTimeRate(1.0))({"rate": 0.0})


class TestState:
    def test_resumed_in_a_new_process_bit_by_bit(self, tmp_path):
        optimizer = child.attached("sequence", optax.adam(1.0))
        head = range(problem.STEPS - 200)
        _, weights, state = child.run(optimizer, "sequence", jnp.float32, steps=head)
        np.savez(tmp_path / "state.npz", weights[-1], *jax.tree.leaves(state))
        plain = (weights[-1], jax.tree.map(np.asarray, state))
        (tmp_path / "state.pickle").write_bytes(pickle.dumps(plain))
        spawn("resume", tmp_path, tmp_path / "weights.npz")
        tail = range(problem.STEPS - 200, problem.STEPS)
        theta = jnp.asarray(weights[-1])
        _, rest, _ = child.run(optimizer, "sequence", jnp.float32, theta, state, tail)
        with np.load(tmp_path / "weights.npz") as resumed:
            for kind in ("npz", "pickle"):
                assert len(resumed[kind]) == 200
                assert resumed[kind].tobytes() == rest.tobytes()

    def test_half_precision_survives_savez(self, tmp_path):
        optimizer = child.attached("sequence", optax.sgd(1.0, momentum=0.9))
        params = jnp.arange(1.0, 4.0, dtype=jnp.bfloat16)
        _, state = optimizer.update(params, optimizer.init(params), params)
        np.savez(tmp_path / "state.npz", *jax.tree.leaves(state))
        with np.load(tmp_path / "state.npz") as file:
            loaded = adapter.load([file[name] for name in file.files], optimizer.init(params))
        assert jax.tree.all(jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), loaded, state))

    def test_only_arrays(self):
        state = child.attached("sequence").init(jnp.ones(2))
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))

    def test_what_is_not_read_is_not_kept(self):
        state = adapter.attach(optax.sgd(1.0), dr.InverseTimeRate(1.0)).init(jnp.ones(1000))
        assert sum(leaf.size for leaf in jax.tree.leaves(state)) < 10

    def test_another_version_is_refused(self):
        fresh = child.attached("given").init(jnp.ones(2))
        old = fresh._replace(stamp=fresh.stamp.at[0].set(99))
        with pytest.raises(StateError, match=r"version 99; this driftrate reads version 3"):
            adapter.load(old, like=fresh)

    def test_another_schedule_is_refused(self):
        """Same structure, same shapes, another rule."""
        one = adapter.attach(optax.sgd(1.0), dr.InverseTimeRate(1.0)).init(jnp.ones(2))
        other = adapter.attach(optax.sgd(1.0), dr.InverseSqrtRate(1.0)).init(jnp.ones(2))
        with pytest.raises(StateError, match="another schedule"):
            adapter.load(one, like=other)

    @pytest.mark.parametrize("damage", [lambda s: {}, lambda s: s._replace(seen=()), lambda s: 3.0])
    def test_another_structure_is_refused(self, damage):
        fresh = child.attached("given").init(jnp.ones(2))
        with pytest.raises(StateError, match="another structure"):
            adapter.load(damage(fresh), like=fresh)

    def test_a_tree_that_lost_its_records_is_loaded(self):
        """What Orbax restores without a target: dictionaries or lists instead of records."""

        def lost(node, record):
            if hasattr(node, "_asdict"):
                return record({k: lost(v, record) for k, v in node._asdict().items()})
            if isinstance(node, dict):
                return {k: lost(v, record) for k, v in node.items()}
            if isinstance(node, tuple):
                return [lost(v, record) for v in node]
            return np.asarray(node)

        optimizer = child.attached("sequence", optax.adam(1.0))
        gradient = jnp.arange(1.0, 4.0)
        fresh = optimizer.init(gradient)
        _, state = optimizer.update(gradient, fresh, gradient)
        for record in (dict, lambda fields: list(fields.values())):
            loaded = adapter.load(lost(state, record), like=fresh)
            assert jax.tree.structure(loaded) == jax.tree.structure(state)
            assert jax.tree.all(jax.tree.map(np.array_equal, loaded, state))
        odd = lost(state, dict)
        odd["another"] = odd.pop("trail", odd.pop("previous"))
        with pytest.raises(StateError, match="restore with target="):
            adapter.load(odd, like=fresh)

    def test_record_of_two_asks_which(self):
        optimizer = optax.multi_transform(
            {"a": child.attached("given"), "b": child.attached("given")}, {"x": "a", "y": "b"}
        )
        state = optimizer.init({"x": jnp.ones(2), "y": jnp.ones(1)})
        with pytest.raises(StateError, match=r"2 states of attach, .*: pass one of them"):
            adapter.record(state)
        assert "rate" in adapter.record(state.inner_states["a"])

    def test_another_shape_is_refused(self):
        optimizer = child.attached("sequence")
        with pytest.raises(StateError, match=r"previous must be float32\(3,\).* float32\(2,\)"):
            adapter.load(optimizer.init(jnp.ones(2)), like=optimizer.init(jnp.ones(3)))

    def test_update_refuses_a_foreign_state(self):
        optimizer = child.attached("given")
        with pytest.raises(StateError, match="ConvexRate got a state of EmptyState"):
            optimizer.update(jnp.ones(2), optax.EmptyState())
        other = adapter.attach(optax.sgd(1.0), dr.InverseTimeRate(1.0)).init(jnp.ones(2))
        with pytest.raises(StateError, match="another schedule than ConvexRate"):
            optimizer.update(jnp.ones(2), other, signal=dr.Signal(shift=0.1))

    def test_record_needs_one_of_ours(self):
        with pytest.raises(StateError, match="no states of attach"):
            adapter.record(optax.sgd(1.0).init(jnp.ones(2)))


class TestBadInput:
    def test_the_error_names_the_modes_that_can(self):
        gradient = jnp.ones(problem.DIM)
        optimizer = adapter.attach(optax.sgd(1.0), problem.SCHEDULE, mode="given", batch_size=8)
        able = r'mode="given" did not get: use update\(\.\.\., signal=dr.Signal\(spread='
        with pytest.raises(MissingSignal, match=able) as info:
            optimizer.update(gradient, optimizer.init(gradient))
        assert "\n" not in str(info.value)
        with pytest.raises(MissingSignal, match=r"ConvexRate needs .*signal=dr.Signal\(shift="):
            child.attached("given").update(gradient, child.attached("given").init(gradient))
        with pytest.raises(MissingSignal, match=r"use update\(\.\.\., parts=gradients\) or"):
            child.attached("parts").update(gradient, child.attached("parts").init(gradient))

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda: adapter.attach(optax.sgd(1.0), 0.1), "must be a Schedule, got 0.1"),
            (lambda: adapter.attach(1.0, dr.ConstantRate(0.1)), "optimizer must be"),
            (lambda: child.attached("ranks"), "one of .* got 'ranks'"),
            (
                lambda: adapter.attach(optax.sgd(1.0), problem.GIVEN, batch_size=0),
                "batch_size must be a number > 0, got 0",
            ),
            *(
                (
                    lambda bad=bad: adapter.attach(optax.sgd(0.1), problem.GIVEN, batch_size=bad),
                    "batch_size must be a number > 0",
                )
                for bad in (-1, "32", True)
            ),
            (
                lambda: adapter.attach(optax.lion(0.1), dr.ConstantRate(0.1)),
                r"hides its own: write optax.inject_hyperparams\(optax.lion\)",
            ),
            (
                lambda: adapter.attach(optax.sgd(lambda t: 0.1), dr.ConstantRate(0.1)),
                'scheduler="multiply"',
            ),
            (
                lambda: adapter.attach(optax.sgd(0.1), dr.ConstantRate(0.1), metric="moments"),
                'use metric="plain"',
            ),
            (lambda: adapter.attach(optax.sgd(0.0), dr.ConstantRate(0.1)), "updates are 0"),
            (lambda: adapter.StatefulRate(0.1), "must be a Schedule"),
            (lambda: adapter.split_value_and_grad(child.loss, 1), "integer >= 2, got 1"),
            (lambda: child.attached("given").init({}), "no parameters"),
            (
                lambda: child.attached("given", child.attached("given")).init(jnp.ones(2)),
                "already attached",
            ),
            (
                lambda: child.attached("given", optax.MultiSteps(optax.sgd(1.0), 2)).init(
                    jnp.ones(2)
                ),
                "put MultiSteps outside",
            ),
        ],
    )
    def test_configuration(self, make, text):
        with pytest.raises(ConfigError, match=text):
            make()

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda: adapter.from_parts([jnp.ones((2, 3)), jnp.ones((3, 3))]), "same number"),
            (lambda: adapter.from_parts(jnp.ones((1, 3))), "at least 2 parts"),
            (lambda: adapter.from_parts({}), "same number"),
            (
                lambda: adapter.split_value_and_grad(child.loss, 3)(
                    jnp.ones(2), (jnp.ones((4, 2)), jnp.ones(4))
                ),
                "3 equal parts",
            ),
            (
                lambda: child.attached("sequence").update(
                    jnp.ones(2),
                    child.attached("sequence").init(jnp.ones(2)),
                    parts=jnp.ones((2, 2)),
                ),
                "mode='parts'",
            ),
        ],
    )
    def test_signals(self, call, text):
        with pytest.raises(SignalError, match=text) as info:
            call()
        assert isinstance(info.value, DriftrateError)
        assert "\n" not in str(info.value)
