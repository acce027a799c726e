from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import warnings

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import shifting_problem as problem
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import driftrate as dr
from driftrate.adapters.sklearn import losses
from driftrate.errors import ConfigError, MissingSignal, SignalError, StateError
from driftrate.sklearn import ShiftClassifier, ShiftRegressor

# What scikit-learn lists for its own SGD estimators.
ORDER = "a repeated row changes how many rows share a step, and which half it is in"
KNOWN = {
    "check_sample_weight_equivalence_on_dense_data": ORDER,
    "check_sample_weight_equivalence_on_sparse_data": ORDER,
}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        ShiftRegressor(),
        ShiftRegressor(missing="mean"),
        ShiftRegressor(fit_intercept=False),
        ShiftRegressor("huber"),
        ShiftClassifier(),
        ShiftClassifier("hinge"),
        ShiftRegressor(schedule=dr.InverseTimeRate(0.1), mode="sequence"),
        ShiftRegressor(schedule=dr.MeasuredRate(), max_iter=5),
        ShiftRegressor(schedule=dr.MeasuredRate(), mode="sequence", max_iter=5),
        ShiftClassifier(schedule=dr.MeasuredRate(), max_iter=5),
    ],
    expected_failed_checks=lambda _: KNOWN,
)
def test_the_checks_of_the_framework(estimator, check):
    check(estimator)


def derivative(loss, scores, target, step=1e-6):
    moved = np.empty_like(scores)
    for place in np.ndindex(scores.shape):
        each = []
        for sign in (1, -1):
            copy = scores.copy()
            copy[place] += sign * step
            each.append(loss(copy, target, 1.0)[0].sum())
        moved[place] = (each[0] - each[1]) / (2 * step)
    return moved


@pytest.mark.parametrize(
    ("loss", "outputs", "target"),
    [
        (losses.squared_error, 1, np.array([0.3, -2.0, 5.0])),
        (losses.huber, 1, np.array([0.3, -2.0, 5.0])),
        (losses.logistic, 1, np.array([[1.0], [-1.0], [1.0]])),
        (losses.softmax, 4, np.array([0, 3, 2])),
        (losses.hinge, 1, np.array([[1.0], [-1.0], [1.0]])),
        (losses.hinge, 2, np.array([[1.0, -1.0], [-1.0, 1.0], [1.0, -1.0]])),
    ],
)
def test_derivatives_are_those_of_the_losses(loss, outputs, target):
    scores = np.random.default_rng(0).standard_normal((3, 5, outputs))
    each, slopes = loss(scores.copy(), target, 1.0)
    assert each.shape == (3, 5)
    assert (each >= 0).all()
    np.testing.assert_allclose(slopes, derivative(loss, scores, target), atol=1e-8)
    extreme = np.where(scores > 0, 1e4, -1e4)
    each, slopes = loss(extreme, target, 1.0)
    assert np.isfinite(each).all()
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize("mode", ["sequence", "parts"])
def test_a_schedule_gives_the_trajectory_of_the_core(mode):
    rates, weights = problem.core(mode)
    model = ShiftRegressor(schedule=problem.SCHEDULE, mode=mode, fit_intercept=False)
    for step, (x, y) in enumerate(zip(*problem.batches(), strict=True)):
        model.partial_fit(x, y)
        np.testing.assert_allclose(model.record["rate"], rates[step], rtol=1e-10)
        np.testing.assert_allclose(model.coef_, weights[step], rtol=1e-10, atol=1e-12)
    assert list(model.record) == ["rate", "factor", "signal", "noise", "shift"]
    assert np.isnan(model.record["factor"])  # no optimizer brings a rate
    assert np.isfinite([model.record[name] for name in ("signal", "noise", "shift")]).all()


def test_a_schedule_is_told():
    rates, weights = problem.core("given")
    model = ShiftRegressor(schedule=problem.GIVEN, fit_intercept=False)
    for step, (x, y) in enumerate(zip(*problem.batches(), strict=True)):
        model.tell(shift=problem.shift(step))
        model.partial_fit(x, y)
    np.testing.assert_allclose(model.coef_, weights[-1], rtol=1e-10)
    np.testing.assert_allclose(model.record["rate"], rates[-1], rtol=1e-10)
    assert model.record["shift"] == 0.0


