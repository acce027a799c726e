"""Every contestant on every task: it learns, it does not peek, it repeats itself."""

import json

import numpy as np
import pytest

from driftrate.errors import ConfigError, DriftrateError, MissingDependency
from driftrate.learners import HedgedSGD
from driftrate.race import Cell, Reading, contestants, play, resolve
from driftrate.race.contestants import Setup, base
from driftrate.race.contestants.filters import ForgettingFilter
from driftrate.race.contestants.pools import Ader
from driftrate.race.models import Model
from driftrate.race.networks.network import Network

LINEAR = [name for name, one in contestants().items() if "linear" in one.models]
NETWORKS = [name for name, one in contestants().items() if "mlp" in one.models]
TASKS = {"regression": "linear", "binary": "logistic", "classes": "softmax"}
PLAYED = [(name, task) for name in LINEAR for task in TASKS]
PLAYED = [(name, task) for name, task in PLAYED if TASKS[task] in contestants()[name].models]
STEPS, BATCH = 120, 16


def rows(task, count, seed=0):
    """Draw an easy problem that does not move: three features, little noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 3))
    scores = x @ np.array([[2.0, -1.0, 0.5], [-1.0, 1.5, 0.5], [0.0, -0.5, -2.0]])
    if task == "regression":
        return x, scores[:, 0] + 0.1 * rng.standard_normal(count)
    if task == "binary":
        return x, (scores[:, 0] + 0.3 * rng.logistic(size=count) > 0).astype(int)
    return x, (scores + 0.3 * rng.gumbel(size=(count, 3))).argmax(axis=1)


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """Write a file for each task."""
    folder = tmp_path_factory.mktemp("streams")
    files = {}
    for task in TASKS:
        x, y = rows(task, (STEPS + 1) * BATCH)
        lines = [",".join(map(repr, [*a, b])) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        files[task] = str(folder / f"{task}.csv")
        (folder / f"{task}.csv").write_text("a,b,c,y\n" + "\n".join(lines) + "\n")
    return files


def cell(path, model, method, setting="default", seed=0):
    reading = Reading(target="y", model=model, batch=BATCH)
    print_ = resolve(path, reading).fingerprint
    return Cell(path, method, setting, seed, print_, **vars(reading))


def entrant(name):
    found = contestants()[name]
    if found.available() is not None:
        pytest.skip(f"{name} {found.available()}")
    return found


def without_clock(result):
    return {key: value for key, value in result.items() if key != "seconds_per_step"}


# Predicting nothing costs half the target's variance, or the entropy of equal chances.
NOTHING = {"regression": 0.5, "binary": np.log(2), "classes": np.log(3)}


@pytest.mark.parametrize(("name", "task"), PLAYED)
def test_each_learns_an_easy_stream_and_repeats_itself(name, task, streams):
    entrant(name)
    played = cell(streams[task], TASKS[task], name)
    result = play(played)
    assert result["status"] == "ok", result["message"]
    assert result["steps"] == STEPS
    # Small default rates gain little in 120 steps, but none may lose.
    assert result["loss"] < 0.99 * NOTHING[task]
    assert without_clock(play(played)) == without_clock(result)


@pytest.mark.parametrize("name", NETWORKS)
def test_each_trains_a_network(name, streams):
    entrant(name)
    first, again, other = (play(cell(streams["classes"], "mlp", name, seed=k)) for k in (0, 0, 1))
    assert first["status"] == "ok", first["message"]
    assert without_clock(first) == without_clock(again)
    assert first["loss"] != other["loss"]  # the seed draws the first weights
    assert first["loss"] < NOTHING["classes"]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_does_not_see_the_labels_of_its_own_batch(name):
    torch = pytest.importorskip("torch", reason="networks are torch's")
    setup = Setup(Network("classes", 3, 3, hidden=(8, 8)), batch=BATCH, steps=6, seed=0)
    x, y = (torch.from_numpy(one).reshape(6, BATCH, -1) for one in rows("classes", 6 * BATCH))
    scores = []
    for change in (0, 1):
        player = entrant(name).make("default", setup)
        for step in range(5):
            player.learn(x[step].float(), y[step, :, 0])
        unseen = player.scores(x[5].float())
        scores.append(player.learn(x[5].float(), (y[5, :, 0] + change) % 3))
        torch.testing.assert_close(unseen, scores[-1])
    assert torch.equal(*scores)
    assert scores[0].shape == (BATCH, 3)


@pytest.mark.parametrize("name", LINEAR)
def test_who_learns_row_by_row_says_so(name):
    """Sixteen rows at once, or one at a time: the same weights, for these methods alone."""
    found = entrant(name)
    setup = Setup(Model("regression", features=3, outputs=1), BATCH, steps=40, seed=0)
    whole, single = found.make("default", setup), found.make("default", setup)
    x, y = rows("regression", 5 * BATCH)
    for step in range(4):
        part = slice(step * BATCH, (step + 1) * BATCH)
        whole.step(x[part], y[part])
        try:
            for row in range(part.start, part.stop):
                single.step(x[row : row + 1], y[row : row + 1])
        except DriftrateError:  # compares the rows of a batch
            assert not found.by_row
            return
    one, other = (player.step(x[-BATCH:], y[-BATCH:]) for player in (whole, single))
    assert np.allclose(one, other, rtol=1e-6, atol=1e-9) == found.by_row


def test_a_method_of_numbers_says_so():
    setup = Setup(Model("binary", features=3, outputs=1), BATCH, steps=6, seed=0)
    found = entrant("bayesian regression")
    assert found.settings("logistic") == []
    with pytest.raises(ConfigError, match="of numbers alone"):
        found.make("default", setup)


def test_a_method_of_linear_models_says_so():
    setup = Setup(Network("classes", 3, 3), batch=BATCH, steps=6, seed=0)
    assert contestants()["HedgedSGD"].settings("mlp") == []
    with pytest.raises(ConfigError, match="trains linear models alone"):
        contestants()["HedgedSGD"].make("default", setup)


@pytest.mark.parametrize(("name", "task"), PLAYED)
def test_scores_do_not_see_the_labels_of_their_own_batch(name, task):
    found = entrant(name)
    outputs = 3 if task == "classes" else 1
    setup = Setup(Model(task, features=3, outputs=outputs), batch=BATCH, steps=6, seed=0)
    x, y = rows(task, 6 * BATCH)
    y = y.astype(np.int64 if task == "classes" else np.float64)
    other = {"regression": -y, "binary": 1 - y, "classes": (y + 1) % 3}[task]
    scores = []
    for last in (y, other):
        player = found.make("default", setup)
        for step in range(6):
            now = slice(step * BATCH, (step + 1) * BATCH)
            scores.append(player.step(x[now], (last if step == 5 else y)[now]))
    first, second = scores[5], scores[11]
    np.testing.assert_array_equal(first, second)
    assert first.shape == ((BATCH, 3) if task == "classes" else (BATCH,))
    assert first.any()


@pytest.mark.parametrize("name", LINEAR)
def test_the_grid_is_small_canonical_and_playable(name, streams):
    found = entrant(name)
    settings = found.settings("linear")
    assert settings[0] == "default"
    assert len(settings) == len(set(settings)) <= 20
    for setting in settings[1:]:
        assert json.dumps(json.loads(setting), sort_keys=True, separators=(",", ":")) == setting
    setup = Setup(Model("regression", features=3, outputs=1), batch=BATCH, steps=2, seed=0)
    x, y = rows("regression", BATCH)
    for setting in settings[1:]:
        player = found.make(setting, setup)
        player.step(x, y)
        assert np.isfinite(player.step(x, y)).all() or "sgd" in name


def test_what_is_too_old_is_said(monkeypatch):
    pytest.importorskip("river", reason="the method is one of its")
    newton = contestants()["online newton step"]
    monkeypatch.setattr(base, "version", lambda name: {"river": "0.26.1"}[name])
    assert newton.available() is None
    monkeypatch.setattr(base, "version", lambda name: {"river": "0.9.0"}[name])
    assert newton.available() == "needs river>=0.26: pip install 'river>=0.26'"


def test_what_is_not_installed_is_said_and_not_raised(monkeypatch, streams):
    monkeypatch.setattr(base, "find_spec", lambda name: None if name == "dog" else True)
    found = contestants()["dog"]
    assert found.available() == "needs dog-optimizer: pip install 'driftrate[race]'"
    setup = Setup(Model("regression", 3, 1), BATCH, 2, 0)
    with pytest.raises(MissingDependency, match="dog needs dog-optimizer"):
        found.make("default", setup)
    result = play(cell(streams["regression"], "linear", "dog"))
    assert (result["status"], result["loss"]) == ("not played", None)
    assert "dog-optimizer" in result["message"]


@pytest.mark.parametrize("name", ["ConvexRate", "LinearRate", "adam adwin resets", "HedgedSGD"])
def test_scores_that_are_not_finite_are_left_to_the_race(name):
    setup = Setup(Model("regression", 3, 1), BATCH, 2, 0)
    player = entrant(name).make("default", setup)
    x, y = rows("regression", BATCH)
    player.step(x, y)
    with np.errstate(all="ignore"):
        assert not np.isfinite(player.step(np.full_like(x, np.inf), y)).any()


def test_the_pool_that_plays_is_the_pool():
    """The race plays the fast twin; the readable form comes to the same numbers."""
    setup, rule = Setup(Model("regression", 3, 1), BATCH, 300, 0), HedgedSGD()
    player, state = entrant("HedgedSGD").make("default", setup), rule.init(np.zeros(3))
    x, y = rows("regression", 300 * BATCH)
    found, expected = [], []
    for step in range(300):
        part = slice(step * BATCH, (step + 1) * BATCH)
        members = rule.members(state)
        expected.append([*setup.model.scores(members[0], x[part])])
        state = rule.update(state, *setup.model.gradients(members, x[part], y[part]))
        found.append([*player.step(x[part], y[part]), player.rate])
        expected[-1].append(float(rule.rate(state)))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_setting_must_be_of_json():
    setup = Setup(Model("regression", 3, 1), BATCH, 2, 0)
    with pytest.raises(ConfigError, match="got 'fast'"):
        contestants()["HedgedSGD"].make("fast", setup)


def test_who_is_who():
    entrants = contestants()
    second = {n for n, c in entrants.items() if not c.first_order}
    assert second == {
        "HedgedFilter", "kalman forgetting", "online newton step", "bayesian regression",
        "soap",
    }  # fmt: skip
    ours = {n for n, c in entrants.items() if c.ours}
    assert {"HedgedFilter", "HedgedSGD", "ConvexRate", "NonconvexRate", "LinearRate"} <= ours
    assert all(c.family == "driftrate" for c in entrants.values() if c.ours)
    assert len(entrants) >= 26


# The filter, Ader ------------------------------------------------------------------------------


def test_the_filter_is_weighted_least_squares():
    forgetting, prior, steps = 0.98, 0.5, 9
    setup = Setup(Model("regression", features=3, outputs=1), BATCH, steps, 0)
    player = ForgettingFilter(setup, forgetting, prior)
    x, y = rows("regression", steps * BATCH)
    decay = forgetting**BATCH
    # The mean of the posterior under weights decay^age, each step's refill of the prior centred
    # where the weights were.
    a, b = np.eye(3) / prior, np.zeros(3)
    for step in range(steps):
        now = slice(step * BATCH, (step + 1) * BATCH)
        old = np.linalg.solve(a, b)
        player.step(x[now], y[now])
        a_prior = decay * a + (1 - decay) * np.eye(3) / prior
        a = a_prior + x[now].T @ x[now]
        b = a_prior @ old + x[now].T @ y[now]
        np.testing.assert_allclose(player.theta, np.linalg.solve(a, b), rtol=1e-9)
    never = ForgettingFilter(setup, 1.0, prior)
    for step in range(steps):
        now = slice(step * BATCH, (step + 1) * BATCH)
        never.step(x[now], y[now])
    ridge = np.linalg.solve(x.T @ x + np.eye(3) / prior, x.T @ y)
    np.testing.assert_allclose(never.theta, ridge, rtol=1e-9)


def test_the_filter_of_two_classes_is_that_of_two_scores():
    x, y = rows("binary", 6 * BATCH)
    one = ForgettingFilter(Setup(Model("binary", 3, 1), BATCH, 6, 0), 0.99, prior=0.2)
    two = ForgettingFilter(Setup(Model("classes", 3, 2), BATCH, 6, 0), 0.99, prior=0.1)
    for step in range(6):
        now = slice(step * BATCH, (step + 1) * BATCH)
        single = one.step(x[now], y[now].astype(float))
        double = two.step(x[now], y[now])
        # The difference of two independent weights has twice the variance of one.
        np.testing.assert_allclose(double[:, 1] - double[:, 0], single, rtol=1e-7, atol=1e-9)


def test_a_filter_too_large_is_refused():
    with pytest.raises(ConfigError, match="5,000 equations"):
        ForgettingFilter(Setup(Model("classes", 500, 10), BATCH, 6, 0))


def test_the_pool_of_rates_spans_what_the_paper_says():
    setup = Setup(Model("regression", features=4, outputs=1), BATCH, steps=7000, seed=0)
    pool = Ader(setup, diameter=2.0)
    assert len(pool.rates) == int(np.ceil(0.5 * np.log2(1 + 4000))) + 1
    assert pool.rates[0] == pytest.approx((2.0 / 2.0) * (7 / 14000) ** 0.5)
    np.testing.assert_allclose(pool.rates[1:] / pool.rates[:-1], 2.0)
    assert np.exp(pool.logs).sum() == pytest.approx(1.0)
    x = np.full((BATCH, 4), 10.0)
    pool.step(x, np.full(BATCH, 1e3))
    assert np.linalg.norm(pool.experts, axis=1).max() <= 1.0 + 1e-12
