"""Copies of an attached optimizer keep their rate: together, alone, and in another process."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch

import driftrate as dr
from driftrate.errors import ConfigError
from driftrate.torch import attach

ADAM, SGD = torch.optim.Adam, torch.optim.SGD
EMA = dr.estimate.ShiftEMA()
SHIFT = dr.Estimated(dr.LinearRate(dim=18, noise_std=1.0), dr.estimate.DebiasedShift())
KINDS = {
    "a factor": (ADAM, dr.MeasuredRate(), {}),
    "a network": (SGD, dr.MeasuredRate(), {}),
    "a filter": (ADAM, dr.MeasuredRate(max_rate=0.5), {}),
    "a trail": (SGD, dr.MeasuredRate(max_rate=0.5), {}),
    "steps": (SGD, dr.Estimated(dr.LinearRate(dim=18, noise_std=1.0), EMA), {"batch_size": 8}),
    "parts": (SGD, SHIFT, {"mode": "parts", "batch_size": 8}),
    "accumulation": (SGD, SHIFT, {"mode": "accumulation", "batch_size": 8}),
    "clipped": (SGD, dr.MeasuredRate(), {}),
    "told": (SGD, dr.LinearRate(dim=18, noise_std=1.0), {"batch_size": 8}),
}
TWICE = [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]


def start(kind):
    make, schedule, given = KINDS[kind]
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(2, 1))]
    optimizer = make(weights, lr=0.01)
    return weights, optimizer, attach(optimizer, schedule, **given)


def train(kind, optimizer, rate, steps):
    """Follow a target that walks, in two backward passes a step where a mode compares them."""
    draw = torch.Generator().manual_seed(steps.start)
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    several = kind in ("parts", "accumulation")
    for step in steps:
        optimizer.zero_grad()
        for _ in range(2 if several else 1):
            loss = sum(
                (p - step / 9 + torch.randn(1, generator=draw)).square().sum() for p in weights
            )
            if kind == "parts":
                with rate.part():
                    loss.backward()
            else:
                loss.backward()
        if kind == "clipped":
            torch.nn.utils.clip_grad_norm_(weights, 0.01)
        if kind == "told":
            rate.tell(shift=0.5)
        optimizer.step()
    return [p.detach().clone() for p in weights]


def of(optimizer):
    """Return the rate that holds an optimizer's hooks."""
    (hook,) = optimizer._optimizer_step_pre_hooks.values()
    return hook.__self__


@pytest.mark.parametrize("twice", TWICE, ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_go_on_alike(kind, twice):
    weights, optimizer, rate = start(kind)
    train(kind, optimizer, rate, range(10))
    both = twice((weights, optimizer, rate))
    copies = [
        both[1],
        twice((weights, optimizer))[1],
        twice(optimizer),
        twice(rate).optimizer,
        twice((rate, optimizer))[1],
        twice(both[1]),
    ]
    assert of(both[1]) is both[2]
    assert both[2].optimizer is both[1]
    assert all(one is other for one, other in zip(both[0], both[2]._owners(), strict=True))
    wanted = train(kind, optimizer, rate, range(10, 20))
    for one in copies:
        assert of(one) is not rate
        found = train(kind, one, of(one), range(10, 20))
        assert all(map(torch.equal, found, wanted))
        assert of(one).steps == rate.steps == 20
        assert of(one).record["rate"] == rate.record["rate"]


def test_a_copy_is_attached_by_itself():
    weights, optimizer, _ = start("a factor")
    _, other, rate = copy.deepcopy((weights, optimizer, of(optimizer)))
    with pytest.raises(ConfigError, match="has a rate already"):
        attach(other, dr.MeasuredRate())
    rate.detach()
    assert not copy.deepcopy((other, rate))[0]._optimizer_step_pre_hooks
    assert not other._optimizer_step_pre_hooks
    assert not copy.deepcopy(other)._optimizer_step_pre_hooks
    attach(other, dr.MeasuredRate())
    rate.detach()  # a second time: the new one stays
    assert of(copy.deepcopy(other)).optimizer is not other
    assert of(copy.deepcopy(optimizer)).optimizer is not optimizer


def test_what_several_processes_share_is_not_copied():
    _, optimizer, rate = start("a factor")
    rate._observer.among = "a process group"
    with pytest.raises(ConfigError, match=r"save rate.state_dict\(\)"):
        copy.deepcopy(optimizer)


CHILD = """
import pickle, sys, torch
with open(sys.argv[1], "rb") as file:
    optimizer, gradients = pickle.load(file)
(weights,) = optimizer.param_groups[0]["params"]
for gradient in gradients:
    weights.grad = gradient
    optimizer.step()
torch.save(weights.detach(), sys.argv[2])
"""


def test_a_new_process_goes_on_with_the_rate(tmp_path):
    weights = torch.nn.Parameter(torch.ones(3, 3))
    optimizer = ADAM([weights], lr=0.01)
    attach(optimizer, dr.MeasuredRate())
    gradients = torch.randn(20, 3, 3, generator=torch.Generator().manual_seed(0)).unbind()
    (tmp_path / "sent.pickle").write_bytes(pickle.dumps((optimizer, gradients)))
    files = [str(tmp_path / name) for name in ("sent.pickle", "found.pt")]
    subprocess.run([sys.executable, "-c", CHILD, *files], check=True, timeout=300)
    for gradient in gradients:
        weights.grad = gradient
        optimizer.step()
    assert torch.equal(torch.load(tmp_path / "found.pt"), weights.detach())
