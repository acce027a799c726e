"""Products of gradients in the metric that the optimizer steps in, and with the step before."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pytest
import small_loop
import torch
from small_loop import BATCH, Fraction

import driftrate as dr
import driftrate.torch
from driftrate.errors import ConfigError

attach = driftrate.torch.attach
EPS = 1e-8


@dataclass(frozen=True)
class Listener(dr.Schedule):
    """Keeps what it was told, and gives a constant rate."""

    rate: float = 0.02
    reads: tuple[str, ...] = ("batch_size", "grad_sq", "cross", "spread")

    @property
    def signals(self):
        return self.reads

    @classmethod
    def example(cls):
        return cls()

    def _start(self):
        return {"rate": self.rate}

    def _step(self, xp, state, signal):
        HEARD.append({name: getattr(signal, name) for name in self.reads})
        return state["rate"], state


HEARD: list[dict] = []
OPTIMIZERS = {
    **{name: small_loop.OPTIMIZERS[name] for name in ("Adam", "AdamW-fused", "AdamW-tensor")},
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True, betas=(0.5, 0.6)),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.05),
}


def parts_of(net, step):
    """The gradients of the two halves of a batch, whole and in pieces."""
    x, y = small_loop.batch(step)
    for half in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH)):
        loss = small_loop.loss(net, x[half], y[half])
        yield torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


def denominators(optimizer, net):
    """√v̂ + ε of every coordinate, written out from the optimizer's own state."""
    flat = []
    for p in net.parameters():
        state, group = optimizer.state[p], optimizer.param_groups[0]
        if "square_avg" in state:
            flat.append((state["square_avg"].sqrt() + EPS).flatten())
            continue
        moment = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
        correction = math.sqrt(1.0 - group["betas"][1] ** float(state["step"]))
        flat.append(((moment.sqrt() + EPS) / correction).flatten())
    return torch.cat(flat)


@pytest.mark.parametrize("mode", small_loop.MODES)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_products_are_weighed_by_the_moments_before_the_step(kind, mode):
    HEARD.clear()
    net = small_loop.model()
    optimizer = OPTIMIZERS[kind](net.parameters())
    rate = attach(optimizer, Listener(), mode=mode, batch_size=BATCH, relative=True)
    expected, last = [], None
    for step in range(12):
        first, second = parts_of(net, step)
        mean = (first + second) / 2
        if step:
            by = denominators(optimizer, net)
            square = float((mean / by) @ mean)
            if mode == "sequence":
                apart = mean - last
                cross, spread = float((mean / by) @ last), float((apart / by) @ apart) / 2
            else:
                cross = float((first / by) @ second)
                spread = float(((first - second) / by) @ (first - second)) / 4
            expected.append({"grad_sq": square, "cross": cross, "spread": spread})
        last = mean
        small_loop.run(net, optimizer, rate, [step])
    assert len(HEARD) == 11  # the first step has no moments
    for heard, row in zip(HEARD, expected, strict=True):
        assert heard == pytest.approx({**row, "batch_size": BATCH}, rel=1e-9)


def test_the_plain_metric_is_a_choice():
    for metric, plain in ((None, False), ("moments", False), ("plain", True)):
        HEARD.clear()
        net = small_loop.model()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
        rate = attach(optimizer, Listener(), mode="parts", batch_size=BATCH, metric=metric)
        small_loop.run(net, optimizer, rate, range(2))
        first, second = parts_of(net, 2)
        small_loop.run(net, optimizer, rate, [2])
        assert (HEARD[-1]["cross"] == pytest.approx(float(first @ second), rel=1e-9)) is plain
    momentum = torch.optim.SGD(small_loop.model().parameters(), lr=0.1, momentum=0.9)
    assert attach(momentum, Listener())._observer.metric is None
    with pytest.raises(ConfigError, match='"plain", "moments" or None, got \'adam\''):
        attach(torch.optim.Adam(net.parameters()), Listener(), metric="adam")
    net = small_loop.model()
    optimizer = torch.optim.Adamax(net.parameters(), lr=0.05)
    rate = attach(optimizer, Listener(), metric="moments")
    small_loop.run(net, optimizer, rate, [0])
    with pytest.raises(ConfigError, match=r"Adamax keeps .*'exp_inf'.* use metric=\"plain\""):
        small_loop.run(net, optimizer, rate, [1])


