"""Every formula of Pursuit's law, on drawn numbers, and what its steps do not depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftrate.adapters import _pursuit as law

torch = pytest.importorskip("torch")

import driftrate.torch  # noqa: E402

sides = st.lists(st.integers(1, 300), min_size=2, max_size=4)
sizes = st.floats(1e-6, 1e3)
logs = st.floats(-8.0, math.log(law.HIGH))
signals = st.floats(-1e6, 1e6)


def at(steps=500.0, log_rate=0.0, square=1e-4, scale=0.05, share=0.0, bet=0.0, push=1e-4):
    numbers = (steps, log_rate, square, scale, share, bet, push)
    return law.Law(*(np.float64(x) for x in numbers))


@given(sides, sizes)
def test_scales_depend_on_no_layout(shape, rms):
    assert law.scale(np, shape, rms) == pytest.approx(law.scale(np, shape[::-1], rms))
    assert law.scale(np, shape, 0.0) == pytest.approx(law.scale(np, shape[::-1], 0.0))


@given(sides, sizes)
def test_scales_are_bounded(shape, rms):
    assert 0 < law.scale(np, shape, rms) <= min(rms, 3**-0.5)
    assert 0 < law.scale(np, shape, 0.0) <= 3**-0.5
    assert law.scale(np, shape[:1], rms) is None


@given(st.lists(st.none() | sizes, min_size=1, max_size=9), st.randoms())
def test_vectors_take_a_size_that_is_there(scales, random):
    found = [float(s) for s in law.settle(np, scales, [4] * len(scales))]
    known = [s for s in scales if s is not None]
    taken = {s for s, given_ in zip(found, scales, strict=True) if given_ is None}
    assert [s for s, given_ in zip(found, scales, strict=True) if given_ is not None] == known
    assert len(taken) <= 1
    assert taken <= set(known or [12**-0.5])
    order = list(scales)
    random.shuffle(order)
    assert {float(s) for s in law.settle(np, order, [4] * len(order))} == set(found)


@given(logs, sizes, st.floats(0.0, 1e6))
def test_lengths_decay_and_fade(log_rate, scale, steps):
    now = at(steps=steps, log_rate=log_rate, scale=scale)
    assert law.length(np, now) == pytest.approx(law.FIRST * scale * math.exp(log_rate))
    lost = law.decay(np, now)
    assert 0 < lost <= law.FIRST * math.sqrt(1 - law.KEEP) * (1 + 1e-9)
    if log_rate <= 0:  # the usual length of a step over the size of the weights
        usual = law.length(np, now) * math.sqrt(1 - law.KEEP) / scale
        assert lost == pytest.approx(usual)
    assert 0.5 <= law.fade(np, now) <= 1 - 1 / law.HORIZON


@given(logs, signals, st.floats(0.0, 1e7), st.floats(0.0, 1e6))
def test_rates_stay_within_bounds_and_move_against_the_signal(log_rate, signal, steps, square):
    now = at(steps=steps, log_rate=log_rate, square=square)
    new = law.follow(np, now, np.float64(signal), np.float64(0.0))
    low = -0.5 * math.log((1 - law.KEEP) * max((steps + 1) / 10, law.REST))
    assert low - 1e-12 <= new.log_rate <= math.log(law.HIGH) + 1e-12
    assert new.steps == steps + 1
    assert new.scale == now.scale
    if log_rate >= low:
        moved = new.log_rate - log_rate
        assert moved * signal <= 0
        pace = max(law.FIRST_PACE / math.sqrt(steps + 1), law.PACE)
        assert abs(moved) <= law.LOUDEST * pace + 1e-12


@given(
    st.lists(signals.filter(lambda z: abs(z) > 1e-3), min_size=1, max_size=20), st.floats(1e-6, 1e6)
)
def test_rates_do_not_depend_on_the_signals_unit(values, unit):
    one = other = at(steps=0.0, square=0.0, push=0.0)
    for value in values:
        one = law.follow(np, one, np.float64(value), np.float64(-value))
        other = law.follow(np, other, np.float64(unit * value), np.float64(-unit * value))
    assert other.log_rate == pytest.approx(one.log_rate, abs=1e-9)
    assert other.bet == pytest.approx(one.bet, abs=1e-9)


@given(st.floats(0.0, law.MOST), signals, st.floats(0.0, 1e6))
def test_shares_stay_within_bounds_and_move_with_what_they_gain(bet, push, mean):
    new = law.follow(np, at(bet=bet, push=mean), np.float64(0.0), np.float64(push))
    assert 0.0 <= new.bet <= law.MOST
    assert new.share == bet
    assert abs(new.bet - bet) <= law.BET * (law.LOUDEST + law.MARGIN) + 1e-12
    if push <= 0:
        assert new.bet <= bet
    elif abs(push) > np.sqrt(mean):  # louder than usual, and so above the margin
        assert new.bet >= bet


@given(
    st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=40),
    st.lists(st.floats(0.0, law.MOST), min_size=40, max_size=40),
)
def test_the_weights_are_between_the_fast_point_and_its_average(deltas, bets):
    """Whatever the shares: f sums up the steps, its average lags, and w = f - b u."""
    weight = lead = fast = average = share = 0.0
    for step, (delta, bet) in enumerate(zip(deltas, bets, strict=False)):
        forth, back, hold = law.mix(np, at(steps=float(step), share=share, bet=bet))
        weight, lead = weight + forth * delta + back * lead, hold * (lead + delta)
        fast += delta
        average += (1 - hold) * (fast - average)
        share = bet
        assert lead == pytest.approx(fast - average, abs=1e-9)
        assert weight == pytest.approx(fast - share * lead, abs=1e-9)


@given(logs)
def test_a_memory_is_that_of_the_rate(log_rate):
    assert law.memory(np, at(log_rate=log_rate)) == pytest.approx(100 * math.exp(-2 * log_rate))


def trained(grads, start, order=None):
    """Return the weights after steps along given gradients, in the order of the coordinates."""
    p = torch.nn.Parameter(start.clone() if order is None else start.view(-1)[order].view_as(start))
    optimizer = driftrate.torch.Pursuit([p])
    for grad in grads:
        p.grad = grad if order is None else grad.view(-1)[order].view_as(grad)
        optimizer.step()
    return p.detach()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(-30, 30))
def test_steps_do_not_depend_on_the_gradients_unit(seed, power):
    """Powers of two make no rounding of their own: equal but for the law's."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(5, 4, generator=generator)
    grads = [torch.randn(5, 4, generator=generator) for _ in range(10)]
    scaled = trained([grad * 2.0**power for grad in grads], start)
    torch.testing.assert_close(scaled, trained(grads, start), rtol=1e-5, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_steps_follow_a_permutation_of_the_coordinates(seed):
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(5, 4, generator=generator)
    grads = [torch.randn(5, 4, generator=generator) for _ in range(10)]
    order = torch.randperm(20, generator=generator)
    wanted = trained(grads, start).view(-1)[order].view(5, 4)
    torch.testing.assert_close(trained(grads, start, order), wanted, rtol=1e-5, atol=1e-6)
