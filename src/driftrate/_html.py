"""Pages as one file: readable without a network, on a phone and on paper."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from driftrate.errors import DataError

_STYLE = """
:root { color-scheme: light; --ink: #22272e; --soft: #5c6570; --line: #d9dde3; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; } h2 { margin: 2.5rem 0 .3rem; font-size: 1.25rem; }
p.lead { color: var(--soft); margin: .3rem 0 1rem; } a { color: #0a5c99; }
.badge { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; font-weight: 600;
  font-size: .85rem; white-space: nowrap; }
table { border-collapse: collapse; width: 100%; font-size: .84rem; line-height: 1.3; }
td { padding: .22rem .5rem; border-bottom: 1px solid var(--line); vertical-align: top; }
"""


def document(title: str, style: str, body: str) -> str:
    """Return a page with everything inside; `style` is what it adds to the common look."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title><style>{_STYLE}{style}</style></head><body>
{body}
</body></html>
"""


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    with unfinished(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Give a place to write to, of this process alone, that becomes `path` when it is done."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def writing(out: Path, kept: str) -> Iterator[None]:
    """Say in one line that a folder cannot be written, as on a full disk, and what is kept."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        said = os.strerror(error.errno) if error.errno else str(error)
        raise DataError(f"cannot write to {out}: {said}; run again to go on: {kept}") from error
