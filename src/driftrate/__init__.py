"""Learning rates that follow the shift in the data.

Example:
    >>> import driftrate as dr
    >>> rate = dr.LinearRate(dim=100, noise_std=2.0, max_rate=0.1)
    >>> eta, state = rate.update(rate.init(), dr.Signal(batch_size=100, shift=0.5))
    >>> eta
    0.1
"""

import os
import sys

# `python -m driftrate` looks for modules in the working folder first, and what lies there is data.
# Before any other import, even that of __future__.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and os.getcwd() in sys.path[:1]:
    del sys.path[0]

from importlib import import_module
from typing import TYPE_CHECKING, Any

from driftrate import errors, estimate, schedules
from driftrate._version import __version__
from driftrate.estimate import Estimated
from driftrate.schedules import *  # noqa: F403

if TYPE_CHECKING:
    from driftrate import data, learners, simulation, streams, theory
    from driftrate.learners import HedgedFilter, HedgedSGD
    from driftrate.simulation import Run, simulate

__all__ = [
    "Estimated",
    "HedgedFilter",
    "HedgedSGD",
    "Run",
    "__version__",
    "data",
    "errors",
    "estimate",
    "learners",
    "schedules",
    "simulate",
    "simulation",
    "streams",
    "theory",
]
__all__ += schedules.__all__

# Heavier rooms are opened when they are first asked for, so that `import driftrate` stays light.
_ROOMS = ("data", "learners", "simulation", "streams", "theory")
_NAMES = {
    "HedgedFilter": "learners",
    "HedgedSGD": "learners",
    "Run": "simulation",
    "simulate": "simulation",
}
_GONE = {
    "Estimator": "schedules.base.Estimator",
    "HedgedRate": "HedgedSGD",
    "State": "schedules.base.State",
    "Wrapper": "schedules.wrappers.Wrapper",
    "register": "schedules.base.register",
    "registry": "schedules.base.registry",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name in _ROOMS:
            return import_module(f"driftrate.{name}")
        if name in _NAMES:
            return getattr(import_module(f"driftrate.{_NAMES[name]}"), name)
        if name in _GONE:
            raise errors.renamed(f"driftrate.{name}", f"driftrate.{_GONE[name]}")
        raise AttributeError(f"module 'driftrate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
