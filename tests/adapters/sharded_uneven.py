"""Where ranks have unlike shares: all of them still do the same, and none waits for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import sharded_problem as problem
import torch
import torch.distributed as dist
from sharded_checks import agree, check
from torch.distributed.tensor.debug import CommDebugMode

import driftrate as dr
import driftrate.torch
from driftrate.errors import MissingSignal


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
        ddp = net if mode == "ranks" else None
        rate = driftrate.torch.attach(optimizer, Loss(), ddp=ddp, mode=mode)
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
