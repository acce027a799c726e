from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import gloo_ranks
import numpy as np
import pytest
import small_loop
import torch
from small_loop import Fraction

import driftrate as dr
import driftrate.torch
from driftrate.errors import ConfigError, MissingSignal, SignalError, StateError

HERE = Path(__file__).parent
attach = driftrate.torch.attach


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def gradient(net, x, y):
    grads = torch.autograd.grad(small_loop.loss(net, x, y), list(net.parameters()))
    return flat(grads).numpy()


def expected_signal(mode, net, step, last):
    """The signal by the definition, with whole gradients in NumPy."""
    x, y = small_loop.batch(step)
    if mode == "sequence":
        now = gradient(net, x, y)
        if last is None:
            return now, None
        apart = now - last
        return now, dr.Signal(cross=now @ last, spread=apart @ apart / 2)
    half = small_loop.BATCH // 2
    parts = [gradient(net, x[:half], y[:half]), gradient(net, x[half:], y[half:])]
    return None, dr.estimate.from_parts(np.stack(parts))


@pytest.mark.parametrize("mode", small_loop.MODES)
def test_same_trajectory_as_the_core(mode):
    """Weights and rates are those of the pure rule and a step written out by hand."""
    net, optimizer, rate = small_loop.start("SGD", mode)
    twin = small_loop.model()
    schedule, state, last = Fraction(), Fraction().init(), None
    for step in range(small_loop.STEPS):
        last, signal = expected_signal(mode, twin, step, last)
        eta = 0.0
        if signal is not None:
            eta, state = schedule.update(
                state, dr.Signal(cross=float(signal.cross), spread=float(signal.spread))
            )
        whole = gradient(twin, *small_loop.batch(step))
        with torch.no_grad():
            weights = flat(twin.parameters()) - eta * torch.from_numpy(whole)
            torch.nn.utils.vector_to_parameters(weights, twin.parameters())
        small_loop.run(net, optimizer, rate, [step])
        assert optimizer.param_groups[0]["lr"] == pytest.approx(eta, rel=1e-10, abs=1e-14)
    assert torch.allclose(flat(net.parameters()), flat(twin.parameters()), rtol=1e-10, atol=1e-12)
    assert rate.steps == small_loop.STEPS


@pytest.mark.parametrize("name", sorted(dr.schedules.base.registry()))
def test_every_schedule_attaches(name):
    """What no mode measures is told; the rates are those of the rule on the same signals."""
    schedule = dr.schedules.base.registry()[name].example()
    net = small_loop.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    mode = "parts" if {"cross", "spread", "parts"} & set(schedule.signals) else None
    rate = attach(optimizer, schedule, mode=mode, batch_size=small_loop.BATCH, relative=False)
    state, moved, trail, average = (
        schedule.init(),
        0.0,
        0.0,
        flat(net.parameters()).detach().numpy(),
    )
    for step in range(30):
        told = {"shift": 0.1 * (step % 7), "loss": 0.5, "loss_shift": 0.01}
        rate.tell(**told)
        optimizer.zero_grad()
        small_loop.backward(rate, net, step)
        whole = dr.estimate.from_parts(
            np.stack([gradient(net, *map(h, small_loop.batch(step))) for h in (first, second)])
        )
        mean = gradient(net, *small_loop.batch(step))
        along, trail = float((mean * trail).sum()), 0.9 * trail + mean
        signal = whole._replace(batch_size=small_loop.BATCH, step_length=moved, parts=2.0, **told)
        now = flat(net.parameters()).detach().numpy()
        ahead, reach = now - average, float(mean @ mean) ** 0.5
        average = average + ahead / 50.0
        signal = signal._replace(dim=mean.size, trail=along, lead=float(mean @ ahead))
        signal = signal._replace(weights_sq=float(now @ now), reach=reach)
        values = {key: float(getattr(signal, key)) for key in schedule.signals}
        if rate.mode == "parts" and "loss" in values:
            values["loss"] = small_loop.loss(net, *small_loop.batch(step)).item()
        eta, state = schedule.update(state, dr.Signal(**values))
        before = flat(net.parameters()).detach().clone()
        optimizer.step()
        moved = float((flat(net.parameters()).detach() - before).norm())
        assert optimizer.param_groups[0]["lr"] == pytest.approx(eta, rel=1e-10, abs=1e-14)


