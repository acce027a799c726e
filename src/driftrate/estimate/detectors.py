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


class _Option(NamedTuple):
    low: float  # an int where the option must be one
    high: float


class _Kind(NamedTuple):
    river: str  # the class in river.drift
    options: dict[str, _Option | tuple[str, ...]]
    defaults: dict[str, Any]


_KINDS = {
    "adwin": _Kind(
        "ADWIN",
        {
            "delta": _Option(0.0, 1.0),
            "clock": _Option(1, inf),
            "max_buckets": _Option(1, inf),
            "min_window_length": _Option(1, inf),
            "grace_period": _Option(0, inf),
        },
        {},
    ),
    "page-hinkley": _Kind(
        "PageHinkley",
        {
            "min_instances": _Option(1, inf),
            "delta": _Option(0.0, inf),
            "threshold": _Option(0.0, inf),
            "alpha": _Option(0.0, 1.0),
            "mode": ("up", "down", "both"),
        },
        {},
    ),
    "kswin": _Kind(
        "KSWIN",
        {
            "alpha": _Option(0.0, 1.0),
            "window_size": _Option(2, inf),
            "stat_size": _Option(1, inf),
            "seed": _Option(0, inf),
        },
        # It draws a subsample at every step; without a seed no run could be repeated.
        {"window_size": 100, "stat_size": 30, "seed": 0},
    ),
}
DETECTORS = tuple(_KINDS)


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
        raise ConfigError(
            f"detector must be one of {', '.join(map(repr, DETECTORS))}, got {name!r}"
        )
    kind = _KINDS[name]
    for option, value in options.items():
        _check(name, kind, option, value)
    options = kind.defaults | options
    if name == "kswin" and 2 * options["stat_size"] > options["window_size"]:
        raise ConfigError(
            "detector('kswin'): window_size must be at least twice stat_size,"
            f" got {options['window_size']} and {options['stat_size']}"
        )
    try:
        from river import drift
    except ImportError as error:
        raise MissingDependency(
            f"detector({name!r}) needs River: pip install driftrate[river]"
        ) from error
    return _RiverDetector(name, getattr(drift, kind.river)(**options))


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


def _check(name: str, kind: _Kind, option: str, value: object) -> None:
    where = f"detector({name!r})"
    if option not in kind.options:
        raise ConfigError(f"{where}: options are {', '.join(kind.options)}, got {option}={value!r}")
    allowed = kind.options[option]
    if not isinstance(allowed, _Option):
        if value not in allowed:
            raise ConfigError(f"{where}: {option} must be one of {allowed}, got {value!r}")
        return
    low, high = allowed
    whole = isinstance(low, int)
    fits = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not fits or not low <= float(value) <= high or float(value) == inf:  # type: ignore[arg-type]
        bound = f"in [{low:g}, {high:g}]" if high < inf else f">= {low:g}"
        kind_of = "an integer" if whole else "a finite number"
        raise ConfigError(f"{where}: {option} must be {kind_of} {bound}, got {value!r}")
