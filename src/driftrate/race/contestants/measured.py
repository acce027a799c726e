"""MeasuredRate as a user attaches it: one line in a torch loop."""

from __future__ import annotations

from typing import Any

from driftrate.race.contestants.base import Contestant, Player, Setup, grid

_TORCH = (("torch", "torch"),)
_CAPS = grid("max_rate", [0.1, 0.3, 1.0, 3.0])


def _sequence(setup: Setup, **options: Any) -> Player:
    from driftrate.race.contestants._attached import AttachedPlayer
    from driftrate.schedules import MeasuredRate

    return AttachedPlayer(setup, MeasuredRate(**options))


def _parts(setup: Setup, **options: Any) -> Player:
    from driftrate.race.contestants._attached import PartsPlayer
    from driftrate.schedules import MeasuredRate

    return PartsPlayer(setup, MeasuredRate(**options))


CONTESTANTS = (
    Contestant("MeasuredRate", "driftrate", _sequence, _CAPS, ours=True, packages=_TORCH),
    Contestant("MeasuredRate parts", "driftrate", _parts, _CAPS, ours=True, packages=_TORCH),
)
