"""A digest of the code behind a result, so that a stored one does not outlive the code."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import driftrate

_ROOT = Path(driftrate.__file__).parent
# No result follows from errors (what raises is not kept) or from this file.
_NEVER = frozenset({"driftrate.errors", "driftrate._digest"})


def digest(
    modules: Iterable[str], packages: Iterable[str] = (), *, aside: Iterable[str] = ()
) -> str:
    """Return a hash of the code behind a result.

    It covers the given modules, every module of this library that they import, directly or through
    others, and the versions of NumPy and the given packages. Comments, docstrings and layout do not
    count, nor does what is imported for annotations alone. Imports are read, not run: code must
    import what it uses by name, not reach for a room that `driftrate` opens on demand. The hash is
    the same in every process that runs the same code.

    Args:
        modules: Where to start; modules of other libraries are left out.
        packages: The distributions whose versions count, beside NumPy.
        aside: Modules that do not count although others import them.

    Example:
        >>> one, two = digest(["driftrate.streams.paths"]), digest(["driftrate.schedules.linear"])
        >>> len(one), one == two
        (64, False)
    """
    return _digest(tuple(modules), ("numpy", *packages), _NEVER.union(aside))


@cache
def _digest(modules: tuple[str, ...], packages: tuple[str, ...], aside: frozenset[str]) -> str:
    found = {
        "code": {name: _read(name).meaning for name in _closure(modules, aside)},
        "packages": {name: _version(name) for name in packages},
    }
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _closure(modules: Iterable[str], aside: frozenset[str]) -> set[str]:
    """Return the modules and all that they import of this library."""
    found, new = set[str](), {name for name in modules if _file(name)}
    while new:
        found |= new
        new = {one for name in new for one in _read(name).imports} - found - aside
    return found


class _Module(NamedTuple):
    """What counts of a module: a hash of its code, and the modules of this library behind it."""

    meaning: str
    imports: frozenset[str]


class _Bare(ast.NodeTransformer):
    """Take out docstrings, and what is there for a type checker alone."""

    def visit(self, node: ast.AST) -> ast.AST | None:
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
            if not node.orelse:
                return None
            node.body = []
        return self.generic_visit(node)


@cache  # once a process: what it imported does not change when a file is edited
def _read(module: str) -> _Module:
    file = _file(module)
    assert file is not None
    return _parse(file.read_text(encoding="utf-8"), file.stem == "__init__")


@cache
def _parse(text: str, package: bool) -> _Module:
    tree = _Bare().visit(ast.parse(text))
    assert tree is not None
    meaning = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    return _Module(meaning, _imports(list(ast.walk(tree)), package))


def _imports(nodes: Sequence[ast.AST], package: bool) -> frozenset[str]:
    """Return what a module imports of this library and uses, or offers to others."""
    notes = [getattr(node, key, None) for node in nodes for key in ("annotation", "returns")]
    aside = {one for note in notes if note is not None for one in ast.walk(note)}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and node not in aside}
    offers = package or "__all__" in used
    found = set()
    for node in nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        above = node.module if isinstance(node, ast.ImportFrom) else None
        for alias in node.names:
            if offers or (alias.asname or alias.name).partition(".")[0] in used:
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