@pytest.mark.parametrize("mode", small_loop.MODES)
def test_a_parameter_without_moments_is_left_out(mode):
    """Until its first step; and a gradient that comes and goes counts as 0."""
    records = []
    for extra in (False, True):
        net, late = small_loop.model(), torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        optimizer = torch.optim.Adam([*net.parameters(), late], lr=0.05)
        rate = attach(optimizer, Fraction(), mode=mode)
        for step in range(4):
            optimizer.zero_grad()
            small_loop.backward(rate, net, step)
            if extra and step == 3:
                late.grad = torch.ones(3, dtype=torch.float64)
            optimizer.step()
        records.append(rate.record)
        small_loop.run(net, optimizer, rate, range(4, 6))
        assert math.isfinite(rate.record["signal"])
    assert records[0] == pytest.approx(records[1], rel=1e-12, nan_ok=True)


def test_sparse_gradients_are_weighed_where_they_are():
    HEARD.clear()
    torch.manual_seed(0)
    table = torch.nn.Embedding(20, 3, sparse=True, dtype=torch.float64)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.05)
    attach(optimizer, Listener(), batch_size=8, relative=True)
    dense, last = [], None
    for step in range(6):
        rows = torch.randint(20, (8,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        table(rows).square().mean().backward()
        now = table.weight.grad.to_dense()
        state = optimizer.state[table.weight]
        if step:
            by = (state["exp_avg_sq"].sqrt() + EPS) / math.sqrt(1.0 - 0.999 ** state["step"])
            apart = now - last
            products = (now * now, now * last, apart * apart / 2)
            dense.append([float((one / by).sum()) for one in products])
        last = now
        optimizer.step()
    found = [[row["grad_sq"], row["cross"], row["spread"]] for row in HEARD]
    # What was never seen has v = 0 and the weight 1/ε: that it is not infinite is all there is.
    # Products are differences of squares of 10^5.
    np.testing.assert_allclose(found, dense, rtol=1e-9, atol=1e-9)


def adam(betas=(0.9, 0.999), **options):
    return lambda p: torch.optim.Adam(p, lr=0.05, betas=betas, **options)


# Whether the trail is the optimizer's own buffer, and how the optimizer is made.
TRAILS = {
    "SGD": (False, small_loop.OPTIMIZERS["SGD"]),
    "momentum": (True, small_loop.OPTIMIZERS["momentum"]),
    "damped": (False, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5)),
    "decayed": (False, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1)),
    "Adam": (True, adam()),
    "Adam-beta": (False, adam((0.8, 0.999))),
    "Adam-decayed": (False, adam(weight_decay=0.1)),
    "AdamW-fused": (True, small_loop.OPTIMIZERS["AdamW-fused"]),
    "NAdam": (True, lambda p: torch.optim.NAdam(p, lr=0.05)),
    "ascent": (False, lambda p: torch.optim.Adam(p, lr=0.05, maximize=True)),
}