def first(t):
    return t[: len(t) // 2]


def second(t):
    return t[len(t) // 2 :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("kind", ["SGD", "momentum", "Adam", "AdamW"])
def test_every_optimizer_uses_the_rate_of_its_own_step(kind, form, tensor, dtype):
    """A scheduled run equals one whose rates are set by hand before each step."""
    cls, options = {
        "SGD": (torch.optim.SGD, {}),
        "momentum": (torch.optim.SGD, {"momentum": 0.9}),
        "Adam": (torch.optim.Adam, {}),
        "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}),
    }[kind]
    options |= {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[
        form
    ]
    if tensor and form == "foreach" and cls is not torch.optim.SGD:
        pytest.skip("torch allows a tensor rate with foreach only where it is capturable")

    def make(scheduled):
        net = small_loop.model(dtype)
        lr = torch.tensor(0.07) if tensor else 0.07
        optimizer = cls(net.parameters(), lr=lr, **options)
        schedule = dr.InverseTimeRate(0.07)
        rate = attach(optimizer, schedule) if scheduled else None
        for step in range(12):
            optimizer.zero_grad()
            small_loop.backward(None, net, step, dtype)
            if not scheduled:
                value = 0.07 / (step + 1)
                group = optimizer.param_groups[0]
                group["lr"] = torch.tensor(value) if tensor else value
            optimizer.step()
        if scheduled:
            assert rate.steps == 12
            kept = optimizer.param_groups[0]["lr"]
            assert kept is lr if tensor else isinstance(kept, float)
        return flat(net.parameters())

    assert torch.equal(make(True), make(False))


def test_capturable_optimizers():
    if not torch.cuda.is_available():
        pytest.skip("capturable optimizers need CUDA: benchmarks/adapters.py --gpu checks them")
    net = small_loop.model().cuda()
    lr = torch.tensor(0.1, device="cuda")
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, capturable=True)
    rate = attach(optimizer, dr.InverseTimeRate(0.1))
    x, y = (t.cuda() for t in small_loop.batch(0))
    small_loop.loss(net, x, y).backward()
    optimizer.step()
    assert rate.steps == 1


def test_groups_keep_their_proportions():
    net = small_loop.model()
    groups = [{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 0.02}]
    optimizer = torch.optim.SGD(groups, lr=torch.tensor(0.1))
    rate = attach(optimizer, dr.ConstantRate(0.5))
    small_loop.run(net, optimizer, rate, range(2))
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.5)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.1)
    rate.detach()
    small_loop.run(net, optimizer, None, range(2))
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.1)
    for group, base in zip(optimizer.param_groups, (0.1, 0.02), strict=True):
        group["lr"] = base
    rate = attach(optimizer, dr.ConstantRate(0.5), relative=True)
    extra = torch.nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [extra], "lr": 1.0})
    small_loop.run(net, optimizer, rate, range(2))
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.05, 0.01, 0.5])


def test_measured_factors_multiply_the_rate_of_other_optimizers():
    net, optimizer, rate = small_loop.start("Adam", "sequence")
    assert rate.relative
    assert rate.schedule.max_rate == 1.0
    rates = small_loop.run(net, optimizer, rate, range(50))
    assert 0.0 < max(rates) <= 0.05
    assert not small_loop.start("SGD", "sequence")[2].relative


def test_missing_and_frozen_gradients():
    net = small_loop.model()
    unused = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = torch.optim.SGD([*net.parameters(), unused, frozen], lr=0.1)
    rate = attach(optimizer, Fraction())
    optimizer.step()
    assert rate.steps == 0  # there was nothing to update
    twin, twins, other = small_loop.start("SGD", "sequence")
    rates = small_loop.run(net, optimizer, rate, range(20))
    assert rates == small_loop.run(twin, twins, other, range(20))
    assert torch.equal(unused, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("mode", small_loop.MODES)
def test_a_parameter_that_misses_a_part_has_gradient_zero(mode):
    values = {}
    for hidden in (False, True):
        weights = [torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2)]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        rate = attach(optimizer, Fraction(), mode=mode)
        for step in range(3):
            optimizer.zero_grad()
            for part in range(1 if mode == "sequence" else 3):
                loss = (weights[0] * torch.tensor([1.0 + step, 2.0 + part])).sum()
                if step + part != 1 or not hidden:
                    loss = loss + (0.0 if step + part == 1 else 3.0) * weights[1].sum()
                if mode == "parts":
                    with rate.part():
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()
        values[hidden] = rate.record
    assert values[True] == pytest.approx(values[False], nan_ok=True)


