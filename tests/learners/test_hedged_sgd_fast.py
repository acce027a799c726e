"""The fast twin of the pool takes the steps of the readable one."""

import numpy as np
import pytest

from driftrate.learners import HedgedSGD
from driftrate.learners.hedged_sgd_fast import FastHedgedSGD


@pytest.mark.parametrize("copies", [3, 10])
@pytest.mark.parametrize("flat", [False, True])
def test_the_twins_agree(copies, flat):
    """Jumps, outliers, batches that are not finite, copies that diverge, a loss without bend."""
    rng = np.random.default_rng(copies)
    rule = HedgedSGD(copies=copies)
    slow = rule.init(np.zeros(5))
    fast = FastHedgedSGD(rule, rule.init(np.zeros(5)))
    restarts = 0
    for step in range(600):
        points = rule.members(slow)
        np.testing.assert_allclose(fast.points, points, rtol=1e-9, atol=1e-11)
        x = rng.standard_normal((8, 5)) * (20.0 if 300 <= step < 310 else 1.0)
        y = x @ np.full(5, 1.0 if step % 200 < 100 else -3.0) + 0.3 * rng.standard_normal(8)
        if step in (50, 51, 52):
            y = y * (1e9 if step < 52 else np.nan)
        residual = points @ x.T - y
        slopes = np.sign(residual) if flat else residual
        each = (np.abs(residual) if flat else 0.5 * residual**2).mean(axis=-1)
        gradients = slopes @ x / 8
        if step in (100, 400):
            gradients[1] = each[2] = np.inf
        slow = rule.update(slow, each, gradients)
        fast.update(each, gradients)
        restarts += np.array_equal(slow["weights"][0], slow["mixture"])
        for name, value in fast.state.items():
            np.testing.assert_allclose(
                value, slow[name], rtol=1e-8, atol=1e-11, err_msg=f"{name} at {step}"
            )
        fast = FastHedgedSGD(rule, slow)  # differences of rounding must not add up
    assert restarts > 1
    assert set(fast.state) == set(slow)
