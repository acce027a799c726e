"""After a change of units, and absurd first rows, pools are soon as good as a plain filter again.

That filter, of a memory of 100 rows, sees the same rows as they were before the change.
"""

from __future__ import annotations

import copy
import pickle
from functools import cache

import numpy as np
import pyarrow
import pytest

from driftrate import river, sklearn
from driftrate.adapters._pool import ShiftedPool
from driftrate.race.contestants import Setup
from driftrate.race.contestants.filters import ForgettingFilter
from driftrate.race.models import Model

BEFORE, SOON, AFTER = 2000, 1000, 1500  # rows; after SOON of them all must be well
NOISE, FEATURES, ABSURD, BATCH = 0.1, ("a", "b", "c", "d"), 1e9, 16
# What features and targets become for AFTER rows.
FEATURES_MOVE = {
    "features / 1000": lambda x: x / 1000.0,
    "features * 1000": lambda x: x * 1000.0,
    "features + 10,000": lambda x: x + 1e4,
    "features - 10,000": lambda x: x - 1e4,
    "one feature / 1000": lambda x: x / [1.0, 1000.0, 1.0, 1.0],
    "one feature * 1000": lambda x: x * [1.0, 1000.0, 1.0, 1.0],
    "one feature + 10,000": lambda x: x + 1e4 * np.eye(4)[1],
}
TARGETS_MOVE = {
    "target / 1000": lambda y: y / 1000.0,
    "target * 1000": lambda y: y * 1000.0,
    "target + 10,000": lambda y: y + 1e4,
    "target - 10,000": lambda y: y - 1e4,
}
EVENTS = [*FEATURES_MOVE, *TARGETS_MOVE]
THERE, BACK = slice(BEFORE, BEFORE + AFTER), slice(BEFORE + AFTER, BEFORE + 2 * AFTER)


@cache
def stream(classes=None, outliers=False):
    """Return features, targets, the plain filter's loss of each row, and rows to count."""
    rng, rows = np.random.default_rng(0), BACK.stop
    x = rng.standard_normal((rows, len(FEATURES)))
    scores = x @ rng.standard_normal((len(FEATURES), classes or 1))
    if classes:
        y = (2.0 * scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    else:
        y = scores[:, 0] + 3.0 + NOISE * rng.standard_normal(rows)
    model = Model("classes" if classes else "regression", 1 + len(FEATURES), classes or 1)
    plain = ForgettingFilter(Setup(model, BATCH, 1, 0), forgetting=0.99, prior=1.0)
    found, z = [], np.column_stack([x, np.ones(rows)])
    for start in range(0, rows, BATCH):
        part = slice(start, start + BATCH)
        found.append(plain.step(z[part], y[part]))
    scores = np.concatenate(found)
    if classes:
        usual = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(rows), y]
    else:
        usual = (scores.reshape(rows) - y) ** 2
    kept = rng.random(rows) > 0.005 * outliers
    x[~kept, 0] = 1e6
    return x, y, usual, kept


def moved(event, x, y):
    x, y = x.copy(), y.copy()
    if event in FEATURES_MOVE:
        x[THERE] = FEATURES_MOVE[event](x[THERE])
    else:
        y[THERE] = TARGETS_MOVE[event](y[THERE])
    return x, y


def losses(model, x, y, batch):
    """Return squared errors or log losses of rows that are foretold and then learned."""
    classes = hasattr(model, "predict_proba") or hasattr(model, "predict_proba_one")
    options = {"classes": np.unique(y)} if classes and hasattr(model, "partial_fit") else {}
    found = np.zeros(len(y))
    for start in range(0, len(y), batch):
        part, rows = slice(start, start + batch), np.arange(len(y[start : start + batch]))
        if hasattr(model, "partial_fit"):
            if start:
                means = model.predict_proba(x[part]) if classes else model.predict(x[part])
            model.partial_fit(x[part], y[part], **options)
        elif batch == 1:
            row = dict(zip(FEATURES, x[start].tolist(), strict=True))
            means = np.array([model.predict_one(row)])
            model.learn_one(row, float(y[start]))
        else:
            table = pyarrow.table(dict(zip(FEATURES, x[part].T, strict=True)))
            if start and classes:
                proba = model.predict_proba_many(table)
                means = np.column_stack([proba[str(k)] for k in range(len(np.unique(y)))])
            elif start:
                means = np.asarray(model.predict_many(table))
            model.learn_many(table, y[part])
        if start and classes:
            found[part] = -np.log(np.maximum(means[rows, y[part]], 1e-300))
        elif start:
            found[part] = (means - y[part]) ** 2
    return found


def check(found, usual, kept, rows, most=4.0):
    """Hold the mean loss of rows, but for the first SOON of them, to `most` times the usual one."""
    late = np.flatnonzero(kept[rows]) + rows.start
    late = late[late >= rows.start + SOON]
    ours, theirs = found[late].mean(), usual[late].mean()
    assert ours < most * theirs, f"{ours:.3g} against {theirs:.3g} in {rows}"


