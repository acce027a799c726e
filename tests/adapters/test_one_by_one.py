from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import shifting_problem as problem
from river import compose, linear_model, optim, preprocessing
from river.utils import VectorDict

import driftrate as dr
from driftrate.errors import ConfigError, MissingSignal, SignalError, StateError
from driftrate.river import (
    ConstantFeature,
    FollowedRate,
    ShiftNotifier,
    attach,
    with_intercept,
)
from driftrate.sklearn import ShiftRegressor

FORMS = {
    "array": np.array,
    "dict": lambda values: dict(enumerate(map(float, values))),
    "vector": lambda values: VectorDict(dict(enumerate(map(float, values)))),
    "blocks": lambda values: {"a": np.array(values[:2]), "b": np.array(values[2:])},
}


def flat(weights):
    if isinstance(weights, np.ndarray):
        return weights
    return np.concatenate([np.atleast_1d(value) for value in weights.values()])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["sequence", "given"])
def test_the_trajectory_is_that_of_the_core(form, mode):
    rates, weights = problem.core(mode)
    schedule = problem.GIVEN if mode == "given" else problem.SCHEDULE
    optimizer = attach(optim.SGD(), schedule, batch_size=problem.BATCH)
    w = FORMS[form](np.zeros(problem.DIM))
    for step, (x, y) in enumerate(zip(*problem.batches(), strict=True)):
        gradient = x.T @ (x @ flat(w) - y) / problem.BATCH
        optimizer.tell(shift=problem.shift(step))
        w = optimizer.step(w, FORMS[form](gradient))
        gradient[:] = np.nan  # whoever keeps it keeps a copy
        np.testing.assert_allclose(optimizer.learning_rate, rates[step], rtol=1e-10)
        np.testing.assert_allclose(flat(w), weights[step], rtol=1e-10, atol=1e-12)
    assert optimizer.n_iterations == problem.STEPS
    assert optimizer.record["rate"] == optimizer.learning_rate
    assert optimizer.record["factor"] == optimizer.learning_rate / optim.SGD().learning_rate


def test_the_record_has_the_same_keys_and_sees_through_wrappers():
    optimizer = attach(optim.SGD(0.1), problem.SCHEDULE, batch_size=4)
    keys = ["rate", "factor", "signal", "noise", "shift"]
    assert list(optimizer.record) == keys
    assert np.isnan([optimizer.record[name] for name in ("signal", "noise")]).all()
    for value in (1.0, 2.0, 3.0):
        optimizer.step({"x": 1.0}, {"x": value})
    assert list(optimizer.record) == keys
    assert optimizer.record["signal"] == 6.0
    assert optimizer.record["noise"] == 0.5
    assert optimizer.record["shift"] == optimizer._state["inner"]["estimator"]["estimate"]
    assert optimizer.record["factor"] == pytest.approx(optimizer.learning_rate / 0.1)
    adam = attach(optim.Adam(0.02), dr.ConstantRate(0.5), relative=True)
    adam.step({"x": 1.0}, {"x": 1.0})
    assert adam.record["rate"] == adam.learning_rate == 0.01
    assert adam.record["factor"] == 0.5
    assert np.isnan(adam.record["shift"])


def test_what_is_told_is_for_the_next_step_alone():
    optimizer = attach(optim.SGD(), dr.LinearRate(dim=1, noise_std=1.0), batch_size=8)
    rates = []
    for told in ({"batch_size": 2}, {}):
        optimizer.tell(shift=0.5, **told)
        optimizer.step({"x": 1.0}, {"x": 1.0})
        rates.append(optimizer.learning_rate)
    rule = dr.LinearRate(dim=1, noise_std=1.0)
    state = rule.init()
    for size, rate in zip((2, 8), rates, strict=True):
        eta, state = rule.update(state, dr.Signal(batch_size=size, shift=0.5))
        assert rate == eta
    weights = {"x": 1.0}
    with pytest.raises(MissingSignal, match=r"needs shift: tell\(shift=...\) before each step"):
        optimizer.step(weights, {"x": 1.0})
    assert weights == {"x": 1.0}


