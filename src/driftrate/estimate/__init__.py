"""Estimates of what a schedule needs: shift, noise, smoothness, diameter, scale; detectors."""

from driftrate.estimate.detectors import DETECTORS, Detector, detector
from driftrate.estimate.diameter import RunningDiameter
from driftrate.estimate.estimated import Estimated
from driftrate.estimate.noise import from_parts, variance_from_parts, variance_from_samples
from driftrate.estimate.robust import RobustScale
from driftrate.estimate.scale import RunningScale, Scale
from driftrate.estimate.shift import DebiasedShift, ShiftEMA
from driftrate.estimate.smoothness import (
    RunningSmoothness,
    linear_smoothness,
    logistic_smoothness,
    secant,
)
from driftrate.estimate.standard import Standardiser

__all__ = [
    "DETECTORS",
    "DebiasedShift",
    "Detector",
    "Estimated",
    "RobustScale",
    "RunningDiameter",
    "RunningScale",
    "RunningSmoothness",
    "Scale",
    "ShiftEMA",
    "Standardiser",
    "detector",
    "from_parts",
    "linear_smoothness",
    "logistic_smoothness",
    "secant",
    "variance_from_parts",
    "variance_from_samples",
]
