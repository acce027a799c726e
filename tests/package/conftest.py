"""What is uploaded at a release, built once."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def built(kind, pattern, folder):
    build = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "-o", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (found,) = folder.glob(pattern)
    return found


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return built("wheel", "*.whl", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    return built("sdist", "*.tar.gz", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def unpacked(sdist, tmp_path_factory):
    """The folder that a user sees who unpacks the sdist."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as opened:
        opened.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    return top


@pytest.fixture
def environment(tmp_path):
    """Return a function that makes a bare environment and installs into it from the registry."""

    def environment(*wanted, interpreter=sys.executable):
        subprocess.run([interpreter, "-m", "venv", tmp_path / "env"], check=True)
        executable = tmp_path / "env" / "bin" / "python"
        pip = [executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        install = [*pip, "-c", ROOT / "constraints.txt", *wanted]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return executable

    return environment
