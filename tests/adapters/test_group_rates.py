"""The rates of the groups: what a logger sees of them, and what another scheduler may do."""

from __future__ import annotations

import io
import math

import pytest
import small_loop
import torch
from small_loop import Fraction
from torch.optim import lr_scheduler

import driftrate as dr
import driftrate.torch
from driftrate.errors import ConfigError

attach = driftrate.torch.attach
RATES = {"float": lambda lr: lr, "tensor": lambda lr: torch.tensor(lr, dtype=torch.float64)}
SCHEDULERS = {
    "linear": lambda o: lr_scheduler.LinearLR(o, start_factor=0.25, total_iters=8),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1.0 / (1.0 + t)),
    "chained": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
}


def weights(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def make(form="float", schedule=None, **options):
    net = small_loop.model()
    lr = RATES[form]
    groups = [
        {"params": net[0].parameters(), "lr": lr(0.1)},
        {"params": net[2].parameters(), "lr": lr(0.02)},
    ]
    optimizer = torch.optim.SGD(groups)
    return net, optimizer, attach(optimizer, schedule or Fraction(max_rate=0.1), **options)


@pytest.mark.parametrize("form", RATES)
def test_what_a_monitor_reads_is_the_rate_of_the_last_step(form):
    net, optimizer, rate = make(form)
    assert math.isnan(rate.record["rate"])
    assert [float(lr) for lr in rate.get_last_lr()] == [0.1, 0.02]
    for step in range(5):
        small_loop.run(net, optimizer, rate, [step])
        rate.step()
        shown = [float(group["lr"]) for group in optimizer.param_groups]
        assert [float(lr) for lr in rate.get_last_lr()] == shown
        record = rate.record
        assert [*record] == ["rate", "factor", "signal", "noise", "shift"]
        assert record["rate"] == shown[0] == pytest.approx(rate._state["rate"], rel=1e-12)
        assert record["factor"] == pytest.approx(shown[0] / 0.1, rel=1e-12)
        assert shown[1] == pytest.approx(0.2 * shown[0], rel=1e-12)
    assert 0.0 < record["factor"] <= 1.0


def test_the_record_sees_through_wrappers():
    inner = dr.Estimated(dr.LinearRate(dim=4, noise_std=1.0), dr.estimate.ShiftEMA())
    net, optimizer, rate = make(schedule=dr.Clip(inner, max=0.05), batch_size=8)
    small_loop.run(net, optimizer, rate, range(4))
    assert rate.record["shift"] == rate._state["inner"]["estimator"]["estimate"] > 0.0


@pytest.mark.parametrize("form", RATES)
@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_another_scheduler_is_refused(kind, early, form):
    net = small_loop.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATES[form](0.1))
    other = SCHEDULERS[kind](optimizer) if early else None
    rate = attach(optimizer, Fraction(max_rate=0.1))
    other = other or SCHEDULERS[kind](optimizer)
    before = weights(net).clone()
    with pytest.raises(ConfigError, match=r'another learning-rate scheduler.*"multiply"'):
        small_loop.run(net, optimizer, rate, [0])
    assert torch.equal(weights(net), before)
    assert rate.steps == 0


@pytest.mark.parametrize("form", RATES)
def test_a_loop_that_sets_the_rate_is_refused(form):
    net, optimizer, rate = make(form)
    small_loop.run(net, optimizer, rate, range(3))
    before, saved, (_, last) = weights(net).clone(), rate.state_dict(), rate.get_last_lr()
    group = optimizer.param_groups[1]
    kept = group["lr"]
    group["lr"] = RATES[form](0.5)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r'param_groups\[1\]\["lr"\] to 0.5, which this rate'):
            small_loop.run(net, optimizer, rate, [3])
    assert torch.equal(weights(net), before)
    assert str(rate.state_dict()) == str(saved)
    group["lr"] = kept  # nothing is lost
    twin_net, twin_optimizer, twin = make(form)
    small_loop.run(twin_net, twin_optimizer, twin, range(3))
    assert float(twin.get_last_lr()[1]) == float(last)
    steps = range(3, 6)
    assert small_loop.run(net, optimizer, rate, steps) == small_loop.run(
        twin_net, twin_optimizer, twin, steps
    )
    if form == "tensor":
        kept.mul_(0.5)  # in place: seen by its version, not by its value
        with pytest.raises(ConfigError, match="something else has set"):
            small_loop.run(net, optimizer, rate, [6])


