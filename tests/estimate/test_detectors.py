"""Shift detectors by name."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from driftrate.errors import ConfigError, MissingDependency, SignalError
from driftrate.estimate import DETECTORS, Detector, detector


def stream(seed=0):
    rng = np.random.default_rng(seed)
    return [*rng.standard_normal(300).tolist(), *(4.0 + rng.standard_normal(150)).tolist()]


def make(name):
    return detector(name, **({"alpha": 1e-5} if name == "kswin" else {}))


@pytest.mark.parametrize("name", DETECTORS)
def test_a_jump_is_seen_soon_and_nothing_before_it(name):
    alarm = make(name)
    assert isinstance(alarm, Detector)
    alarms = [t for t, value in enumerate(stream()) if alarm.update(value)]
    assert alarms
    assert 300 <= alarms[0] < 360
    assert type(alarm.update(0.0)) is bool


@pytest.mark.parametrize("name", DETECTORS)
def test_a_pickled_detector_resumes_with_the_same_alarms(name):
    values = stream(1)
    whole, resumed, got = make(name), make(name), []
    want = [whole.update(value) for value in values]
    stops = {0, 1, 299, 305, want.index(True), want.index(True) + 1}
    for t, value in enumerate(values):
        if t in stops:
            resumed = pickle.loads(pickle.dumps(resumed))
        got.append(resumed.update(value))
    assert got == want


@pytest.mark.parametrize("name", DETECTORS)
def test_a_bad_value_is_refused_and_costs_nothing(name):
    values = stream(2)
    clean, spoiled = make(name), make(name)
    want = [clean.update(value) for value in values]
    got = []
    for t, value in enumerate(values):
        if t % 50 == 0:
            for bad in (float("nan"), float("inf"), -1e200, "1.0", None, True):
                with pytest.raises(SignalError, match=rf"detector\('{name}'\): the value must be"):
                    spoiled.update(bad)
        got.append(spoiled.update(np.float64(value)))
    assert got == want


def test_an_unknown_name_lists_the_known_ones():
    for name in ("ddm", "ADWIN", None, []):
        with pytest.raises(ConfigError, match="'adwin', 'page-hinkley', 'kswin', got"):
            detector(name)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("adwin", {"speed": 1}, r"options are delta, clock, .* got speed=1"),
        ("adwin", {"delta": 2.0}, r"delta must be a finite number in \[0, 1\], got 2\.0"),
        ("adwin", {"clock": 0}, "clock must be an integer >= 1, got 0"),
        ("adwin", {"clock": 1.5}, "clock must be an integer"),
        ("page-hinkley", {"mode": "sideways"}, "mode must be one of"),
        ("page-hinkley", {"threshold": float("nan")}, "threshold must be a finite number >= 0"),
        ("page-hinkley", {"threshold": float("inf")}, "threshold must be a finite number >= 0"),
        (
            "kswin",
            {"stat_size": 60},
            "window_size must be at least twice stat_size, got 100 and 60",
        ),
        ("kswin", {"seed": True}, "seed must be an integer"),
    ],
)
def test_bad_options_are_named(name, options, says):
    with pytest.raises(ConfigError, match=says):
        detector(name, **options)


def test_options_reach_the_detector():
    jumpy, calm = (
        detector("page-hinkley", threshold=threshold, mode="up") for threshold in (5.0, 1e6)
    )
    values = stream(3)
    assert sum(jumpy.update(value) for value in values) > 0
    assert sum(calm.update(value) for value in values) == 0
    assert "page-hinkley" in repr(jumpy)


def test_without_river_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    with pytest.raises(MissingDependency, match=r"pip install 'driftrate\[river\]'"):
        detector("adwin")
    # A mistake in the call is said first: installing would not mend it.
    with pytest.raises(ConfigError):
        detector("ddm")


def test_importing_the_package_imports_no_framework():
    code = (
        "import sys, driftrate.estimate;"
        "print(sorted({'river', 'scipy', 'torch', 'jax', 'pandas'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
