"""Where ranks have unlike shares: all of them still do the same, and none waits for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import sharded_problem as problem
import torch
import torch.distributed as dist
from sharded_checks import agree, check
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import driftrate as dr
import driftrate.torch
from driftrate.errors import ConfigError, MissingSignal


@dataclass(frozen=True)
class Loss(dr.Schedule):
    """A rate that is the loss, small."""

    signals: ClassVar[tuple[str, ...]] = ("loss", "grad_sq")

    @classmethod
    def example(cls):
        return cls()

    def _start(self):
        return {"rate": 0.5}

    def _step(self, xp, state, signal):
        rate = 0.01 * signal.loss / (1.0 + signal.grad_sq)
        return rate, {"rate": rate}


def own_rows(step):
    """Return this rank's rows: of two ranks the second one has one alone."""
    x, y = problem.batch(step)
    rank, world = dist.get_rank(), dist.get_world_size()
    return (x[-1:], y[-1:]) if rank == world - 1 else (x[rank::world], y[rank::world])


@check
def a_loss_is_that_of_all_ranks(out):
    """Whoever says it: a closure, `backward` with rows that are few here, or `tell`."""
    for how in ("closure", "backward", "tell"):
        net = problem.fsdp(problem.network())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        mode = "parts" if how == "backward" else "sequence"
        rate = driftrate.torch.attach(optimizer, Loss(), mode=mode)
        for step in range(3):
            x, y = own_rows(step)
            optimizer.zero_grad()
            value = problem.mse_loss(net(x), y)

            def closure(net=net, x=x, y=y):
                loss = problem.mse_loss(net(x), y)
                loss.backward()
                return loss

            if how == "backward":
                told = rate.backward(lambda a, b, net=net: problem.mse_loss(net(a), b), x, y)
                assert float(told) == pytest.approx(float(value))  # what it returns is its own
            elif how == "tell":
                closure()
                rate.tell(loss=value)
            wanted = value.detach() / dist.get_world_size()
            dist.all_reduce(wanted)
            with CommDebugMode() as seen:
                optimizer.step(*[closure] * (how == "closure"))
            assert how == "closure" or seen.get_total_counts() == 1
            square = torch.stack([problem.whole(p.grad).square().sum() for p in net.parameters()])
            assert rate.record["rate"] == pytest.approx(
                0.01 * float(wanted) / (1.0 + float(square.sum()))
            )
        agree(rate.record, rate.state_dict()["numbers"])


