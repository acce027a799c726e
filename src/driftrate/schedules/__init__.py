"""The rates: pure rules, free of frameworks, one file per schedule.

To write one of your own, see `driftrate.schedules.base`.
"""

from driftrate.schedules.base import Schedule, Signal
from driftrate.schedules.baselines import (
    ConstantRate,
    CosineRestartRate,
    InexactRate,
    InverseSqrtRate,
    InverseTimeRate,
    PathLengthRate,
    RestartedRate,
)
from driftrate.schedules.convex import ConvexRate
from driftrate.schedules.linear import LinearRate
from driftrate.schedules.long_horizon import LongHorizonRate
from driftrate.schedules.measured import MeasuredRate
from driftrate.schedules.nonconvex import NonconvexRate
from driftrate.schedules.wrappers import Clip, KnownShifts, Warmup

__all__ = [
    "Clip",
    "ConstantRate",
    "ConvexRate",
    "CosineRestartRate",
    "InexactRate",
    "InverseSqrtRate",
    "InverseTimeRate",
    "KnownShifts",
    "LinearRate",
    "LongHorizonRate",
    "MeasuredRate",
    "NonconvexRate",
    "PathLengthRate",
    "RestartedRate",
    "Schedule",
    "Signal",
    "Warmup",
]
