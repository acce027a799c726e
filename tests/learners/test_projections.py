"""Projections are nearest points; the ledger adds up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from driftrate.errors import ConfigError
from driftrate.learners import Ball, Box
from driftrate.simulation.ledger import Ledger

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


@given(steps=st.integers(1, 30), every=st.integers(1, 35))
def test_the_ledger_keeps_and_adds(steps, every):
    ledger = Ledger(steps, every, np.zeros, (2,))
    values = np.random.default_rng(0).standard_normal((steps, 2))
    for row in values:
        ledger.add({"value": row, "one": 1.0}, {"sum": row})
    kept = [t for t in range(1, steps + 1) if t % every == 0 or t == steps]
    assert ledger.kept == kept
    np.testing.assert_array_equal(ledger.column("value"), values[np.array(kept) - 1])
    np.testing.assert_allclose(ledger.column("sum"), np.cumsum(values, 0)[np.array(kept) - 1])
    assert ledger.column("one").shape == (len(kept), 2)
    assert set(ledger.names) == {"value", "one", "sum"}
