"""Vowpal Wabbit's learners that need no rate: coin betting and FreeGrad.

They step row by row. Vowpal Wabbit is under the 3-clause BSD licence.
"""

from __future__ import annotations

from typing import Any

from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Player, Setup, grid
from driftrate.race.contestants.online import Rabbit


def _coin(setup: Setup, **options: Any) -> Player:
    """Return `vw --coin`.

    Reference:
        Orabona and Tommasi (2017), "Training deep networks without learning rates through coin
        betting"; `ftrl_alpha` is the wealth at the start.
    """
    return Rabbit(setup, coin=True, **options)


def _freegrad(setup: Setup, restart: bool = True, **options: Any) -> Player:
    """Return `vw --freegrad --restart`.

    Reference:
        Mhammedi and Koolen (2020), "Lipschitz and comparator-norm adaptivity in online learning";
        `fepsilon` is the wealth at the start.
    """
    return Rabbit(setup, freegrad=True, restart=restart, **options)


def _bet(name: str, build: Any, settings: Any) -> Contestant:
    return Contestant(
        name,
        "parameter-free",
        build,
        settings,
        packages=(("vowpalwabbit", "vowpalwabbit"),),
        models=LINEAR_MODELS,
        by_row=True,
    )


_WEALTH = grid("ftrl_alpha", [0.4, 1.0, 16.0])
_RANGES = ({"restart": False}, *grid("fepsilon", [0.01, 0.1, 10.0]))
CONTESTANTS = (
    _bet("vowpal wabbit coin", _coin, _WEALTH),
    _bet("vowpal wabbit freegrad", _freegrad, _RANGES),
)
