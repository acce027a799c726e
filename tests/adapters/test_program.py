"""A schedule's update as one program: packed, traced and compiled."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from small_loop import Fraction
from torch._dynamo.exc import TorchDynamoException

import driftrate as dr
from driftrate.adapters.torch import program
from driftrate.adapters.torch.program import Program
from driftrate.errors import SignalError

CPU = torch.device("cpu")
LIKE = torch.zeros((), dtype=torch.float64)
SCHEDULES = {name: cls.example() for name, cls in dr.schedules.base.registry().items()}
SCHEDULES |= {
    "sequence": dr.MeasuredRate(mode="sequence"),
    "wrapped": dr.Clip(dr.MeasuredRate(max_rate=1.0), 0.01, 0.5),
}


def signals(schedule, steps):
    """Plausible values, each field its own."""
    torch.manual_seed(0)
    for step in range(steps):
        numbers = 2.0 + torch.rand(len(schedule.signals), dtype=torch.float64)
        told = dict(zip(schedule.signals, numbers, strict=True))
        yield dr.Signal(**told | ({"batch_size": 8.0 + step} if "batch_size" in told else {}))


def equal(state, other):
    return state.keys() == other.keys() and all(
        equal(state[key], other[key])
        if isinstance(state[key], dict)
        else torch.equal(state[key], other[key])
        for key in state
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_program_and_its_trace_are_the_rule(name):
    schedule = SCHEDULES[name]
    own, state, kept = Program(schedule, LIKE), schedule.init(like=LIKE), schedule.init(like=LIKE)
    leaves = program._packed(schedule, state)
    graph = program.traced(schedule, schedule.signals, True, torch.float64, CPU)
    views = own.state
    for step, signal in enumerate(signals(schedule, 8)):
        took = torch.tensor(step != 5)
        values = [torch.as_tensor(getattr(signal, n), dtype=LIKE.dtype) for n in schedule.signals]
        if took:
            _, state = schedule.update(state, signal)
        own.update(signal, took)
        leaves = graph(leaves, values, took)
        assert equal(own.state, state)
        assert equal(program._unpacked(schedule, leaves), state)
    assert own.state is views
    assert not equal(state, kept) or name in ("ConstantRate", "PathLengthRate", "InexactRate")


@pytest.mark.parametrize("twice", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_goes_on_alike(twice):
    own = Program(SCHEDULES["sequence"], LIKE)
    told = [*signals(own.schedule, 6)]
    for signal in told[:3]:
        own.update(signal)
    twin = twice(own)
    for one in (own, twin):
        for signal in told[3:]:
            one.update(signal)
    assert equal(own.state, twin.state)


def test_python_numbers_are_checked_before_the_device_has_them():
    own = Program(dr.LinearRate(dim=4, noise_std=1.0), LIKE)
    with pytest.raises(SignalError, match="batch_size must be a finite number > 0, got -1"):
        own.update(dr.Signal(batch_size=-1, shift=0.1))
    assert not own.ready


def test_a_bad_value_leaves_the_state_as_it_was():
    own = Program(Fraction(), LIKE)
    own.update(dr.Signal(cross=LIKE + 1.0, spread=LIKE + 2.0))
    before = {key: leaf.clone() for key, leaf in own.state.items()}
    own.update(dr.Signal(cross=LIKE * torch.nan, spread=LIKE + 2.0))
    assert equal(own.state, before)


def test_where_torch_cannot_compile_it_runs_as_written(monkeypatch):
    own, twin = Program(Fraction(), LIKE), Program(Fraction(), LIKE)
    own._compiles = True

    def broken(*_):
        raise TorchDynamoException("no compiler\nand a long trace")

    monkeypatch.setattr(program, "_compiled", lambda *_: broken)
    told = [*signals(Fraction(), 3)]
    with pytest.warns(UserWarning, match=r"Fraction runs uncompiled, .*: no compiler$"):
        own.update(told[0])
    twin.update(told[0])
    for signal in told[1:]:  # and says so once
        own.update(signal)
        twin.update(signal)
    assert equal(own.state, twin.state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its own tracer
def test_one_compilation_serves_every_rate_of_a_schedule(monkeypatch):
    from torch._dynamo.testing import CompileCounter

    counter, compiling = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **more: compiling(f, backend=counter, **more))
    program._compiled.cache_clear()
    for _ in range(2):
        own, twin = Program(Fraction(), LIKE), Program(Fraction(), LIKE)
        own._compiles = True
        for signal in signals(Fraction(), 6):
            own.update(signal)
            twin.update(signal)
        assert equal(own.state, twin.state)
    assert counter.frame_count == 1
    program._compiled.cache_clear()
