"""The region that the weights have visited."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from driftrate.errors import ConfigError, SignalError
from driftrate.estimate import RunningDiameter


@settings(max_examples=60, deadline=None)
@given(arrays(float, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(-1e3, 1e3)))
def test_it_is_at_least_the_diameter_visited_and_at_most_twice_it(path):
    rule = RunningDiameter()
    state, last = rule.init(), 0.0
    for t, theta in enumerate(path):
        bound, state = rule.update(state, float(np.linalg.norm(theta - path[0])))
        visited = path[: t + 1]
        diameter = np.linalg.norm(visited[:, None] - visited[None], axis=-1).max()
        assert diameter * (1 - 1e-12) <= bound <= 2.0 * diameter * (1 + 1e-12)
        assert bound >= last
        last = bound


def test_the_floor_is_given_before_anything_has_moved():
    rule = RunningDiameter(factor=3.0, floor=1.0)
    first, state = rule.update(rule.init(), 0.0)
    later, _ = rule.update(state, 2.0)
    assert (first, later) == (1.0, 6.0)


@pytest.mark.parametrize(
    ("options", "field"), [({"factor": 0.0}, "factor"), ({"floor": -1.0}, "floor")]
)
def test_a_bad_constant_is_refused(options, field):
    with pytest.raises(ConfigError, match=rf"RunningDiameter\.{field}"):
        RunningDiameter(**options)


def test_a_bad_distance_is_refused():
    rule = RunningDiameter()
    with pytest.raises(SignalError, match="the distance must be a finite number >= 0, got nan"):
        rule.update(rule.init(), float("nan"))
    with pytest.raises(SignalError, match="distance"):
        rule.update(rule.init(like=np.zeros(2)), np.array([1.0, -1.0]))
