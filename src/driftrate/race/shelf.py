"""Older races of a folder: each keeps its page, and the newest page links to them.

`index.html` and the tables beside it are of the newest race. Before another race writes them, what
is there moves to `races/ID/`; a race that is run again comes back from there. Every step can be
interrupted: then the same command goes on from it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime
from hashlib import sha256
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from driftrate._html import write_whole
from driftrate.race.cell import Reading, canonical
from driftrate.race.settings import Race

PAGE = "index.html"
_TABLES = ("leaderboard.json", "leaderboard.parquet", "reading.json")
_FOLDER = "races"
# What a page says of its race, whose name becomes a folder, and where it speaks of others.
_MARK = re.compile(r'<h1 data-race="([A-Za-z0-9-]{1,41})" data-title="([^"]*)">')
_OTHERS = re.compile(r"<!--races-->.*?<!--/races-->", re.DOTALL)
# They say how a race is played, not what.
_HOW = ("jobs", "engine", "scheduler", "limit")


class Shelved(NamedTuple):
    """An older race: its folder, its title and when its page was written."""

    name: str
    title: str
    written: datetime


def name_of(settings: Race) -> str:
    """Return the name of a race: that of its first stream and a hash of what it is.

    Example:
        >>> name_of(Race(["data/elec2.parquet"], target="y"))[:6]
        'elec2-'
        >>> name_of(Race(["a.csv"], jobs=1)) == name_of(Race(["a.csv"], jobs=2))
        True
    """
    what = {key: value for key, value in asdict(settings).items() if key not in _HOW}
    what |= {key: list(what[key]) for key in ("streams", "methods")}
    first = Path(next(iter(settings.streams), settings.suite or "texts")).stem
    plain = re.sub(r"[^A-Za-z0-9]+", "-", first).strip("-")[:32]
    return f"{plain}-{sha256(canonical(what).encode()).hexdigest()[:8]}"


def title_of(settings: Race) -> str:
    """Return what a race is, on one line.

    Example:
        >>> title_of(Race(["data/elec2.parquet"], target="y", batch=8, delay=24, grid=False))
        'elec2.parquet, batch 8, delay 24, defaults only'
    """
    streams = [Path(one).name for one in settings.streams]
    parts = [*streams[:3], *([f"{len(streams) - 3} more"] if len(streams) > 3 else [])]
    plain = {one.name: one.default for one in fields(Race)}
    told = (*("suite", "texts"), *(one.name for one in fields(Reading)), "seeds")
    values = {key: getattr(settings, key) for key in told if key != "target"}
    parts += [f"{key} {value}" for key, value in values.items() if value != plain[key]]
    methods = list(settings.methods)
    parts += [f"{len(methods)} methods" if len(methods) > 3 else "/".join(methods)] * bool(methods)
    return ", ".join([*parts, *["defaults only"] * (not settings.grid)])


def mark(settings: Race) -> str:
    """Return the attributes of a page's title that tell which race it is."""
    return f' data-race="{name_of(settings)}" data-title="{escape(title_of(settings))}"'


def put_aside(out: Path, settings: Race) -> list[Shelved]:
    """Make room for a race: put the page of another aside, and return all that lie there.

    Args:
        out: The folder of the races.
        settings: The race whose page is to be written next.
    """
    mine, shelf = name_of(settings), out / _FOLDER
    there = _read(out / PAGE)
    if there is not None and there.name != mine and not (shelf / there.name).exists():
        part = shelf / f".{there.name}.{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for table in _TABLES:
            if (out / table).exists():
                shutil.copy2(out / table, part / table)
        text = (out / PAGE).read_text(encoding="utf-8", errors="replace")
        back = f'<p class="note races"><a href="../../{PAGE}">The newest race</a></p>'
        write_whole(part / PAGE, _OTHERS.sub(lambda _: back, text))
        os.utime(part / PAGE, (there.written.timestamp(),) * 2)
        with suppress(OSError):  # another process was first
            part.replace(shelf / there.name)
        shutil.rmtree(part, ignore_errors=True)
    # What is run again is the newest, and there only.
    shutil.rmtree(shelf / mine, ignore_errors=True)
    pages = ((page, _read(page)) for page in shelf.glob(f"[!.]*/{PAGE}"))
    found = [one._replace(name=page.parent.name) for page, one in pages if one is not None]
    return sorted(found, key=lambda one: one.written, reverse=True)


def _read(page: Path) -> Shelved | None:
    """Return what race a page is of; None if there is none."""
    if not page.is_file():
        return None
    written = datetime.fromtimestamp(page.stat().st_mtime, UTC)
    found = _MARK.search(page.read_text(encoding="utf-8", errors="replace"))
    if found is None:  # of a version that did not say so
        return Shelved(f"unnamed-{written:%Y%m%d-%H%M%S}", "an older race", written)
    return Shelved(found[1], unescape(found[2]), written)


def links(shelved: Sequence[Shelved]) -> str:
    """Return the index of older races, for the page of the newest."""
    if not shelved:
        return "<!--races--><!--/races-->"
    lines = "".join(
        f'<li><a href="{_FOLDER}/{quote(os.fsencode(one.name))}/{PAGE}">{escape(one.title)}</a> '
        f'<span class="tag">{one.written:%Y-%m-%d %H:%M} UTC</span></li>'
        for one in shelved
    )
    head = f"{len(shelved)} older race{'s' * (len(shelved) > 1)} in this folder"
    inner = f"<details><summary>{head}</summary><ul>{lines}</ul></details>"
    return f'<!--races--><div class="races">{inner}</div><!--/races-->'
