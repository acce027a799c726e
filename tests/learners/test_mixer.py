"""The mixer: shares are a distribution, losses count up to a constant, nobody is out of reach."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from driftrate.errors import ConfigError
from driftrate.learners import Mixer

MIXER = Mixer()
COUNT = 5
SPEED = 2.0 ** -np.arange(COUNT)
PRIOR = np.full(COUNT, 1 / COUNT)
NOBODY = np.zeros(COUNT, dtype=bool)

LOSSES = arrays.arrays(np.float64, (COUNT,), elements=st.floats(-1e3, 1e3))
SHARES = arrays.arrays(np.float64, (COUNT,), elements=st.floats(1e-6, 1.0)).map(
    lambda weights: weights / weights.sum()
)
SPEEDS = arrays.arrays(np.float64, (COUNT,), elements=st.floats(1e-6, 1.0))
CHANCES = st.floats(0.0, 1.0)

quickly = settings(max_examples=50, deadline=None)


def update(shares, losses, mixer=MIXER, **told):
    usual = {"trust": 1.0, "speed": SPEED, "prior": PRIOR, "jump": 0.0, "broken": NOBODY}
    given_ = usual | {"reference": float(shares @ losses)} | told
    given_ |= {name: np.asarray(given_[name]) for name in ("trust", "jump")}
    return mixer.update(shares, losses, given_.pop("reference"), **given_)


@quickly
@given(shares=SHARES, losses=LOSSES, speed=SPEEDS, prior=SHARES, jump=CHANCES)
def test_shares_stay_a_distribution(shares, losses, speed, prior, jump):
    after = update(shares, losses, speed=speed, prior=prior, jump=jump)
    assert after.sum() == pytest.approx(1.0, abs=1e-12)
    assert (after > 0).all()


@quickly
@given(shares=SHARES, losses=LOSSES, constant=st.floats(-1e3, 1e3), jump=CHANCES)
def test_a_constant_added_to_all_losses_changes_nothing(shares, losses, constant, jump):
    after = update(shares, losses, reference=0.0, jump=jump)
    same = update(shares, losses + constant, reference=constant, jump=jump)
    np.testing.assert_allclose(same, after, rtol=1e-9, atol=1e-15)
    # The reference serves to clip evidence, and nothing here is clipped.
    np.testing.assert_allclose(update(shares, losses, reference=7.0, jump=jump), after, rtol=1e-9)


@quickly
@given(
    shares=SHARES, losses=LOSSES, speed=SPEEDS, jump=CHANCES, order=st.permutations(range(COUNT))
)
def test_without_neighbours_the_order_of_members_does_not_matter(
    shares, losses, speed, jump, order
):
    prior = shares[::-1]
    for mixer, places in ((Mixer(leak=0.0), order), (MIXER, list(range(COUNT))[::-1])):
        after = update(shares, losses, mixer, speed=speed, prior=prior, jump=jump, reference=0.0)
        moved = update(
            shares[places], losses[places], mixer, speed=speed[places], prior=prior[places],
            jump=jump, reference=0.0,
        )  # fmt: skip
        np.testing.assert_allclose(moved, after[places], rtol=1e-9, atol=1e-15)


@quickly
@given(shares=SHARES, losses=LOSSES)
def test_evidence_and_sharing_are_those_of_the_formulas(shares, losses):
    likelihood = np.exp(-0.01 * losses)
    q = shares * likelihood / (shares @ likelihood)
    pace = SPEED @ q
    given_, r = MIXER.leak * SPEED * q, q.copy()
    for k in range(COUNT):
        for neighbour in (max(k - 1, 0), min(k + 1, COUNT - 1)):
            r[k] -= given_[k] / 2
            r[neighbour] += given_[k] / 2
    u = (1 - MIXER.share * pace) * r + MIXER.share * pace / COUNT
    np.testing.assert_allclose(update(shares, losses, trust=0.01), u, rtol=1e-9)
    after = update(shares, losses, trust=0.01, jump=0.4, prior=np.eye(COUNT)[1])
    np.testing.assert_allclose(after, 0.6 * u + 0.4 * np.eye(COUNT)[1], rtol=1e-9)


@quickly
@given(shares=SHARES, losses=LOSSES)
def test_a_certain_jump_returns_to_the_prior(shares, losses):
    prior = np.arange(1.0, COUNT + 1) / 15.0
    np.testing.assert_allclose(update(shares, losses, jump=1.0, prior=prior), prior, rtol=1e-9)


@quickly
@given(
    seed=st.integers(0, 2**32 - 1),
    member=st.integers(0, COUNT - 1),
    lead=st.floats(0.06, 30.0),
    leak=st.floats(0.0, 0.02),
    share=st.floats(1e-4, 0.005),
)
def test_sharing_bounds_the_time_to_come_back(seed, member, lead, leak, share):
    """Whatever the losses were, a member that leads by δ in evidence is back by the bound."""
    mixer, rng = Mixer(leak=leak, share=share), np.random.default_rng(seed)
    shares, against = PRIOR, 10.0 * np.eye(COUNT)[member]
    least = share * SPEED.min() / COUNT
    for _ in range(int(rng.integers(1, 60))):
        shares = update(shares, rng.random(COUNT) + against, mixer)
        assert (shares >= least * (1 - 1e-12)).all()
    kept = (1 - leak) * (1 - share)
    bound = 1 + math.log((1 - least) / least) / (lead + 2 * math.log(kept))
    steps, losses = 0, lead * (1.0 - np.eye(COUNT)[member])
    while shares[member] < kept / 2:
        losses_now = losses + lead * rng.random(COUNT) * (losses > 0)
        shares = update(shares, losses_now, mixer)
        steps += 1
        assert steps <= bound


@quickly
@given(shares=SHARES, broken=arrays.arrays(bool, (COUNT,)))
def test_broken_members_leave_at_once_and_come_back_small(shares, broken):
    values = np.arange(2.0 * COUNT).reshape(COUNT, 2)
    spoilt = np.where(broken[:, None], np.nan, values)
    mixed, after = MIXER.mix(shares, spoilt, broken, np.array([7.0, 8.0]))
    if broken.all():
        np.testing.assert_array_equal(mixed, [7.0, 8.0])
        np.testing.assert_allclose(after, shares)
        return
    stay = ~broken
    expected = shares[stay] @ values[stay] / shares[stay].sum()
    np.testing.assert_allclose(mixed, expected, rtol=1e-12)
    np.testing.assert_allclose(after[stay] / after[stay].sum(), shares[stay] / shares[stay].sum())
    np.testing.assert_allclose(
        after[broken] * shares[stay].sum(),
        MIXER.comeback * shares[broken] * after[stay].sum(),
        rtol=1e-9,
    )
    assert after.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_loss_of_a_broken_member_is_not_read(value):
    losses, broken = np.array([0.1, value, 0.3, 0.2, 0.2]), np.eye(COUNT, dtype=bool)[1]
    after = update(PRIOR, losses, reference=0.2, broken=broken)
    assert np.isfinite(after).all()
    # All that is left to it is what was shared.
    assert after[1] < MIXER.leak + MIXER.share
    others = [0, 2, 3, 4]
    assert (after[others] > 0.1).all()


def test_if_all_members_break_the_shares_are_kept_but_for_sharing():
    shares, every = np.array([0.5, 0.2, 0.1, 0.1, 0.1]), ~NOBODY
    after = update(shares, np.full(COUNT, np.nan), reference=0.0, broken=every)
    np.testing.assert_allclose(after, update(shares, np.zeros(COUNT), reference=0.0))


def test_evidence_weighs_by_the_noise_once_there_is_one():
    trust = MIXER.trust(np.array([0.0, np.nan, 1e-300, 0.5, 1e300]))
    np.testing.assert_allclose(trust, [0.0, 0.0, 0.0, 0.6, 3e-301])


def test_a_jump_is_suspected_from_three_deviations_and_rarer_at_rest():
    surprise = np.array([-5.0, 2.9, 3.1, 4.0, 5.1])
    chance = MIXER.jump(surprise, np.tile(PRIOR, (5, 1)), np.ones((5, COUNT)))
    np.testing.assert_allclose(chance, [0.0, 0.0, 0.05, 0.5, 1.0], atol=1e-3)
    # A tenth of the pace below `quiet` makes false alarms ten times as rare: exp(-z²/2).
    pace = 1e-3 * MIXER.quiet
    for slower in (pace, pace / 10):
        chance = MIXER.jump(np.asarray(6.0), PRIOR, np.full(COUNT, slower))
        z = 6.0 - MIXER.certain * chance
        expected = math.exp(-(MIXER.suspect**2) / 2) * slower / MIXER.quiet
        assert math.exp(-(z**2) / 2) == pytest.approx(expected, rel=0.01)


def test_leading_axes_are_independent_pools():
    rng = np.random.default_rng(0)
    shares, losses = rng.dirichlet(np.ones(COUNT), 3), rng.random((3, COUNT))
    jump, trust = rng.random(3), rng.random(3)
    broken = rng.random((3, COUNT)) < 0.3
    values, otherwise = rng.random((3, COUNT, 2)), np.zeros((3, 2))
    told = {"speed": SPEED, "prior": PRIOR}
    all_after = MIXER.update(
        shares, losses, losses[:, :1], trust=trust, jump=jump, broken=broken, **told
    )
    mixed, final = MIXER.mix(all_after, values, broken, otherwise)
    for i in range(3):
        after = MIXER.update(
            shares[i], losses[i], losses[i, :1], trust=trust[i], jump=jump[i], broken=broken[i],
            **told,
        )  # fmt: skip
        np.testing.assert_array_equal(all_after[i], after)
        one, last = MIXER.mix(after, values[i], broken[i], otherwise[i])
        np.testing.assert_allclose(mixed[i], one, rtol=1e-14)
        np.testing.assert_array_equal(final[i], last)


def test_the_same_shares_on_tensors():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    shares, losses = rng.dirichlet(np.ones(COUNT)), rng.random(COUNT)
    broken = np.eye(COUNT, dtype=bool)[2]
    told = {
        "trust": np.asarray(0.7), "speed": SPEED, "prior": PRIOR, "jump": np.asarray(0.2),
        "broken": broken,
    }  # fmt: skip
    tensors = {name: torch.from_numpy(value.copy()) for name, value in told.items()}
    ours = MIXER.update(shares, losses, 0.4, **told)
    theirs = MIXER.update(torch.from_numpy(shares), torch.from_numpy(losses), 0.4, **tensors)
    np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-12)
    mixed, _ = MIXER.mix(theirs, torch.eye(COUNT), tensors["broken"], torch.zeros(COUNT))
    assert mixed[2] == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        {"share": 0.0}, {"comeback": 0.0}, {"leak": 1.1}, {"leak": -0.1}, {"certain": 0.0},
        {"temper": math.nan}, {"suspect": "3"}, {"quiet": -1.0},
    ],
)  # fmt: skip
def test_bad_constants_are_named(bad):
    with pytest.raises(ConfigError, match=f"Mixer.{next(iter(bad))} must be"):
        Mixer(**bad)
