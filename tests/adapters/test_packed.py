"""Small parameters are looked at in one vector, and nothing is lost by it."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from river.utils import VectorDict

import driftrate as dr
from driftrate.adapters.river import vectors
from driftrate.adapters.torch import measure
from driftrate.adapters.torch import packed as packing
from driftrate.adapters.torch.packed import packed
from driftrate.torch import attach

SCHEDULES = {
    "lead": dr.MeasuredRate(),
    "trail": dr.MeasuredRate(max_rate=0.05),
    "pair": dr.Estimated(
        dr.ConvexRate(smoothness=1.0, noise_std=1.0, diameter=4.0), dr.estimate.DebiasedShift()
    ),
}
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "two groups": lambda p: torch.optim.Adam(
        [{"params": [p[0]], "eps": 1e-3}, {"params": p[1:]}], lr=0.01
    ),
}


def trained(schedule, optimizer, mode="sequence", sizes=(5, 7, 1), stop=None):
    """Sixty steps; at some a layer has no gradient, one gradient is NaN, and one step resumes."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(sizes)]
    net = torch.nn.Sequential(*layers)
    inner = OPTIMIZERS[optimizer]([*net.parameters()])
    rate = attach(inner, SCHEDULES[schedule], mode=mode, batch_size=8)
    seen = []
    for step in range(60):
        x = torch.randn(8, sizes[0], dtype=torch.float64)
        y = x.sum(dim=1, keepdim=True) * (1.0 if step < 30 else -1.0)
        inner.zero_grad()

        def loss(x, y):
            return (net(x) - y).square().mean()

        if mode == "parts":
            rate.backward(loss, x, y)
        else:
            loss(x, y).backward()
        if step % 20 == 7:
            layers[0].bias.grad = None
        if step == 25:
            layers[0].weight.grad[0, 0] = torch.nan
            inner.param_groups[0]["params"][0].grad = torch.zeros_like(layers[0].weight)
        if step == stop:
            saved = rate.state_dict()
            rate.detach()
            rate = attach(inner, SCHEDULES[schedule], mode=mode, batch_size=8)
            rate.load_state_dict(saved)
        inner.step()
        seen.append([*rate.record.values(), *(p.detach().sum().item() for p in net.parameters())])
    return torch.tensor(seen, dtype=torch.float64)


@pytest.mark.parametrize("mode", ["sequence", "parts"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_packed_or_not_the_numbers_are_the_same(schedule, optimizer, mode, monkeypatch):
    together = trained(schedule, optimizer, mode)
    monkeypatch.setattr(packing, "_MOST", 0)
    apart = trained(schedule, optimizer, mode)
    torch.testing.assert_close(together, apart, rtol=1e-8, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("stop", [7, 8, 40])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_packed_resumes_bit_by_bit(schedule, optimizer, stop):
    """Also in the step that unpacks it, for a gradient is missing, and in the one that packs it."""
    whole, resumed = trained(schedule, optimizer), trained(schedule, optimizer, stop=stop)
    assert torch.equal(whole.nan_to_num(-1.0), resumed.nan_to_num(-1.0))


@pytest.mark.parametrize("sizes", [(3,), (2, 2)])
def test_what_is_packed_is_a_copy(sizes):
    """The root of the moments is taken in place: one tensor must not be its own packing."""
    tensors = [torch.ones(size) for size in sizes]
    packed(tensors).zero_()
    assert all(tensor.eq(1.0).all() for tensor in tensors)


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.ones(2), torch.ones(2, dtype=torch.float64)],
        [torch.ones(2, dtype=torch.bfloat16)],
        [torch.ones(2, dtype=torch.complex64)],
        [torch.ones(2).to_sparse()],
        [torch.ones(2), torch.ones(2, device="meta")],
        [torch.ones((1 << 17) + 1)],
    ],
    ids=["mixed", "half", "complex", "sparse", "elsewhere", "large"],
)
def test_what_is_not_small_and_plain_is_not_packed(tensors):
    assert packed(tensors) is None


def test_rows_that_lack_names_or_have_them_in_another_order():
    """The arithmetic of River's own dictionaries."""
    rows = [{"a": 1.0, "b": 2.0}, {"b": -3.0, "a": 5.0}, {"c": 7.0, "b": 0.5}, {}, {"d": 1.5}]
    trail, theirs = vectors.copied(rows[0]), VectorDict(rows[0])
    for row in [*rows, *rows]:
        ours, other = vectors.copied(row), VectorDict(row)
        assert vectors.dot(ours, trail) == pytest.approx(other @ theirs)
        assert vectors.dot(trail, ours) == pytest.approx(other @ theirs)
        apart = vectors.minus(ours, trail)
        assert vectors.dot(apart, apart) == pytest.approx((other - theirs) @ (other - theirs))
        trail, theirs = vectors.lengthened(trail, ours), 0.9 * theirs + other
        found = dict(zip(trail.names, trail.values.tolist(), strict=True))
        assert found == pytest.approx(theirs.to_dict())


@pytest.mark.parametrize("missing", [0, 1, 2, None])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_parameter_may_miss_any_of_three_parts(optimizer, missing, monkeypatch):
    """Then each is compared by itself, also what had been compared together."""

    def records():
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(3, dtype=torch.float64)) for _ in range(2)]
        inner = OPTIMIZERS[optimizer](weights)
        rate = attach(inner, dr.MeasuredRate(max_rate=0.1), mode="parts")
        found = []
        for step in range(6):
            inner.zero_grad()
            for part in range(3):
                both = part != missing or step < 2
                target = torch.randn(3, dtype=torch.float64)
                with rate.part():
                    sum((w * target).sum() ** 2 for w in weights[: 1 + both]).backward()
            inner.step()
            found.append([*rate.record.values()])
        return torch.tensor(found)

    together = records()
    monkeypatch.setattr(packing, "_MOST", 0)
    torch.testing.assert_close(together, records(), rtol=1e-9, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("optimizer", ["SGD", "two groups"])
def test_terms_of_a_kernel_are_added_up_before_the_step(optimizer, parts, monkeypatch):
    """On CUDA a kernel leaves terms, which are added up at once; here a kernel is played."""

    def kernel(pairs, ratio):
        rows = []
        for new, old, weight in pairs:
            over = 1.0 if weight is None else 1.0 / (weight.moment.sqrt() + weight.eps)
            both = (new * new, new * old, (new - ratio * old) ** 2, (new + old) ** 2)
            rows.append(torch.stack([(over * one).reshape(-1).sum().repeat(2) / 2 for one in both]))
        return torch.stack(rows)

    def records():
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(3, dtype=torch.float64)) for _ in range(3)]
        inner = OPTIMIZERS[optimizer](weights)
        rate = attach(inner, dr.MeasuredRate(max_rate=0.1), mode="parts")
        found = []
        for step in range(6):
            inner.zero_grad()
            for part in range(parts):
                target = torch.randn(3, dtype=torch.float64)
                some = weights[: 2 if step == 4 and part == 1 else 3]
                with rate.part():
                    sum((w * target).sum() ** 2 for w in some).backward()
            inner.step()
            found.append([*rate.record.values()])
        return torch.tensor(found)

    expected = records()
    monkeypatch.setattr(packing, "_MOST", 0)
    monkeypatch.setattr(measure, "_is_quick", lambda *given: True)
    played = SimpleNamespace(partial=kernel, sums=lambda *given: kernel(*given).sum(dim=-1))
    monkeypatch.setattr(measure, "kernel", lambda: played)
    torch.testing.assert_close(records(), expected, rtol=1e-9, atol=0.0, equal_nan=True)