@pytest.mark.parametrize("form", FORMS)
def test_a_first_gradient_of_zero_says_nothing(form):
    for schedule in (dr.MeasuredRate(), problem.SCHEDULE):
        for inner in (optim.SGD(), optim.Adam()):
            optimizer = attach(inner, schedule)
            w = FORMS[form](np.zeros(4))
            for value in (0.0, 0.0, 1.0, 1.0, 1.0):
                w = optimizer.step(w, FORMS[form](np.full(4, value)))
            assert 0 < optimizer.learning_rate < np.inf


KINDS = {
    "Adam": (optim.Adam, "v"),
    "AMSGrad": (optim.AMSGrad, "v_hat"),
    "Nadam": (optim.Nadam, "v"),
    "RMSProp": (optim.RMSProp, "g2"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_in_the_metric_of_the_moments(kind, form):
    inner, name = KINDS[kind]
    if form == "array" and kind in ("AMSGrad", "Nadam"):
        pytest.skip("River's own takes no arrays")
    if form == "blocks" and kind == "AMSGrad":
        pytest.skip("River's own takes no vectors per feature")
    optimizer = attach(inner(0.1), problem.SCHEDULE)
    assert optimizer.metric == "moments"
    w, rng, before = FORMS[form](np.zeros(4)), np.random.default_rng(0), None
    for step in range(5):
        gradient = rng.standard_normal(4)
        v = getattr(optimizer._inner, name) if step else None
        if v is not None:
            v = np.concatenate([np.atleast_1d(v[i]) for i in (v if form != "array" else range(4))])
            eps, c = optimizer._inner.eps, 1.0
            if kind != "RMSProp":
                c = np.sqrt(1.0 - 0.999**step)
            root = np.sqrt(v + eps) if kind == "RMSProp" else np.sqrt(v) + eps
            expected = c / root
        w = optimizer.step(w, FORMS[form](gradient))
        if v is None:
            # The first step has no moments.
            assert optimizer.learning_rate == problem.SCHEDULE.init()["rate"]
            assert np.isnan(optimizer.record["signal"])
        else:
            apart = gradient - before
            found = optimizer.record
            np.testing.assert_allclose(found["signal"], (expected * gradient) @ before, rtol=1e-12)
            np.testing.assert_allclose(found["noise"], 0.5 * (expected * apart) @ apart, rtol=1e-12)
        before = gradient


def test_a_coordinate_without_moments_is_left_out():
    optimizer = attach(optim.Adam(0.1), dr.MeasuredRate())
    optimizer.step({"a": 0.0}, {"a": 1.0})
    optimizer.step({"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 100.0})
    assert optimizer._fields["dim"] == 1.0
    np.testing.assert_allclose(optimizer._fields["grad_sq"], 1.0, rtol=1e-6)
    state = optimizer._state
    optimizer.step({"c": 0.0}, {"c": 1.0})  # nothing is known of it
    assert optimizer._state == state
    plain = attach(optim.Adam(0.1), dr.MeasuredRate(), metric="plain")
    plain.step({"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 100.0})
    assert plain._fields["grad_sq"] == 10001.0
    assert attach(optim.Momentum(), dr.MeasuredRate()).metric == "plain"
    # A sample without features has no gradient.
    assert plain.step({}, {}) == {}


def test_absent_features_count_as_zero():
    optimizer = attach(optim.SGD(), problem.SCHEDULE)
    optimizer.step({"a": 0.0, "b": 0.0}, {"a": 3.0, "b": 1.0})
    optimizer.step({"b": 0.0, "c": 0.0}, {"b": 2.0, "c": 4.0})
    assert optimizer.record["noise"] == 0.5 * (9.0 + 1.0 + 16.0)


def test_steps_are_measured_where_weights_first_appear():
    schedule = dr.Estimated(dr.LinearRate(dim=1, noise_std=1.0), dr.estimate.ShiftEMA())
    assert "step_length" in schedule.signals
    model = linear_model.LinearRegression(
        attach(optim.SGD(), schedule, relative=False), intercept_lr=0.0
    )
    model.learn_one({"x": 1.0}, 3.0)
    first = dict(model.weights)
    model.learn_one({"x": 1.0}, 3.0)
    assert model.optimizer._length == abs(model.weights["x"] - first["x"])


def test_asking_changes_nothing():
    optimizer = attach(optim.SGD(), dr.InverseTimeRate(0.5))
    optimizer.step({"x": 1.0}, {"x": 1.0})
    before = pickle.dumps(optimizer)
    assert {optimizer.lr.get(t) for t in (0, 1, 1, 99)} == {0.5}
    assert optimizer.learning_rate == optimizer.learning_rate == 0.5
    assert pickle.dumps(optimizer) == before
    assert FollowedRate(0.1).clone().get(3) == 0.1


@pytest.mark.parametrize(
    "inner",
    [optim.SGD, optim.Momentum, optim.NesterovMomentum, optim.Adam, optim.AdaGrad, optim.AdaMax,
     optim.AMSGrad, optim.Nadam, optim.RMSProp, optim.Newton],
)  # fmt: skip
def test_every_optimizer_at_a_constant_rate_is_itself(inner):
    """A constant schedule leaves any optimizer as it was."""
    models = [
        linear_model.LinearRegression(one)
        for one in (inner(lr=0.01), attach(inner(lr=0.7), dr.ConstantRate(0.01)))
    ]
    for sample, target in samples(60):
        for model in models:
            model.learn_one(sample, target)
    assert models[0].weights == pytest.approx(models[1].weights, rel=1e-12)
    relative = attach(inner(lr=0.02), dr.ConstantRate(0.5), relative=True)
    relative.step({"x": 1.0}, {"x": 1.0})
    assert relative.learning_rate == 0.01


def samples(count, jump=150):
    rng = np.random.default_rng(1)
    for step in range(count):
        row = rng.standard_normal(3)
        target = row @ ([1.0, 2.0, 3.0] if step < jump else [-2.0, 0.0, 3.0])
        yield dict(zip(("a", "b", "c"), row.tolist(), strict=True)), float(target + 0.5)


MEASURED = dr.Clip(
    dr.Estimated(
        dr.LinearRate(dim=4, noise_std=1.0, max_rate=0.1),
        dr.estimate.DebiasedShift(),
    ),
    min=0.005,
)


@pytest.mark.parametrize("count", [2, 3])
def test_models_of_several_kinds(count):
    models = [
        with_intercept(linear_model.LinearRegression(attach(optim.SGD(), MEASURED))),
        preprocessing.StandardScaler()
        | linear_model.LinearRegression(optim.Averager(attach(optim.SGD(), MEASURED))),
        linear_model.SoftmaxRegression(attach(optim.Adam(0.1), MEASURED)),
        linear_model.LogisticRegression(attach(optim.Adam(0.1), MEASURED), l2=0.01),
    ]
    for model in models:
        learner = model[-1] if isinstance(model, compose.Pipeline) else model
        for sample, target in samples(400):
            y = target if isinstance(learner, linear_model.LinearRegression) else target > 0
            model.learn_one(sample, y)
        fresh = model.clone()
        for sample, target in samples(count):
            fresh.learn_one(
                sample, target if isinstance(learner, linear_model.LinearRegression) else target > 0
            )
    weights = models[0]["LinearRegression"].weights
    assert weights == pytest.approx({"a": -2.0, "b": 0.0, "c": 3.0, "intercept": 0.5}, abs=0.3)
    assert models[0]["LinearRegression"].intercept == 0.0
    assert not models[3].optimizer.relative  # it has a largest rate of its own
    assert attach(optim.Adam(0.1), dr.MeasuredRate()).relative


def test_the_intercept_may_take_the_rate_of_the_step_before():
    optimizer = attach(optim.SGD(), dr.ConstantRate(0.1))
    model = linear_model.LinearRegression(optimizer, intercept_lr=optimizer.lr)
    for _ in range(200):
        model.learn_one({"x": 0.0}, 3.0)
    assert model.intercept == pytest.approx(3.0)
    with pytest.raises(ConfigError, match="has no intercept_lr"):
        with_intercept(preprocessing.StandardScaler())
    with pytest.raises(ConfigError, match="already"):
        ConstantFeature("x").transform_one({"x": 1.0})


CHILD = """
import pickle, sys
folder = sys.argv[1]
with open(f"{folder}/model.pickle", "rb") as file:
    model, notifier, rest = pickle.load(file)
found = []
for sample, target in rest:
    notifier.update(abs(target - model.predict_one(sample)))
    model.learn_one(sample, target)
    found.append(dict(model[-1].weights) if hasattr(model, "steps") else model.weights)
with open(f"{folder}/found.pickle", "wb") as file:
    pickle.dump((found, notifier.shifts), file)
"""


@pytest.mark.parametrize("inner", [optim.SGD, optim.Adam])
def test_resume_in_a_new_process_is_bitwise(tmp_path, inner):
    optimizer = attach(inner(0.05), MEASURED)
    model = with_intercept(linear_model.LinearRegression(optimizer))
    notifier = ShiftNotifier(optimizer, "decay", delta=0.05)
    stream = list(samples(500, jump=250))

    def learn(part):
        found = []
        for sample, target in part:
            notifier.update(abs(target - model.predict_one(sample)))
            model.learn_one(sample, target)
            found.append(dict(model["LinearRegression"].weights))
        return found

    learn(stream[:200])
    (tmp_path / "model.pickle").write_bytes(pickle.dumps((model, notifier, stream[200:])))
    found = learn(stream[200:])
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], check=True, timeout=300)
    theirs, shifts = pickle.loads((tmp_path / "found.pickle").read_bytes())
    assert theirs == found
    assert shifts == notifier.shifts
    assert shifts or inner is not optim.SGD


def test_old_files_are_refused():
    optimizer = attach(optim.SGD(), dr.ConstantRate(0.1))
    for version in (None, 99):
        with pytest.raises(StateError, match=f"version {version}; this driftrate reads version 3"):
            optimizer.__setstate__({**optimizer.__getstate__(), "version": version})


def test_shifts_are_noticed():
    optimizer = attach(optim.Adam(), dr.InverseTimeRate(1.0))
    for _ in range(9):
        optimizer.step({"x": 1.0}, {"x": 1.0})
    optimizer.notify_shift("keep")
    assert optimizer._inner.m["x"] > 0
    optimizer.notify_shift("decay", decay=0.5)
    optimizer.step({"x": 1.0}, {"x": 1.0})
    assert optimizer.learning_rate == pytest.approx(0.2)
    optimizer.notify_shift()
    assert optimizer._inner.m is None
    optimizer.step({"x": 1.0}, {"x": 1.0})
    assert optimizer.learning_rate == 1.0
    for bad in ({"policy": "forget"}, {"decay": 2.0}, {"moments": "forget"}):
        with pytest.raises(ConfigError):
            optimizer.notify_shift(**bad)


@pytest.mark.parametrize(
    ("inner", "names"),
    [
        (optim.SGD, ()),
        (optim.Momentum, ("s",)),
        (optim.NesterovMomentum, ("s",)),
        (optim.Adam, ("m", "v")),
        (optim.AdaGrad, ("g2",)),
        (optim.AdaMax, ("m", "u")),
        (optim.AMSGrad, ("m", "v", "v_hat")),
        (optim.Nadam, ("m", "v")),
        (optim.RMSProp, ("g2",)),
    ],
)
@pytest.mark.parametrize("form", ["dict", "vector", "array"])
def test_moments_are_kept_decayed_or_reset(inner, names, form):
    if form == "array" and inner not in (optim.SGD, optim.Adam, optim.RMSProp):
        pytest.skip("River's own takes no arrays")
    optimizer = attach(inner(0.1), dr.ConstantRate(0.1))
    w = FORMS[form](np.zeros(4))
    for _ in range(3):
        w = optimizer.step(w, FORMS[form](np.full(4, 2.0)))

    def moments():
        return [flat(getattr(optimizer._inner, name)).copy() for name in names]

    before = moments()
    optimizer.notify_shift("reset", moments="keep")
    np.testing.assert_array_equal(moments(), before)
    optimizer.notify_shift("keep", moments="decay", decay=0.25)
    np.testing.assert_allclose(moments(), [0.25 * one for one in before])
    assert optimizer._inner.n_iterations == 3
    optimizer.notify_shift("decay", decay=0.5)
    np.testing.assert_allclose(moments(), [0.125 * one for one in before])
    optimizer.step(w, FORMS[form](np.full(4, 2.0)))
    optimizer.notify_shift("keep", moments="reset")
    assert optimizer._inner.n_iterations == 0
    assert not any(getattr(optimizer._inner, name) for name in names)


def test_moments_that_are_not_known_are_not_decayed():
    optimizer = attach(optim.Newton(), dr.InverseTimeRate(1.0))
    for _ in range(3):
        optimizer.step({"x": 1.0}, {"x": 1.0})
    state, rate = optimizer._state, optimizer.learning_rate
    with pytest.raises(ConfigError, match=r"Newton keeps \['_H_inv', .*: use moments=\"keep\""):
        optimizer.notify_shift("decay")
    assert (optimizer._state, optimizer.learning_rate) == (state, rate)
    optimizer.notify_shift("decay", moments="keep")
    optimizer.notify_shift("reset")
    assert optimizer._inner._cap == 0


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
def test_an_intercept_learns_from_many_rows_at_once(library):
    found = pytest.importorskip(library)
    frame = found.table if library == "pyarrow" else found.DataFrame
    model = with_intercept(linear_model.LinearRegression(attach(optim.SGD(), dr.MeasuredRate())))
    plain = with_intercept(linear_model.LinearRegression(attach(optim.SGD(), dr.MeasuredRate())))
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = rng.standard_normal((8, 2))
        y = x @ [1.0, -2.0] + 5.0
        batch = frame({"a": x[:, 0], "b": x[:, 1], "y": y})
        model.learn_many(
            batch[["a", "b"]] if library != "pyarrow" else batch.select(["a", "b"]), batch["y"]
        )
        plain.learn_one({"a": x[0, 0], "b": x[0, 1]}, y[0])
    expected = {"a": 1.0, "b": -2.0, "intercept": 5.0}
    assert model["LinearRegression"].weights == pytest.approx(expected, abs=0.01)
    assert plain["LinearRegression"].weights == pytest.approx(expected, abs=0.01)
    two = frame({"a": [0.0, 1.0], "b": [0.0, 0.0]})
    np.testing.assert_allclose(model.predict_many(two), [5.0, 6.0], atol=0.05)
    with pytest.raises(ConfigError, match="have a feature 'a' already"):
        ConstantFeature("a").transform_many(two)


def test_only_a_rise_of_the_error_is_a_shift():
    rng = np.random.default_rng(0)
    model = ShiftRegressor().partial_fit(np.ones((2, 1)), [1.0, 2.0])
    notifier = ShiftNotifier(model, "reset")
    fell = [notifier.update(float(e)) for e in np.abs(rng.standard_normal(600)) + 5.0 * (FALL < 0)]
    assert not any(fell)
    rose = [notifier.update(float(e)) for e in np.abs(rng.standard_normal(600)) + 5.0 * (FALL > 0)]
    assert sum(rose) == notifier.shifts >= 1
    assert 300 <= rose.index(True) < 340
    with pytest.raises(ConfigError, match="no notify_shift"):
        ShiftNotifier(3.0)
    with pytest.raises(ConfigError, match="keep, decay or reset"):
        ShiftNotifier(model, "forget")
    with pytest.raises(ConfigError, match="options are"):
        ShiftNotifier(model, speed=1)


FALL = np.where(np.arange(600) < 300, -1, 1)


def test_what_is_not_finite_leaves_the_schedule_as_it_was():
    optimizer = attach(optim.SGD(), problem.SCHEDULE)
    for value in (1.0, 2.0):
        optimizer.step({"x": 1.0}, {"x": value})
    before = dict(optimizer._state)
    optimizer.step({"x": 1.0}, {"x": float("nan")})
    assert optimizer._state == before


def test_refusals():
    clock = dr.InverseTimeRate(1.0)
    used = optim.SGD()
    used.step({"x": 1.0}, {"x": 1.0})

    class NeedsParts(dr.InverseTimeRate):
        signals = ("parts",)

    for call, kind, text in [
        (lambda: attach(optim.SGD(), 0.1), ConfigError, "must be a Schedule, got 0.1"),
        (lambda: attach(0.1, clock), ConfigError, "must be one of river.optim, got 0.1"),
        (lambda: attach(optim.SGD(), clock, mode="parts"), ConfigError, "got 'parts'"),
        (lambda: attach(attach(optim.SGD(), clock), clock), ConfigError, "already follows"),
        (lambda: attach(optim.Averager(optim.SGD()), clock), ConfigError, "outside"),
        (lambda: attach(optim.FTRLProximal(), clock), ConfigError, "FTRLProximal has no lr"),
        (lambda: attach(optim.AdaDelta(), clock), ConfigError, "AdaDelta reads no lr"),
        (lambda: attach(optim.AdaBound(), clock), ConfigError, "multiplies its bounds"),
        (lambda: attach(used, clock), ConfigError, "attach a new one"),
        (
            lambda: attach(optim.SGD(optim.schedulers.InverseScaling(0.1)), clock),
            ConfigError,
            "two schedules for one rate",
        ),
        (lambda: attach(optim.SGD(), NeedsParts(1.0)), MissingSignal, "needs ['parts'], which"),
        *[
            (
                lambda size=size: attach(optim.SGD(), clock, batch_size=size),
                ConfigError,
                f"batch_size must be a number > 0, got {size!r}",
            )
            for size in (0, -1, "32", float("nan"), True)
        ],
        (lambda: attach(optim.SGD(), clock, relative=1), ConfigError, "relative must be True"),
        (lambda: attach(optim.SGD(), clock, metric="adam"), ConfigError, "got 'adam'"),
        (
            lambda: attach(optim.SGD(), clock, metric="moments"),
            ConfigError,
            "['AMSGrad', 'Adam', 'Nadam', 'RMSProp'], got SGD",
        ),
        (lambda: attach(optim.SGD(), dr.HedgedSGD()), ConfigError, "it is a learner"),
        (lambda: attach(optim.SGD(), clock).tell(cross=1.0), SignalError, "cannot be told"),
    ]:
        with pytest.raises(kind, match=None) as info:
            call()
        assert text in str(info.value)
        assert "\n" not in str(info.value)
    assert used.learning_rate == 0.01


@pytest.mark.parametrize(
    ("door", "package", "extra"),
    [
        ("torch", "torch", "'driftrate[torch]'"),
        ("optax", "jax", "'driftrate[jax]'"),
        ("optax", "optax", "'driftrate[jax]'"),
        ("keras", "keras", "'driftrate[keras]', and set KERAS_BACKEND=jax"),
        ("river", "river", "'driftrate[river]'"),
        ("sklearn", "sklearn", "'driftrate[sklearn]'"),
    ],
)
def test_a_missing_package_is_named_as_a_shell_wants_it(door, package, extra):
    text = f"driftrate.{door} needs {package}: pip install {extra}"
    code = f"import sys; sys.modules[{package!r}] = None; import driftrate.{door}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith(f"MissingDependency: {text}")
