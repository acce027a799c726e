"""`python -m driftrate.demo`: with NumPy alone, in any terminal."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from driftrate.demo.chart import ASCII, BLOCKS, Glyphs
from driftrate.demo.chase import STEPS, Moment, chase
from driftrate.demo.picture import Looks, draw

SECONDS = 6.0  # that the picture takes to grow, where the machine keeps up
_FRAMES = 160
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, no cursor
_HOME, _REST, _LINE = "\x1b[H", "\x1b[J", "\x1b[K\n"


def main() -> int:
    """Play the chase; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m driftrate.demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="another target, other batches")
    parser.add_argument("--fast", action="store_true", help="show the last picture at once")
    told = parser.parse_args()
    if told.seed < 0:
        parser.error(f"--seed must be 0 or more, got {told.seed}")
    out, seen = sys.stdout, list[Moment]()
    live = out.isatty() and os.environ.get("TERM") != "dumb" and not told.fast
    code = 0
    try:
        if live:
            with _another_screen(out):
                _play(chase(told.seed), seen, out)
        else:
            seen.extend(chase(told.seed))
    except KeyboardInterrupt:
        code = 130
    if seen:
        print("\n".join(draw(seen, _looks(out))), file=out)
    return code


def _play(moments: Iterator[Moment], seen: list[Moment], out: TextIO) -> None:
    """Show each step as it is taken, at a pace that the eye follows."""
    start, frame = time.monotonic(), 0
    for moment in moments:
        seen.append(moment)
        if len(seen) * _FRAMES // STEPS == frame:
            continue
        frame = len(seen) * _FRAMES // STEPS
        looks = _looks(out)  # the window may have been resized
        lines = draw(seen, looks)[: looks.height - 1]
        out.write(_HOME + "".join(line + _LINE for line in lines) + _REST)
        out.flush()
        time.sleep(max(start + SECONDS * frame / _FRAMES - time.monotonic(), 0.0))


@contextmanager
def _another_screen(out: TextIO) -> Iterator[None]:
    """Draw on the terminal's second screen, and give the first one back whatever happens."""
    if os.name == "nt":
        os.system("")  # makes the console of Windows obey escape sequences
    out.write(_ENTER)
    try:
        yield
    finally:
        out.write(_LEAVE)
        out.flush()


def _looks(out: TextIO) -> Looks:
    """Return what the terminal can show; where there is none, what a file should hold."""
    width, height = shutil.get_terminal_size()
    colour = out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return Looks(width, height, _glyphs(out.encoding), colour)


def _glyphs(encoding: str | None) -> Glyphs:
    """Return blocks where the output can hold them, else plain characters."""
    try:
        "".join(BLOCKS).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


if __name__ == "__main__":
    sys.exit(main())
