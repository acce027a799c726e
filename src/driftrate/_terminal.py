"""What is printed: names and messages of data and packages move no cursor and change no colour."""

from __future__ import annotations

import re
from typing import TextIO

# Control codes, breaks of lines, marks that turn the direction, and bytes that are no text.
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    r"""Return a text as one line that a terminal shows and does not obey.

    Example:
        >>> printable("price \x1b[31m€"), printable("a\nb")
        ('price \\x1b[31m€', 'a\\nb')
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def tell(*lines: object, file: TextIO | None = None) -> None:
    """Print lines that may hold names and messages of others; long ones are not broken."""
    print(*map(printable, lines), sep="\n", file=file, flush=True)
