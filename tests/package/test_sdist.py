"""The sdist: everything that git keeps, and its own tests pass where it is unpacked."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# The tests that read more of the tree than the library: pages, pictures, commands, the house.
READERS = (
    "tests/test_house.py",
    "tests/test_readme.py",
    "tests/test_public_names.py",
    "tests/test_network_tables.py",
    "tests/test_project.py",
    "tests/theory/test_statements_page.py",
    "tests/adapters/test_saved_states.py",
    "tests/schedules/test_linear.py",
)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository's own list of files")
def test_it_holds_what_git_keeps(sdist):
    listing = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, capture_output=True, text=True, check=True)
    kept = {name for name in done.stdout.splitlines() if (ROOT / name).exists()}
    with tarfile.open(sdist) as opened:
        held = {one.name.partition("/")[2] for one in opened if one.isfile()}
    assert held - {"PKG-INFO"} == kept


def here(folder, *arguments):
    """Run pytest in the unpacked folder, on the code that lies there."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_all_of_its_tests_are_found(unpacked):
    assert "no tests" not in here(unpacked, "--collect-only")


@pytest.mark.slow
def test_those_that_read_the_tree_pass(unpacked):
    assert " passed" in here(unpacked, *READERS)
