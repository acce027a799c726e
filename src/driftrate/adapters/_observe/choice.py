"""What attaching decides: the mode, the schedule's form, and what becomes of the optimizer's rate.

One rule in every framework:

- **A rate.** The schedule's rate is the learning rate. The optimizer's own `lr` only says how the
  rates of its groups compare.
- **A factor** (`relative=True`). The schedule's rate multiplies the optimizer's own `lr`.

Unless it is said, a schedule is a factor where it measures products of gradients, has no
`max_rate`, and the optimizer's step is not its rate times the gradient (anything but plain SGD);
else it is a rate.

`MeasuredRate()` takes the form `LongHorizonRate` where one step's optimum is not what serves: in
networks (parameters of more than one layer), and under any optimizer but plain SGD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Literal, NamedTuple

from driftrate.adapters._observe.told import TOLD, innermost, is_number
from driftrate.errors import ConfigError, MissingSignal
from driftrate.schedules.base import Schedule, Signal
from driftrate.schedules.wrappers import Wrapper

Mode = Literal["sequence", "parts", "accumulation", "ranks", "given"]
# What is measured in every mode, where the schedule reads it.
_ALWAYS = frozenset({"step_length", "grad_sq", "dim", "trail"})
_WEIGHTS = frozenset({"lead", "weights_sq", "reach"})  # the same, where a loop shows the weights
_PRODUCTS = frozenset({"cross", "spread", "trail", "lead"})
_FIELDS: dict[str, frozenset[str]] = {
    "sequence": _ALWAYS | {"cross", "spread"},
    "parts": _ALWAYS | {"parts", "cross", "spread"},
    "accumulation": _ALWAYS | {"parts", "cross", "spread"},
    "ranks": _ALWAYS | {"parts", "cross", "spread"},
    "given": frozenset(Signal._fields),
}


class Base(NamedTuple):
    """What is known of an optimizer's own rate."""

    plain: bool  # whether its step is its rate times the gradient
    rate: float | None  # None where it is hidden
    network: bool = False  # whether the parameters are more than one layer's


class Loop(NamedTuple):
    """What attaching settles."""

    schedule: Schedule  # in the form that reads what the loop gives
    mode: Mode | None  # where the signal comes from; None where nothing is compared
    relative: bool  # whether the schedule's rate is a factor on the optimizer's own


def settle(
    schedule: Schedule,
    base: Base,
    *,
    modes: Mapping[str, str],
    mode: str | None = None,
    default: str = "sequence",
    relative: bool | None = None,
    weights: bool = False,
) -> Loop:
    """Check and complete what a user asks of `attach`.

    Args:
        schedule: The schedule, not checked yet.
        base: What is known of the optimizer's own rate.
        modes: The modes that the framework has, each with how a loop uses it, for errors.
        mode: The mode asked for, or None.
        default: The mode of schedules that read products of gradients, where none is asked for.
        relative: Whether the rate is a factor; None to decide by the rule above.
        weights: Whether the framework shows the weights beside their gradients.
    """
    check_schedule(schedule)
    if mode is not None and mode not in modes:
        raise ConfigError(f"attach: mode must be one of {sorted(modes)}, got {mode!r}")
    needs = {*schedule.signals} - {*TOLD}
    if mode is None:
        quiet = "given" if "given" in modes else None
        mode = default if needs - _ALWAYS or needs & _PRODUCTS else quiet
    # The sequence's `cross` is of two batches, not of parts of one.
    gives = (_ALWAYS if mode in (None, "sequence") else _FIELDS[mode]) - _WEIGHTS
    shown = _WEIGHTS if weights else frozenset()
    long = shown if base.network or not base.plain else frozenset()
    formed = schedule.reading((*TOLD, *gives, *long))
    known = formed.optional.union(TOLD, _FIELDS[mode] if mode else _ALWAYS, shown)
    lacking = sorted({*formed.signals} - known)
    if lacking:
        able = [modes[one] for one in modes if {*lacking} <= _FIELDS[one] | shown]
        use = " or ".join(able) or "another schedule: this framework has no mode that can"
        raise MissingSignal(
            f'{schedule.name} needs {lacking}, which mode="{mode}" cannot give: use {use}'
        )
    if relative is None:
        relative = not _PRODUCTS.isdisjoint(formed.signals) and is_factor(formed, base.plain)
    elif not isinstance(relative, bool):
        raise ConfigError(f"attach: relative must be True, False or None, got {relative!r}")
    found: Any = mode
    return Loop(capped(formed) if relative else formed, found, relative)


def is_network(shapes: Iterable[tuple[int, ...]]) -> bool:
    """Return whether parameters of these shapes are of more than one layer.

    A layer's weights have two axes or more, one's biases and scales fewer. Layers multiply each
    other: the curvature differs by direction, and changes on the way.
    """
    return sum(len(shape) > 1 for shape in shapes) > 1


def check_schedule(schedule: object) -> None:
    """Refuse what is no schedule; a pool of learners has weights of its own."""
    if isinstance(schedule, Schedule):
        return
    hint = ""
    if hasattr(schedule, "mixture"):
        hint = ": it is a learner with weights of its own, for driftrate.sklearn and dr.simulate"
    raise ConfigError(f"attach: schedule must be a Schedule, got {schedule!r}{hint}")


def check_batch_size(batch_size: Any) -> None:
    """Refuse a batch size that is no positive finite number."""
    if batch_size is not None and not (is_number(batch_size) and 0 < float(batch_size) < inf):
        raise ConfigError(f"attach: batch_size must be a number > 0, got {batch_size!r}")


def is_factor(schedule: Schedule, plain: bool) -> bool:
    """Return whether a schedule that measures products is a factor, where nobody says."""
    inner = innermost(schedule)
    unbounded = getattr(inner, "max_rate", None) is None
    return getattr(inner, "relative", False) or (not plain and unbounded)


def capped(schedule: Schedule) -> Schedule:
    """Give the innermost schedule the largest factor 1, where it has no largest rate.

    `MeasuredRate` measures how much of it can be used: the optimizer's own rate may be too high.
    """
    record: Any = schedule
    if isinstance(schedule, Wrapper):
        record = replace(record, schedule=capped(schedule.schedule))
    elif hasattr(record, "relative") and getattr(record, "max_rate", None) is None:
        record = replace(record, relative=True)
    elif getattr(record, "max_rate", 0.0) is None:
        record = replace(record, max_rate=1.0)
    found: Schedule = record
    return found
