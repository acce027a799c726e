"""Networks: `attach` does not hurt a good rate, mends a bad one, and takes the first step."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import driftrate as dr
from driftrate.torch import attach

RATES = (1e-4, 1e-3, 1e-2, 1e-1)


def layers(*sizes, seed=0):
    torch.manual_seed(seed)
    every = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
    return nn.Sequential(*[one for pair in every for one in pair][:-1])


def regression(steps, seed, jump=None):
    """Batches of y = x·w + noise, y of variance 20; w is drawn anew at the jump."""
    draw = torch.Generator().manual_seed(seed)
    for step in range(steps):
        if step in (0, jump):
            w = torch.randn(20, generator=draw)
        x = torch.randn(32, 20, generator=draw)
        yield x, x @ w + 0.1 * torch.randn(32, generator=draw)


def losses(optimizer, net, batches, backward=None):
    def loss(x, y):
        return nn.functional.mse_loss(net(x)[:, 0], y)

    found = []
    for x, y in batches:
        optimizer.zero_grad()
        if backward is None:
            value = loss(x, y)
            value.backward()
        else:
            value = backward(loss, x, y)
        optimizer.step()
        found.append(float(value.detach()))
    return np.array(found)


@pytest.mark.parametrize("mode", ["sequence", "parts"])
@pytest.mark.parametrize("seed", range(3))
def test_sgd_on_a_target_that_is_drawn_anew(mode, seed):
    """One step's optimum was not finite in nine of ten seeds, or overshot with parts at once."""
    net = layers(20, 32, 1, seed=seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rate = attach(optimizer, dr.MeasuredRate(), mode=mode, batch_size=32)
    backward = rate.backward if mode == "parts" else None
    found = losses(optimizer, net, regression(900, seed, jump=500), backward)
    assert np.isfinite(found).all()
    assert found[:10].max() < 2.0 * found[0]
    assert found[500:].max() < 5.0 * found[500]
    assert found[400:500].mean() < 0.01 * found[0]
    assert found[800:].mean() < 0.02 * found[500]


def test_parts_take_the_steps_of_the_whole_batch():
    found = []
    for mode in ("sequence", "parts"):
        net = layers(20, 32, 1).double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        rate = attach(optimizer, dr.MeasuredRate(), mode=mode, batch_size=32)
        batches = [(x.double(), y.double()) for x, y in regression(200, 0, jump=100)]
        found.append(losses(optimizer, net, batches, rate.backward if mode == "parts" else None))
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize("lr", RATES)
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("seed", range(3))
def test_the_first_step_is_taken_and_does_not_raise_the_loss_of_its_batch(make, lr, seed):
    net = layers(20, 64, 64, 1, seed=seed)
    optimizer = make(net.parameters(), lr=lr)
    attach(optimizer, dr.MeasuredRate())
    (batch,) = regression(1, seed)
    before, after = (losses(optimizer, net, [batch])[0] for _ in range(2))
    assert after < before


@pytest.mark.parametrize("lr", [1e-4, 10.0])
def test_the_rate_that_sgd_came_with_plays_no_part(lr):
    found = []
    for own in (0.1, lr):
        net = layers(20, 32, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=own)
        attach(optimizer, dr.MeasuredRate())
        found.append(losses(optimizer, net, regression(50, 0)))
    np.testing.assert_allclose(*found, rtol=1e-5)


def mean_loss(lr, seed, schedule=None):
    net = layers(20, 64, 64, 1, seed=seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    if schedule is not None:
        attach(optimizer, schedule)
    return losses(optimizer, net, regression(300, seed, jump=150)).mean()


def test_a_good_adam_is_not_made_worse_and_a_bad_one_better():
    alone, attached = (
        np.array([[mean_loss(lr, seed, one) for lr in RATES] for seed in range(2)]).mean(0)
        for one in (None, dr.MeasuredRate())
    )
    good = alone < 1.5 * alone.min()
    assert good.any()
    assert not good.all()
    assert (attached[good] < 1.1 * alone[good]).all()
    assert np.exp(np.log(attached / alone).mean()) < 0.9


def at_rest(make, lr, seed, attached, steps=2500):
    """Return the loss at the end of a rest, on a task whose noise has the variance 0.01."""
    net, draw = layers(10, 32, 1, seed=seed), torch.Generator().manual_seed(seed)
    hidden = 2.0 * torch.randn(10, 32, generator=draw) / 10**0.5
    out = torch.randn(32, 1, generator=draw) / 32**0.5
    unseen = torch.randn(2000, 10, generator=draw)
    optimizer, found = make(net.parameters(), lr=lr), []
    if attached:
        attach(optimizer, dr.MeasuredRate())
    for step in range(steps):
        x = torch.randn(32, 10, generator=draw)
        y = torch.relu(x @ hidden) @ out + 0.1 * torch.randn(32, 1, generator=draw)
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
        if step >= 0.9 * steps and step % 25 == 0:
            with torch.no_grad():
                error = (net(unseen) - torch.relu(unseen @ hidden) @ out).square().mean()
            found.append(0.01 + float(error))
    return np.mean(found)


@pytest.mark.parametrize(
    ("make", "lr", "most"), [(torch.optim.Adam, 3e-3, 1.09), (torch.optim.SGD, 0.1, 1.03)]
)
def test_a_long_rest_does_not_end_in_standing_still(make, lr, most):
    """Where a rest was measured by itself the rate fell for ever: 1.29 and 1.28 of the loss alone.

    Now 0.99 and 0.95; `most` is three errors of such a mean above that of six seeds, 0.99 and 0.96.
    """
    pairs = [[at_rest(make, lr, seed, one) for one in (True, False)] for seed in range(3)]
    attached, alone = np.log(pairs).mean(0)
    assert math.exp(attached - alone) < most


def likelihood(seed, attached, jump=300, steps=600):
    """Mean loss after the noise of a target has grown a hundredfold, its logarithm a weight."""
    net, draw = layers(5, 16, 1, seed=seed), torch.Generator().manual_seed(seed)
    level, w = nn.Parameter(torch.zeros(())), torch.randn(5, generator=draw)
    optimizer = torch.optim.Adam([*net.parameters(), level], lr=1e-3)
    rate, found = attach(optimizer, dr.MeasuredRate()), []
    for step in range(steps):
        if step == jump and not attached:
            rate.detach()
            optimizer.param_groups[0]["lr"] = 1e-3
        x = torch.randn(64, 5, generator=draw)
        y = x @ w + (0.01 if step < jump else 1.0) * torch.randn(64, generator=draw)
        optimizer.zero_grad()
        loss = ((net(x)[:, 0] - y).square() / (2.0 * torch.exp(2.0 * level)) + level).mean()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return np.mean(found[jump:])


def test_one_number_that_must_go_far_gets_there_faster_than_with_the_optimizer_alone():
    """From the same weights: who had learned the small noise has a long way to go."""
    pairs = [[likelihood(seed, one) for one in (True, False)] for seed in range(3)]
    attached, alone = np.log(pairs).mean(0)
    assert math.exp(attached - alone) < 0.6


class Encoder(nn.Module):
    """A transformer of two layers that says of which half the first token is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(16, 32), nn.Parameter(0.02 * torch.randn(8, 32))
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens):
        return self.head(self.body(self.tokens(tokens) + self.places)[:, 0])


@pytest.mark.parametrize("lr", RATES)
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("kind", ["layers", "transformer"])
def test_the_first_step_of_a_classifier_does_not_raise_the_loss_of_its_batch(make, lr, kind):
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        if kind == "layers":
            net, x = layers(784, 300, 150, 10, seed=seed), torch.rand(16, 784, generator=draw)
            y = torch.randint(10, (16,), generator=draw)
        else:
            net, x = Encoder(), torch.randint(16, (16, 8), generator=draw)
            y = (x[:, 0] > 7).long()
        optimizer = make(net.parameters(), lr=lr)
        attach(optimizer, dr.MeasuredRate())
        before = nn.functional.cross_entropy(net(x), y)
        before.backward()
        optimizer.step()
        assert nn.functional.cross_entropy(net(x), y) < before


@pytest.mark.parametrize("attached", [False, True])
def test_a_small_transformer_learns_under_adamw(attached):
    """One step's optimum left it at ln 2 = 0.693 for ever."""
    net = Encoder()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    if attached:
        attach(optimizer, dr.MeasuredRate())
    draw = torch.Generator().manual_seed(1)
    found = []
    for _ in range(150):
        tokens = torch.randint(16, (32, 8), generator=draw)
        labels = (tokens[:, 0] > 7).long()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(tokens), labels)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    assert found[0] > 0.5 * math.log(2.0)
    assert np.mean(found[-25:]) < 0.1


def test_one_layer_under_sgd_keeps_the_optimum_of_one_step():
    net = nn.Linear(20, 1)
    one = attach(torch.optim.SGD(net.parameters(), lr=0.1), dr.MeasuredRate())
    assert one.schedule == dr.MeasuredRate(mode="sequence")
    two = attach(torch.optim.Adam(net.parameters(), lr=0.1), dr.MeasuredRate())
    assert two.schedule == dr.LongHorizonRate(relative=True)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_a_resumed_average_goes_on_bit_by_bit(kind, tmp_path):
    def start():
        net = layers(20, 32, 1).to(kind)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return {"net": net, "optimizer": optimizer, "rate": attach(optimizer, dr.MeasuredRate())}

    batches = [(x.to(kind), y.to(kind)) for x, y in regression(40, 0)]
    one, other = start(), start()
    losses(one["optimizer"], one["net"], batches[:20])
    torch.save({name: thing.state_dict() for name, thing in one.items()}, tmp_path / "saved.pt")
    for name, saved in torch.load(tmp_path / "saved.pt", weights_only=True).items():
        other[name].load_state_dict(saved)
    ends = [losses(run["optimizer"], run["net"], batches[20:]) for run in (one, other)]
    assert np.array_equal(*ends)
    average = next(iter(one["rate"]._observer.lead.buffers.values()))
    assert average.dtype == (torch.float64 if kind == torch.float64 else torch.float32)


def test_a_gradient_that_is_not_finite_leaves_the_average_and_the_rate():
    net = layers(20, 32, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rate = attach(optimizer, dr.MeasuredRate())
    losses(optimizer, net, regression(5, 0))
    lead, state = rate._observer.lead, rate.state_dict()["schedule"]
    before = [one.clone() for one in lead.buffers.values()]
    net[0].weight.grad.fill_(math.inf)
    optimizer.step()
    assert all(map(torch.equal, before, lead.buffers.values()))
    assert rate.state_dict()["schedule"] == state
