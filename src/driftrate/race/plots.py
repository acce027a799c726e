"""Pictures of a race as SVG, small enough for twenty streams on one page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Place = Callable[[Floats, Floats], tuple[Floats, Floats]]
# Units of the picture: whole ones are fine enough for a path, and short to write.
_WIDTH, _HEIGHT = 840, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 14, 52, 56
_INNER = (_WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM)
_POINTS = 120


@dataclass(frozen=True)
class Line:
    """A curve over steps, in the middle of its band.

    Lines of a `group` are highlighted together; a line of the crowd has no colour, and a dashed one
    is a reference and not a contestant at its default.
    """

    group: int
    label: str
    colour: str | None
    steps: Sequence[int]
    low: Floats
    middle: Floats
    high: Floats
    dashed: bool


def line(
    group: int, label: str, colour: str | None, steps: Sequence[int], runs: Floats, dashed: bool
) -> Line:
    """Return the median of runs (seeds, steps) with a band between their quartiles."""
    low, middle, high = np.quantile(runs, [0.25, 0.5, 0.75], axis=0)
    return Line(group, label, colour, steps, low, middle, high, dashed)


def panel(title: str, lines: Sequence[Line], *, log: bool = False, settle: float = 0.02) -> str:
    """Return a picture of curves over steps.

    The axis spans the coloured curves, so that one that diverges does not flatten the others; nor
    does the share of steps at the start that the curves take to `settle`. Values on a logarithmic
    axis are positive.
    """
    shown = [one for one in lines if one.colour] or list(lines)
    last = max(one.steps[-1] for one in lines)
    low, high = _span(shown, settle * last, log)
    width, height = _INNER
    scale_x, scale_y = width / last, height / (high - low)

    def place(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
        heights = np.log10(np.maximum(values, 1e-300)) if log else values
        # Far outside is outside: huge numbers need not be written out.
        inside = np.clip((heights - low) * scale_y, -_HEIGHT, 2 * _HEIGHT)
        return _LEFT + steps * scale_x, _HEIGHT - _BOTTOM - inside

    parts = [f'<text x="{_LEFT}" y="26" class="t">{escape(title)}</text>']
    parts += [_tick_y(value, low, scale_y, log) for value in _ticks(low, high, log)]
    parts += [_tick_x(value, scale_x) for value in _ticks(0.0, float(last), False)]
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" class="n e">step</text>')
    drawn = sorted(lines, key=lambda one: one.colour is not None)
    curves = "".join(_curve(one, place) for one in drawn)
    box = (
        f'<svg x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}" '
        f'viewBox="{_LEFT} {_TOP} {width} {height}">{curves}</svg>'
    )
    return (
        f'<svg class="panel" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}{box}</svg>'
    )


def _span(lines: Sequence[Line], after: float, log: bool) -> tuple[float, float]:
    pieces = [edge[np.asarray(one.steps) >= after] for one in lines for edge in (one.low, one.high)]
    values = np.concatenate(pieces)
    values = values[np.isfinite(values) & ((values > 0) if log else True)]
    if not len(values):
        return 0.0, 1.0
    values = np.log10(values) if log else values
    low, high = float(values.min()), float(values.max())
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    return low - room, high + room


def _curve(one: Line, place: Place) -> str:
    keep = np.unique(np.linspace(0, len(one.steps) - 1, _POINTS).astype(int))
    steps = np.asarray(one.steps, float)[keep]
    path = _path(*place(steps, one.middle[keep]))
    style = f' style="--c:{one.colour}"' if one.colour else ""
    kind = ("" if one.colour is None else " k") + (" d" if one.dashed else "")
    band = ""
    if one.colour and np.any(one.low != one.high):
        there = _path(*place(steps, one.low[keep]))
        back = _path(*(edge[::-1] for edge in place(steps, one.high[keep])))
        band = f'<path class="b" d="{there}L{back[1:]}z"/>'
    return (
        f'<g data-m="{one.group}" class="c{kind}"{style}><title>{escape(one.label)}</title>'
        f'{band}<path d="{path}"/></g>'
    )


def _path(x: Floats, y: Floats) -> str:
    """Return an SVG path through points rounded to integers, each relative to the last."""
    fine = np.isfinite(y)
    points = np.stack([x[fine], y[fine]], axis=1).round().astype(int)
    if not len(points):
        return "M0 0"
    ways = np.diff(points, axis=0)
    return f"M{points[0][0]} {points[0][1]}" + "".join(f"l{dx} {dy}" for dx, dy in ways)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Return round numbers in a span; powers of ten, thinned out, on a logarithmic axis.

    Example:
        >>> _ticks(0.0, 1.0, False)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        >>> _ticks(-3.2, 0.5, True)
        [-3.0, -2.0, -1.0, 0.0]
    """
    if log and high - low >= 1.5:
        step = float(max(1, round((high - low) / 5)))
    elif log:
        powers = range(math.floor(low), math.ceil(high))
        marks = [math.log10(k) + power for power in powers for k in (1, 2, 5)]
        return [mark for mark in marks if low <= mark <= high]
    else:
        raw = (high - low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * k for k in (1, 2, 5, 10) if size * k >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + place) * step, 12) for place in range(count)]


def _number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        mantissa, power = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(power)}"
    return f"{value:,.10g}"


def _tick_y(value: float, low: float, scale: float, log: bool) -> str:
    y = round(_HEIGHT - _BOTTOM - (value - low) * scale)
    text = _number(float(f"{10 ** min(value, 308.0):.3g}") if log else value)
    return (
        f'<path class="g" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>'
        f'<text x="{_LEFT - 10}" y="{y + 8}" class="n e">{text}</text>'
    )


def _tick_x(value: float, scale: float) -> str:
    x = round(_LEFT + value * scale)
    edge = x > _WIDTH - _RIGHT - 20  # half of a number would be cut off
    kind = "n e" if edge else "n m"
    place = _WIDTH if edge else x
    return f'<text x="{place}" y="{_HEIGHT - _BOTTOM + 28}" class="{kind}">{_number(value)}</text>'
