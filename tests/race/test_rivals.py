"""Rivals that were written from their papers, against the papers."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from driftrate.race.contestants import Setup, contestants
from driftrate.race.contestants.by_row import IDBD, NLMS, Autostep
from driftrate.race.contestants.discounted import NormalPredictor, SmoothedOGD
from driftrate.race.models import Model, losses

SETUP = Setup(Model("regression", features=3, outputs=1), batch=4, steps=50, seed=0)
numbers = st.floats(-3.0, 3.0)


def stream(task, count, features=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, features))
    if task == "classes":
        return x, rng.integers(0, 3, count)
    score = x @ rng.standard_normal(features) + 0.3 * rng.standard_normal(count)
    return x, score if task == "regression" else (score > 0).astype(float)


# Row by row ------------------------------------------------------------------------------------


@given(x=st.lists(numbers, min_size=3, max_size=3), y=numbers, mu=st.floats(0.01, 2.0))
def test_nlms_takes_away_the_share_of_the_error_that_it_is_told(x, y, mu):
    x = np.array([x])
    if np.vdot(x, x) < 1e-3:
        return
    player = NLMS(SETUP, mu=mu, eps=0.0)
    player.step(np.eye(3), np.array([1.0, -2.0, 0.5]))  # weights that are not 0
    before = player.step(x, np.array([y]))[0]
    after = player.model.scores(player.theta.ravel(), x)[0]
    assert y - after == pytest.approx((1.0 - mu) * (y - before), abs=1e-9)


def idbd(x, y, meta, alpha):
    """The three lines of Sutton's Figure 2, weight by weight."""
    n = x.shape[1]
    w, h, beta = [0.0] * n, [0.0] * n, [math.log(alpha)] * n
    for row, target in zip(x.tolist(), y.tolist(), strict=True):
        delta = target - sum(a * b for a, b in zip(w, row, strict=True))
        for i in range(n):
            beta[i] += meta * delta * row[i] * h[i]
            size = math.exp(beta[i])
            w[i] += size * delta * row[i]
            h[i] = h[i] * max(1.0 - size * row[i] ** 2, 0.0) + size * delta * row[i]
    return w, np.exp(beta)


def autostep(x, y, meta, alpha, tau):
    """Table 1 of the paper, weight by weight."""
    n = x.shape[1]
    w, h, v, size = [0.0] * n, [0.0] * n, [0.0] * n, [alpha / n] * n
    for row, target in zip(x.tolist(), y.tolist(), strict=True):
        delta = target - sum(a * b for a, b in zip(w, row, strict=True))
        for i in range(n):
            now = abs(delta * row[i] * h[i])
            v[i] = max(now, v[i] + size[i] * row[i] ** 2 * (now - v[i]) / tau)
            if v[i] != 0.0:
                size[i] *= math.exp(meta * delta * row[i] * h[i] / v[i])
        most = max(sum(s * r**2 for s, r in zip(size, row, strict=True)), 1.0)
        for i in range(n):
            size[i] /= most
            w[i] += size[i] * delta * row[i]
            h[i] = h[i] * (1.0 - size[i] * row[i] ** 2) + size[i] * delta * row[i]
    return w, np.array(size)


def test_idbd_is_the_paper_s():
    x, y = stream("regression", 200)
    player = IDBD(SETUP, meta=0.05, alpha=0.1)
    player.step(x, y)
    w, alpha = idbd(x, y, 0.05, 0.1)
    np.testing.assert_allclose(player.theta[:, 0], w, rtol=1e-9)
    np.testing.assert_allclose(np.exp(player.beta[:, 0]), alpha, rtol=1e-9)
    assert abs(np.log(alpha / 0.1)).max() > 0.1  # the step sizes did learn


def test_autostep_is_the_paper_s():
    x, y = stream("regression", 200)
    x = 2.0 * x  # large enough for the bound on an overshoot
    player = Autostep(SETUP, meta=0.05, alpha=1.0, tau=100.0)
    player.step(x, y)
    w, alpha = autostep(x, y, 0.05, 1.0, 100.0)
    np.testing.assert_allclose(player.theta[:, 0], w, rtol=1e-9)
    np.testing.assert_allclose(player.alpha[:, 0], alpha, rtol=1e-9)


@pytest.mark.parametrize("kind", [IDBD, Autostep])
@pytest.mark.parametrize("task", ["regression", "binary"])
def test_the_trace_is_the_derivative_of_a_weight_by_its_log_step_size(kind, task):
    """Exact for one weight: the form for classes is the meta-gradient of its own loss."""
    x, y = stream(task, 20, features=1)
    setup = Setup(Model(task, features=1, outputs=1), batch=20, steps=5, seed=0)
    ends = []
    for shift in (-1e-6, 0.0, 1e-6):
        player = kind(setup, meta=0.0, alpha=0.05 * math.exp(shift))
        player.step(x, y)
        ends.append((player.theta[0, 0], player.trace[0, 0]))
    slope = (ends[2][0] - ends[0][0]) / 2e-6
    assert ends[1][1] == pytest.approx(slope, rel=1e-6)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 30.0))