def test_what_is_told_is_for_the_next_step_alone():
    x, y = next(stream(1, rows=64))
    model = ShiftRegressor(schedule=problem.GIVEN, batch_size=64)
    model.tell(shift=0.5)
    model.partial_fit(x, y)
    assert model.record["shift"] == 0.5
    before = model.coef_
    with pytest.raises(MissingSignal, match=r"needs shift: tell\(shift=...\) before each step"):
        model.partial_fit(x, y)
    model.tell(shift=0.25)
    many = np.vstack([x, x]), np.r_[y, y]
    with pytest.raises(MissingSignal, match="takes 2 steps: use partial_fit with batch_size rows"):
        model.partial_fit(*many)
    assert model.t_ == 1
    assert np.array_equal(model.coef_, before)
    with pytest.raises(MissingSignal, match="takes 20 steps"):
        model.fit(x, y)
    # It was not used up, and outlives the start of a new driver.
    model.set_params(max_iter=1).fit(x, y)
    assert model.record["shift"] == 0.25
    # What a schedule can do without need not be told again.
    schedule = dr.KnownShifts(dr.ConstantRate(0.1), times=(1,))
    one = ShiftRegressor(schedule=schedule, batch_size=64)
    one.partial_fit(*many)
    assert one.t_ == 2


@pytest.mark.parametrize("schedule", [problem.SCHEDULE, problem.MEASURED])
def test_a_row_alone_is_read_as_in_the_sequence(schedule):
    x, y = problem.batches()
    halves, whole = (ShiftRegressor(schedule=schedule, mode=mode) for mode in ("parts", "sequence"))
    for a, b in zip(x[:60, :1], y[:60, :1], strict=True):
        halves.partial_fit(a, b)
        whole.partial_fit(a, b)
        assert np.array_equal(halves.coef_, whole.coef_)
    assert halves.record["rate"] == whole.record["rate"] > 0
    # Among larger batches it neither stops the rate nor throws it off.
    model = ShiftRegressor(schedule=schedule)
    for a, b in zip(x[:140], y[:140], strict=True):
        model.partial_fit(a, b)
        model.partial_fit(a[:1], b[:1])
    assert np.abs(model.coef_ - 1.0).max() < 0.3


@pytest.mark.parametrize("schedule", [None, dr.HedgedSGD(), dr.ConstantRate(0.3)])
def test_a_thread_predicts_while_another_learns(schedule):
    """What it sees are the forecasts after whole calls, and no others."""
    model, twin = ShiftRegressor(schedule=schedule), ShiftRegressor(schedule=schedule)
    x, jumps = np.array([[1.0], [2.0]]), ([5.0, 7.0], [-700.0, -500.0])
    model.partial_fit(x, jumps[0])
    twin.partial_fit(x, jumps[0])
    known = {tuple(twin.predict([[1.0], [0.0]]))}
    for step in range(400):
        twin.partial_fit(x * (1.0 + step), jumps[step % 2])
        known.add(tuple(twin.predict([[1.0], [0.0]])))
    stop, seen = threading.Event(), []

    def predict():
        while not stop.is_set():
            seen.append(tuple(model.predict([[1.0], [0.0]])))

    thread, pause = threading.Thread(target=predict), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for step in range(400):
            model.partial_fit(x * (1.0 + step), jumps[step % 2])
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(pause)
    assert len({*seen}) > 2
    assert {*seen} <= known


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_a_step_between_any_two_lines_of_a_prediction_does_not_tear_it(method):
    """What a thread may do at any moment, done at each line: here chance has no part."""
    model = ShiftRegressor(schedule=dr.ConstantRate(0.3))
    if method != "predict":
        model = ShiftClassifier("log_loss", schedule=dr.ConstantRate(0.3))
        model.partial_fit(np.ones((2, 1)), [0, 0], classes=[0, 1])
    ones, places = np.ones((2, 1)), {type(model).predict.__code__.co_filename}
    model.partial_fit(ones, [1, 1])
    before, steps = sys.gettrace(), []

    def trace(frame, event, _):
        if frame.f_code.co_filename not in places:
            return None
        if event == "line":
            sys.settrace(None)
            steps.append(model.t_)
            model.partial_fit(ones, [len(steps) % 2] * 2)
            sys.settrace(trace)
        return trace

    predict = getattr(model, method)  # found before the trace, for scikit-learn decorates it
    sys.settrace(trace)
    try:
        found = predict(np.array([[1.0], [0.0]]))
    finally:
        sys.settrace(before)
    assert len(steps) > 5
    if method == "predict_proba":
        found = np.log(found[:, 1] / found[:, 0])
    np.testing.assert_allclose(found[0], 2.0 * found[1], rtol=1e-9)


