"""scikit-learn: fast linear models for streams, whose rate follows the shift.

Example:
    >>> import numpy as np
    >>> from driftrate.sklearn import ShiftSGDRegressor
    >>> rng = np.random.default_rng(0)
    >>> model = ShiftSGDRegressor()
    >>> for step in range(400):
    ...     x = rng.standard_normal((32, 2))
    ...     target = [1.0, 2.0] if step < 200 else [-3.0, 2.0]  # it jumps
    ...     _ = model.partial_fit(x, x @ target + 0.5)
    >>> model.coef_.round(2).tolist(), model.intercept_.round(2).tolist()
    ([-3.0, 2.0], [0.5])
"""

from driftrate.errors import needs

with needs("driftrate.sklearn", "sklearn"):
    from driftrate.adapters.sklearn.estimators import ShiftSGDClassifier, ShiftSGDRegressor

__all__ = ["ShiftSGDClassifier", "ShiftSGDRegressor"]
