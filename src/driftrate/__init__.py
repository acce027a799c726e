"""Learning rates that follow the shift in the data.

Example:
    >>> import driftrate as dr
    >>> rate = dr.LinearRate(dim=100, noise_std=2.0, max_rate=0.1)
    >>> eta, state = rate.update(rate.init(), dr.Signal(batch_size=100, shift=0.5))
    >>> eta
    0.1
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from driftrate import errors, estimate, schedules
from driftrate._version import __version__
from driftrate.estimate import Estimated
from driftrate.schedules import *  # noqa: F403

# Heavier rooms are opened when they are first asked for, so that `import driftrate` stays light.
_ROOMS = ("learners", "simulation", "streams", "theory")
_NAMES = {"HedgedSGD": "learners", "Run": "simulation", "simulate": "simulation"}

__all__ = [  # noqa: PLE0604
    "Estimated",
    "__version__",
    "errors",
    "estimate",
    "schedules",
    *schedules.__all__,
    *_ROOMS,
    *_NAMES,
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"driftrate.{name}")
    if name in _NAMES:
        return getattr(import_module(f"driftrate.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'driftrate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
