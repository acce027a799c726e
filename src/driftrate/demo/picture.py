"""The picture: the rate above, the distance below, and the words around them."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

from driftrate.demo.chart import Glyphs, area, columns
from driftrate.demo.chase import CONSTANTS, DRIFTS, JUMPS, STEPS, Moment

_RATE, _FAR, _TOLD, _OFF = "\x1b[38;5;208m", "\x1b[38;5;75m", "\x1b[1m", "\x1b[0m"
_AXIS = 6  # columns of the numbers and the axis
_WIDEST, _NARROWEST = 100, 24  # beyond these a picture is wide enough, or none
_TOPS = (0.4, 2.5)  # of the rate, and of the distance
_JUST = 15  # steps for which a jump is news


class Looks(NamedTuple):
    """What a terminal can show: its size, its characters, and whether it has colours."""

    width: int
    height: int
    glyphs: Glyphs
    colour: bool

    def paint(self, text: str, colour: str) -> str:
        """Return a text in a colour, or plain."""
        return f"{colour}{text}{_OFF}" if self.colour else text


def draw(moments: Sequence[Moment], looks: Looks) -> list[str]:
    """Draw the chase so far.

    Args:
        moments: The steps so far, one at least.
        looks: What the terminal can show.

    Returns:
        Lines of at most its width, one fewer than its height where there is room for that.
    """
    width = _width(looks) - 1  # some terminals wrap at the last column
    head = wrap("driftrate: a learning rate that follows the shift in your data", width)
    told = [line for text in _words(moments) for line in wrap(text, width)]
    # Titles of both panels, their floors, the marks and two empty lines are the rest.
    free = looks.height - 1 - len(head) - len(told) - 7
    high = min(max(free * 3 // 5, 2), 7)
    low = min(max(free - high, 2), 5)
    now = moments[-1]
    return [
        *(looks.paint(line, _TOLD) for line in head),
        "",
        *_panel("learning rate", [m.rate for m in moments], high, _TOPS[0], looks, _RATE),
        _marks(now.step, width - _AXIS, looks),
        *_panel("distance to target", [m.distance for m in moments], low, _TOPS[1], looks, _FAR),
        "",
        *told,
    ]


def _width(looks: Looks) -> int:
    return max(min(looks.width, _WIDEST), _NARROWEST)


def _panel(
    title: str, values: Sequence[float], height: int, top: float, looks: Looks, colour: str
) -> list[str]:
    """Return one chart: a title with the newest value, the rows, and the floor."""
    width, glyphs = _width(looks) - 1 - _AXIS, looks.glyphs
    rows = area(columns(values, width, STEPS), width, height, top, glyphs)
    lines = [" " * _AXIS + title + " " + looks.paint(f"{values[-1]:.2f}", colour)]
    for i, row in enumerate(rows):
        label = f"{top:4.1f} {glyphs.tick}" if i == 0 else f"     {glyphs.axis}"
        lines.append(label + looks.paint(row.rstrip(), colour))
    return [*lines, f" 0.0 {glyphs.corner}" + glyphs.floor * width]


def _marks(step: int, width: int, looks: Looks) -> str:
    """Return the line that says where the target jumped, and where it drifts, up to now."""
    cells = [" "] * width
    for drifting in range(DRIFTS, step + 1):
        cells[drifting * width // STEPS] = looks.glyphs.drift
    texts = [(jump, f"{looks.glyphs.jump} jump") for jump in JUMPS]
    for at, text in (*texts, (DRIFTS, f"{looks.glyphs.drift} drift ")):
        if step >= at:
            first = at * width // STEPS
            room = min(len(text), width - first)
            cells[first : first + room] = text[:room]
    return " " * _AXIS + "".join(cells).rstrip()


def _words(moments: Sequence[Moment]) -> list[str]:
    """Return what is to be said now: what the target does, or at the end what came of it."""
    now = moments[-1]
    if now.step == STEPS - 1:
        best = min(now.constants)
        chosen = CONSTANTS[now.constants.index(best)]
        return [
            f"MeasuredRate, told nothing: regret {now.regret:.0f}. The best of {len(CONSTANTS)}"
            f" constant rates, chosen afterwards ({chosen:g}): {best:.0f}.",
            "In your loop: driftrate.torch.attach(optimizer, dr.MeasuredRate())",
        ]
    if now.step >= DRIFTS:
        does = "now it drifts: the rate stays up as long as that lasts."
    elif any(0 <= now.step - jump < _JUST for jump in JUMPS):
        does = "it has just JUMPED, and nobody said so."
    else:
        does = "it rests: small steps average the noise away."
    return [f"step {now.step + 1} of {STEPS}: SGD chases a target in noise; {does}"]
