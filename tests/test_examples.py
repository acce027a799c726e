"""Every example runs, on a shorter stream, and leaves its picture."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_draws_its_picture(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.STEPS = 60
    module.main("picture.png")
    assert [file.name for file in tmp_path.iterdir()] == ["picture.png"]
    picture = Path("picture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    # A line a method, each with a regret or a loss that is a number.
    assert re.findall(r"(?:regret|loss) +\d", capsys.readouterr().out)