@pytest.mark.parametrize("kind", TRAILS)
@pytest.mark.parametrize("mode", small_loop.MODES)
def test_the_product_with_the_trail(mode, kind):
    """The trail is kept plain, and weighed by the metric of each step."""
    HEARD.clear()
    net = small_loop.model()
    kept, make = TRAILS[kind]
    optimizer = make(net.parameters())
    reads = ("batch_size", "dim", "grad_sq", "trail")
    rate = attach(optimizer, Listener(reads=reads), mode=mode)
    weighed = rate._observer.metric is not None
    assert rate.relative is (kind != "SGD")
    expected, trail = [], 0.0
    for step in range(8):
        mean = sum(parts_of(net, step)) / 2
        by = denominators(optimizer, net) if weighed and step else 1.0
        if step or not weighed:
            along = float(((mean / by) * trail).sum())
            size = float(BATCH) if mode == "parts" else 1.0
            square = float((mean / by) @ mean)
            expected.append([size, float(mean.numel()), square, along])
        if step or kept or not weighed:  # a trail of one's own begins with what is measured
            trail = 0.9 * trail + mean
        small_loop.run(net, optimizer, rate, [step])
    np.testing.assert_allclose([[*row.values()] for row in HEARD], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", small_loop.MODES)
def test_a_gradient_that_is_not_finite_leaves_the_trail_as_it_was(mode):
    net = small_loop.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    rate = attach(optimizer, dr.MeasuredRate(max_rate=0.01), mode=mode)
    small_loop.run(net, optimizer, rate, range(3))
    trail = rate._observer.trail
    before = [tensor.clone() for tensor in trail.buffers.values()]
    optimizer.zero_grad()
    small_loop.backward(rate, net, 3)
    net[0].bias.grad.fill_(math.nan)
    optimizer.step()
    assert all(map(torch.equal, before, trail.buffers.values()))


@pytest.mark.parametrize("schedule", [Fraction(), dr.MeasuredRate()], ids=["pairs", "measured"])
@pytest.mark.parametrize("mode", ["sequence", "parts"])
def test_nothing_is_read_back_from_a_device(mode, schedule):
    """Tensors on the meta device have no values: reading one raises."""
    weights = torch.nn.Parameter(torch.ones(600, 600, device="meta"))
    small = torch.nn.Parameter(torch.ones(3, device="meta"))
    owners = [weights, small]
    optimizer = torch.optim.AdamW(owners, lr=0.05, foreach=True)
    rate = attach(optimizer, schedule, mode=mode)
    measured = []
    for _ in range(3):
        for owner in owners:
            owner.grad = None
        for _ in range(2 if mode == "parts" else 1):
            with rate._observer.part(owners) if mode == "parts" else nullcontext():
                (weights.sum() + small.sum()).backward()
        gradients = [owner.grad for owner in owners]
        measured.append(rate._observer.read(owners, gradients))
        rate._observer.stepped()
        for owner in owners:
            step, moment = torch.ones((), device="meta"), torch.ones_like(owner)
            optimizer.state[owner] = {"exp_avg_sq": moment, "exp_avg": moment, "step": step}
    pairs = schedule == Fraction()
    assert bool(measured[0]) != pairs  # the metric has no moments yet
    # A rate that reads the lead alone has no use for parts, and nothing is spent on them.
    wanted, spared = {"cross", "spread"}, {"lead", "weights_sq", "reach"}
    if not pairs:
        wanted, spared = spared, wanted
    assert wanted <= measured[-1].keys()
    assert spared.isdisjoint(measured[-1])
    for name, value in measured[-1].items():
        assert name in ("parts", "dim", "reach") or value.device.type == "meta"


# NAdam's own state is of single precision, and of the parameters' once it is loaded.
@pytest.mark.parametrize("kind", sorted(TRAILS.keys() - {"NAdam"}))
def test_a_resumed_trail_goes_on_bit_by_bit(kind, tmp_path):
    def start():
        net = small_loop.model()
        optimizer = TRAILS[kind][1](net.parameters())
        rate = attach(optimizer, dr.MeasuredRate(max_rate=0.05), mode="parts")
        return {"net": net, "optimizer": optimizer, "rate": rate}

    one, other = start(), start()
    small_loop.run(**one, steps=range(20))
    torch.save({name: thing.state_dict() for name, thing in one.items()}, tmp_path / "saved.pt")
    for name, saved in torch.load(tmp_path / "saved.pt", weights_only=True).items():
        other[name].load_state_dict(saved)
    rates = small_loop.run(**one, steps=range(20, 60))
    assert rates == small_loop.run(**other, steps=range(20, 60))
    assert len(set(rates)) > 20
    every = zip(one["net"].parameters(), other["net"].parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in every)


def held(rate):
    """The bytes of gradients that a rate keeps between steps, scalars left out."""
    buffers = [*(one.buffers for one in rate._observer.kept), rate._notes._weights]
    every = [tensor for buffer in buffers for tensor in buffer.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in every)


def peak(schedule, make, mode):
    """The most bytes that three steps in halves have in use, by torch's own account."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024))
    optimizer = make(net.parameters())
    rate = attach(optimizer, schedule, mode=mode) if schedule else None
    x = torch.randn(2, 8, 1024)

    def step():
        for half in x:
            with rate.part() if rate and mode == "parts" else nullcontext():
                net(half).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    most = max(accumulate(change for _, change in changes)) / size
    return most, held(rate) / size if rate else 0.0


TRAILED, LED = dr.MeasuredRate(max_rate=0.01), dr.MeasuredRate()


@pytest.mark.parametrize("mode", small_loop.MODES)
@pytest.mark.parametrize(
    ("kind", "schedule", "copies"),
    [
        ("SGD", TRAILED, 1.0),
        ("momentum", TRAILED, 0.0),
        ("AdamW", TRAILED, 0.0),
        ("SGD", LED, 1.0),
        ("AdamW", LED, 1.0),
    ],
)
def test_at_most_one_extra_copy(kind, schedule, copies, mode):
    """A gradient's, none where the optimizer has the trail; or the weights', of their average.

    At no time a block of scratch memory more.
    """
    make = {"AdamW": lambda p: torch.optim.AdamW(p, lr=0.01)}.get(kind, TRAILS.get(kind, [0, 0])[1])
    bare, nothing = peak(None, make, mode)
    most, kept = peak(schedule, make, mode)
    assert (kept, nothing) == (copies, 0.0)
    scratch = 4 * 2**17 * 4 / (2 * (1024 * 1024 + 1024) * 4)
    # What is held between steps was there before the profile began.
    assert most - bare < scratch
