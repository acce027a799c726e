"""What all tests have: children that heed Ctrl-C, a library to edit, a folder of foreign code."""

from __future__ import annotations

import shutil
import signal
import sys

import pytest

from driftrate import _digest


def forget():
    """Let this process read the code anew, which it does once."""
    for one in (_digest._digest, _digest._read):
        one.cache_clear()


@pytest.fixture(autouse=True)
def heeded():
    """Let children heed Ctrl-C, which a shell makes its background jobs ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def copied(tmp_path_factory):
    copy = tmp_path_factory.mktemp("code") / "driftrate"
    shutil.copytree(_digest._ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def edit(copied, monkeypatch):
    """Return a function that edits a file of the code that is digested; undone afterwards."""
    monkeypatch.setattr(_digest, "_ROOT", copied)
    forget()
    kept = {}

    def edit(file, change):
        kept.setdefault(file, (copied / file).read_text())
        new = change(kept[file])
        assert new != kept[file]
        (copied / file).write_text(new)
        forget()

    yield edit
    for file, text in kept.items():
        (copied / file).write_text(text)
    forget()


@pytest.fixture
def newer(monkeypatch):
    """Return a function that pretends that one package is of another version."""
    real = _digest.version

    def newer(package):
        monkeypatch.setattr(_digest, "version", lambda one: "99" if one == package else real(one))
        forget()

    yield newer
    forget()


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """Enter a folder of modules that nobody asked for; return a function that names the imported.

    They have the names of all modules of Python, and of some packages.
    """
    folder = tmp_path / "foreign"
    folder.mkdir()
    for name in {*sys.stdlib_module_names, "torch", "numpy", "joblib", "pyarrow", "scipy", "rich"}:
        mark = str(folder / f"{name}.imported")
        (folder / f"{name}.py").write_text(f"open({mark!r}, 'w').close()\n")
    monkeypatch.chdir(folder)
    return lambda: sorted(path.stem for path in folder.glob("*.imported"))
