"""The arithmetic of benchmarks/cost_model.py, the bytes it counts, and the page made of it."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def cost():
    place = spec_from_file_location("cost_model", ROOT / "benchmarks" / "cost_model.py")
    module = module_from_spec(place)
    sys.modules["cost_model"] = module  # its records look their module up
    place.loader.exec_module(module)
    return module


def test_a_reduction_is_latency_then_bytes(cost):
    machine = cost.Machine(alpha=2.0, beta=3.0)
    assert cost.tree(8, 10.0, machine) == 6 * (2.0 + 30.0)
    assert cost.ring(5, 10.0, machine) == 8 * (2.0 + 6.0)
    # What a ring is for: much to send, where the bytes count and it sends each of them twice.
    assert cost.ring(64, 1e12, machine) < cost.tree(64, 1e12, machine)


def test_a_ratio_gives_its_balance_back(cost):
    found = cost.ratio(20.0, 14.0, 4096, 5e-3)
    assert 1 < found < cost.ratio(20.0, 14.0, 256, 5e-3) < 1 + 20 / 14
    assert cost.balance_of(found, 20.0, 14.0, 4096) == pytest.approx(5e-3)


def test_a_line_is_found(cost):
    sizes = (1.0, 10.0, 1000.0)
    start, slope = cost.line(sizes, [2.0 + 0.5 * n for n in sizes])
    assert (start, slope) == pytest.approx((2.0, 0.5))


def test_the_model_keeps_the_bytes_that_the_code_keeps(cost):
    found, model = cost.state_bytes(20_000), {m.name: m.state for m in cost.METHODS}
    assert found["Adam, attached"] == model["`attach(..., MeasuredRate())`, on top"]
    assert found["Pursuit, bfloat16"] == model["`Pursuit`"]
    assert found["Hedged"] == pytest.approx(model["`Hedged`"], rel=1e-3)
    assert found["Pursuit"] == 12.0


def test_the_page_has_the_tables_of_the_model(cost):
    page, machine = (ROOT / "docs" / "cost_at_scale.md").read_text(), cost.Machine()
    for table in (cost.at_scale(machine), cost.reductions(machine), cost.checkpoints(machine)):
        assert table in page
    assert cost.on_a_device().split("\n\n")[1] in page
