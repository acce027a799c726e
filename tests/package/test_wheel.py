"""The wheel: built, installed bare, imported light."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import driftrate

ROOT = Path(__file__).parent.parent.parent
LIBRARIES = ("numpy", "numpy.libs", "array_api_compat")


def python(executable, *arguments):
    command = [str(executable), "-I", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """An environment that holds the wheel, numpy and array-api-compat, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    executable = folder / "env" / "bin" / "python"
    site = Path(python(executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    here = Path(sysconfig.get_path("purelib"))
    for name in LIBRARIES:
        if (here / name).exists():
            (site / name).symlink_to(here / name)
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True, capture_output=True)
    return executable


def test_the_wheel_holds_the_library_and_no_tests(wheel):
    with ZipFile(wheel) as opened:
        names = set(opened.namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"driftrate"}
    files = {path for path in (ROOT / "src").rglob("*") if path.is_file()}
    ours = {str(f.relative_to(ROOT / "src")) for f in files if f.suffix != ".pyc"}
    assert {name for name in names if name.startswith("driftrate/")} == ours
    assert "driftrate/data/pancreas.json" in ours


def test_imports_bare(bare):
    code = """
import sys, driftrate as dr
from importlib.metadata import version
assert version("driftrate") == dr.__version__
rate = dr.LinearRate(dim=100, noise_std=2.0, max_rate=0.1)
print(rate.update(rate.init(), dr.Signal(batch_size=100, shift=0.5))[0])
heavy = {"torch", "jax", "scipy", "matplotlib", "pandas", "river", "sklearn", "rich"}
assert not heavy & set(sys.modules)
"""
    assert python(bare, "-c", code) == "0.1"


def test_every_room_opens_bare(bare):
    code = "import driftrate as dr; [getattr(dr, name) for name in dr.__all__]; print('open')"
    assert python(bare, "-c", code) == "open"


def test_import_costs_at_most_twice_numpy(bare):
    """The least processor time of several tries each, interleaved: other work is not counted."""
    code = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
    times = {"numpy": [], "driftrate": []}
    for _ in range(7):
        for name, seen in times.items():
            seen.append(float(python(bare, "-c", code.format(name))))
    assert min(times["driftrate"]) <= 2 * min(times["numpy"])


def test_the_first_code_of_the_readme(bare):
    text = (ROOT / "README.md").read_text()
    first = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    assert len(python(bare, "-c", first).splitlines()) == 4


def test_the_version_needs_no_extra(bare):
    told = f"driftrate {driftrate.__version__}"
    assert python(bare, "-m", "driftrate", "--version") == told
    code = """
import sys
from importlib.metadata import entry_points
sys.argv[1:] = ["--version"]
(command,) = entry_points(group="console_scripts", name="driftrate")
command.load()()
"""
    assert python(bare, "-c", code) == told


def test_the_demo_needs_no_extra(bare):
    shown = python(bare, "-m", "driftrate.demo", "--fast")
    assert shown.startswith("driftrate: a learning rate that follows the shift in your data")
    assert "MeasuredRate, told nothing: regret" in shown


def test_the_command_says_what_it_needs(bare):
    command = [str(bare), "-I", "-m", "driftrate"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    needed = "driftrate: the command line needs typer: pip install 'driftrate[paper]'\n"
    assert (done.returncode, done.stderr) == (1, needed)


def test_typed():
    assert (ROOT / "src" / "driftrate" / "py.typed").exists()
