"""The guides' code runs as it stands there, a page as one program; what it resumes it compares."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = sorted(DOCS.glob("guide*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_a_guide_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(path.read_text(encoding="utf-8"))
    assert blocks
    names = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{path.name}, block {number}", "exec"), names)
    # Every guide resumes a run, and compares it bit by bit.
    assert any("assert " in block for block in blocks)


def test_there_is_a_guide_for_every_door():
    doors = {"torch", "optax", "keras", "river", "sklearn"}
    assert {path.stem.removeprefix("guide_") for path in GUIDES} == doors | {"guides"}
