"""Projections are nearest points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from driftrate.errors import ConfigError
from driftrate.learners import Ball, Box

VECTORS = arrays.arrays(np.float64, (3,), elements=st.floats(-5, 5))


@pytest.mark.parametrize("project", [Ball(1.5), Box(-1.0, 0.5)])
@given(point=VECTORS, other=VECTORS)
def test_projections_are_nearest_points(project, point, other):
    near, rival = project(point), project(other)
    np.testing.assert_allclose(project(near), near, atol=1e-12)
    # The obtuse angle characterises the nearest point of a convex set.
    assert (point - near) @ (rival - near) <= 1e-9


def test_projections_on_torch_tensors():
    torch = pytest.importorskip("torch")
    weights = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert Ball(1.0)(weights).norm(dim=1).tolist() == [1.0, 0.0]
    assert Box(-1.0, 1.0)(weights).max() == 1.0


@pytest.mark.parametrize("make", [lambda: Ball(0.0), lambda: Ball(np.inf), lambda: Box(1.0, 0.0)])
def test_bad_sets_are_refused(make):
    with pytest.raises(ConfigError):
        make()
