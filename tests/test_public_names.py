"""The public names, and their types: what users may rely on changes on purpose or not at all.

`python tests/test_public_names.py` writes public_names.txt anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import driftrate as dr

ROOT = Path(__file__).parent.parent
FILE = ROOT / "tests" / "public_names.txt"
ROOMS = (
    "driftrate",
    *(f"driftrate.{room}" for room in ("errors", "schedules", "estimate", "learners", "streams")),
    *(f"driftrate.{room}" for room in ("theory", "data", "simulation", "race")),
    *(f"driftrate.{door}" for door in ("torch", "optax", "keras", "river", "sklearn")),
)


def public(module):
    """Return a module's public names: those it lists, or those that it defines."""
    here = import_module(module)
    defined = [
        name
        for name, thing in vars(here).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module
    ]
    return {f"{module}.{name}" for name in getattr(here, "__all__", defined)}


def test_no_name_comes_or_goes_unseen():
    kept = set(FILE.read_text().split())
    now = set().union(*map(public, ROOMS))
    told = f"added: {sorted(now - kept)}; gone: {sorted(kept - now)}"
    assert now == kept, f"{told}; if this is meant, run python tests/test_public_names.py"


@pytest.mark.parametrize("module", ROOMS)
def test_every_public_name_is_there(module):
    here = import_module(module)
    names = getattr(here, "__all__", [])
    assert len(set(names)) == len(names)
    assert all(hasattr(here, name) for name in names)


def test_a_name_that_is_gone_says_the_new_one():
    for old, new in dr._GONE.items():
        with pytest.raises(AttributeError, match=f"driftrate.{old} is now driftrate.{new}$"):
            getattr(dr, old)
        thing = dr
        for name in new.split("."):
            thing = getattr(thing, name)
    with pytest.raises(AttributeError, match="no attribute 'HedgeRate'"):
        dr.HedgeRate  # noqa: B018


def test_a_type_checker_sees_what_is_opened_on_demand(tmp_path):
    """The cache of `make lint` is used, so that this takes seconds."""
    snippet = tmp_path / "snippet.py"
    seen = {
        "dr.simulate": "driftrate.simulation.run.Run",
        "dr.streams.spiral": "dim: int, steps: int",
        "dr.HedgedSGD()": "driftrate.learners.hedged_sgd.HedgedSGD",
        "dr.Run": "driftrate.simulation.run.Run",
        "dr.LinearRate": "driftrate.schedules.linear.LinearRate",
        "dr.learners.Ball": "driftrate.learners.projections.Ball",
        "dr.theory.no_shift": "driftrate.theory.closed_form.NoShift",
        "dr.data": "ModuleType",
    }
    lines = [*(f"reveal_type({name})" for name in seen), "dr.HedgedRate", "dr.simulat"]
    snippet.write_text("\n".join(["import driftrate as dr", *lines, ""]))
    call = [sys.executable, "-m", "mypy", str(snippet)]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    # By name: from its cache the checker tells the place of the run before.
    told = [line for line in done.stdout.splitlines() if f"{snippet.name}:" in line]
    assert len(told) == len(lines), done.stdout + done.stderr
    for line, wanted in zip(told, [*seen.values(), '"HedgedRate"', '"simulat"'], strict=True):
        assert wanted in line


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "torch")
    FILE.write_text("\n".join(sorted(set().union(*map(public, ROOMS)))) + "\n")
