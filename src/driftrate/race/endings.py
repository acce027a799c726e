"""What an error says of a cell: the method went to infinity, it failed, or it is not to blame."""

from __future__ import annotations

import re
from signal import Signals

from driftrate.errors import MissingDependency
from driftrate.race.cell import Status

_INFINITE = re.compile(
    r"\b(infs?|nans?|infinit\w*|(not|non)[- ]?finite|overflow\w*)\b|did not converge", re.IGNORECASE
)
# What others do to a process, and the system where memory runs out; a crash of its own is not here.
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGPWR")


def ending(error: BaseException) -> Status:
    """Return how a cell ended whose method raised this at a step.

    A file that is gone, a package that is missing and memory that ran out are nobody's fault:
    `not played`. A method that refuses numbers that are not finite, or overflows, made them itself,
    since every stream is finite: `diverged`. Anything else is `failed`.

    Example:
        >>> ending(MemoryError()), ending(OverflowError("math range error")), ending(KeyError("w"))
        ('not played', 'diverged', 'failed')
        >>> ending(ValueError("array must not contain infs or NaNs"))
        'diverged'
    """
    if isinstance(error, OSError | MemoryError | MissingDependency) or _out_of_memory(error):
        return "not played"
    if isinstance(error, OverflowError | FloatingPointError) or _INFINITE.search(str(error)):
        return "diverged"
    return "failed"


def _out_of_memory(error: BaseException) -> bool:
    # torch's own: on CUDA a class of its own, on the CPU a RuntimeError.
    name = type(error).__name__
    return name == "OutOfMemoryError" or "allocate memory" in str(error)


def killed(code: int) -> Status:
    """Return how a cell ended whose process ended with this code.

    Example:
        >>> killed(-9), killed(-6), killed(1)
        ('not played', 'failed', 'failed')
    """
    outside = code < 0 and Signals(-code).name in _FROM_OUTSIDE
    return "not played" if outside else "failed"