def stream(steps, classes=3, dim=8, rows=32, jump=200):
    rng = np.random.default_rng(4)
    truth = rng.standard_normal((2, dim, classes))
    for step in range(steps):
        x = rng.standard_normal((rows, dim))
        yield x, (x @ truth[int(step >= jump)] + 0.5).argmax(axis=1)


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_follows_a_jump(loss, classes):
    model, right = ShiftClassifier(loss, batch_size=32), []
    for x, y in stream(400, classes):
        if hasattr(model, "classes_"):
            right.append((model.predict(x) == y).mean())
        model.partial_fit(x, y, classes=range(classes))
    assert np.mean(right[150:199]) > 0.9
    assert np.mean(right[199:201]) < 0.75
    assert np.mean(right[350:]) > 0.9
    assert model.coef_.shape == (1 if classes == 2 else classes, 8)
    assert hasattr(model, "predict_proba") == (loss == "log_loss")


def test_a_regressor_follows_a_jump_and_bears_outliers():
    """Over 20 seeds the errors of Huber's loss were at most 0.07 and 0.15 (0.81, 1.02: squared)."""
    x, y = problem.batches()
    spoilt = y.copy()
    spoilt[::7, 0] += 100.0
    errors = {}
    for name, loss, labels in (
        ("clean", "huber", y),
        ("huber", "huber", spoilt),
        ("square", "squared_error", spoilt),
    ):
        model, seen = ShiftRegressor(loss), []
        for step, (a, b) in enumerate(zip(x, labels, strict=True)):
            model.partial_fit(a, b)
            seen.append(np.abs(model.coef_ - (1.0 if step < problem.JUMP else -2.0)).max())
        errors[name] = [np.mean(seen[problem.JUMP - 10 : problem.JUMP]), np.mean(seen[-50:])]
    assert errors["huber"][0] < 0.15
    for huber, clean, square in zip(
        errors["huber"], errors["clean"], errors["square"], strict=True
    ):
        assert huber < 1.5 * clean + 0.05  # outliers hardly touch it
        assert huber < 0.7 * square
    assert errors["huber"][1] < 0.2  # 3 at the jump


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array, sp.coo_array, sp.csc_matrix])
@pytest.mark.parametrize("classes", [2, 3])
def test_sparse_is_dense(kind, classes):
    dense, sparse = ShiftClassifier(), ShiftClassifier()
    for x, y in stream(50, classes):
        rare = np.where(np.abs(x) > 1, x, 0.0)
        dense.partial_fit(rare, y, classes=range(classes))
        sparse.partial_fit(kind(rare), y, classes=range(classes))
    np.testing.assert_allclose(dense.coef_, sparse.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dense.predict_proba(x), sparse.predict_proba(kind(x)), rtol=1e-9)
    halves = [ShiftRegressor(schedule=problem.SCHEDULE) for _ in range(2)]
    for x, y in stream(20):
        halves[0].partial_fit(x, y)
        halves[1].partial_fit(kind(x), y)
    np.testing.assert_allclose(halves[0].coef_, halves[1].coef_, rtol=1e-9)


def test_weights_and_batches():
    x, y = next(stream(1, rows=200))
    one, other = ShiftClassifier(), ShiftClassifier()
    one.partial_fit(x, y, classes=[0, 1, 2])
    other.partial_fit(x, y, [0, 1, 2], np.ones(200))
    assert np.array_equal(one.coef_, other.coef_)
    assert one.t_ == 13
    # The scale of all weights says nothing to `HedgedSGD`; a row of weight 0 says nothing.
    mask = np.r_[np.ones(40), np.zeros(20)]
    for schedule in (None, dr.HedgedSGD()):
        a, b = (ShiftRegressor(schedule=schedule, batch_size=60) for _ in range(2))
        a.partial_fit(x[:60], y[:60], mask)
        b.partial_fit(x[:40], y[:40])
        np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-6)
    probabilities = one.predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(one.predict_log_proba(x)), probabilities)
    assert one.decision_function(x).shape == (200, 3)
    two = ShiftClassifier(random_state=0).fit(x, y > 0)
    np.testing.assert_allclose(np.exp(two.predict_log_proba(x)), two.predict_proba(x))
    assert ((two.decision_function(x) > 0) == two.predict(x)).all()
    assert two.score(x, y > 0) > 0.85
    again = clone(two).fit(x, y > 0)
    assert np.array_equal(two.coef_, again.coef_)
    still = ShiftRegressor(shuffle=False, fit_intercept=False).fit(x, y)
    assert still.intercept_.tolist() == [0.0]
    assert make_pipeline(StandardScaler(), ShiftClassifier()).fit(x, y).score(x, y) > 0.7


