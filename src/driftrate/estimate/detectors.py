"""Detectors that say when a stream of numbers has shifted."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from numbers import Integral, Real
from typing import Any, NamedTuple, Protocol, runtime_checkable

from driftrate.errors import ConfigError, MissingDependency, SignalError

# The detectors square what they are given.
_LARGEST = 1e100


@runtime_checkable
class Detector(Protocol):
    """Anything that reads one number per step and says whether the stream has shifted."""

    def update(self, value: float) -> bool:
        """Take one number, a loss or an error; return whether a shift was detected just now."""
        ...


class _Range(NamedTuple):
    low: float  # an int where the option must be one
    high: float = inf


_SHARE, _SIZE, _COUNT = _Range(0.0, 1.0), _Range(0.0), _Range(1)
_ADWIN = {"clock": _COUNT, "max_buckets": _COUNT, "min_window_length": _COUNT}
_SIDES = ("up", "down", "both")
# The class in river.drift, and what each of its options may be.
_KINDS: dict[str, tuple[str, dict[str, _Range | tuple[str, ...]]]] = {
    "adwin": ("ADWIN", {"delta": _SHARE, **_ADWIN, "grace_period": _Range(0)}),
    "page-hinkley": (
        "PageHinkley",
        {
            "min_instances": _COUNT,
            "delta": _SIZE,
            "threshold": _SIZE,
            "alpha": _SHARE,
            "mode": _SIDES,
        },
    ),
    "kswin": (
        "KSWIN",
        {"alpha": _SHARE, "window_size": _Range(2), "stat_size": _COUNT, "seed": _Range(0)},
    ),
}
# KSWIN draws a subsample at every step; without a seed no run could be repeated.
_DEFAULTS = {"kswin": {"window_size": 100, "stat_size": 30, "seed": 0}}
DETECTORS = tuple(_KINDS)
"""The names that `detector` knows: those of River's drift detectors, in small letters."""


def detector(name: str, **options: Any) -> Detector:
    """Return a shift detector by name.

    - `"adwin"`: a window that drops its older part when the means of two parts of it differ by
      more than a bound of confidence 1 - `delta`. Few false alarms; the first choice for losses.
    - `"page-hinkley"`: a cumulative sum of deviations from the mean, compared with a `threshold`
      in the unit of the values; `mode="up"` for rises alone.
    - `"kswin"`: a Kolmogorov-Smirnov test of the newest `stat_size` values against a subsample
      of the window; sees a change of shape without one of mean. It tests at level `alpha` at
      *every* step, so expect about one false alarm in 1/`alpha` steps.

    The detector keeps its state inside; pickle it to stop and resume.

    Args:
        name: `"adwin"`, `"page-hinkley"` or `"kswin"`.
        **options: The options of River's class of that name.

    Returns:
        A `Detector`: `update(value) -> bool`. A value that is not a finite number raises
        `SignalError` and leaves the detector as it was.

    Example:
        >>> alarm = detector("adwin")
        >>> [step for step in range(600) if alarm.update(float(step >= 300))]
        [319]

    Reference:
        Bifet and Gavaldà (2007), "Learning from time-changing data with adaptive windowing"; Page
        (1954), "Continuous inspection schemes"; Raab, Heusinger and Schleif (2020), "Reactive soft
        prototype computing for concept drift streams"; run by River, Montiel et al. (2021).
    """
    if name not in DETECTORS:
        names = ", ".join(map(repr, DETECTORS))
        raise ConfigError(f"detector must be one of {names}, got {name!r}")
    river, allowed = _KINDS[name]
    for option, value in options.items():
        _check(f"detector({name!r})", allowed, option, value)
    options = _DEFAULTS.get(name, {}) | options
    if name == "kswin" and 2 * options["stat_size"] > options["window_size"]:
        raise ConfigError(
            "detector('kswin'): window_size must be at least twice stat_size,"
            f" got {options['window_size']} and {options['stat_size']}"
        )
    try:
        from river import drift
    except ImportError as error:
        need = f"detector({name!r}) needs River: pip install 'driftrate[river]'"
        raise MissingDependency(need) from error
    return _RiverDetector(name, getattr(drift, river)(**options))


@dataclass
class _RiverDetector:
    """A detector of River that follows the protocol."""

    name: str
    inner: Any = field(repr=False)

    def update(self, value: float) -> bool:
        if isinstance(value, bool) or not isinstance(value, Real) or not abs(value) <= _LARGEST:
            raise SignalError(
                f"detector({self.name!r}): the value must be a finite number of at most"
                f" {_LARGEST:g} in size, got {value!r}"
            )
        self.inner.update(float(value))
        return bool(self.inner.drift_detected)


def _check(where: str, options: dict[str, Any], option: str, value: Any) -> None:
    if option not in options:
        raise ConfigError(f"{where}: options are {', '.join(options)}, got {option}={value!r}")
    allowed = options[option]
    if not isinstance(allowed, _Range):
        if value not in allowed:
            raise ConfigError(f"{where}: {option} must be one of {allowed}, got {value!r}")
        return
    low, high = allowed
    whole = isinstance(low, int)
    fits = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not fits or not low <= float(value) <= high or float(value) == inf:
        bound = f"in [{low:g}, {high:g}]" if high < inf else f">= {low:g}"
        kind = "an integer" if whole else "a finite number"
        raise ConfigError(f"{where}: {option} must be {kind} {bound}, got {value!r}")
