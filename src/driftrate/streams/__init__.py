"""Nature: paths of the target, and the streams of batches that follow them."""

from driftrate.streams.base import Stream
from driftrate.streams.covariance import Covariance, Diagonal, Identity, LowRank
from driftrate.streams.linear import LinearStream
from driftrate.streams.logistic import LogisticStream
from driftrate.streams.nature import FixedPath, JumpWhenSettled, LazyPath, Nature, Runaway
from driftrate.streams.paths import (
    bursty,
    concatenate,
    random_walk,
    shifts,
    smooth,
    spiral,
    spiral_row,
    standstill,
    warmup_spiral,
)
from driftrate.streams.poisson import PoissonStream
from driftrate.streams.target import Standing, Target

__all__ = [
    "Covariance",
    "Diagonal",
    "FixedPath",
    "Identity",
    "JumpWhenSettled",
    "LazyPath",
    "LinearStream",
    "LogisticStream",
    "LowRank",
    "Nature",
    "PoissonStream",
    "Runaway",
    "Standing",
    "Stream",
    "Target",
    "bursty",
    "concatenate",
    "random_walk",
    "shifts",
    "smooth",
    "spiral",
    "spiral_row",
    "standstill",
    "warmup_spiral",
]
