"""Learners: projections of projected SGD, the pool of rates, and the ledger of regret."""

from driftrate.learners.hedged import HedgedRate
from driftrate.learners.ledger import Ledger
from driftrate.learners.projections import Ball, Box, Projection

__all__ = ["Ball", "Box", "HedgedRate", "Ledger", "Projection"]
