"""The command itself: its version, its second name, and what it says where an extra is missing."""

from __future__ import annotations

import subprocess
import sys

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
