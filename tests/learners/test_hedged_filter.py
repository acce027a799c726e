"""HedgedFilter: exact where it can be, quick after jumps, sound for ever, resumed bit by bit."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import driftrate as dr
from driftrate.errors import ConfigError, DriftrateError, SignalError, StateError
from driftrate.learners import forgetting
from driftrate.learners.memories import FEW, MANY, MEMBERS

POOL = dr.HedgedFilter()
quickly = settings(max_examples=15, deadline=None)


def draw(rng, target, rows=16, noise=1.0):
    """Draw rows of a linear regression, the first feature constant."""
    x = rng.standard_normal((rows, len(target)))
    x[:, 0] = 1.0
    return x, x @ target + noise * rng.standard_normal(rows)


def draw_classes(rng, target, rows=16):
    x = rng.standard_normal((rows, target.shape[1]))
    return x, (x @ target.T + rng.gumbel(size=(rows, len(target)))).argmax(axis=1)


def trained(steps=30, dim=4, classes=None, seed=0):
    rng, state = np.random.default_rng(seed), POOL.init(dim, classes)
    target = rng.standard_normal((classes or 1, dim))
    for _ in range(steps):
        x, y = draw_classes(rng, target) if classes else draw(rng, target[0])
        state = POOL.update(state, x, y)
    return state


def equal(one, other):
    return one.keys() == other.keys() and all(
        np.array_equal(one[key], other[key], equal_nan=True) for key in one
    )


def test_a_pool_that_knows_nothing_says_so():
    x = np.ones((3, 2))
    assert POOL.predict(POOL.init(2), x).tolist() == [0.0] * 3
    np.testing.assert_allclose(POOL.predict(POOL.init(2, 2), x), 0.5)
    np.testing.assert_allclose(POOL.predict(POOL.init(2, 4), x), 0.25)
    assert np.isinf(POOL.interval(POOL.init(2), x)).all()
    assert POOL.memory(POOL.init(2)) == 0.0


@quickly
@given(
    seed=st.integers(0, 1000),
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    moves=st.booleans(),
)
def test_the_member_that_never_forgets_is_offline_ridge(seed, rows, moves):
    """To 1e-8, also while units move a hundredfold between the batches."""
    rng, dim = np.random.default_rng(seed), 4
    state, units, gram, pull = POOL.init(dim), np.eye(dim), 0.0, 0.0
    target = rng.standard_normal(dim)
    for count in rows:
        x, y = draw(rng, target, count)
        gram, pull = gram + x.T @ x, pull + x.T @ y
        state = POOL.update(state, x @ units.T, y)
        if moves:
            scale = np.concatenate([[1.0], 10.0 ** rng.uniform(-2, 2, dim - 1)])
            shift = np.concatenate([[0.0], rng.standard_normal(dim - 1)])
            state = POOL.transform(state, scale, shift)
            move = np.diag(scale)
            move[:, 0] += shift
            units = move @ units
    # The prior is that of the first units.
    want = np.linalg.solve(gram + np.eye(dim) / MEMBERS.prior[0], pull)
    found = state["weights"][0, 0] @ units
    np.testing.assert_allclose(found, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_other_units_change_no_forecast(classes):
    rng, state = np.random.default_rng(1), trained(classes=classes)
    x = rng.standard_normal((5, 4))
    x[:, 0] = 1.0
    scale, shift = np.array([1.0, 2.0, 0.1, 7.0]), np.array([0.0, -1.0, 3.0, 0.5])
    moved = POOL.transform(state, scale, shift)
    there = scale * x + shift * x[:, :1]
    np.testing.assert_allclose(POOL.predict(moved, there), POOL.predict(state, x), rtol=1e-10)
    if classes is None:
        np.testing.assert_allclose(POOL.interval(moved, there), POOL.interval(state, x), rtol=1e-6)
    with pytest.raises(ConfigError, match="first feature"):
        POOL.transform(state, 2.0 * scale, shift)
    with pytest.raises(ConfigError, match="4 numbers"):
        POOL.transform(state, scale[:3], shift[:3])


def test_targets_in_other_units_give_the_same_forecasts():
    rng, target = np.random.default_rng(0), np.array([3.0, 1.0, -2.0])
    one, other = POOL.init(3), POOL.init(3)
    for _ in range(40):
        x, y = draw(rng, target)
        one, other = POOL.update(one, x, y), POOL.update(other, x, 1000.0 * y)
    np.testing.assert_allclose(POOL.predict(other, x), 1000.0 * POOL.predict(one, x), rtol=1e-9)


def test_at_rest_doubt_fades():
    """Regret falls as 1/t: half as much in steps 1,000 to 2,000 as in 250 to 1,000.

    A share that is dealt out for ever would leave a third more in the longer time.
    """
    ratios = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        target, state, sums = rng.standard_normal(8), POOL.init(8), np.zeros(2)
        for step in range(2000):
            x, y = draw(rng, target)
            if step >= 250:
                away = POOL.shares(state) @ state["weights"][:, 0] - target
                sums[int(step >= 1000)] += away @ away
            state = POOL.update(state, x, y)
        ratios.append(sums[1] / sums[0])
    error = np.std(ratios, ddof=1) / len(ratios) ** 0.5
    assert np.mean(ratios) < 0.5 + 3 * error < 1.0


def test_a_jump_is_followed_at_once_and_rest_is_believed_in_again():
    """A filter that never forgets would need as many rows again as it has seen."""
    rng, state = np.random.default_rng(0), POOL.init(6)
    target, errors, memory = rng.standard_normal(6), [], []
    for step in range(400):
        if step == 200:
            target = -target
        x, y = draw(rng, target, noise=0.1)
        errors.append(float(np.mean((POOL.predict(state, x) - x @ target) ** 2)))
        state = POOL.update(state, x, y)
        memory.append(POOL.memory(state))
    # The noise of a row is 0.01, the jump's own error 4 |w|².
    assert errors[200] > 1.0
    assert np.mean(errors[203:210]) < 0.02
    assert memory[199] > 1000
    assert min(memory[201:210]) < 0.3 * memory[199]
    assert memory[399] > 2 * min(memory[201:210])


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_that_change_their_meaning_are_followed(classes):
    rng, state = np.random.default_rng(0), POOL.init(4, classes)
    target, found = 2.0 * rng.standard_normal((classes, 4)), []
    for step in range(300):
        if step == 200:
            target = target[::-1]
        x, y = draw_classes(rng, target)
        chances = POOL.predict(state, x)
        np.testing.assert_allclose(chances.sum(axis=1), 1.0)
        found.append(float((chances.argmax(axis=1) == y).mean()))
        state = POOL.update(state, x, y)
    rest, jump, then = np.mean(found[100:200]), np.mean(found[200:203]), np.mean(found[240:])
    assert jump < 0.5 * rest
    error = (rest * (1 - rest) / (16 * 60)) ** 0.5
    assert then > rest - 0.05 - 4 * error


def test_the_intercept_alone_is_followed_quickly():
    """Where only the level wanders, a memory of its own tells it from weights that rest."""
    rng, target = np.random.default_rng(0), np.concatenate([[0.0], np.arange(1.0, 9.0)])
    sums = {True: 0.0, False: 0.0}
    for constant in sums:
        rng, state, level = np.random.default_rng(0), POOL.init(9), 0.0
        for step in range(600):
            level += 0.3 * rng.standard_normal()
            x, y = draw(rng, target)
            y = y + level
            if not constant:
                x[:, 0] = 1.0 + 1e-9 * rng.standard_normal(len(x))
            if step >= 100:
                sums[constant] += float(np.mean((POOL.predict(state, x) - y) ** 2))
            state = POOL.update(state, x, y)
    assert sums[True] < 0.93 * sums[False]


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_a_state_is_not_modified_and_resumes_bit_by_bit(classes):
    state = trained(classes=classes)
    kept = {key: value.copy() for key, value in state.items()}
    saved = json.loads(json.dumps(POOL.dump(state)))
    rng, again = np.random.default_rng(5), POOL.load(saved)
    assert equal(again, state)
    for _ in range(5):
        x, y = rng.standard_normal((7, 4)), rng.integers(0, 2, 7)
        again, state = POOL.update(again, x, y), POOL.update(state, x, y)
    assert equal(again, state)
    assert equal(kept, POOL.load(saved))


def test_a_damaged_state_is_refused():
    saved = POOL.dump(trained(2))
    with pytest.raises(StateError, match="HedgedSGD"):
        dr.HedgedSGD().load(saved)
    with pytest.raises(StateError, match="version"):
        POOL.load({**saved, "version": 99})
    with pytest.raises(StateError, match="must hold"):
        POOL.load({**saved, "state": {"weights": 1.0}})


def test_many_rows_are_learned_in_pieces():
    rng = np.random.default_rng(0)
    x, y = draw(rng, np.ones(3), 150)
    whole, pieces = POOL.update(POOL.init(3), x, y), POOL.init(3)
    for start in range(0, 150, 64):
        pieces = POOL.update(pieces, x[start : start + 64], y[start : start + 64])
    assert equal(whole, pieces)


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_weights_count_rows(classes):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 3))
    y = rng.integers(0, classes, 8) if classes else rng.standard_normal(8)
    count = np.array([1, 0, 2, 1, 0, 3, 1, 1])
    weighted = POOL.update(POOL.init(3, classes), x, y, count)
    repeated = POOL.update(POOL.init(3, classes), x.repeat(count, axis=0), y.repeat(count))
    for key in ("weights", "info", "shares", "mixers", "noise", "rows"):
        np.testing.assert_allclose(weighted[key], repeated[key], rtol=1e-8, atol=1e-10)
    assert equal(POOL.update(weighted, x, y, 0 * count), weighted)


def test_the_shortest_memory_shrinks_while_it_carries_the_pool():
    """And comes back after; while it is shorter it forgets more."""
    state, shortest = trained(100), len(MEMBERS.memory) - 1
    assert float(state["shorter"]) == 0.0
    shares = np.full_like(state["shares"], 1e-6)
    shares[:, shortest] = 1.0
    rng, carried = np.random.default_rng(0), {**state, "shares": shares}
    x, y = draw(rng, np.ones(4))
    once = POOL.update(carried, x, y)
    assert POOL.shares(once)[shortest] > 0.5
    assert float(once["shorter"]) == 0.05
    again = POOL.update({**once, "shorter": np.asarray(2.0)}, x, y)
    assert again["remembered"][shortest] < 0.99 * POOL.update(once, x, y)["remembered"][shortest]
    back = POOL.update({**once, "shares": state["shares"]}, x, y)
    assert 0.0 < float(back["shorter"]) < 0.05


@pytest.mark.parametrize("classes", [None, 2, 3])
@pytest.mark.parametrize("size", [1e9, 1e30, 1e200])
def test_absurd_rows_lose_nothing_for_ever(classes, size):
    state, rng = trained(100, classes=classes), np.random.default_rng(9)
    x = rng.standard_normal((4, 4))
    y = np.zeros(4) if classes else size * np.ones(4)
    hurt = POOL.update(state, size * x, y)
    target = rng.standard_normal((classes or 1, 4))
    for _ in range(300):
        x, y = draw_classes(rng, target) if classes else draw(rng, target[0])
        hurt = POOL.update(hurt, x, y)
    x, y = draw_classes(rng, target, 500) if classes else draw(rng, target[0], 500)
    found = POOL.predict(hurt, x)
    if classes:
        assert (found.argmax(axis=1) == y).mean() > 1.2 / classes
    else:
        assert np.mean((found - x @ target[0]) ** 2) < 0.1


@pytest.mark.parametrize("level", [0.0, 5.0])
def test_a_target_that_was_constant_is_followed_when_it_varies(level):
    rng, state, found = np.random.default_rng(0), POOL.init(4), []
    target = rng.standard_normal(4)
    for step in range(300):
        x, y = draw(rng, target)
        y = np.full(len(y), level) if step < 100 else y
        found.append(
            0.5 * np.mean((POOL.predict(state, x) - (y if step < 100 else x @ target)) ** 2)
        )
        state = POOL.update(state, x, y)
    assert found[99] < 1e-6
    assert np.mean(found[150:]) < 0.1
    low, high = POOL.interval(state, x, 0.9)
    assert 2.0 < np.mean(high - low) < 5.0


def test_certainty_is_no_error():
    """Classes that a member is so sure of that curvature underflows."""
    rng, state = np.random.default_rng(0), POOL.init(3, 3)
    for _ in range(200):
        x = 40.0 * rng.standard_normal((4, 3))
        state = POOL.update(state, x, x.argmax(axis=1))
    assert np.isfinite(state["weights"]).all()


def test_a_batch_that_breaks_everyone_is_left_out():
    state, x = trained(), np.full((2, 4), 1e300)
    with np.errstate(all="raise"):
        once = POOL.update(state, x, np.full(2, 1e300))
        twice = POOL.update(once, x, np.full(2, 1e300))
    for later in (once, twice):
        for key in ("weights", "info", "shares", "noise"):
            np.testing.assert_array_equal(later[key], state[key])


def test_a_forecast_that_no_target_ever_came_near_is_left_out():
    state = trained(100)
    x = np.ones((1, 4))
    before = POOL.predict(state, x)
    wild = {**state, "weights": state["weights"].copy()}
    wild["weights"][-1] *= 1e12
    np.testing.assert_allclose(POOL.predict(wild, x), before, atol=0.2)


@pytest.mark.parametrize("jumps", [False, True])
def test_intervals_cover_what_they_say(jumps):
    """90 %, also where noise and target change; at least 80 % of every 1,000 rows."""
    rng, state, inside = np.random.default_rng(0), POOL.init(5), []
    target, noise = rng.standard_normal(5), 1.0
    for step in range(600):
        if jumps and step % 150 == 75:
            target, noise = rng.standard_normal(5), 3.0 / noise
        x, y = draw(rng, target, noise=noise)
        if step >= 10:
            low, high = POOL.interval(state, x, 0.9)
            inside.append((low <= y) & (y <= high))
        state = POOL.update(state, x, y)
    inside = np.concatenate(inside)
    assert 0.88 <= inside.mean() <= 0.92
    windows = np.convolve(inside, np.ones(1000) / 1000, "valid")
    assert windows.min() >= 0.8


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_a_wider_pool_forecasts_as_before(classes):
    state, rng = trained(classes=classes), np.random.default_rng(3)
    wide, x = POOL.widen(state, dim=6), rng.standard_normal((5, 4))
    same = np.hstack([x, np.zeros((5, 2))])
    np.testing.assert_allclose(POOL.predict(wide, same), POOL.predict(state, x), rtol=1e-10)
    y = rng.integers(0, 2, 5)
    later = POOL.update(wide, same, y), POOL.update(state, x, y)
    assert later[0].keys() == later[1].keys()
    if classes:
        more = POOL.widen(state, classes=5)
        found = POOL.predict(more, x)
        assert found.shape == (5, 5)
        assert (found[:, :classes].argmax(axis=1) == POOL.predict(state, x).argmax(axis=1)).all()
        POOL.update(more, x, np.array([0, 1, 2, 3, 4]))
    with pytest.raises(ConfigError):
        POOL.widen(state, dim=3)
    if classes is None:
        with pytest.raises(ConfigError, match="no classes"):
            POOL.widen(state, classes=3)


@pytest.mark.parametrize(("dim", "classes"), [(600, None), (600, 2), (250, 3), (700, 3)])
def test_many_weights_are_learned_in_blocks(dim, classes):
    rng, state = np.random.default_rng(0), POOL.init(dim, classes)
    target = rng.standard_normal((classes or 1, dim)) / dim**0.5 * 3.0
    losses = []
    for _ in range(120):
        if classes:
            x, y = draw_classes(rng, target)
            losses.append(-np.log(POOL.predict(state, x)[np.arange(16), y]).mean())
        else:
            x, y = draw(rng, target[0], noise=0.1)
            losses.append(0.5 * np.mean((POOL.predict(state, x) - y) ** 2))
        state = POOL.update(state, x, y)
    assert state["info"].nbytes <= 8 * max(forgetting.NUMBERS, 9 * dim * dim)
    assert np.mean(losses[-20:]) < 0.85 * np.mean(losses[:10])


def test_a_pool_of_a_hundred_thousand_weights_stays_small():
    dim = MANY + 1
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, dim)), rng.standard_normal(4)
    tracemalloc.start()
    state = POOL.update(POOL.init(dim), x, y)
    POOL.predict(state, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(state["weights"]) == FEW.number
    assert peak < 200e6
    assert POOL.predict(state, x) @ y > 0
    # What grows over the limit keeps the members that stay.
    grown = POOL.widen(POOL.init(MANY), dim=dim)
    assert grown.keys() == state.keys()
    assert all(grown[key].shape == state[key].shape for key in grown)


@pytest.mark.parametrize(
    ("x", "y", "weights", "said"),
    [
        (np.ones(4), np.ones(1), None, "rows"),
        (np.ones((2, 3)), np.ones(2), None, r"\(rows, 4\)"),
        (np.full((2, 4), np.nan), np.ones(2), None, "finite features"),
        (np.ones((2, 4)), np.array([1.0, np.inf]), None, "finite targets"),
        (np.ones((2, 4)), np.ones(3), None, "2 targets"),
        (np.ones((2, 4)), np.ones(2), np.array([1.0, -1.0]), "weights"),
        (np.ones((2, 4)), np.ones(2), np.ones(3), "weights"),
    ],
)
def test_what_cannot_be_learned_is_refused(x, y, weights, said):
    state = trained(3)
    kept = POOL.dump(state)
    with pytest.raises(SignalError, match=said):
        POOL.update(state, x, y, weights)
    assert POOL.dump(state) == kept


def test_what_is_no_class_is_refused():
    for y in ([0, 3], [-1, 0], [0.5, 1]):
        with pytest.raises(SignalError, match="classes 0 to 2"):
            POOL.update(POOL.init(2, 3), np.ones((2, 2)), y)
    with pytest.raises(ConfigError, match="for numbers"):
        POOL.interval(POOL.init(2, 3), np.ones((2, 2)))
    with pytest.raises(ConfigError, match="coverage"):
        POOL.interval(POOL.init(2), np.ones((2, 2)), 1.0)
    for bad in (0, -1, 2.5, True):
        with pytest.raises(DriftrateError):
            POOL.init(bad)
    with pytest.raises(ConfigError, match="classes"):
        POOL.init(2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [None, 3])
def test_it_is_sound_after_many_rows_in_float32(classes):
    """Two features are one, one is constant, one is rare, and a class is seen late."""
    rng, state, steps = np.random.default_rng(0), POOL.init(6, classes), 100_000
    target = rng.standard_normal((classes or 1, 6))
    for step in range(steps):
        x = rng.standard_normal((4, 6)).astype(np.float32)
        x[:, 1], x[:, 2] = x[:, 0], 1.0
        x[:, 3] *= step % 1000 == 0
        scores = x @ target.T
        if classes:
            noisy = scores + rng.gumbel(size=scores.shape)
            y = noisy[:, : 2 if step < steps // 2 else 3].argmax(axis=1)
        else:
            y = scores[:, 0] + rng.standard_normal(4)
        state = POOL.update(state, x, y)
    assert all(np.isfinite(one).all() for one in state.values())
    # Information is bounded from below by the prior.
    info = state["info"].reshape(len(MEMBERS.memory), -1, *state["info"].shape[-2:])
    least = np.linalg.eigvalsh(info).min(axis=(1, 2))
    assert (least > 0.99 / MEMBERS.prior).all()
    x = rng.standard_normal((2000, 6))
    x[:, 1], x[:, 2], x[:, 3] = x[:, 0], 1.0, 0.0
    scores, found = x @ target.T, POOL.predict(state, x)
    if classes is None:
        assert np.mean((found - scores[:, 0]) ** 2) < 0.01
    else:
        truth = np.exp(scores - scores.max(axis=1, keepdims=True))
        truth /= truth.sum(axis=1, keepdims=True)
        assert np.abs(found - truth).mean() < 0.03
