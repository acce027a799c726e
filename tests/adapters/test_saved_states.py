"""States that were saved by a version that is out load for ever, and go on as they did then."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from saved_states import CASES, SAVED, batch, go_on

import driftrate as dr

VERSIONS = sorted(folder.name for folder in SAVED.iterdir())
KEPT = [
    (version, name)
    for version in VERSIONS
    for name in json.loads((SAVED / version / "went_on.json").read_text())
]


@pytest.mark.filterwarnings("ignore:Trying to unpickle")  # of scikit-learn, by another version
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.parametrize(("version", "name"), KEPT)
def test_it_loads_and_goes_on(version, name):
    one, folder = CASES[name], SAVED / version
    if importlib.util.find_spec(one.package) is None:
        pytest.skip(f"{one.package} is not installed")
    numbers = json.loads((folder / "went_on.json").read_text())[name]
    it = one.load(folder / f"{name}.{one.suffix}")
    np.testing.assert_allclose(go_on(one, it), numbers, rtol=one.tolerance, atol=one.tolerance)


def test_what_keeps_a_state_has_one_saved():
    """A new schedule, or another case, is saved by the version in which it is new."""
    assert {name for _, name in KEPT} == set(CASES)


def test_every_file_is_one_of_a_case():
    for version in VERSIONS:
        files = {path.name for path in (SAVED / version).iterdir()} - {"went_on.json"}
        assert files == {f"{name}.{CASES[name].suffix}" for one, name in KEPT if one == version}


def test_the_numbers_tell_a_state_from_a_fresh_one():
    """A case whose numbers did not depend on what was saved would test nothing."""
    for name in ("schedule-MeasuredRate", "HedgedSGD", "HedgedFilter"):
        one = CASES[name]
        numbers = json.loads((SAVED / dr.__version__ / "went_on.json").read_text())[name]
        assert abs(one.step(one.fresh(), *batch(40)) - numbers[0]) > 1e-3