def test_a_bad_batch_changes_nothing_and_infinity_is_refused():
    model = ShiftRegressor(schedule=dr.HedgedSGD())
    for x, y in stream(30):
        model.partial_fit(x, y)
    before = model.coef_
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.full((2, 8), np.nan), [0.0, 1.0])
    model.partial_fit(np.full((2, 8), 1e200), np.array([0.0, 1.0]))
    assert np.array_equal(before, model.coef_)
    single = ShiftRegressor(schedule=dr.ConstantRate(0.1))
    single.partial_fit(x, y)
    before = single.coef_
    single.partial_fit(np.full((2, 8), 1e200), np.array([0.0, 1.0]))
    assert np.array_equal(before, single.coef_)


CHILD = """
import sys, joblib, numpy as np
folder, name = sys.argv[1:]
model, rest = joblib.load(f"{folder}/{name}.joblib")
found = []
for x, y in rest:
    model.partial_fit(x, y)
    found.append(np.r_[model.coef_.ravel(), model.intercept_])
np.save(f"{folder}/{name}.npy", found)
"""


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("pool", ShiftClassifier()),
        ("numbers", ShiftRegressor(missing="mean")),
        ("copies", ShiftClassifier(schedule=dr.HedgedSGD())),
        ("halves", ShiftRegressor(schedule=problem.SCHEDULE)),
        ("sequence", ShiftRegressor("huber", schedule=problem.SCHEDULE, mode="sequence")),
    ],
)
def test_resume_in_a_new_process_is_bitwise(tmp_path, name, model):
    model, batches = clone(model), list(stream(300, jump=150))
    more = {"classes": [0, 1, 2]} if isinstance(model, ShiftClassifier) else {}
    for x, y in batches[:100]:
        model.partial_fit(x, y, **more)
    joblib.dump((model, batches[100:]), tmp_path / f"{name}.joblib")
    twin, found = pickle.loads(pickle.dumps(model)), []
    for x, y in batches[100:]:
        model.partial_fit(x, y)
        twin.partial_fit(x, y)
        assert np.array_equal(model.coef_, twin.coef_)
        found.append(np.r_[model.coef_.ravel(), model.intercept_])
    subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), name], check=True, env=os.environ, timeout=300
    )
    assert np.array_equal(np.load(tmp_path / f"{name}.npy"), found)


def test_old_files_are_refused():
    model = ShiftRegressor().fit(*next(stream(1)))
    saved = model.__getstate__()
    for version in (None, 99):
        with pytest.raises(StateError, match=f"version {version}; this driftrate reads version 3"):
            ShiftRegressor().__setstate__({**saved, "_driftrate_version": version})
    for rule in (dr.HedgedSGD(), dr.ConstantRate(0.1)):
        model = ShiftRegressor(schedule=rule).fit(*next(stream(1)))
        driver = model._model.driver
        pooled = isinstance(rule, dr.HedgedSGD)
        inner = driver.__getstate__() if pooled else dict(vars(driver))
        with pytest.raises(StateError, match="version 99"):
            driver.__setstate__({**inner, "version": 99})


