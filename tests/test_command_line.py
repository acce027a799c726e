"""The command itself: its version, its second name, and what it says where an extra is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import driftrate

# Makes packages of the first argument impossible to import, as where they are not installed.
BLOCKED = """
import sys
blocked = set(sys.argv.pop(1).split(","))
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from driftrate.cli import app
app(prog_name="driftrate")
"""


def call(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_version():
    done = call("-m", "driftrate", "--version")
    assert (done.returncode, done.stdout) == (0, f"driftrate {driftrate.__version__}\n")


def test_as_a_module():
    done = call("-m", "driftrate", "race", "--help")
    assert done.returncode == 0
    assert "Usage: driftrate race" in done.stdout


# What Python imports to find the module of `-m`, before any of ours.
BEFORE = subprocess.run(
    [sys.executable, "-P", "-c", "import runpy, sys; print(*sys.modules)"],
    capture_output=True, text=True, check=True,
).stdout.split()  # fmt: skip


@pytest.mark.parametrize(
    "module",
    [
        "driftrate race synthetic:walk,steps=40 --methods HedgedSGD --defaults-only --no-drift",
        "driftrate.cli --version",
        "driftrate.demo --fast",
        "driftrate.playground",
    ],
)
def test_as_a_module_it_imports_nothing_of_the_working_folder(module, foreign):
    for name in BEFORE:
        Path(f"{name}.py").unlink(missing_ok=True)
    done = call("-m", *module.split())
    assert foreign() == []
    assert done.returncode == 0, done.stderr


def test_as_a_module_it_finds_what_pythonpath_names(tmp_path, monkeypatch):
    (tmp_path / "typer.py").write_text("raise SystemExit('mine')")
    monkeypatch.chdir(tmp_path)
    assert call("-m", "driftrate", "--help").returncode == 0
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(tmp_path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    assert call("-m", "driftrate", "--help").stderr == "mine\n"


@pytest.mark.parametrize(
    ("command", "extra", "missing", "first"),
    [
        (["race", "synthetic:walk"], "race", "pyarrow", "pyarrow"),
        (["race", "synthetic:walk"], "race", "joblib,threadpoolctl", "joblib"),
        (["race", "synthetic:walk"], "race", "threadpoolctl", "threadpoolctl"),
        (["race", "river:Elec2"], "race", "scipy", "scipy"),
        (["reproduce", "figure3"], "paper", "pyarrow", "pyarrow"),
        (["reproduce"], "paper", "scipy,matplotlib,joblib", "scipy"),
        (["reproduce", "figure3"], "paper", "matplotlib", "matplotlib"),
        (["race", "synthetic:walk"], "paper", "typer", "typer"),
        (["reproduce"], "paper", "rich", "rich"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(tmp_path, command, extra, missing, first):
    out = tmp_path / "out"
    done = call("-c", BLOCKED, missing, *command, "--out", out)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("driftrate: ")
    assert done.stderr.endswith(f" needs {first}: pip install 'driftrate[{extra}]'\n")
    assert done.stderr.count("\n") == 1
    assert not out.exists()
