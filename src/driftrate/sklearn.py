"""scikit-learn: linear models for streams, whose memory follows the shift.

Example:
    >>> import numpy as np
    >>> from driftrate.sklearn import ShiftRegressor
    >>> rng = np.random.default_rng(0)
    >>> model = ShiftRegressor()
    >>> for step in range(400):
    ...     x = rng.standard_normal((32, 2))
    ...     target = [1.0, 2.0] if step < 200 else [-3.0, 2.0]  # it jumps
    ...     _ = model.partial_fit(x, x @ target + 0.5)
    >>> model.coef_.round(2).tolist(), model.intercept_.round(2).tolist()
    ([-3.0, 2.0], [0.5])
"""

from typing import TYPE_CHECKING, Any

from driftrate.errors import needs, renamed

with needs("driftrate.sklearn", "sklearn"):
    from driftrate.adapters.sklearn.estimators import ShiftClassifier, ShiftRegressor

__all__ = ["ShiftClassifier", "ShiftRegressor"]

_GONE = {"ShiftSGDClassifier": "ShiftClassifier", "ShiftSGDRegressor": "ShiftRegressor"}

if not TYPE_CHECKING:  # a type checker would let every misspelt name pass

    def __getattr__(name: str) -> Any:
        if name in _GONE:
            raise renamed(f"driftrate.sklearn.{name}", f"driftrate.sklearn.{_GONE[name]}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
