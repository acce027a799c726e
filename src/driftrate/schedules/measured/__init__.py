"""A rate that needs no constants: it measures signal and noise and follows them."""

from driftrate.schedules.measured.rate import MeasuredRate

__all__ = ["MeasuredRate"]
