"""Straight-line Python from a graph computes what NumPy computes."""

from __future__ import annotations

import array_api_compat.numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftrate._trace import trace
from driftrate._trace.python import compiled, source
from driftrate.learners import HedgedSGD

FUNCTIONS = {
    "arithmetic": lambda xp, a, b, m: 2.0 - a * b / (1.0 + b**2) + (-a) ** 3 - 1.0 / b**-1,
    "powers": lambda xp, a, b, m: xp.abs(a) ** 0.5 + 2.0**b + xp.abs(b) ** (a / 9.0),
    "comparisons": lambda xp, a, b, m: [a < b, a <= b, a > b, a >= b, a == b, a != b],
    "logic": lambda xp, a, b, m: ((a > 0.0) & ~(b > 0.0)) | xp.logical_not(a < b),
    "choices": lambda xp, a, b, m: xp.where(a > b, xp.where(b > 0.0, a, 1.0), b),
    "bounds": lambda xp, a, b, m: xp.clip(xp.minimum(a, b), -0.5, xp.maximum(a, 0.5)),
    "functions": lambda xp, a, b, m: [
        xp.exp(a), xp.expm1(a), xp.log(1.0 + a * a), xp.log1p(b * b), xp.sqrt(xp.abs(a)),
        xp.sin(a), xp.cos(b), xp.hypot(a, b), xp.isfinite(a),
    ],
    "sums": lambda xp, a, b, m: [
        xp.sum(m), xp.sum(m, axis=0), xp.sum(m, axis=-1, keepdims=True), xp.mean(m, axis=(0, 1)),
        xp.min(a), xp.max(m, axis=1), xp.any(a > 0.0), xp.all(m > 0.0, axis=0),
    ],
    "cumulative": lambda xp, a, b, m: [
        xp.cumulative_sum(a, axis=0), xp.cumulative_sum(m, axis=1)
    ],
    "shapes": lambda xp, a, b, m: [
        xp.stack([a, b]), xp.stack([a, b], axis=-1), xp.concat([a, b]), m[0], m[..., 1], m[:, None],
        a[-1] * b[1:], xp.reshape(m, (3, 2)), xp.broadcast_to(a, (2, 3)), a[:, None] * b[None, :],
    ],
    "products": lambda xp, a, b, m: [
        xp.vecdot(a, b), xp.vecdot(m, a), xp.matmul(m, xp.reshape(m, (3, 2)))
    ],
    "fillings": lambda xp, a, b, m: [
        xp.full_like(a, 2.0) * b, xp.zeros_like(m) - m, xp.ones_like(a) / 3.0, xp.zeros((2, 2)),
        xp.arange(3.0) + a, xp.asarray([1.0, 2.0, 3.0]) * b,
    ],
}  # fmt: skip
NUMBERS = st.floats(-3.0, 3.0).map(lambda x: round(x, 3))  # ties are drawn too


def same(one, other):
    if isinstance(other, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        assert np.shape(one) == np.shape(other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_allclose(one, other, rtol=1e-13)


@pytest.mark.parametrize("name", list(FUNCTIONS))
@settings(deadline=None)
@given(numbers=st.lists(NUMBERS, min_size=12, max_size=12))
def test_every_function_is_numpys(name, numbers):
    a, b, m = np.array(numbers[:3]), np.array(numbers[3:6]), np.array(numbers[6:]).reshape(2, 3)
    b = np.where(b == 0.0, 1.0, b)
    function = FUNCTIONS[name]
    same(compiled(trace(function, a, b, m))(a, b, m), function(np, a, b, m))


def test_counters_and_truths_stay_what_they_are():
    def function(xp, state):
        count = xp.where(state["count"] < 5, state["count"] + 1, 0 * state["count"])
        return {"count": count, "odd": count % 2 == 1, "half": count // 2, "rows": state["rows"]}

    state = {"count": 4, "rows": np.arange(3)}
    out = compiled(trace(function, state))(state)
    assert out["rows"].dtype == np.int64
    assert [(out[k], type(out[k])) for k in ("count", "odd", "half")] == [
        (5, int),
        (True, bool),
        (2, int),
    ]


def test_a_choice_computes_the_branch_that_it_takes_alone():
    function = compiled(trace(lambda xp, x: xp.where(x > 0.0, 1.0 / x, 2.0 * x), 1.0))
    assert function(0.0) == 0.0
    both = compiled(trace(lambda xp, x: [xp.where(x > 0.0, 1.0 / x, x), 1.0 / x], 1.0))
    with pytest.raises(ZeroDivisionError):
        both(0.0)


def test_what_chooses_most_of_the_output_is_asked_early():
    def function(xp, rows, limit):
        new = xp.stack([xp.exp(row) / limit for row in rows])
        skip = xp.sum(rows) > limit
        return {"rows": xp.where(skip, rows, new), "most": xp.max(new), "skip": skip}

    rows = np.linspace(0.0, 1.0, 20)
    graph = trace(function, rows, 1.0)
    for limit in (1.0, 100.0):
        here, there = compiled(graph)(rows, limit), function(np, rows, limit)
        same(list(here.values()), list(there.values()))
    alone = trace(lambda xp, *args: {"rows": function(xp, *args)["rows"]}, rows, 1.0)
    assert "exp" not in source(alone).partition("else:")[0]  # the old rows are enough
    with pytest.raises(ZeroDivisionError):
        compiled(alone)(-rows, 0.0)
    assert compiled(alone)(rows, 0.0)["rows"].tolist() == rows.tolist()


def test_brackets_are_never_too_deep():
    def function(xp, x):
        for _ in range(1000):
            x = xp.sin(x) + 1.0
        return x

    assert compiled(trace(function, 0.5))(0.5) == pytest.approx(1.934563, abs=1e-6)


def test_names_are_used_again():
    def function(xp, x):
        for _ in range(100):
            x = x * x + x
        return x

    text = source(trace(function, 0.5))
    assert "a2" not in text
    assert text.count("\n") > 90


def test_the_state_that_went_in_is_not_written_to():
    rows = np.ones(3)
    out = compiled(trace(lambda xp, x: {"rows": 2.0 * x, "more": x + x[0]}, rows))(rows)
    out["rows"][:] = 7.0
    assert rows.tolist() == [1.0, 1.0, 1.0]
    assert out["more"].tolist() == [2.0, 2.0, 2.0]


def test_a_pool_of_learners_is_traced_as_it_stands():
    """Two axes, leading ones left out, and functions that find their namespace by themselves."""
    pool, rng = HedgedSGD(copies=4), np.random.default_rng(0)
    state = pool.init(np.zeros(2))
    rows = len(pool.members(state))
    graph = trace(lambda xp, *args: pool.update(*args), state, np.ones(rows), np.ones((rows, 2)))
    step, other = compiled(graph), state
    for _ in range(50):
        x, noise = rng.normal(size=(8, 2)), 0.1 * rng.normal(size=8)
        error = (pool.members(state) - 1.0) @ x.T - noise
        losses, gradients = 0.5 * np.mean(error**2, axis=-1), error @ x / 8
        state = pool.update(state, losses, gradients)
        other = step(other, losses, gradients)
    for name, leaf in state.items():
        np.testing.assert_allclose(other[name], leaf, rtol=1e-7, atol=1e-12, err_msg=name)