def test_autostep_never_overshoots(seed, scale):
    x, y = stream("regression", 40, seed=seed)
    player = Autostep(SETUP, meta=0.1, alpha=1.0)
    for row, label in zip(scale * x, y, strict=True):
        before = label - player.step(row[None], label[None])[0]
        after = label - (row @ player.theta)[0]
        assert -1e-9 <= after / before <= 1.0 + 1e-9


@pytest.mark.parametrize("task", ["regression", "binary", "classes"])
def test_a_row_moves_the_weights_along_its_own_gradient(task):
    """One step of each at equal step sizes from 0 is a step of SGD on the loss of the race."""
    outputs = 3 if task == "classes" else 1
    setup = Setup(Model(task, features=3, outputs=outputs), batch=1, steps=5, seed=0)
    x, y = stream(task, 1)
    gradient = setup.model.gradients(setup.model.init(), x, y)[1]
    for player in (NLMS(setup, mu=0.1), IDBD(setup), Autostep(setup)):
        player.step(x, y)
        moved = player.theta.ravel()
        np.testing.assert_allclose(moved, -player.rate * gradient, rtol=1e-9)


# The rates of optimizers -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd hypergradient", "adam hypergradient"])
@pytest.mark.parametrize("task", ["regression", "binary", "classes"])
def test_a_rate_moves_by_the_derivative_of_the_next_loss(name, task):
    torch = pytest.importorskip("torch", reason="its optimizers are tuned")
    outputs = 3 if task == "classes" else 1
    setup = Setup(Model(task, features=3, outputs=outputs), batch=4, steps=5, seed=0)
    x, y = stream(task, 12)
    batches = [(torch.tensor(x[i : i + 4]), torch.tensor(y[i : i + 4])) for i in (0, 4, 8)]

    def played(lr, beta, steps):
        player = contestants()[name].build(setup, lr=lr, beta=beta)
        player.net.double()
        for batch in batches[:steps]:
            player.learn(*batch)
        return player

    def loss(rate):
        # Two steps, the second at this rate, and the loss of the third batch.
        player = played(0.05, 0.0, 1)
        player.optimizer.param_groups[0]["lr"] = rate
        player.learn(*batches[1])
        scores = player.scores(batches[2][0]).numpy()
        scores = scores if task == "classes" else scores[:, 0]
        return losses(task, scores, batches[2][1].numpy()).mean()

    slope = (loss(0.05 + 1e-6) - loss(0.05 - 1e-6)) / 2e-6
    player = played(0.05, 0.0, 2)
    player.beta = 1e-3
    player.learn(*batches[2])
    assert player.rate - 0.05 == pytest.approx(-1e-3 * slope, rel=1e-5)


def test_momo_knows_the_loss():
    torch = pytest.importorskip("torch", reason="MoMo is an optimizer of torch")
    found = contestants()["momo"]
    if found.available() is not None:
        pytest.skip(f"momo {found.available()}")
    player = found.make("default", SETUP)
    x, y = stream("regression", 4)
    player.step(x, y)
    loss, gradient = SETUP.model.gradients(np.zeros(3), x, y)
    # The first step is that of Polyak with a lowest loss of 0, at most 1.
    step = min(loss / (gradient @ gradient), 1.0)
    np.testing.assert_allclose(player.net.first.detach()[:, 0], -step * gradient, rtol=1e-5)
    assert torch.is_tensor(player.net.first)


# Packages of online learning -------------------------------------------------------------------


def test_online_newton_is_the_paper_s():
    pytest.importorskip("river", reason="it is River's")
    x, y = stream("regression", 60)
    player = contestants()["online newton step"].build(SETUP, diameter=0.5)
    inverse_gamma, eps = 8.0 * 3**0.5 * 0.5, 64.0 * 3.0
    assert eps == pytest.approx((inverse_gamma / 0.5) ** 2)
    a, theta = eps * np.eye(3), np.zeros(3)
    for row, label in zip(x, y, strict=True):
        found = player.step(row[None], label[None])[0]
        assert found == pytest.approx(row @ theta, rel=1e-8, abs=1e-12)
        gradient = 2.0 * (row @ theta - label) * row  # River's squared loss has no half
        a = a + np.outer(gradient, gradient)
        theta = theta - inverse_gamma * np.linalg.solve(a, gradient)


def test_flags_reach_vowpal_wabbit(monkeypatch):
    module = pytest.importorskip("vowpalwabbit", reason="it is asked")
    asked = []
    monkeypatch.setattr(module, "Workspace", lambda text: asked.append(text) or SimpleNamespace())
    for name, setting in [
        ("vowpal wabbit coin", '{"ftrl_alpha":1.0}'),
        ("vowpal wabbit freegrad", "default"),
        ("vowpal wabbit freegrad", '{"restart":false}'),
    ]:
        contestants()[name].make(setting, SETUP)
    coin, both, plain = (text.split() for text in asked)
    assert coin[-3:] == ["--coin", "--ftrl_alpha", "1.0"]
    assert both[-2:] == ["--freegrad", "--restart"]
    assert plain[-1] == "--freegrad"


