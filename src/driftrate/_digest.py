"""A digest of the code behind a result, so that a stored one does not outlive the rule it shows."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import driftrate
from driftrate.race.cell import canonical
from driftrate.race.contestants import Contestant

_ROOT = Path(driftrate.__file__).parent
_PLAY = "driftrate.race.play"
# No result follows from the list of all contestants, from errors (a cell that raises is not kept)
# or from this file.
_ASIDE = {"driftrate.race.contestants", "driftrate.errors", "driftrate._digest"}


def digest(contestant: Contestant) -> str:
    """Return a hash of the code that plays a contestant's cells.

    It covers every module of this library that the race's loop or the contestant imports, directly
    or through others, and the versions of NumPy and of the packages that the contestant needs.
    Comments, docstrings and layout do not count, nor does what is imported for annotations alone or
    what only plans, stores or shows a race. Imports are read, not run: a contestant must import
    what it uses by name, not reach for a room that `driftrate` opens on demand.

    Args:
        contestant: The contestant.

    Returns:
        64 hexadecimal digits, the same in every process on the same code.

    Example:
        >>> from driftrate.race import contestants
        >>> digest(contestants()["HedgedSGD"]) == digest(contestants()["kalman forgetting"])
        False
    """
    packages = ("numpy", *(pip for _, pip in contestant.packages))
    return _digest(contestant.build.__module__, packages)


@cache
def _digest(module: str, packages: tuple[str, ...]) -> str:
    content = canonical(
        {
            "code": {name: _read(name).meaning for name in _closure(_PLAY, module)},
            "packages": {name: _version(name) for name in packages},
        }
    )
    return hashlib.sha256(content.encode()).hexdigest()


def _closure(*names: str) -> list[str]:
    """Return the modules and all that they import of this library."""
    found: set[str] = set()
    new = {name for name in names if _file(name)}
    while new:
        found |= new
        new = {one for name in new for one in _read(name).imports} - found - _ASIDE
    return sorted(found)


class _Module(NamedTuple):
    """What counts of a module: a hash of its code, and the modules of this library behind it."""

    meaning: str
    imports: frozenset[str]


@cache
def _read(module: str) -> _Module:
    file = _file(module)
    assert file is not None
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    for node in nodes:
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    meaning = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    return _Module(meaning, _imports(nodes, package=file.stem == "__init__"))


def _imports(nodes: Sequence[ast.AST], package: bool) -> frozenset[str]:
    """Return what a module imports of this library and uses, or offers if it is a package."""
    notes = [getattr(node, key, None) for node in nodes for key in ("annotation", "returns")]
    aside = {one for note in notes if note is not None for one in ast.walk(note)}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and node not in aside}
    found = set()
    for node in nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        above = node.module if isinstance(node, ast.ImportFrom) else None
        for alias in node.names:
            if package or (alias.asname or alias.name).partition(".")[0] in used:
                inner = f"{above}.{alias.name}" if above else alias.name
                found.add(inner if above is None or _file(inner) else above)
    return frozenset(filter(_file, found))


def _file(module: str) -> Path | None:
    first, *rest = module.split(".")
    if first != _ROOT.name:
        return None
    place = _ROOT.joinpath(*rest)
    files = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