def test_plateaus_and_checkpoints():
    """A scheduler without marks is seen when it acts; loading a checkpoint is nobody's hand."""
    net, optimizer, rate = make()
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    plateau.step(1.0)
    small_loop.run(net, optimizer, rate, range(3))
    saved = optimizer.state_dict()
    saved["param_groups"] = [{**group, "lr": 0.7} for group in saved["param_groups"]]
    optimizer.load_state_dict(saved)
    small_loop.run(net, optimizer, rate, [3])
    optimizer.load_state_dict(saved)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.3})
    small_loop.run(net, optimizer, rate, [4])
    assert optimizer.param_groups[2]["lr"] == pytest.approx(3.0 * rate.record["rate"])
    plateau.step(2.0)
    with pytest.raises(ConfigError, match="something else has set"):
        small_loop.run(net, optimizer, rate, [5])


@pytest.mark.parametrize("form", RATES)
@pytest.mark.parametrize("relative", [False, True], ids=["rate", "factor"])
@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_another_scheduler_multiplies(kind, early, relative, form):
    """η_i = own_i · lr_i / base_i; and the other's rates are those that it has alone."""
    schedule, bases = dr.InverseTimeRate(0.05), (0.1, 0.02)
    net, lr = small_loop.model(), RATES[form]
    alone = torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": base} for base in bases]
    )
    layers = ({"params": net[0].parameters()}, {"params": net[2].parameters()})
    optimizer = torch.optim.SGD(
        [{**layer, "lr": lr(base)} for layer, base in zip(layers, bases, strict=True)]
    )
    options = {"relative": relative, "scheduler": "multiply"}
    other = SCHEDULERS[kind](optimizer) if early else None
    rate = attach(optimizer, schedule, **options)
    other, twin = other or SCHEDULERS[kind](optimizer), SCHEDULERS[kind](alone)
    for step in range(6):
        small_loop.run(net, optimizer, rate, [step])
        theirs = [group["lr"] for group in alone.param_groups]
        found = [float(group["lr"]) for group in optimizer.param_groups]
        assert found == pytest.approx(theirs, rel=1e-12)
        own = 0.05 / (step + 1) * (1.0 if relative else 1.0 / bases[0])
        expected = [own * one for one in theirs]
        assert [float(one) for one in rate.get_last_lr()] == pytest.approx(expected, rel=1e-12)
        assert rate.record["rate"] == pytest.approx(expected[0], rel=1e-12)
        assert rate.record["factor"] == pytest.approx(own, rel=1e-12)
        other.step()
        alone.step()
        twin.step()


@pytest.mark.parametrize("form", RATES)
def test_a_multiplied_run_resumes_bit_by_bit(form):
    def start():
        net, optimizer, rate = make(form, scheduler="multiply")
        return net, optimizer, rate, lr_scheduler.ExponentialLR(optimizer, 0.95)

    def go_on(things, steps):
        net, optimizer, rate, other = things
        for step in steps:
            small_loop.run(net, optimizer, rate, [step])
            yield rate.record["rate"], float(optimizer.param_groups[1]["lr"])
            other.step()

    one, two = start(), start()
    list(go_on(one, range(5)))
    file = io.BytesIO()
    torch.save([thing.state_dict() for thing in one], file)
    file.seek(0)
    for thing, state in zip(two, torch.load(file, weights_only=True), strict=True):
        thing.load_state_dict(state)
    assert two[2].record == pytest.approx(one[2].record, abs=0.0, nan_ok=True)
    assert [*go_on(one, range(5, 15))] == [*go_on(two, range(5, 15))]
    assert torch.equal(weights(one[0]), weights(two[0]))


def test_a_step_that_fails_gives_the_rates_back():
    net, optimizer, rate = make(scheduler="multiply")
    small_loop.run(net, optimizer, rate, range(3))
    net[0].weight.grad = torch.ones_like(net[0].weight)
    broken = optimizer.param_groups[0].pop("momentum")
    with pytest.raises(KeyError, match="momentum"):
        optimizer.step()
    optimizer.param_groups[0]["momentum"] = broken
    small_loop.run(net, optimizer, rate, [3])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.02]
