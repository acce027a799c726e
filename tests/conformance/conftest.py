from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent


def _load():
    spec = importlib.util.spec_from_file_location("cases", HERE / "cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = _load()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(CASES.schedules()))


@pytest.fixture
def rate(case):
    return CASES.schedules()[case]


@pytest.fixture(scope="session")
def all_rows():
    return CASES.signals(1000)


@pytest.fixture
def rows(case, all_rows):
    return all_rows[: CASES.steps(case)]


@pytest.fixture(scope="session")
def signed():
    """The signals that may be negative."""
    return CASES.SIGNED


@pytest.fixture(scope="session")
def floats():
    """The trajectories that Python floats give, kept by case."""
    return {}


@pytest.fixture(scope="session")
def jitted(tmp_path_factory):
    """The trajectories that jitted JAX gives, from a process of its own."""
    out = tmp_path_factory.mktemp("jitted") / "rates.npz"
    command = [sys.executable, str(HERE / "jitted_child.py"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(out)
