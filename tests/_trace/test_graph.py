"""The graph of a traced function: shared, folded, and nothing in it that nobody reads."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from driftrate._trace import OPS, trace


class Pair(NamedTuple):
    left: float | None
    right: float | None


def ops(function, *templates):
    return [node.op for node in trace(function, *templates).ops()]


def test_equal_expressions_are_one_node():
    assert ops(lambda xp, x, y: (x * y + 1.0) / (1.0 + y * x), 0.5, 0.5) == ["mul", "add", "div"]


def test_what_nobody_reads_is_left_out():
    def function(xp, x):
        xp.exp(x)
        return xp.where(xp.asarray(True), x + 1.0, xp.log(x))

    assert ops(function, 0.5) == ["add"]


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda xp: 0.1 + 0.2 * xp.asarray(3.0), 0.1 + 0.2 * 3.0),
        (lambda xp: xp.log1p(xp.asarray(1e-3)), math.log1p(1e-3)),
        (lambda xp: xp.asarray(7) // 2 % 2, 1),
        (lambda xp: xp.where(xp.asarray(2.0) < 1.0, 3.0, 4), 4.0),
        (lambda xp: xp.sum(xp.arange(5.0)), 10.0),
    ],
)
def test_constants_are_folded_as_python_does(function, value):
    graph = trace(lambda xp, _: function(xp), 0.0)
    assert graph.output.op == "const"
    assert (graph.output.value, type(graph.output.value)) == (value, type(value))


def test_what_python_cannot_divide_is_left_to_who_runs_it():
    assert ops(lambda xp, x: xp.asarray(1.0) / (0.0 * x), 0.5) == ["div"]


@pytest.mark.parametrize(
    "function",
    [
        lambda xp, x: 1.0 * x,
        lambda xp, x: x / 1.0 + 0.0,
        lambda xp, x: 0.0 * x + x - 0.0,
        lambda xp, x: x**1.0,
        lambda xp, x: xp.where(x > 0.0, x, x),
        lambda xp, x: xp.where(~(x > 0.0) | (x > -math.inf) | True, x, 1.0),
        lambda xp, x: xp.astype(x, xp.float64),
    ],
)
def test_what_does_nothing_is_left_out(function):
    graph = trace(function, 0.5)
    assert graph.output is graph.inputs[0]


def test_powers_are_what_arrays_make_of_them():
    assert ops(lambda xp, x: x**2, 0.5) == ["mul"]
    assert ops(lambda xp, x: x**0.5, 0.5) == ["sqrt"]
    assert ops(lambda xp, x: x**3, 0.5) == ["pow"]


def test_choices_by_the_same_condition_are_one():
    def function(xp, x, y):
        return xp.where(x > 0.0, xp.where(x > 0.0, y, 1.0), xp.where(~(x > 0.0), x, y))

    graph = trace(function, 0.5, 0.5)
    assert [node.op for node in graph.ops()] == ["lt", "where"]
    assert graph.output.args[1:] == graph.inputs[::-1]


def test_kinds_follow_the_array_api():
    def function(xp, count, x):
        return [count + 1, count > 1, x * 2, xp.astype(count, x.dtype), xp.where(x > 0.0, 1, x)]

    kinds = [node.kind for node in trace(function, 3, 0.5).output]
    assert kinds == ["int", "bool", "float", "float", "float"]


def test_inputs_know_their_places_and_names_differ():
    def function(xp, state, pair):
        return {"all": state["inner"]["rows"] * pair.right, "left": pair.left}

    graph = trace(function, {"inner": {"rows": np.zeros((2, 3))}}, Pair(None, 1.0))
    assert graph.inputs[0]["inner"]["rows"][1, 2].value == (0, "inner", "rows", 5)
    assert graph.inputs[1].right.value == (1, "right")
    assert graph.output["left"] is None
    assert [path for path, _ in graph.leaves(graph.output)] == [("all",)]
    assert len({node.name for node in graph.nodes}) == len(graph.nodes) == 13


def test_each_operation_comes_after_what_it_reads_and_is_known():
    graph = trace(lambda xp, x: xp.cumulative_sum(xp.exp(x) / (1.0 + x)), np.zeros(4))
    seen = set()
    for node in graph.nodes:
        assert seen.issuperset(node.args)
        assert node.op in OPS or not node.args
        seen.add(node)


@pytest.mark.parametrize("function", [bool, float, int, lambda x: 1.0 if x > 0.0 else 0.0])
def test_branches_on_values_are_refused(function):
    with pytest.raises(TypeError, match=r"no value.*xp\.where"):
        trace(lambda xp, x: function(x), 0.5)
