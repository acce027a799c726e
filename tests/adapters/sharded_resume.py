"""Runs that go on from a checkpoint of torch: on as many ranks bit by bit, else to rounding."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import sharded_problem as problem
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharded_checks import agree, attached, check
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import init_device_mesh

import driftrate.torch
from driftrate.errors import StateError

BEFORE, AFTER = range(6), range(6, 16)


class Run(NamedTuple):
    """What is trained: how it is spread, by what optimizer, with which rate, measured how."""

    way: str
    kind: str
    schedule: str | None
    mode: str = "sequence"


RUNS = [
    Run("fsdp", "Adam", "long"),
    Run("fsdp", "AdamW", "measured"),
    Run("fsdp", "momentum", "measured"),
    Run("fsdp", "SGD", "measured"),
    Run("fsdp", "pursuit", None),
]
OTHERS = [
    Run("fsdp", "SGD", "measured", "parts"),
    Run("fsdp", "Adam", "shift", "parts"),
    *(
        Run(way, *pair)
        for way in ("tensor_parallel", "both", "copies")
        for pair in (
            ("Adam", "long"),
            ("SGD", "measured"),
            ("momentum", "measured"),
            ("pursuit", None),
        )
    ),
]


def possible(run):
    """Whether there are ranks enough: pairs for a mesh of two dimensions."""
    return run.way not in ("both", "copies") or dist.get_world_size() > 1


def fresh(run, seed=0):
    """Return a sharded network, its optimizer and what is attached."""
    net = problem.network(torch.float32 if run.schedule is None else torch.float64, seed)
    if run.way == "flat":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        net = problem.flat(net, device_mesh=mesh, use_orig_params=run.mode == "sequence")
        return net, *attached(net, run.kind, run.schedule, fsdp=net)
    net = problem.WAYS[run.way][0](net)
    if run.schedule is None:
        return net, driftrate.torch.Pursuit(net.parameters()), None
    return net, *attached(net, run.kind, run.schedule, mode=run.mode, batch_size=problem.BATCH)


def train(run, net, optimizer, rate, steps):
    halves = [problem.rows(run.way, half=k) for k in (0, 1)]
    return problem.train(net, optimizer, rate, steps, problem.rows(run.way), halves)


def saved_of(net, optimizer, rate):
    """Return what a checkpoint holds: torch's own form of it."""
    model, optim = get_state_dict(net, optimizer)
    return {"model": model, "optim": optim, **({} if rate is None else {"rate": rate})}


def end(net, rates):
    every = [problem.whole(p) for p in net.parameters()]
    return {"weights": every, "rates": rates, "world": dist.get_world_size()}


def leave(out, runs):
    """Leave checkpoints, and the end of each run that goes on without a break."""
    for run in filter(possible, runs):
        net, optimizer, rate = fresh(run)
        train(run, net, optimizer, rate, BEFORE)
        where = out / "-".join(map(str, run))
        dcp.save(saved_of(net, optimizer, rate), checkpoint_id=where)
        if run.kind == "momentum":  # the trail is the optimizer's, and in its state
            assert "trail" not in rate.state_dict().get("kept", {})
        ended = end(net, train(run, net, optimizer, rate, AFTER))
        if dist.get_rank() == 0:
            torch.save(ended, where.with_suffix(".pt"))


def go_on(out, runs):
    """Go on from the checkpoints."""
    for run in filter(possible, runs):
        net, optimizer, rate = fresh(run, seed=1)
        state = saved_of(net, optimizer, rate)
        assert rate is None or rate.steps == 0  # what makes a state to load into is no step
        where = out / "-".join(map(str, run))
        dcp.load(state, checkpoint_id=where)
        set_state_dict(
            net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        assert rate is None or rate.steps == len(BEFORE)
        ended = end(net, train(run, net, optimizer, rate, AFTER))
        wanted = torch.load(where.with_suffix(".pt"), weights_only=True)
        if wanted["world"] == ended["world"]:
            assert wanted["rates"] == ended["rates"], run
            for p, q in zip(ended["weights"], wanted["weights"], strict=True):
                assert torch.equal(p, q), run
        assert ended["rates"] == pytest.approx(wanted["rates"], rel=1e-6), run
        close = {"rtol": 1e-6, "atol": 1e-6 if rate is None else 1e-8}  # of single precision
        for p, q in zip(ended["weights"], wanted["weights"], strict=True):
            torch.testing.assert_close(p, q, **close)
        agree(ended["rates"])


@check
def save(out):
    leave(out, RUNS)


@check
def resume(out):
    go_on(out, RUNS)


@check
def save_of_others(out):
    leave(out, [run for run in OTHERS if dist.get_world_size() > 1])


@check
def resume_of_others(out):
    go_on(out, [run for run in OTHERS if (out / "-".join(map(str, run))).exists()])


@check
def fsdp1_goes_on_in_the_same_ranks(out):
    """Each rank has entries of its own: under one name all would load those of one."""
    for kind, schedule, mode in (
        ("Adam", "long", "sequence"),
        ("SGD", "measured", "sequence"),
        ("momentum", "measured", "one flat parameter"),
        ("SGD", "long", "one flat parameter"),
    ):
        run = Run("flat", kind, schedule, mode)
        net, optimizer, rate = fresh(run)
        problem.train(net, optimizer, rate, BEFORE, problem.rows("fsdp"))
        where = out / "-".join(map(str, run))
        dcp.save(saved_of(net, optimizer, rate), checkpoint_id=where)
        wanted = problem.train(net, optimizer, rate, AFTER, problem.rows("fsdp"))
        net, optimizer, rate = fresh(run, seed=1)
        state = saved_of(net, optimizer, rate)
        dcp.load(state, checkpoint_id=where)
        set_state_dict(
            net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        assert rate.steps == len(BEFORE)
        assert wanted == problem.train(net, optimizer, rate, AFTER, problem.rows("fsdp")), run
    saved = rate.state_dict()
    (own,) = saved.keys() - {"version"}
    with pytest.raises(StateError, match=r"rank 7 of 9.*fully_shard"):
        rate.load_state_dict({"version": saved["version"], "rank 7 of 9": saved[own]})
    net, optimizer, rate = fresh(RUNS[0])
    with pytest.raises(StateError, match="FullyShardedDataParallel"):
        rate.load_state_dict(saved)