@pytest.mark.parametrize("mode", small_loop.MODES)
def test_sparse_embeddings_measure_like_dense_ones(mode):
    records = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = torch.nn.Embedding(20, 3, sparse=sparse, dtype=torch.float64)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        rate = attach(optimizer, Fraction(max_rate=0.1), mode=mode)
        for step in range(10):
            rows = torch.randint(20, (8,), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            if mode == "parts":
                rate.backward(lambda r, net=table: net(r).square().mean(), rows)
            elif mode == "accumulation":
                for half in rows.split(4):
                    (table(half).square().mean() / 2).backward()
            else:
                table(rows).square().mean().backward()
            optimizer.step()
        records.append([*rate.record.values(), *table.weight.detach().flatten().tolist()])
    assert records[0] == pytest.approx(records[1], rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", small_loop.MODES)
def test_half_precision_is_measured_in_full(mode, dtype):
    """Products of gradients of 1e-4 vanish in float16; sums of thousands stall in bfloat16."""
    torch.manual_seed(0)
    signs = 1.0 + 0.25 * torch.randn(2, 5000)
    weights = torch.nn.Parameter(torch.zeros(5000, dtype=dtype))
    optimizer = torch.optim.SGD([weights], lr=1e-3)
    rate = attach(optimizer, Fraction(max_rate=1e-3), mode=mode)
    kept = []
    for half in signs:
        kept.append((half * 1e-4).to(dtype).double())
        if mode == "sequence":
            optimizer.zero_grad()
        loss = (weights * kept[-1].to(dtype)).sum()
        if mode == "parts":
            with rate.part():
                loss.backward()
        else:
            loss.backward()
        if mode == "sequence":
            optimizer.step()
    if mode != "sequence":
        optimizer.step()
        kept = [2.0 * k for k in kept]
    cross, apart = float(kept[0] @ kept[1]), float((kept[0] - kept[1]).square().sum())
    assert rate.record["signal"] == pytest.approx(cross, rel=1e-2)
    noise = apart / (2.0 if mode == "sequence" else 4.0)
    assert rate.record["noise"] == pytest.approx(noise, rel=1e-2)


def test_ten_million_squares_are_summed_accurately():
    from driftrate.adapters.torch.measure import squared

    values = torch.rand(10_000_000) + 0.5
    like = torch.zeros((), dtype=torch.float64)
    assert float(squared([values], like)) == pytest.approx(
        float(values.double().square().sum()), rel=1e-6
    )


@pytest.mark.parametrize("mode", small_loop.MODES)
def test_clipping_scales_signal_and_noise_alike(mode):
    records = []
    for factor in (1.0, 0.125):
        net = small_loop.model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        rate = attach(optimizer, Fraction(max_rate=0.0), mode=mode)
        for step in range(2):
            optimizer.zero_grad()
            small_loop.backward(rate, net, step)
            norm = torch.nn.utils.get_total_norm([p.grad for p in net.parameters()])
            torch.nn.utils.clip_grad_norm_(net.parameters(), factor * float(norm))
            optimizer.step()
        records.append((rate.record["signal"], rate.record["noise"]))
    (signal, noise), clipped = records
    assert clipped == pytest.approx((signal / 64, noise / 64), rel=1e-4)


@pytest.mark.parametrize("mode", small_loop.MODES)
@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
def test_loss_scaling_leaves_no_trace(mode, fused):
    """Rates, counts and weights are those of a run without scaler that leaves the bad steps out."""
    bad = {4, 9, 10}
    outcomes = []
    for scaled in (False, True):
        net = small_loop.model(torch.float32)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.05, fused=fused)
        rate = attach(optimizer, Fraction(), mode=mode)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=6, enabled=scaled)
        rates = []
        for step in range(25):
            if step in bad and not scaled:
                continue
            x, y = small_loop.batch(step, torch.float32)
            optimizer.zero_grad()
            y = y * math.inf if step in bad else y
            if mode == "parts":
                rate.backward(lambda x, y, n=net: small_loop.loss(n, x, y), x, y, scaler=scaler)
            elif mode == "accumulation":
                for half in (first, second):
                    scaler.scale(small_loop.loss(net, half(x), half(y)) / 2).backward()
            else:
                scaler.scale(small_loop.loss(net, x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
            rates.append(optimizer.param_groups[0]["lr"])
        outcomes.append((rate.steps, rates, flat(net.parameters()).detach().numpy()))
    (steps, rates, weights), (scaled_steps, scaled_rates, scaled_weights) = outcomes
    assert scaled_steps == steps == 22
    if mode == "sequence" and fused:
        # A skipped gradient replaces the last good one: the next step has nothing to compare with.
        assert scaled_rates[:4] == pytest.approx(rates[:4], rel=1e-4)
        assert np.isfinite(scaled_weights).all()
        return
    kept = [r for step, r in enumerate(scaled_rates) if step not in bad]
    assert kept == pytest.approx(rates, rel=2e-4)
    np.testing.assert_allclose(scaled_weights, weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("style", ["positional", "keyword"])
def test_closures_are_measured_when_their_gradients_exist(style):
    net, optimizer, rate = small_loop.start("momentum", "sequence")
    twin, twins, other = small_loop.start("momentum", "sequence")
    for step in range(30):

        def closure(step=step):
            optimizer.zero_grad()
            return small_loop.backward(rate, net, step)

        value = (
            optimizer.step(closure) if style == "positional" else optimizer.step(closure=closure)
        )
        assert value.ndim == 0
        small_loop.run(twin, twins, other, [step])
    assert torch.equal(flat(net.parameters()), flat(twin.parameters()))
    assert rate.steps == 30


def test_a_closure_tells_the_loss():
    net = small_loop.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = dr.NonconvexRate(smoothness=4.0, noise_std=1.0)
    rate = attach(optimizer, schedule, batch_size=small_loop.BATCH)
    rate.tell(loss_shift=0.0)
    optimizer.step(lambda: small_loop.backward(None, net, 0))
    assert rate.steps == 1


def test_bad_gradients_leave_the_rate_as_it_was():
    for mode in small_loop.MODES:
        net, optimizer, rate = small_loop.start("SGD", mode)
        rates = small_loop.run(net, optimizer, rate, range(10))
        saved = [p.detach().clone() for p in net.parameters()]
        small_loop.backward(rate, net, 10)
        for p in net.parameters():
            p.grad.fill_(math.nan)
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == rates[-1]
        with torch.no_grad():
            for p, old in zip(net.parameters(), saved, strict=True):
                p.copy_(old)
        after = small_loop.run(net, optimizer, rate, range(11, 20))
        assert all(math.isfinite(r) for r in after)
        assert after[-1] != rates[-1]


def test_refusals_leave_the_optimizer_untouched(monkeypatch):
    net = small_loop.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def refused(match, kind=ConfigError, opt=None, schedule=None, **options):
        opt = optimizer if opt is None else opt
        with pytest.raises(kind, match=match):
            attach(opt, schedule or Fraction(), **options)
        if isinstance(opt, torch.optim.Optimizer):
            assert not opt._optimizer_step_pre_hooks
            assert not opt._optimizer_step_post_hooks

    refused("not a torch optimizer", opt=net)
    refused("must be a Schedule", schedule=0.1)
    refused("HedgedSGD.*a learner with weights of its own", schedule=dr.HedgedSGD())
    for size in (0, -1, math.nan, math.inf, "32", True):
        refused("batch_size must be a number > 0, got", batch_size=size)
    refused('scheduler must be "refuse" or "multiply"', scheduler="ignore")
    still = torch.optim.SGD(net.parameters(), lr=0.0)
    refused("make the optimizer with lr > 0", opt=still, scheduler="multiply")
    refused("mode must be one of", mode="half")
    refused("needs ddp=", mode="ranks")
    refused("DistributedDataParallel", ddp=net)
    refused("LBFGS", opt=torch.optim.LBFGS(net.parameters()))
    refused("no parameters", opt=torch.optim.SGD([{"params": []}], lr=0.1))
    flattened = torch.nn.Parameter(torch.ones(1))
    flattened._fsdp_flattened = True  # as FullyShardedDataParallel marks its parameters
    refused("fsdp=model", opt=torch.optim.SGD([flattened], lr=0.1))
    refused("a FullyShardedDataParallel model", fsdp=net)
    rateless = torch.optim.SGD(net.parameters(), lr=0.1)
    del rateless.param_groups[0]["lr"]
    refused("no `lr`", opt=rateless)

    class NeedsParts(Fraction):
        signals = ("cross", "parts")

    refused(
        'mode="parts" or mode="accumulation" or mode="ranks"',
        kind=MissingSignal,
        schedule=NeedsParts(),
    )
    with monkeypatch.context() as patch:
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
        for mode in ("parts", "accumulation"):
            refused('ranks would disagree: use mode="ranks" with ddp=model', mode=mode)
        loss = dr.NonconvexRate(smoothness=1.0, noise_std=1.0)
        refused("reads the loss, on which the ranks would disagree", schedule=loss)
        attach(optimizer, loss, ddp=False).detach()
        attach(optimizer, Fraction(), mode="parts", ddp=False).detach()

    class Wrapping(torch.optim.Optimizer):
        def __init__(self):
            pass

    with pytest.raises(ConfigError, match="attach to the optimizer itself"):
        attach(Wrapping(), Fraction())

    attach(optimizer, Fraction())
    with pytest.raises(ConfigError, match="has a rate already"):
        attach(optimizer, Fraction())


def test_errors_at_a_step_come_before_it():
    net = small_loop.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rate = attach(optimizer, dr.LinearRate(dim=4, noise_std=1.0))
    small_loop.backward(None, net, 0)
    before = flat(net.parameters()).detach().clone()
    with pytest.raises(MissingSignal, match=r"attach\(batch_size"):
        optimizer.step()
    rate.tell(batch_size=4)
    with pytest.raises(MissingSignal, match=r"needs shift: tell\(shift=...\)"):
        optimizer.step()
    with pytest.raises(SignalError, match="shift"):
        rate.tell(batch_size=4, shift=-1.0)
    rate.tell(batch_size=4, shift=torch.tensor(-1.0))  # what a tensor holds is seen at the step
    with pytest.raises(SignalError, match="shift"):
        optimizer.step()
    assert torch.equal(flat(net.parameters()), before)
    with pytest.raises(SignalError, match="cannot be told"):
        rate.tell(cross=1.0)
    with pytest.raises(ConfigError, match='mode="parts"'):
        rate.backward(lambda x: x, torch.ones(4))


def test_part_arguments():
    _, _, rate = small_loop.start("SGD", "parts")
    with pytest.raises(ConfigError, match="2 or more"):
        rate.backward(lambda x: x, torch.ones(4), parts=1)
    with pytest.raises(ConfigError, match="tensors of the batch"):
        rate.backward(lambda x: x)


@pytest.mark.parametrize(("size", "parts"), [(7, 2), (8, 4), (3, 4), (1, 2)])
def test_parts_add_up_to_the_whole_batch(size, parts):
    net, optimizer, rate = small_loop.start("SGD", "parts")
    x, y = small_loop.batch(0, size=size)
    value = rate.backward(lambda x, y: small_loop.loss(net, x, y), x, y, parts=parts)
    whole = gradient(net, x, y)
    assert float(value) == pytest.approx(small_loop.loss(net, x, y).item())
    np.testing.assert_allclose(flat(p.grad for p in net.parameters()), whole, rtol=1e-12)
    optimizer.step()
    assert rate.steps == 1
    if parts <= size and size % parts == 0:
        pieces = [
            gradient(small_loop.model(), *piece)
            for piece in zip(x.chunk(parts), y.chunk(parts), strict=True)
        ]
        signal = dr.estimate.from_parts(np.stack(pieces))
        assert rate.record["signal"] == pytest.approx(signal.cross, rel=1e-10)
        assert rate.record["noise"] == pytest.approx(signal.spread, rel=1e-10)


def test_resume_in_a_new_process_is_bitwise(tmp_path):
    ends = {}
    pairs = [(kind, "sequence") for kind in small_loop.OPTIMIZERS]
    for kind, mode in [*pairs, ("AdamW-fused", "parts"), ("momentum", "accumulation")]:
        net, optimizer, rate = small_loop.start(kind, mode)
        small_loop.run(net, optimizer, rate, range(37))
        states = {"model": net, "optimizer": optimizer, "rate": rate}
        saved = {name: thing.state_dict() for name, thing in states.items()}
        torch.save({**saved, "next": 37}, tmp_path / f"{kind}@{mode}.pt")
        rates = small_loop.run(net, optimizer, rate, range(37, 37 + small_loop.STEPS))
        ends[f"{kind}@{mode}"] = (net, rates)
    command = [sys.executable, str(HERE / "resume_child.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, (net, rates) in ends.items():
        resumed = torch.load(tmp_path / f"{name}.done", weights_only=True)
        assert resumed["rates"] == rates, name
        for key, value in net.state_dict().items():
            assert torch.equal(resumed["model"][key], value), name


def test_states_that_do_not_fit():
    net, optimizer, rate = small_loop.start("SGD", "sequence")
    small_loop.run(net, optimizer, rate, range(3))
    good = rate.state_dict()
    before = rate.record

    def memory(last):
        return {"observer": {**good["observer"], "memory": last}}

    for change, match in [
        ({"version": 7}, "version 7; this driftrate reads version 3"),
        ({"mode": "parts"}, "of mode 'parts', this one of 'sequence'"),
        ({"groups": {**good["groups"], "bases": []}}, "0 parameter groups, the optimizer 1"),
        ({"schedule": dr.ConstantRate(0.1).dump(dr.ConstantRate(0.1).init())}, "ConstantRate"),
        ({"observer": {}}, "no measurements"),
        ({"observer": {"blind": None}}, "no memory of the optimizer's 4 gradients"),
        (memory([]), "no memory of the optimizer's 4 gradients"),
        (memory([torch.ones(1)] * 4), "memory of parameter 0 is of shape"),
    ]:
        with pytest.raises(StateError, match=match):
            rate.load_state_dict({**good, **change})
        assert rate.record == pytest.approx(before, nan_ok=True)
    with pytest.raises(StateError, match="not a saved rate"):
        rate.load_state_dict({"lr": 0.1})
    with pytest.raises(StateError, match=r"lacks \['count'\]"):
        rate.load_state_dict({key: value for key, value in good.items() if key != "count"})
    rate.load_state_dict(good)


def test_the_face_of_a_scheduler():
    net, optimizer, rate = small_loop.start("AdamW-tensor", "sequence")
    assert isinstance(rate, torch.optim.lr_scheduler.LRScheduler)
    assert "_wrapped_by_lr_sched" not in vars(getattr(optimizer.step, "__func__", optimizer.step))
    small_loop.run(net, optimizer, rate, range(5))
    (before,) = rate.get_last_lr()
    for _ in range(3):
        rate.step()
    assert rate.get_lr() == rate.get_last_lr() == [before]
    before.fill_(9.0)
    assert rate.get_last_lr() != [before]
    assert rate.optimizer is optimizer
    assert rate.steps == 5


@pytest.mark.parametrize("kind", ["SGD", "AdamW-fused", "AdamW-tensor"])
def test_what_training_frameworks_ask_of_a_scheduler(kind, tmp_path):
    """Lightning, Accelerate and the Trainer of Transformers, each call in their order."""
    net, optimizer, rate = small_loop.start(kind, "sequence")
    scheduler = rate
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    assert not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    assert scheduler.optimizer is optimizer
    assert not hasattr(scheduler, "total_steps")  # else Accelerate stops calling step
    assert [float(base) for base in scheduler.base_lrs] == [
        pytest.approx(float(group["lr"])) for group in optimizer.param_groups
    ]
    for step in range(6):
        small_loop.run(net, optimizer, rate, [step])
        scheduler.step()
        scheduler._step_count += 1  # Accelerate, while gradients accumulate
        scheduler.step(step)  # Lightning, by the epoch
        (logged,) = scheduler.get_last_lr()
        value = logged.item() if torch.is_tensor(logged) else logged
        assert isinstance(value, float)
        assert value == float(optimizer.param_groups[0]["lr"])
    torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save(net.state_dict(), tmp_path / "model.pt")
    other_net, other_optimizer, other = small_loop.start(kind, "sequence")
    for thing, name in ((other_net, "model"), (other_optimizer, "optimizer"), (other, "scheduler")):
        thing.load_state_dict(torch.load(tmp_path / f"{name}.pt", weights_only=True))
    assert other.steps == 6
    steps = range(6, 20)
    assert small_loop.run(other_net, other_optimizer, other, steps) == small_loop.run(
        net, optimizer, rate, steps
    )


def test_detach_and_attach_again():
    for mode in small_loop.MODES:
        net, optimizer, rate = small_loop.start("SGD", mode)
        (last,) = small_loop.run(net, optimizer, rate, range(1))
        rate.detach()
        assert small_loop.run(net, optimizer, None, range(2)) == [last, last]
        assert not getattr(rate._observer, "nodes", None)
        again = attach(optimizer, Fraction(), mode=mode)
        small_loop.run(net, optimizer, again, range(3))
        assert (rate.steps, again.steps) == (1, 3)


def test_a_dropped_optimizer_takes_its_rate_along():
    import gc
    import weakref

    net, optimizer, rate = small_loop.start("SGD", "sequence")
    gone = weakref.ref(optimizer)
    del net, optimizer, rate
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", ["momentum", "Adam", "AdamW-fused", "AdamW-tensor"])
def test_a_notified_shift(kind):
    net, optimizer, rate = small_loop.start(kind, "sequence")
    small_loop.run(net, optimizer, rate, range(20))
    state = optimizer.state[next(iter(net.parameters()))]
    name = "momentum_buffer" if kind == "momentum" else "exp_avg"
    moment, before = state[name], state[name].clone()
    signal = rate._state["cross"]
    rate.notify_shift("keep")
    assert torch.equal(moment, before)
    assert rate._state["cross"] == signal
    rate.notify_shift("decay", decay=0.25)
    assert torch.allclose(moment, before / 4)
    assert rate._state["cross"] == pytest.approx(signal / 4)
    assert rate._state["count"] == 19 // 4
    rate.notify_shift("keep", moments="reset")
    assert not moment.any()
    assert "step" not in state or float(state["step"]) == 0.0
    rate.notify_shift()
    assert rate._state == rate.schedule.init()
    rates = small_loop.run(net, optimizer, rate, range(20, 40))
    assert max(rates) > 0.0


def test_a_notified_shift_refuses():
    net, optimizer, rate = small_loop.start("SGD", "sequence")
    with pytest.raises(ConfigError, match="keep, decay or reset"):
        rate.notify_shift("forget")
    with pytest.raises(ConfigError, match="decay must be in"):
        rate.notify_shift("decay", decay=2.0)
    rate.detach()
    optimizer = torch.optim.Rprop(net.parameters(), lr=0.01)
    rate = attach(optimizer, dr.ConstantRate(0.01))
    small_loop.run(net, optimizer, rate, range(2))
    with pytest.raises(ConfigError, match="step_size"):
        rate.notify_shift("reset")
    rate.notify_shift("reset", moments="keep")


def test_record_without_products_is_nan():
    net = small_loop.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = dr.Estimated(dr.LinearRate(dim=4, noise_std=1.0), dr.estimate.ShiftEMA())
    rate = attach(optimizer, schedule, batch_size=8)
    assert rate.mode is None
    small_loop.run(net, optimizer, rate, range(5))
    record = rate.record
    assert record["shift"] > 0.0
    assert record["rate"] > 0.0
    assert math.isnan(record["signal"])


@pytest.mark.parametrize("habit", ["zeroed", "written"])
def test_gradients_whose_memory_is_reused(habit):
    """The last gradient is a copy, into which no loop writes."""
    records = []
    for tidy in (True, False):
        net = small_loop.model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        rate = attach(optimizer, Fraction(max_rate=0.0))
        for step in range(6):
            optimizer.zero_grad(set_to_none=tidy or habit != "zeroed")
            small_loop.backward(None, net, step)
            optimizer.step()
            if habit == "written" and not tidy:
                for p in net.parameters():
                    p.grad.mul_(2.0)
        records.append(rate.record)
    assert records[0]["signal"] != 0.0
    assert records[0] == pytest.approx(records[1], nan_ok=True)


@pytest.mark.parametrize("mode", ["parts", "accumulation"])
def test_a_part_is_seen_after_all_hooks_of_the_loop(mode):
    """A hook that changes a parameter's gradient, put there before or after attach."""
    records = []
    for late in (False, True):
        net = small_loop.model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for p in net.parameters() if not late else ():
            p.register_hook(lambda g: 3.0 * g)
        rate = attach(optimizer, Fraction(max_rate=0.1), mode=mode)
        for p in net.parameters() if late else ():
            p.register_hook(lambda g: 3.0 * g)
        small_loop.run(net, optimizer, rate, range(4))
        square = sum(float(p.grad.square().sum()) for p in net.parameters())
        assert rate.record["signal"] + rate.record["noise"] == pytest.approx(square, rel=1e-10)
        records.append(rate.record)
    assert records[0] == pytest.approx(records[1], rel=1e-12, nan_ok=True)


def test_a_part_has_one_backward_pass():
    net, optimizer, rate = small_loop.start("SGD", "parts")
    with pytest.raises(ConfigError, match="no backward pass inside"), rate.part():
        pass
    optimizer.zero_grad()
    x, y = small_loop.batch(0)
    loss = small_loop.loss(net, x, y)

    def twice():
        with rate.part():
            loss.backward(retain_graph=True)
            loss.backward()

    with pytest.raises(ConfigError, match="add their losses up"):
        twice()
    optimizer.zero_grad()
    rates = small_loop.run(net, optimizer, rate, range(3))  # and starts again
    twin, twins, other = small_loop.start("SGD", "parts")
    assert rates == small_loop.run(twin, twins, other, range(3))


@pytest.mark.parametrize("mode", ["parts", "accumulation"])
def test_a_step_that_is_left_out_leaves_no_parts_behind(mode):
    net, optimizer, rate = small_loop.start("SGD", mode)
    small_loop.backward(rate, net, 7)
    optimizer.zero_grad()
    twin, twins, other = small_loop.start("SGD", mode)
    steps = range(5)
    assert small_loop.run(net, optimizer, rate, steps) == small_loop.run(twin, twins, other, steps)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its own tracer
@pytest.mark.parametrize("mode", small_loop.MODES)
def test_compiled_models_do_not_recompile(mode):
    from torch._dynamo.testing import CompileCounter

    net = small_loop.model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01), foreach=False)
    rate = attach(optimizer, Fraction(), mode=mode)
    counts = []
    backend = CompileCounter()
    compiled = torch.compile(net, backend=backend)

    @torch.compile(backend=backend)
    def update():
        optimizer.step()

    rates = []
    for step in range(12):
        optimizer.zero_grad()
        small_loop.backward(rate, compiled, step)
        update()
        rates.append(float(optimizer.param_groups[0]["lr"]))
        counts.append(backend.frame_count)
    assert counts[3] == counts[-1]
    assert rate.steps == 12
    assert len(set(rates)) > 6


@pytest.mark.parametrize("mode", ["parts", "accumulation"])
def test_one_backward_pass_a_step_is_no_parts(mode):
    """The first may be a short batch; at the second the rate would stay 0 for ever."""
    net, optimizer, rate = small_loop.start("SGD", mode)
    for step in range(2):
        optimizer.zero_grad()
        small_loop.backward(None, net, step)
        before, saved = flat(net.parameters()).detach().clone(), rate.state_dict()
        if step:
            for _ in range(2):  # and again, until the loop is mended
                with pytest.raises(MissingSignal, match=r'measured nothing.*mode="sequence"'):
                    optimizer.step()
            assert torch.equal(flat(net.parameters()), before)
            assert rate.steps == 1
        else:
            optimizer.step()
    assert str(rate.state_dict()) == str(saved)
    rates = small_loop.run(net, optimizer, rate, range(2, 6))
    assert max(rates) > 0.0
    for step in range(6, 9):  # later ones keep the rate
        optimizer.zero_grad()
        small_loop.backward(None, net, step)
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == rates[-1]
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    plain_rate = attach(plain, dr.ConstantRate(0.1), mode=mode)  # needs no parts
    small_loop.run(net, plain, None, range(3))
    assert plain_rate.steps == 3


@pytest.mark.parametrize(
    ("world", "how"),
    [(2, []), pytest.param(4, [], marks=pytest.mark.slow), (2, ["accumulate"])],
)
def test_ranks_agree(tmp_path, world, how):
    """Also where each rank's part is two backward passes, the first under no_sync."""
    steps = 100 if how else 500
    ended = gloo_ranks.start("ranks_child.py", tmp_path, world, steps, *how)
    assert [one.code for one in ended] == [0] * world, gloo_ranks.report(ended)
    ranks = [torch.load(tmp_path / f"{world}-{r}.pt", weights_only=True) for r in range(world)]
    for other in ranks[1:]:
        assert other["rates"] == ranks[0]["rates"]
        for key, value in ranks[0]["model"].items():
            assert torch.equal(value, other["model"][key])
    net = small_loop.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rate = attach(optimizer, Fraction(max_rate=0.1), mode="parts")
    rates = []
    for step in range(steps):
        optimizer.zero_grad()
        rate.backward(lambda x, y: small_loop.loss(net, x, y), *small_loop.batch(step), parts=world)
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(ranks[0]["rates"], rates, rtol=1e-6)
    for key, value in net.state_dict().items():
        np.testing.assert_allclose(ranks[0]["model"][key], value, rtol=1e-6)


@pytest.mark.slow
def test_a_rank_that_dies_leaves_an_error_of_torch(tmp_path):
    """The other neither waits for ever nor goes on alone."""
    other, dead = gloo_ranks.start("ranks_child.py", tmp_path, 2, 50, "die")
    assert (other.code, dead.code) == (1, 3), gloo_ranks.report([other, dead])
    assert "RuntimeError" in other.said, other.said
    assert "by peer" in other.said, other.said
    assert not list(tmp_path.glob("*.pt"))


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_state_to_load_into_is_no_step(kind):
    """torch.distributed.checkpoint takes a step at rates and gradients of 0 to have one."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    net, optimizer, rate = small_loop.start(kind, "sequence")
    before = rate.state_dict()
    get_optimizer_state_dict(net, optimizer)
    assert rate.steps == 0
    assert str(rate.state_dict()) == str(before)
    fresh = small_loop.start(kind, "sequence")
    rates = small_loop.run(net, optimizer, rate, range(5))
    assert (rate.steps, len(rates)) == (5, 5)
    if kind == "SGD":  # Adam's own step count is 1 by then
        assert rates == small_loop.run(*fresh, range(5))