@check
def a_loss_is_that_of_all_ranks_of_ddp(out):
    for mode in ("sequence", "ranks"):
        net = torch.nn.parallel.DistributedDataParallel(problem.network())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        rate = driftrate.torch.attach(optimizer, Loss(), ddp=net, mode=mode)
        for step in range(3):
            x, y = own_rows(step)

            def closure(net=net, optimizer=optimizer, x=x, y=y):
                optimizer.zero_grad()
                loss = problem.mse_loss(net(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
            agree(rate.record, [p.tolist() for p in net.parameters()])


@check
def a_loss_is_that_of_copies_too(out):
    """Weights may lie on a part of the ranks, and the others have copies with other rows."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copy", "model"))
    for alone in (False, True):
        weight = distribute_tensor(torch.ones(8, 3), mesh["model"], [Shard(0)])
        weight = torch.nn.Parameter(weight)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        rate = driftrate.torch.attach(optimizer, Loss(), ddp=False if alone else None)
        weight.grad = distribute_tensor(torch.zeros(8, 3), mesh["model"], [Shard(0)])
        rate.tell(loss=2.0 + rank // (world // 2))
        optimizer.step()
        copy = 2.0 + rank // (world // 2) if alone else 2.5
        assert rate.record["rate"] == pytest.approx(0.01 * copy)


@check
def a_batch_size_is_told(out):
    """No rank knows which others had its rows."""
    net = problem.fsdp(problem.network())
    x, y = own_rows(0)

    def loss(x, y):
        return problem.mse_loss(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    rate = driftrate.torch.attach(optimizer, problem.SCHEDULES["shift"], mode="parts")
    rate.backward(loss, x, y)
    with pytest.raises(MissingSignal, match="batch_size"):
        optimizer.step()
    rate.tell(batch_size=problem.BATCH)
    optimizer.step()
    agree(rate.record)


@check
def a_rate_of_0_under_fsdp1(out):
    """Of the first step of a warm-up, and of the step by which a checkpoint makes a state."""
    torch.manual_seed(0)
    for whole in (True, False):
        # All but one rank have no number of it.
        net = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        net = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=whole)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        rate = driftrate.torch.attach(
            optimizer, problem.SCHEDULES["measured"], fsdp=net, scheduler="multiply"
        )
        get_optimizer_state_dict(net, optimizer)
        assert rate.steps == 0
        optimizer.state.clear()
        for step, factor in enumerate((0.0, 0.5, 0.0, 1.0)):
            optimizer.param_groups[0]["lr"] = 0.01 * factor
            optimizer.zero_grad()
            x, y = problem.batch(step)
            problem.mse_loss(net(x[:, :1]), y).backward()
            optimizer.step()
        assert rate.steps == 4
        get_optimizer_state_dict(net, optimizer)
        assert rate.steps == 4
        agree(rate.record)


@check
def gradients_that_are_missing_on_one_rank(out):
    """They count as 0 there, and other ranks do not wait for them."""
    for which in (lambda place: place == 1, lambda place: True):
        for kind in ("Adam", "schedule", "pursuit"):
            runs = []
            for missing in (True, False):
                net = problem.fsdp(problem.network(torch.float32))
                if kind == "pursuit":
                    optimizer, rate = driftrate.torch.Pursuit(net.parameters()), None
                else:
                    schedule = (
                        problem.SCHEDULES["long"] if kind == "Adam" else dr.InverseTimeRate(0.01)
                    )
                    optimizer = problem.OPTIMIZERS["Adam"](net.parameters())
                    rate = driftrate.torch.attach(optimizer, schedule)

                started = []

                def spoil(step, net, missing=missing, which=which, started=started):
                    if step == 1:
                        started += [p.to_local().clone() for p in net.parameters()]
                    for place, p in enumerate(net.parameters()):
                        if which(place) and dist.get_rank() == 1 and step:
                            p.grad = None if missing else torch.zeros_like(p.grad)

                rates = problem.train(
                    net, optimizer, rate, range(6), problem.rows("fsdp"), spoil=spoil
                )
                if kind == "pursuit":
                    rates = [state["law"].tolist() for state in optimizer.state.values()]
                agree(rates)
                runs.append((rates, [p.to_local().clone() for p in net.parameters()]))
            if kind == "pursuit":  # Adam itself goes on by its momentum where a gradient is 0
                assert runs[0][0] == runs[1][0]
                for place, (first, last) in enumerate(zip(started, runs[0][1], strict=True)):
                    still = which(place) and dist.get_rank() == 1
                    assert torch.equal(first, last) == (still or first.numel() == 0)
                for one, other in zip(runs[0][1], runs[1][1], strict=True):
                    assert torch.equal(one, other)


@check
def a_mesh_of_two_dimensions_within_others(out):
    """Its ranks are not all: they get a process group, and one is enough."""
    sides = (2, dist.get_world_size() // 2, 1)
    mesh = init_device_mesh("cpu", sides, mesh_dim_names=("copy", "data", "model"))
    weight = distribute_tensor(torch.ones(8, 3), mesh["data", "model"], [Shard(0), Shard(1)])

    def group():
        optimizer = torch.optim.SGD([torch.nn.Parameter(weight)], lr=0.1)
        return driftrate.torch.attach(
            optimizer, problem.SCHEDULES["measured"]
        )._observer.shards.group

    first = group()
    assert dist.get_world_size(first) == sides[1]
    assert group() is first
    if sides[1] == 1:  # torch makes no group of several ranks a second time
        dist.destroy_process_group(first)
        assert dist.get_world_size(group()) == 1


@check
def a_part_that_is_not_added_up(out):
    net = problem.fsdp(problem.network())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    rate = driftrate.torch.attach(optimizer, problem.SCHEDULES["measured"], mode="parts")
    net.set_requires_gradient_sync(False)
    x, y = problem.batch(0)
    with pytest.raises(ConfigError, match=r"set_requires_gradient_sync\(False\)"), rate.part():
        problem.mse_loss(net(x), y).backward()
