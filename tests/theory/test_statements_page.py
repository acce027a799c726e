"""The pages on statements and errata name tests and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

from driftrate import theory

ROOT = Path(__file__).parents[2]
PAGES = ["docs/statements.md", "docs/errata.md"]


def names_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_every_test_named_exists(page):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 15
    missing = [f"{path}::{name}" for path, name in named if name not in names_in(ROOT / path)]
    assert missing == []


def test_every_function_named_exists():
    text = (ROOT / "docs/statements.md").read_text(encoding="utf-8")
    named = re.findall(r"`theory\.(\w+)`", text)
    assert named
    assert [name for name in named if not hasattr(theory, name)] == []


def test_every_public_function_is_on_the_page():
    text = (ROOT / "docs/statements.md").read_text(encoding="utf-8")
    functions = [name for name in theory.__all__ if name.islower()]
    assert [name for name in functions if f"`theory.{name}`" not in text] == []


def test_every_row_of_the_statements_has_a_test():
    text = (ROOT / "docs/statements.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    assert [row for row in rows if "::test_" not in row] == []
