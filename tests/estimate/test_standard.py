"""The running scale of columns: that of all rows before, and of nothing else."""

from __future__ import annotations

import numpy as np

from driftrate.estimate import Standardiser


def test_standardising_is_that_of_numpy():
    rng = np.random.default_rng(1)
    rows = rng.normal(3.0, 2.0, size=(300, 4)) * [1, 10, 1e-3, 0] + [0, 0, 1e3, 5]
    rows[rng.random(rows.shape) < 0.1] = np.nan
    standard = Standardiser(4)
    for start in range(0, 300, 7):
        standard.update(rows[start : start + 7])
    new = rng.normal([3, 30, 1e3, 5], size=(5, 4))
    mean, deviation = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
    deviation[3] = 1.0  # has not varied
    np.testing.assert_allclose(
        standard(new), np.clip((new - mean) / deviation, -5, 5), rtol=1e-6, atol=1e-9
    )
