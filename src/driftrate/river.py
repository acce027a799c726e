"""River: an optimizer whose rate follows the shift, one sample at a time.

Example:
    >>> from river import linear_model, optim
    >>> import driftrate as dr
    >>> import driftrate.river
    >>> optimizer = driftrate.river.attach(optim.SGD(), dr.InverseTimeRate(0.25))
    >>> model = driftrate.river.with_intercept(linear_model.LinearRegression(optimizer))
    >>> for _ in range(20):
    ...     model.learn_one({"x": 1.0}, 3.0)
    >>> round(model.predict_one({"x": 1.0}), 6)
    3.0
"""

from driftrate.errors import needs

with needs("driftrate.river", "river"):
    from driftrate.adapters.river.attach import FollowedRate, ScheduledOptimizer, attach
    from driftrate.adapters.river.models import ConstantFeature, ShiftNotifier, with_intercept

__all__ = [
    "ConstantFeature",
    "FollowedRate",
    "ScheduledOptimizer",
    "ShiftNotifier",
    "attach",
    "with_intercept",
]
