"""Who takes part in a race."""

from driftrate.race.contestants import (
    adaptive,
    bayesian,
    betting,
    by_row,
    descent,
    discounted,
    estimated,
    filters,
    hypergradient,
    matrices,
    measured,
    memories,
    online,
    parameter_free,
    plasticity,
    pools,
    pursuit,
    river_optimizers,
    tuners,
)
from driftrate.race.contestants.base import Contestant, Player, Setup

_ALL = (
    *(descent, adaptive, matrices, tuners, hypergradient, parameter_free, plasticity),
    *(online, betting, river_optimizers, by_row, filters, bayesian),
    *(pools, memories, discounted, estimated, measured, pursuit),
)


def contestants() -> dict[str, Contestant]:
    """Return all contestants by name, installed or not.

    Example:
        >>> contestants()["adam"].settings("linear")[:2]
        ['default', '{"lr":0.0001}']
    """
    return {entry.name: entry for family in _ALL for entry in family.CONTESTANTS}


__all__ = ["Contestant", "Player", "Setup", "contestants"]
