"""Learners: projections of projected SGD, and the ledger that adds up regret."""

from driftrate.learners.ledger import Ledger
from driftrate.learners.projections import Ball, Box, Projection

__all__ = ["Ball", "Box", "Ledger", "Projection"]
