"""The code behind a cell, as a hash: an edited method is played again."""

from __future__ import annotations

from driftrate._digest import digest
from driftrate.race.contestants import Contestant

# The list of all contestants would make each of them depend on all others.
_ASIDE = ("driftrate.race.contestants", "driftrate.race.code")


def code_of(contestant: Contestant) -> str:
    """Return a hash of the code that plays a contestant's cells.

    It covers the loop and the contestant with all that they import, and the versions of the
    packages that the contestant needs; what only plans, stores or shows a race does not count.

    Returns:
        64 hexadecimal digits, the same in every process that runs the same code.

    Example:
        >>> from driftrate.race import contestants
        >>> code_of(contestants()["HedgedSGD"]) == code_of(contestants()["kalman forgetting"])
        False
    """
    modules = ("driftrate.race.play", contestant.build.__module__)
    return digest(modules, (pip for _, pip in contestant.packages), aside=_ASIDE)