# The pool of discounts -------------------------------------------------------------------------


def test_the_weight_solves_its_equation():
    """It is written with the usual error function; the paper's definition is an integral."""
    from scipy.integrate import quad

    predictor = NormalPredictor(1.0 - 1.0 / 200.0, wealth=1e-3)
    assert predictor.weight == 0.0
    found = []
    for x in (1.0, 20.0, 60.0, 90.0, 200.0, 1e4):
        predictor.sum = x
        found.append(predictor.weight)
        if x < 100.0:
            area = quad(lambda s: math.exp(-0.5 * s * s), 0.0, x / 1600**0.5)[0]
            wanted = 5.0 * 1e-3 * math.exp(x * x / 3200.0) * area
            assert found[-1] == pytest.approx(min(wanted, 1.0), rel=1e-9)
    assert 0.0 < found[0] < 0.01
    assert found[-2:] == [1.0, 1.0]
    predictor.sum = -5.0
    assert predictor.weight == 0.0


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), drift=st.floats(-1.0, 1.0), turn=st.integers(0, 800))
@example(seed=0, drift=1.0, turn=400)
@example(seed=0, drift=-1.0, turn=400)
def test_the_predictor_keeps_what_it_promises(seed, drift, turn):
    """Theorem 2 of the paper, for payoffs that favour one side and then the other."""
    discount, wealth, count = 1.0 - 1.0 / 100.0, 0.05, 800
    rng = np.random.default_rng(seed)
    side = np.where(np.arange(count) < turn, drift, -drift)
    payoffs = np.clip(side + 0.5 * rng.standard_normal(count), -1.0, 1.0)
    predictor, weights, sums = NormalPredictor(discount, wealth), [], []
    for payoff in payoffs:
        weights.append(predictor.weight)
        predictor.update(payoff)
        sums.append(predictor.sum)
    top = next(x for x in np.arange(0.0, 400.0, 0.1) if weight_at(discount, wealth, x) >= 1.0)
    assert top < 80.0  # within reach of payoffs of 1, but for the updates that are left out
    assert -1.0 <= min(sums) <= max(sums) <= top + 1.0
    for other in (discount, 0.995, 0.999):
        faded = other ** np.arange(count)[::-1]
        gain = (faded * weights * payoffs).sum()
        assert gain >= -wealth / (2.0 * (1.0 - other)) - 1e-9
    faded = discount ** np.arange(count)[::-1]
    gain = (faded * weights * payoffs).sum()
    lost = wealth / (2.0 * (1.0 - discount)) + top + 1.0
    assert gain >= (faded * payoffs).sum() - lost


def weight_at(discount, wealth, x):
    predictor = NormalPredictor(discount, wealth)
    predictor.sum = x
    return predictor.weight


def test_the_pool_of_discounts_spans_what_the_paper_says():
    setup = Setup(Model("regression", features=4, outputs=1), batch=4, steps=1024, seed=0)
    pool = SmoothedOGD(setup, diameter=2.0, shortest=4.0)
    assert len(pool.rates) == 9  # log2(1024/4) + 1
    assert pool.rates[0] == pytest.approx((2.0 / 2.0) * (2 / 1024) ** 0.5)
    np.testing.assert_allclose(pool.rates[1:] / pool.rates[:-1], 2.0**0.5)
    lengths = [one.length for one in pool.predictors]
    np.testing.assert_allclose(lengths, [1024.0 / 2**i for i in range(1, 9)])
    assert lengths[-1] == pytest.approx(4.0)
    for _ in range(3):
        pool.step(np.full((4, 4), 10.0), np.full(4, 1e3))
    assert np.linalg.norm(pool.experts, axis=1).max() <= 1.0 + 1e-12


def test_the_pool_of_discounts_follows_the_expert_that_pays():
    """A horizon far off, and so a first expert that is too slow for targets that turn over."""
    rng = np.random.default_rng(0)
    model = Model("regression", features=2, outputs=1)
    pool = SmoothedOGD(Setup(model, batch=8, steps=10**8, seed=0), diameter=9.0)
    sums = np.zeros(2)
    for step in range(2000):
        x = rng.standard_normal((8, 2))
        y = x @ np.array([3.0, -3.0]) * (1.0 if step // 1000 else -1.0)
        scores = np.stack([model.scores(pool.experts[0], x), pool.step(x, y)])
        sums += losses("regression", scores, y).mean(axis=1)
    assert sums[1] < 0.5 * sums[0]
    assert pool.rate > 3.0 * pool.rates[0]