@pytest.mark.parametrize(
    ("kind", "batch", "event"),
    [(sklearn, batch, event) for batch in (16, 256) for event in EVENTS]
    + [(river, 16, "one feature + 10,000"), (river, 256, "features / 1000")]
    + [(river, 1, "features * 1000"), (sklearn, 1, "target + 10,000")],
)
def test_units_of_a_regression_change_and_change_back(kind, batch, event):
    """Of 16 rows one in 200 is an outlier besides; twice the error is four times its square."""
    x, y, usual, kept = stream(outliers=batch == BATCH)
    new, targets = moved(event, x, y)
    # Single rows take their time.
    played = slice(BACK.stop) if batch > 1 else slice(BEFORE - 500, THERE.stop)
    model, found = kind.ShiftRegressor(batch_size=batch), np.full(len(y), np.nan)
    found[played] = losses(model, new[played], targets[played], batch)
    found[THERE] *= (np.std(y[THERE]) / np.std(targets[THERE])) ** 2
    check(found, usual, kept, THERE)
    if batch > 1:
        check(found, usual, kept, BACK)


@pytest.mark.parametrize(
    ("kind", "classes", "batch", "event"),
    [(sklearn, 2, 16, event) for event in FEATURES_MOVE]
    + [(sklearn, 3, 256, "features + 10,000"), (river, 3, 16, "features / 1000")],
)
def test_units_of_a_classification_change_and_change_back(kind, classes, batch, event):
    x, y, usual, kept = stream(classes)
    found = losses(kind.ShiftClassifier(batch_size=batch), *moved(event, x, y), batch)
    check(found, usual, kept, THERE, most=1.3)
    check(found, usual, kept, BACK, most=1.3)


@pytest.mark.parametrize(
    ("kind", "batch", "absurd"),
    [(sklearn, batch, rows) for batch in (16, 256) for rows in ([0], range(10))]
    + [(river, 1, [0]), (sklearn, 16, range(2011, 2021)), (sklearn, 256, range(2043, 2053))],
)
def test_absurd_targets_are_overcome(kind, batch, absurd):
    """The last two cases are ten targets over two batches."""
    x, y, usual, kept = stream()
    y = y.copy()
    y[absurd] = ABSURD
    begin = BEFORE if max(absurd) > BEFORE else 0
    rows = slice(begin, begin + AFTER)
    found = losses(kind.ShiftRegressor(batch_size=batch), x[: rows.stop], y[: rows.stop], batch)
    check(found, usual, kept, rows)


def in_trial(classes=None):
    """Return a pool with a challenger, and more rows."""
    x, y, _, _ = stream(classes)
    x, _ = moved("one feature / 1000", x, y)
    pool, start = ShiftedPool(len(FEATURES), classes), 0
    while pool._challenger is None or pool._challenger.steps == 0:
        pool.learn(x[start : start + BATCH], y[start : start + BATCH])
        start += BATCH
    return pool, x[start:], y[start:]


@pytest.mark.parametrize("classes", [None, 3])
def test_a_trial_is_resumed_to_the_bit(classes):
    pool, x, y = in_trial(classes)
    twins = [pool, pickle.loads(pickle.dumps(pool)), copy.deepcopy(pool)]
    for start in range(0, 800, BATCH):
        for twin in twins:
            twin.learn(x[start : start + BATCH], y[start : start + BATCH])
    new = [twin.now.chances(x) if classes else twin.now.means(x) for twin in twins]
    assert (new[0] == new[1]).all()
    assert (new[0] == new[2]).all()
    assert pool.now.scale.inverse[1] > 500.0  # the challenger's


@pytest.mark.parametrize("classes", [None, 3])
def test_features_and_classes_may_come_in_a_trial(classes):
    pool, x, y = in_trial(classes)
    pool.widen(6, 4 if classes else None)
    x = np.column_stack([x, np.random.default_rng(1).standard_normal((len(x), 2))])
    for start in range(0, 800, BATCH):
        pool.learn(x[start : start + BATCH], y[start : start + BATCH])
    assert pool.now.scale.inverse[1] > 500.0
    forecasts = pool.now.chances(x) if classes else pool.now.means(x)
    assert np.isfinite(forecasts).all()


def test_a_column_that_rests_changes_no_forecast():
    """It is of no use, so that no challenger can be better."""
    rng = np.random.default_rng(0)
    x, pools, begun = rng.standard_normal((3000, 3)), [ShiftedPool(3), ShiftedPool(3)], 0
    y = x[:, 0] + 0.1 * rng.standard_normal(3000)
    x[1000:1800, 2] *= 1e-3
    pools[1]._is_far = lambda: False
    for start in range(0, 3000, BATCH):
        part = slice(start, start + BATCH)
        for pool in pools:
            pool.learn(x[part], y[part])
        begun += pools[0]._challenger is not None
        assert pools[1]._challenger is None
        assert (pools[0].now.means(x[part]) == pools[1].now.means(x[part])).all()
    assert begun * BATCH < 1500
    assert begun > 0
