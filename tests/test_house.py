"""The house: CONTRIBUTING describes the tree as it is, and imports point one way."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "driftrate"
SEEN = ("errors", "schedules", "estimate", "learners")
UNSEEN = (
    "theory",
    "streams",
    "data",
    "simulation",
    "race",
    "paper",
    "demo",
    "cli",
    "_html",
    "_digest",
    "_terminal",
)


def folders():
    """Return the folders of src/driftrate that hold modules, as `race/contestants/`."""
    return {f"{p.parent.relative_to(HOUSE)}/" for p in HOUSE.glob("*/**/__init__.py")}


def described():
    """Return the folders that CONTRIBUTING's house names, and the files named in each line."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = re.search(r"\n    src/driftrate/\n((?:      .*\n)+)", text)[1]
    named, above, files = set(), [], set()
    for line in block.splitlines():
        indent, first = len(line) - len(line.lstrip()), line.split()[0]
        if indent in (6, 8) and first.endswith("/"):
            above = [*above[: indent // 2 - 3], first]
            # Several folders may share a line.
            several = [word for word in line.split() if word.endswith("/")]
            named |= {"".join([*above[:-1], word]) for word in several}
        elif indent == 6:
            above = []
        files |= {"".join(above) + name for name in re.findall(r"\w+\.py\b", line)}
    return named, files


def test_contributing_names_every_folder():
    named, _ = described()
    assert named == folders()


def test_every_file_that_contributing_names_is_there():
    _, files = described()
    assert files
    assert [name for name in sorted(files) if not (HOUSE / name).is_file()] == []


def test_contributing_names_every_command():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    commands = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [name for name in commands if f"make {name}" not in text] == []


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """What import-linter says of adapters that import every room."""
    folder = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "src", folder / "src")
    shutil.copy(ROOT / "pyproject.toml", folder)
    adapters = folder / "src" / "driftrate" / "adapters"
    for room in (*SEEN, *UNSEEN):
        (adapters / f"sees{room}.py").write_text(f"import driftrate.{room}\n")
    (folder / "src" / "driftrate" / "extension.py").touch()
    code = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports;"
    call = [sys.executable, "-c", f"{code} sys.exit(lint_imports(no_cache=True))"]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("room", UNSEEN)
def test_adapters_do_not_see(room, complaints):
    assert f"driftrate.adapters.sees{room} -> driftrate.{room} " in complaints


@pytest.mark.parametrize("room", SEEN)
def test_adapters_see(room, complaints):
    assert f"sees{room} " not in complaints


def test_a_new_room_needs_a_place(complaints):
    assert "extension" in complaints
