"""A target that is missing is an error, in every model that learns rows, and nothing is learned."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow
import pytest

from driftrate import river, sklearn

ROWS = np.random.default_rng(0).standard_normal((6, 2))
LABELS = ["a", "b", "a", "b", "a", "b"]


class NotAvailable:
    """As pandas.NA compares."""

    def __eq__(self, other):
        return self

    __ne__ = __eq__

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")

    def __hash__(self):
        return 0


MISSING = {
    "None": None,
    "nan": float("nan"),
    "numpy.nan": np.float64("nan"),
    "NaT": np.datetime64("NaT"),
    "NA": NotAvailable(),
}


def missing(name):
    return pytest.importorskip("pandas").NA if name == "pandas.NA" else MISSING[name]


@pytest.mark.parametrize("name", [*MISSING, "pandas.NA"])
@pytest.mark.parametrize("kind", ["ShiftRegressor", "ShiftClassifier"])
@pytest.mark.parametrize("fresh", [True, False])
def test_row_by_row(kind, name, fresh):
    model, target = getattr(river, kind)(), missing(name)
    good = LABELS if kind == "ShiftClassifier" else [*range(6)]
    if not fresh:
        model.learn_many(pyarrow.table({"a": ROWS[:, 0], "b": ROWS[:, 1]}), good)
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match=r"leave rows without a target out"):
        model.learn_one({"a": 1.0, "new": 2.0}, target)
    bad = [*good[:5], target]
    table = pyarrow.table({"a": ROWS[:, 0], "new": ROWS[:, 1]})
    with pytest.raises(ValueError, match=r"leave rows without a target out"):
        model.learn_many(table, bad)
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("name", [*MISSING, "pandas.NA"])
@pytest.mark.parametrize("kind", ["ShiftRegressor", "ShiftClassifier"])
def test_in_batches(kind, name):
    target = missing(name)
    model, options = getattr(sklearn, kind)(), {}
    good = np.array([0.0, 1.0] * 3)
    if kind == "ShiftClassifier":
        options["classes"] = [0, 1]
    bad = [np.array([*good[:5], target], dtype=object)]
    if name in ("nan", "numpy.nan"):
        bad.append(bad[0].astype(float))
    for targets in bad:
        with pytest.raises(ValueError, match=r"leave rows without|contains NaN"):
            model.partial_fit(ROWS, targets, **options)
    model.partial_fit(ROWS, good, **options)
    before = pickle.dumps(model)
    for targets in bad:
        with pytest.raises(ValueError, match=r"leave rows without|contains NaN"):
            model.partial_fit(ROWS, targets, **options)
    assert pickle.dumps(model) == before


def test_an_infinite_number_among_objects():
    model = sklearn.ShiftRegressor().partial_fit(ROWS, np.arange(6.0))
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match="finite numbers, got inf"):
        model.partial_fit(ROWS, np.array([*range(5), np.inf], dtype=object))
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("kind", ["ShiftRegressor", "ShiftClassifier"])
def test_what_is_refused_leaves_no_class_or_feature_behind(kind):
    model = getattr(river, kind)()
    model.learn_one({"a": 1.0}, 1)
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match="infinity"):
        model.learn_one({"a": np.inf, "new": 1.0}, 2)
    with pytest.raises(ValueError, match="X has 6 rows and y has 5"):
        model.learn_many(pyarrow.table({"new": ROWS[:, 0]}), [1, 2, 3, 4, 5])
    assert pickle.dumps(model) == before
