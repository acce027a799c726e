"""What ranks check together of sharded runs; each is called by all ranks of a group."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import sharded_problem as problem
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.debug import CommDebugMode

import driftrate as dr
import driftrate.torch
from driftrate.errors import ConfigError, StateError

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def agree(*values):
    """Fail unless all ranks have the same bits."""
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, repr(values))
    assert len(set(every)) == 1, every


def attached(net, kind, schedule, **options):
    optimizer = problem.OPTIMIZERS[kind](net.parameters())
    return optimizer, driftrate.torch.attach(optimizer, problem.SCHEDULES[schedule], **options)


def same_run(way, kind, schedule, mode="sequence", most=None, steps=20):
    """Compare a sharded run with one on the whole batch in this process."""
    one, other = problem.network(), problem.WAYS[way][0](problem.network())
    optimizers = [attached(one, kind, schedule, mode=mode, batch_size=problem.BATCH, ddp=False)]
    optimizers.append(attached(other, kind, schedule, mode=mode, batch_size=problem.BATCH))
    half = problem.BATCH // 2
    every = (slice(None), (slice(0, half), slice(half, None)))
    here = (problem.rows(way), [problem.rows(way, half=k) for k in (0, 1)])
    rates = [
        problem.train(net, *pair, range(steps), *rows, most=most)
        for net, pair, rows in zip((one, other), optimizers, (every, here), strict=True)
    ]
    agree(rates[1], optimizers[1][1].record)
    assert rates[1] == pytest.approx(rates[0], rel=1e-5), (way, kind, schedule)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(problem.whole(q), p.detach(), rtol=1e-5, atol=1e-7)
    # The rates have moved, else nothing was compared.
    assert len(set(rates[0])) > steps // 2
    return optimizers[1]


@check
def attach_under_fsdp(out):
    same_run("fsdp", "Adam", "long")
    same_run("fsdp", "Adam", "measured", most=0.5)
    same_run("fsdp", "AdamW", "measured")
    same_run("fsdp", "momentum", "measured")
    same_run("fsdp", "SGD", "long")
    same_run("fsdp", "SGD", "measured", mode="parts")
    same_run("fsdp", "SGD", "shift", mode="parts")


@check
def attach_under_tensor_parallelism(out):
    same_run("tensor_parallel", "Adam", "long")
    same_run("tensor_parallel", "AdamW", "measured")


@check
def attach_under_both(out):
    same_run("both", "Adam", "long")
    same_run("both", "momentum", "measured")


@check
def attach_under_copies(out):
    same_run("copies", "AdamW", "measured")


def same_pursuit(way, steps=20, **options):
    """Compare Pursuit on shards with Pursuit on the whole batch in this process."""
    one, other = (problem.network(torch.float32) for _ in range(2))
    problem.WAYS[way][0](other)
    optimizers = [driftrate.torch.Pursuit(net.parameters(), **options) for net in (one, other)]
    for net, optimizer, rows in zip(
        (one, other), optimizers, (slice(None), problem.rows(way)), strict=True
    ):
        problem.train(net, optimizer, None, range(steps), rows)
    agree([state["law"].tolist() for state in optimizers[1].state.values()])
    for name, value in optimizers[0].record.items():
        torch.testing.assert_close(
            optimizers[1].record[name], value, rtol=1e-4, atol=1e-6, equal_nan=True
        )
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(problem.whole(q), p.detach(), rtol=1e-4, atol=1e-5)
    return optimizers[1]


@check
def pursuit_under_fsdp(out):
    same_pursuit("fsdp")


@check
def pursuit_under_tensor_parallelism(out):
    same_pursuit("tensor_parallel")


@check
def pursuit_under_both(out):
    same_pursuit("both")


@check
def pursuit_under_copies(out):
    same_pursuit("copies")


@check
def pursuit_looks_twice_at_a_batch(out):
    """The rate of learning is that of all shards, from the first sample on."""
    learning = []
    for net, rows in (
        (problem.network(torch.float32), slice(None)),
        (problem.fsdp(problem.network(torch.float32)), problem.rows("fsdp")),
    ):
        optimizer = driftrate.torch.Pursuit(net.parameters(), sample_every=2)
        found = []
        for step in range(4):
            x, y = problem.batch(step, torch.float32)

            def closure(net=net, optimizer=optimizer, x=x[rows], y=y[rows]):
                optimizer.zero_grad()
                loss = problem.mse_loss(net(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
            found.append(float(optimizer.record["learning"]))
        learning.append(found)
    assert learning[1] == pytest.approx(learning[0], rel=1e-4)
    agree(learning[1])


@check
def pursuit_in_sixteen_bits(out):
    net = problem.fsdp(problem.network(torch.bfloat16))
    optimizer = driftrate.torch.Pursuit(net.parameters())
    problem.train(net, optimizer, None, range(10), problem.rows("fsdp"))
    agree([state["law"].tolist() for state in optimizer.state.values()])
    for p in net.parameters():
        assert optimizer.state[p]["rest"].placements == p.placements
        assert problem.whole(p).isfinite().all()


@check
def pursuit_refuses_what_does_not_fit(out):
    """On every rank, also where the part that lies here is as long as it should be."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    rows = 2 * dist.get_world_size()
    p = torch.nn.Parameter(distribute_tensor(torch.randn(rows, 3), mesh, [Shard(0)]))
    optimizer = driftrate.torch.Pursuit([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    state, law = optimizer.state[p], optimizer.state[p]["law"].clone()
    short = distribute_tensor(torch.rand(rows - 1, 3), mesh, [Shard(0)])
    copied = distribute_tensor(torch.rand(rows, 3), mesh, [Replicate()])
    for wrong, words in ((short, "of shape"), (copied, "spread as")):
        state["trail"], before = wrong, p.to_local().clone()
        with pytest.raises(StateError, match=rf"trail of parameter 0 is {words} .*resize\(param\)"):
            optimizer.step()
        assert torch.equal(p.to_local(), before)
        optimizer.resize(p)
        state = optimizer.state[p]
        assert torch.equal(problem.whole(state["trail"])[: len(wrong)], problem.whole(wrong))
        assert state["trail"].placements == p.placements
    assert torch.equal(state["law"], law)
    optimizer.step()


def counted(optimizer, net, way="fsdp", extra=None):
    """Return the collectives of one step, forward and backward left out."""
    x, y = problem.batch(0, next(net.parameters()).dtype)
    rows = problem.rows(way)
    problem.mse_loss(net(x[rows]), y[rows]).backward()
    with CommDebugMode() as seen:
        optimizer.step()
    optimizer.zero_grad()
    return {str(op): number for op, number in seen.get_comm_counts().items() if number}


@check
def one_small_reduction_a_step(out):
    """The first step of Pursuit has another one, for the scales."""
    sizes = []
    real = dist.all_reduce

    def measured(tensor, *more, **options):
        sizes.append(tensor.numel())
        return real(tensor, *more, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", measured)
        for kind in ("bare", "attach", "pursuit"):
            net = problem.fsdp(problem.network())
            if kind == "pursuit":
                optimizer = driftrate.torch.Pursuit(net.parameters())
            else:
                optimizer = problem.OPTIMIZERS["Adam"](net.parameters())
            if kind == "attach":
                rate = driftrate.torch.attach(optimizer, problem.SCHEDULES["long"])
                assert rate.mode == "sequence"
            counted(optimizer, net)
            sizes.clear()
            found = counted(optimizer, net)
            wanted = {} if kind == "bare" else {"c10d.allreduce_": 1}
            assert found == wanted, (kind, found)
            few = {"bare": [], "attach": [4], "pursuit": [3 * len(list(net.parameters()))]}
            assert sizes == few[kind], (kind, sizes)


@check
def a_gradient_that_is_no_number_on_one_rank(out):
    """All ranks leave out the step, and what they remember stays alike."""
    net = problem.fsdp(problem.network())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    rate = driftrate.torch.attach(optimizer, problem.SCHEDULES["long"])
    rows = problem.rows("fsdp")
    problem.train(net, optimizer, rate, range(5), rows)
    before = rate.state_dict()

    def spoil(step, net):
        if dist.get_rank() == 1:
            net[0].weight.grad.to_local().view(-1)[0] = math.nan

    weights = [p.detach().to_local().clone() for p in net.parameters()]
    problem.train(net, optimizer, rate, [5], rows, spoil=spoil)
    for p, w in zip(net.parameters(), weights, strict=True):
        p.detach().to_local().copy_(w)
    after = rate.state_dict()
    for one, other in zip(_tensors(before), _tensors(after), strict=True):
        assert torch.equal(one, other)
    problem.train(net, optimizer, rate, range(6, 9), rows)
    agree(rate.record)
    assert math.isfinite(rate.record["rate"])


def _tensors(state):
    return [value.to_local().clone() for one in state["kept"].values() for value in one.values()]


@check
def a_gradient_of_partial_sums(out):
    """It is added up once, for the measurement and for the optimizer."""
    mesh, world = init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_world_size()
    for layout in (Replicate(), Shard(0)):
        weight = torch.nn.Parameter(distribute_tensor(torch.ones(5, 3), mesh, [layout]))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        rate = driftrate.torch.attach(optimizer, Square())
        weight.grad = DTensor.from_local(torch.ones(5, 3), mesh, [Partial()])
        optimizer.step()
        assert weight.grad.placements == weight.placements
        assert float(rate._state["seen"]) == 15.0 * world**2
        assert torch.equal(problem.whole(weight), torch.full((5, 3), 1.0 - 0.5 * world))


@dataclass(frozen=True)
class Square(dr.Schedule):
    """A rate of a half that remembers ‖g‖²."""

    signals: ClassVar[tuple[str, ...]] = ("grad_sq",)

    @classmethod
    def example(cls):
        return cls()

    def _start(self):
        return {"rate": 0.5, "seen": 0.0}

    def _step(self, xp, state, signal):
        return state["rate"], {"rate": state["rate"], "seen": signal.grad_sq}


@check
def a_shift_that_is_told(out):
    net = problem.fsdp(problem.network())
    optimizer, rate = attached(net, "Adam", "measured")
    rows = problem.rows("fsdp")
    problem.train(net, optimizer, rate, range(5), rows)
    rate.notify_shift("reset")
    state = optimizer.state[net[0].weight]
    assert not problem.whole(state["exp_avg"]).any()
    problem.train(net, optimizer, rate, range(5, 8), rows)
    agree(rate.record)
    pursuing = driftrate.torch.Pursuit(net.parameters())
    problem.train(net, pursuing, None, range(5), rows)
    pursuing.notify_shift()
    assert not problem.whole(pursuing.state[net[0].weight]["trail"]).any()
    problem.train(net, pursuing, None, range(5, 8), rows)


@check
def what_is_refused(out):
    net = problem.fsdp(problem.network())
    for mode in ("ranks", "accumulation"):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.raises(ConfigError, match=mode):
            driftrate.torch.attach(optimizer, problem.SCHEDULES["measured"], mode=mode)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(torch.distributed.fsdp, "fully_shard")
        with pytest.raises(ConfigError, match=r"torch 2\.6"):
            driftrate.torch.attach(optimizer, problem.SCHEDULES["long"])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    partial = torch.nn.Parameter(DTensor.from_local(torch.ones(3, 2), mesh, [Partial()]))
    optimizer = torch.optim.SGD([partial], lr=0.1)
    with pytest.raises(ConfigError, match="partial sums"):
        driftrate.torch.attach(optimizer, problem.SCHEDULES["long"])


def flat_run(kind, schedule, **options):
    """Compare FullyShardedDataParallel with a run on the whole batch in this process."""
    one, other = problem.network(), problem.flat(problem.network(), **options)
    optimizer, rate = attached(one, kind, schedule, ddp=False)
    wanted = problem.train(one, optimizer, rate, range(20), slice(None))
    rows = problem.rows("fsdp")
    with pytest.raises(ConfigError, match="fsdp=model"):
        attached(other, kind, schedule)
    optimizer, rate = attached(other, kind, schedule, fsdp=other)
    rates = problem.train(other, optimizer, rate, range(10), rows)
    state, moments = rate.state_dict(), optimizer.state_dict()
    rates += problem.train(other, optimizer, rate, range(10, 12), rows)
    agree(rates, rate.record)
    assert rates == pytest.approx(wanted[:12], rel=1e-5), (kind, schedule)
    with FullyShardedDataParallel.summon_full_params(other):
        weights = [p.detach().clone() for p in other.parameters()]
    # The same ranks go on from a state of their own.
    rate.detach()
    optimizer.load_state_dict(moments)
    again = driftrate.torch.attach(optimizer, problem.SCHEDULES[schedule], fsdp=other)
    again.load_state_dict(state)
    assert again.steps == 10
    more = problem.train(other, optimizer, again, range(12, 14), rows)
    agree(more)
    return weights


@check
def attach_under_fsdp1(out):
    for whole in (True, False):
        flat_run("Adam", "long", use_orig_params=whole)
    flat_run("AdamW", "measured", use_orig_params=True)
    flat_run("SGD", "measured", use_orig_params=True)
    for whole in (True, False):
        net = problem.flat(problem.network(), use_orig_params=whole)
        with pytest.raises(ConfigError, match="fully_shard"):
            driftrate.torch.Pursuit(net.parameters())


def zero(net, kind, **options):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # late: it warns of torch.jit

    kinds = {"Adam": torch.optim.Adam, "pursuit": driftrate.torch.Pursuit}
    return ZeroRedundancyOptimizer(net.parameters(), kinds[kind], **options)


@check
def attach_around_zero(out):
    """Also where some ranks step nothing: of four ranks and two tensors, say."""
    for schedule, net in (
        ("long", problem.network()),
        ("measured", problem.network()),
        ("measured", torch.nn.Linear(6, 1, bias=False, dtype=torch.float64)),
    ):
        one = copy.deepcopy(net)
        optimizer, rate = attached(one, "Adam", schedule, ddp=False)
        wanted = problem.train(one, optimizer, rate, range(16), slice(None))
        rows = problem.rows("fsdp")
        ddp = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(net))
        optimizer = zero(ddp, "Adam", lr=0.01)
        rate = driftrate.torch.attach(optimizer, problem.SCHEDULES[schedule])
        rates = problem.train(ddp, optimizer, rate, range(8), rows)
        saved = consolidated(optimizer), rate.state_dict(), copy.deepcopy(ddp.module.state_dict())
        rates += problem.train(ddp, optimizer, rate, range(8, 16), rows)
        agree(rates, [p.tolist() for p in ddp.parameters()])
        assert rates == pytest.approx(wanted, rel=1e-5)
        other = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(net))
        other.module.load_state_dict(saved[2])
        optimizer = zero(other, "Adam", lr=0.01)
        rate = driftrate.torch.attach(optimizer, problem.SCHEDULES[schedule])
        optimizer.load_state_dict(saved[0])
        rate.load_state_dict(saved[1])
        again = problem.train(other, optimizer, rate, range(8, 16), rows)
        assert again == pytest.approx(rates[8:], rel=1e-9)
        alike(ddp, other)
        rate.notify_shift("reset")
        assert not any(state["exp_avg"].any() for state in optimizer.optim.state.values())


def consolidated(optimizer):
    """Return the whole state on every rank, as after a file that all of them read."""
    optimizer.consolidate_state_dict(0)
    every = [copy.deepcopy(optimizer.state_dict()) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(every, 0)
    return every[0]


def alike(ddp, other):
    """Bit by bit on two ranks; from three on DDP's first step adds in another order."""
    exact = dist.get_world_size() == 2
    for p, q in zip(ddp.parameters(), other.parameters(), strict=True):
        assert not exact or torch.equal(p, q)
        torch.testing.assert_close(q, p, rtol=1e-6, atol=1e-6)


@check
def pursuit_inside_zero(out):
    for net in (problem.network(torch.float32), torch.nn.Linear(6, 1, bias=False)):
        ddp = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(net))
        rows = problem.rows("fsdp")
        optimizer = zero(ddp, "pursuit", lr=1.0)
        problem.train(ddp, optimizer, None, range(8), rows)
        saved = consolidated(optimizer), copy.deepcopy(ddp.module.state_dict())
        problem.train(ddp, optimizer, None, range(8, 16), rows)
        agree([p.tolist() for p in ddp.parameters()])
        other = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(net))
        other.module.load_state_dict(saved[1])
        optimizer = zero(other, "pursuit", lr=1.0)
        optimizer.load_state_dict(saved[0])
        problem.train(other, optimizer, None, range(8, 16), rows)
        alike(ddp, other)


@check
def the_page_runs(out):
    page = (Path(__file__).parents[2] / "docs" / "sharded.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    seen = {"folder": out / "page"}
    exec(code, seen)
    assert seen["rate"].steps == 10
    agree(seen["rate"].record)
