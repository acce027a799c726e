"""Weights sharded over a mesh: the same run, no gather, and one reduction of a few numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

CHILD = Path(__file__).parent / "sharded_arrays_child.py"
TENSORS = 5
# What the slowest of them reads: four products a tensor.
FEW = 4 * TENSORS


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, str(CHILD), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(out / "arrays.npz") as file:
        return json.loads((out / "told.json").read_text()), dict(file)


@pytest.mark.parametrize("kind", ["pursuit", "network", "lengths"])
def test_an_update_is_one_reduction_of_a_few_numbers(found, kind):
    """Of the compiled text: no weight and no gradient leaves its device."""
    ((name, numbers),) = found[0][kind]["rows"]["collectives"]
    assert name == "all-reduce"
    assert 0 < numbers <= FEW


@pytest.mark.parametrize("kind", ["pursuit", "network"])
def test_over_two_axes_there_is_one_reduction_an_axis(found, kind):
    """XLA sums along one axis of a mesh after the other."""
    collectives = found[0][kind]["grid"]["collectives"]
    assert [name for name, _ in collectives] == ["all-reduce"] * 2
    assert max(numbers for _, numbers in collectives) <= FEW


@pytest.mark.parametrize("place", ["rows", "grid", "resumed"])
@pytest.mark.parametrize("kind", ["pursuit", "network"])
def test_shards_train_as_the_whole(found, kind, place):
    """Resumed: saved whole in the middle, gone on with over a mesh."""
    _, arrays = found
    whole = {key: one for key, one in arrays.items() if key.startswith(f"{kind}/whole/")}
    assert len(whole) == 1 + TENSORS
    for key, one in whole.items():
        other = arrays[key.replace("whole", place)]
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("place", ["rows", "grid", "resumed"])
@pytest.mark.parametrize("kind", ["pursuit", "network"])
def test_state_lies_where_its_weights_lie(found, kind, place):
    assert found[0][kind][place]["strays"] == []