def test_shifts_are_noticed():
    for rule in (dr.HedgedSGD(), dr.InverseTimeRate(0.2)):
        model = ShiftRegressor(schedule=rule)
        with pytest.raises(NotFittedError):
            model.notify_shift()
        assert list(model.record) == ["rate", "factor", "signal", "noise", "shift"]
        assert np.isnan(list(model.record.values())).all()
        for x, y in stream(100):
            model.partial_fit(x, y)
        weights, rate = model.coef_.copy(), model.record["rate"]
        model.notify_shift("keep")
        assert model.record["rate"] == rate
        model.notify_shift("decay", decay=0.1)
        model.partial_fit(x, y)
        assert model.record["rate"] > rate
        model.notify_shift()
        points = model._model.driver.points
        np.testing.assert_allclose(points[0], np.r_[model.coef_, model.intercept_])
        assert not np.array_equal(weights, model.coef_)
        for bad in ({"policy": "forget"}, {"decay": 2.0}, {"moments": "forget"}):
            with pytest.raises(ConfigError):
                model.notify_shift(**bad)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss": "poisson"}, "loss must be one of"),
        ({"schedule": 0.1}, "schedule must be None, a HedgedSGD or a Schedule, got 0.1"),
        ({"mode": "ranks"}, "mode must be one of"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"max_iter": 1.5}, "max_iter must be"),
        ({"missing": "drop"}, "missing must be 'error' or 'mean', got 'drop'"),
        ({"missing": "mean", "loss": "huber"}, "missing='mean' is for the pool of memories"),
        ({"epsilon": -1.0}, "epsilon must be a finite number > 0, got -1.0"),
    ],
)
def test_bad_constants(options, text):
    for method in ("fit", "partial_fit"):
        with pytest.raises(ConfigError, match=text):
            getattr(ShiftRegressor(**options), method)(*next(stream(1)))


def test_bad_signals_and_labels():
    x, y = next(stream(1))

    class NeedsParts(dr.ConstantRate):
        signals = ("parts",)

    with pytest.raises(MissingSignal, match='use mode="parts"'):
        ShiftRegressor(schedule=NeedsParts(0.1), mode="sequence").partial_fit(x, y)
    with pytest.raises(MissingSignal, match="2 rows or more"):
        ShiftRegressor(schedule=NeedsParts(0.1)).partial_fit(x[:1], y[:1])
    with pytest.raises(SignalError, match="cannot be told"):
        ShiftRegressor(schedule=problem.GIVEN).tell(cross=1.0)
    with pytest.raises(SignalError):
        ShiftRegressor(schedule=problem.GIVEN).tell(shift=-1.0)
    with pytest.raises(SignalError, match="needs nothing told"):
        ShiftRegressor().tell(shift=1.0)
    with pytest.raises(ConfigError, match="classes must be passed on the first call"):
        ShiftClassifier().partial_fit(x, y)
    model = ShiftClassifier().partial_fit(x, y, classes=[0, 1, 2])
    with pytest.raises(ConfigError, match="not one of the classes"):
        model.partial_fit(x, y + 1)
    with pytest.raises(ConfigError, match="first call"):
        model.partial_fit(x, y, classes=[0, 1])
    with pytest.raises(AttributeError):
        _ = ShiftClassifier("hinge").predict_proba
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(x, y, classes=[0, 1, 2])


def test_the_pool_follows_a_jump_in_raw_units_and_says_its_memory():
    rng, memory, model = np.random.default_rng(0), [], ShiftRegressor()
    with pytest.raises(AttributeError):
        _ = model.memory_
    size = np.array([1e-3, 1.0, 1e4])
    for step in range(600):
        x = size * (rng.standard_normal((16, 3)) + 5.0)
        weights = np.array([1.0, 2.0, 3.0]) * (1.0 if step < 400 else -1.0) / size
        model.partial_fit(x, x @ weights + 0.1 * rng.standard_normal(16))
        memory.append(model.memory_)
    np.testing.assert_allclose(model.coef_ * size, [-1.0, -2.0, -3.0], atol=0.05)
    np.testing.assert_allclose(model.predict(x), x @ weights, atol=0.5)
    assert memory[399] > 2000
    assert min(memory[400:420]) < 0.7 * memory[399]
    assert np.isnan(list(model.record.values())).all()


def test_the_picture_of_the_memory():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    model = ShiftRegressor()
    with pytest.raises(NotFittedError):
        model.plot_memory()
    for x, y in stream(3):
        model.partial_fit(x, y)
    model = pickle.loads(pickle.dumps(model))
    axes = model.plot_memory()
    drawn = axes.lines[-1].get_xydata()
    assert drawn[:, 0].tolist() == [16.0 * step for step in range(1, 7)]
    assert drawn[-1, 1] == pytest.approx(model.memory_)
    assert model.plot_memory(axes) is axes
    pyplot.close("all")
    other = ShiftRegressor(schedule=dr.HedgedSGD()).partial_fit(x, y)
    with pytest.raises(ConfigError, match="plot_memory is for the pool of memories"):
        other.plot_memory()
    assert not hasattr(other, "memory_")


