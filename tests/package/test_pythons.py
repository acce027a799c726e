"""Every Python that the classifiers name, where the machine has it: core, JAX, River, sklearn."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = re.findall(r"Python :: (3\.\d+)\n", "\n".join([*PROJECT["classifiers"], ""]))
# Those of the tests that need no torch, which not every registry has for every Python.
TESTS = (
    "tests/schedules/test_linear.py",
    "tests/schedules/test_long_horizon.py",
    "tests/schedules/test_measured_filter.py",
    "tests/learners/test_mixer.py",
    "tests/learners/test_forgetting.py",
    "tests/adapters/test_shift_by_rows.py",
    "tests/adapters/test_saved_states.py",
    *(f"src/driftrate/{name}" for name in ("schedules", "learners", "optax.py", "demo")),
    *(f"src/driftrate/adapters/{name}" for name in ("optax", "river", "sklearn")),
)


def interpreter(version):
    """Return a Python of this version, from the path or pyenv's folder, or None."""
    found = [shutil.which(f"python{version}")]
    found += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for one in filter(None, found):  # pyenv's shims are there and do not start
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([one, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return one
    return None


def test_the_classifiers_begin_with_what_is_required():
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"
    assert [f"3.{11 + i}" for i in range(len(VERSIONS))] == VERSIONS


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_of_python(version, wheel, unpacked, environment):
    if (python := interpreter(version)) is None:
        pytest.skip(f"there is no Python {version} on this machine")
    wanted = [f"{wheel}[jax,river,sklearn]", "pytest", "hypothesis"]
    executable = environment(*wanted, interpreter=python)
    kept = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    # A newer Python may warn of what packages do; what they say of us is an error in `make test`.
    command = [executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(
        command,
        cwd=unpacked,
        env={**kept, "PYTHONPATH": str(unpacked / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
