"""The remedies for networks that forget how to learn are what their papers say."""

from __future__ import annotations

import pytest

from driftrate.errors import ConfigError
from driftrate.race.contestants import Setup, contestants
from driftrate.race.networks.network import Network, Transformer

torch = pytest.importorskip("torch", reason="networks are torch's")
SETUP = Setup(Network("regression", 3, 1, hidden=(6, 5)), batch=8, steps=9, seed=0)


def batch(seed=0):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 3, generator=draws)
    return x, x.sum(dim=1)


def make(name, setup=SETUP, **options):
    return contestants()[name].build(setup, **options)


def gradients(player, x, y):
    loss = player.loss(player.net(x), y)
    return torch.autograd.grad(loss, list(player.net.parameters()))


def weights(player):
    return [w.detach().clone() for w in player.net.parameters()]


def test_utility_spares_what_is_useful():
    """Without noise, two steps by the formula, the bias correction written out."""
    player = make("upgd", lr=0.1, decay=0.9, noise=0.0, weight_decay=0.5)
    useful = [torch.zeros_like(w) for w in weights(player)]
    for step in (1, 2):
        x, y = batch(step)
        before, found = weights(player), gradients(player, x, y)
        useful = [0.9 * u - 0.1 * g * w for u, g, w in zip(useful, found, before, strict=True)]
        free = [u / (1 - 0.9**step) for u in useful]
        top = max(float(u.max()) for u in free)
        player.learn(x, y)
        for w, g, u, now in zip(before, found, free, weights(player), strict=True):
            wanted = (1 - 0.1 * 0.5) * w - 0.1 * g * (1 - torch.sigmoid(u / top))
            torch.testing.assert_close(now, wanted)


def test_noise_is_drawn_with_the_seed_and_has_its_size():
    x, y = batch()
    setup = Setup(Network("regression", 3, 1, hidden=(400,)), batch=8, steps=9, seed=0)
    still, first, again = (make("upgd", setup, noise=s) for s in (0.0, 0.5, 0.5))
    for player in (still, first, again):
        player.learn(x, y)
    assert all(map(torch.equal, weights(first), weights(again)))
    # A step is 0.01 (g + ξ)(1 - s), and of most weights s is about a half.
    gap = torch.cat(
        [(a - b).reshape(-1) for a, b in zip(*map(weights, (first, still)), strict=True)]
    )
    assert 0.8 < float(gap.std()) / (0.01 * 0.5 * 0.5) < 1.2


def test_the_start_pulls():
    x, y = batch()
    player = make("adam l2 start", lr=0.1, strength=0.3)
    start = weights(player)
    player.learn(x, y)
    plain, before = gradients(player, x, y), weights(player)
    player.optimizer.zero_grad()
    player.backward(x, y)
    for w, g, w0, now in zip(player.net.parameters(), plain, start, before, strict=True):
        torch.testing.assert_close(w.grad, g + 0.6 * (now - w0))


def test_the_least_useful_unit_begins_anew():
    setup = SETUP._replace(model=Network("regression", 3, 1, hidden=(6,)))
    player = make("adam continual backprop", setup, lr=1e-5, replacement=0.04, maturity=3)
    first, second = player.layers[0], player.layers[1]
    with torch.no_grad():
        second.weight[:, 2] *= 1e-3  # nobody hears the third unit
    for step in range(3):
        player.learn(*batch(step))
    kept = first.weight.detach().clone()
    player.learn(*batch(3))  # six units older than three steps: 0.24 of one is due
    assert float((first.weight.detach() - kept).abs().max()) < 0.02
    for step in range(4, 8):
        before, heard = first.weight.detach().clone(), second.weight.detach().clone()
        player.learn(*batch(step))
    jumped = (first.weight - before).abs().max(dim=1).values > 0.05
    assert jumped.tolist() == [False, False, True, False, False, False]
    assert not second.weight[:, 2].any()
    assert heard[:, 2].any()
    assert float(player.age[0][2]) == float(player.useful[0][2]) == 0.0
    moments = player.optimizer.state[first.weight]["exp_avg"]
    assert not moments[2].any()
    assert moments[1].any()


def test_units_of_a_transformer_are_left_alone():
    with pytest.raises(ConfigError, match="units of ReLU layers"):
        make("sgd continual backprop", SETUP._replace(model=Transformer(width=12, layers=1)))
