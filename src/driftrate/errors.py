"""Every error that driftrate raises: one line that says what was wrong and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from opcode import opmap


class DriftrateError(Exception):
    """The base of all errors of this library."""


class ConfigError(DriftrateError, ValueError):
    """A constant of a schedule, stream or learner is of the wrong type or out of range."""


class SignalError(DriftrateError, ValueError):
    """A field of a `Signal` is of the wrong type or out of range."""


class MissingSignal(SignalError):
    """A schedule was not given a field of `Signal` that it needs."""


class StateError(DriftrateError, ValueError):
    """A saved state is damaged, of an unknown version, or of another schedule."""


class MissingDependency(DriftrateError, ImportError):
    """An optional package is needed and not installed."""


@contextmanager
def needs(what: str, extra: str, also: str = "") -> Iterator[None]:
    """Say of a failed import inside what needs it, and the extra that brings it.

    Example:
        >>> with needs("this", "river"):
        ...     import nothing
        Traceback (most recent call last):
        driftrate.errors.MissingDependency: this needs nothing: pip install 'driftrate[river]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        text = f"{what} needs {package}: pip install 'driftrate[{extra}]'{also}"
        raise MissingDependency(text) from error


class DataError(DriftrateError, OSError):
    """A file cannot be read or written, or does not hold what it should."""


def renamed(old: str, new: str) -> Exception:
    """Return what a module's `__getattr__` raises for a name that is gone.

    `from module import old` drops an `AttributeError` with what it says: there it is an
    `ImportError`.

    Example:
        >>> renamed("HedgedRate", "HedgedSGD")
        AttributeError('HedgedRate is now HedgedSGD')
    """
    asks = sys._getframe(2)
    # A package is asked by the import system first, any other module by the statement itself.
    imports = asks.f_code.co_code[asks.f_lasti] == opmap["IMPORT_FROM"]
    imports |= asks.f_globals.get("__name__") == "importlib._bootstrap"
    kind = ImportError if imports else AttributeError
    return kind(f"{old} is now {new}")
