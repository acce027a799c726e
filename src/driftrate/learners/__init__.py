"""Learners: the mixer, the pools that it mixes, and the projections of projected SGD."""

from typing import TYPE_CHECKING, Any

from driftrate.errors import renamed
from driftrate.learners.hedged_filter import HedgedFilter
from driftrate.learners.hedged_sgd import HedgedSGD
from driftrate.learners.mixer import Mixer
from driftrate.learners.projections import Ball, Box, Projection

__all__ = ["Ball", "Box", "HedgedFilter", "HedgedSGD", "Mixer", "Projection"]

if not TYPE_CHECKING:  # a type checker would let every misspelt name pass

    def __getattr__(name: str) -> Any:
        if name == "HedgedRate":
            raise renamed("HedgedRate", "HedgedSGD")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
