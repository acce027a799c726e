"""The ledger keeps what it is asked to, and adds up the rest."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from driftrate.simulation.ledger import Ledger


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


@given(steps=st.integers(1, 30), every=st.integers(1, 35), turn=st.integers(1, 35))
def test_many_steps_at_once_are_kept_as_one_by_one(steps, every, turn):
    values = np.random.default_rng(0).standard_normal((steps, 2))
    shared = np.arange(float(steps))[:, None]
    one, many = (Ledger(steps, every, np.zeros, (2,)) for _ in range(2))
    for row, number in zip(values, shared, strict=True):
        one.add({"value": row, "shared": number}, {"sum": row})
    for start in range(0, steps, turn):
        part = slice(start, start + turn)
        many.extend({"value": values[part], "shared": shared[part]}, {"sum": values[part]})
    assert one.kept == many.kept
    for name in ("value", "shared"):
        np.testing.assert_array_equal(one.column(name), many.column(name))
    np.testing.assert_allclose(one.column("sum"), many.column("sum"), atol=1e-12)