def test_intervals():
    rng, model, inside = np.random.default_rng(0), ShiftRegressor(), []
    for step in range(300):
        x = rng.standard_normal((16, 3))
        y = x @ [1.0, 2.0, 3.0] + rng.standard_normal(16)
        if step > 50:
            low, high = model.predict_interval(x, coverage=0.8).T
            inside.append((low <= y) & (y <= high))
        model.partial_fit(x, y)
    # 4000 rows: the standard error is 0.006.
    assert np.mean(inside) == pytest.approx(0.8, abs=0.03)
    wide = np.diff(model.predict_interval(x, coverage=0.95))
    assert (wide > np.diff(model.predict_interval(x, coverage=0.5))).all()
    assert not hasattr(ShiftRegressor("huber"), "predict_interval")
    with pytest.raises(ConfigError, match="coverage"):
        model.predict_interval(x, coverage=1.0)


def test_missing_values_are_an_error_or_the_mean():
    rng, model = np.random.default_rng(0), ShiftClassifier(missing="mean")
    for _ in range(200):
        x = rng.standard_normal((16, 2)) + 3.0
        y = x[:, 0] > 3.0
        x[rng.random(x.shape) < 0.1] = np.nan
        model.partial_fit(x, y, classes=[False, True])
    chances = model.predict_proba([[3.3, np.nan], [3.3, 3.0], [np.nan, np.nan]])[:, 1]
    assert chances[0] == pytest.approx(chances[1], abs=0.05)
    assert chances[2] == pytest.approx(0.5, abs=0.15)
    with pytest.raises(ValueError, match="infinity"):
        model.partial_fit([[np.inf, 0.0]], [True])
    with pytest.raises(ValueError, match="NaN"):
        ShiftClassifier().partial_fit(x, y, classes=[False, True])


def test_wide_sparse_rows_are_learned_by_copies():
    rng = np.random.default_rng(0)
    for width, kind in ((500, "ShiftedPool"), (501, "Descent")):
        dense = rng.standard_normal((64, width))
        x = sp.csr_array(np.where(np.abs(dense) > 1.6, dense, 0.0))
        y = rng.standard_normal(64)
        model = ShiftRegressor().partial_fit(x, y)
        assert type(model._model).__name__ == kind
        np.testing.assert_allclose(model.predict(x), model.predict(x.toarray()), rtol=1e-9)
        model.partial_fit(x.toarray(), y)
        assert model.predict(x[:3]).shape == (3,)
    with pytest.raises(ConfigError, match="predict_interval is for the pool"):
        model.predict_interval(x)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_names_of_features(library):
    frames = pytest.importorskip(library)
    rng = np.random.default_rng(0)
    x = frames.DataFrame({"a": rng.standard_normal(20), "b": rng.standard_normal(20)})
    y = rng.standard_normal(20)
    model = ShiftRegressor().partial_fit(x, y)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.predict(x).shape == (20,)
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(x[["b", "a"]], y)


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_logarithms_of_chances(classes):
    model = ShiftClassifier()
    for x, y in stream(20, classes):
        model.partial_fit(x, y, classes=range(classes))
    logs = model.predict_log_proba(x)
    scores = logs[:, 1] - logs[:, 0] if classes == 2 else logs
    np.testing.assert_allclose(model.decision_function(x), scores)
    np.testing.assert_allclose(np.exp(logs), model.predict_proba(x))
    assert (model.predict(x) == logs.argmax(axis=1)).all()
    assert model.coef_.shape == (1 if classes == 2 else 3, 8)


def test_names_that_are_gone_say_the_new_ones():
    import driftrate.sklearn as door

    for kind in ("Regressor", "Classifier"):
        with pytest.raises(AttributeError, match=f"is now driftrate.sklearn.Shift{kind}"):
            getattr(door, f"ShiftSGD{kind}")
    with pytest.raises(ImportError, match="is now"):
        from driftrate.sklearn import ShiftSGDRegressor  # noqa: F401
