"""River: models whose memory follows the shift, and an optimizer whose rate does.

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

    Nothing to choose, and nothing to scale:

    >>> model = driftrate.river.ShiftRegressor()
    >>> for step in range(200):
    ...     model.learn_one({"x": step % 7}, 3.0 * (step % 7) + step % 2)
    >>> low, high = model.predict_interval_one({"x": 5})
    >>> low < 15.5 < high
    True
"""

from driftrate.errors import needs

with needs("driftrate.river", "river"):
    from driftrate.adapters.river.attach import FollowedRate, ScheduledOptimizer, attach
    from driftrate.adapters.river.models import ConstantFeature, ShiftNotifier, with_intercept
    from driftrate.adapters.river.shift import ShiftClassifier, ShiftRegressor

__all__ = [
    "ConstantFeature",
    "FollowedRate",
    "ScheduledOptimizer",
    "ShiftClassifier",
    "ShiftNotifier",
    "ShiftRegressor",
    "attach",
    "with_intercept",
]
