"""Bad input is refused in one line that says what was wrong with the value."""

import numpy as np
import pytest

from driftrate import theory
from driftrate.errors import ConfigError

BOUND = {"batch_sizes": 1, "shifts": 0.0, "smoothness": 1.0, "noise_std": 1.0, "diameter": 1.0}


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: theory.apply_root(1.0, 1.0, [1.0]), "x must have at least 1 axes, got shape ()"),
        (
            lambda: theory.apply_root([1.0], -1.0, [1.0]),
            "scale must be finite numbers >= 0, got -1",
        ),
        (lambda: theory.no_shift(1.0, 0.0, 1.0, 1.0), "initial must be finite numbers > 0, got 0"),
        (lambda: theory.no_shift(1.0, [1.0], 1.0, 1.0), "initial must be one number, got shape"),
        (lambda: theory.no_shift("x", 1.0, 1.0, 1.0), "times must be numbers, got 'x'"),
        (lambda: theory.tail(1.0, 1.0, 1.0, 0.0), "b must be finite numbers > 0, got 0"),
        (
            lambda: theory.optimal_policy(np.nan, dim=1, noise_std=1.0, batch_density=1.0),
            "second must be finite numbers >= 0, got nan",
        ),
        (
            lambda: theory.optimal_policy(1.0, dim=0, noise_std=1.0, batch_density=1.0),
            "dim must be an integer >= 1, got 0",
        ),
        (lambda: theory.upper_weight(2.0, 1.0), "rates must be below 2/L = 2, got 2"),
        (lambda: theory.lower_weight(3.0, 1.0, 0.5), "rates must be at most 1/μ = 2, got 3"),
        (
            lambda: theory.lower_weight(0.1, 1.0, 2.0),
            "smoothness must be finite numbers >= 2, got 1",
        ),
        (
            lambda: theory.convex_upper_diameter([-0.1], **BOUND),
            "rates must be finite numbers > 0, got -0.1",
        ),
        (
            lambda: theory.moment_ode(
                [2.0],
                1.0,
                horizon=1.0,
                steps=1,
                rate=1.0,
                batch_density=1.0,
                velocity=0.0,
                noise_std=0.0,
            ),
            "initial_second must be at least ‖initial_mean‖² = 4.0",
        ),
    ],
)
def test_refused(call, line):
    with pytest.raises(ConfigError) as caught:
        call()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
