"""Learners: projections of projected SGD and the pool of rates."""

from driftrate.learners.hedged_sgd import HedgedSGD
from driftrate.learners.projections import Ball, Box, Projection

__all__ = ["Ball", "Box", "HedgedSGD", "Projection"]
