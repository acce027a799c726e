"""The rates: pure rules, free of frameworks, one file per schedule."""

from driftrate.schedules.base import Estimator, Schedule, Signal, State, register, registry
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
from driftrate.schedules.measured import MeasuredRate
from driftrate.schedules.nonconvex import NonconvexRate
from driftrate.schedules.wrappers import Clip, KnownShifts, Warmup, Wrapper

__all__ = [
    "Clip",
    "ConstantRate",
    "ConvexRate",
    "CosineRestartRate",
    "Estimator",
    "InexactRate",
    "InverseSqrtRate",
    "InverseTimeRate",
    "KnownShifts",
    "LinearRate",
    "MeasuredRate",
    "NonconvexRate",
    "PathLengthRate",
    "RestartedRate",
    "Schedule",
    "Signal",
    "State",
    "Warmup",
    "Wrapper",
    "register",
    "registry",
]
