"""Proposition 4.3 and the closed form of Section 5 against brute force; the remarks on monotony."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import driftrate as dr

# No deadline on shared machines, and the same cases every time.
CALM = settings(deadline=None, derandomize=True, max_examples=50)

scales = st.floats(1e-2, 1e2)
shifts = st.one_of(st.just(0.0), st.floats(1e-4, 10.0))
batches = st.integers(1, 1000)


def minimise(cost, high):
    """Golden section in 60 digits: the minimiser of a convex cost to far below 1e-6."""
    ratio = (Decimal(5).sqrt() - 1) / 2
    low, left, right = Decimal(0), high * (1 - ratio), high * ratio
    at_left, at_right = cost(left), cost(right)
    for _ in range(110):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = cost(right)
    return float((low + high) / 2)


def convex_minimiser(last, *, smoothness, noise_std, diameter, batch, shift):
    """The minimum before Proposition 4.3, as printed; `last` is None at first (1/a_0 = 0)."""
    with localcontext() as context:
        context.prec = 60
        L, s, D, B, g = map(Decimal, (smoothness, noise_std, diameter, batch, shift))
        before = 0 if last is None else 1 / (2 * Decimal(last) - L * Decimal(last) ** 2)

        def cost(eta):
            a = 2 * eta - L * eta * eta
            travel = max(1 / a - before, Decimal(0))
            return D * D * travel + s * s / B * eta * eta / a + (g * g + 2 * D * g) / a

        return minimise(cost, 1 / L)


@settings(CALM, max_examples=150)
@given(scales, scales, scales, st.lists(st.tuples(batches, shifts), min_size=1, max_size=4))
def test_thresholds_minimise_the_bound(smoothness, noise_std, diameter, steps):
    """Along random runs, each rate minimises the bound's next terms, to 1e-6."""
    rate = dr.ConvexRate(smoothness=smoothness, noise_std=noise_std, diameter=diameter)
    state, last = rate.init(), None
    for batch, shift in steps:
        eta, state = rate.update(state, dr.Signal(batch_size=batch, shift=shift))
        brute = convex_minimiser(
            last,
            smoothness=smoothness,
            noise_std=noise_std,
            diameter=diameter,
            batch=batch,
            shift=shift,
        )
        assert eta == pytest.approx(brute, rel=1e-6)
        last = eta


def printed_threshold(b, *, smoothness, noise_std, batch):
    half = batch / (2 * noise_std**2)
    return half * ((b**2 * smoothness**2 + 4 * noise_std**2 / batch * b) ** 0.5 - b * smoothness)


@CALM
@given(st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0.5, 2), shifts)
def test_thresholds_are_the_printed_ones(smoothness, noise_std, diameter, shift):
    """Where nothing cancels: the first rate is τ_2; after a far larger past it stays so."""
    rate = dr.ConvexRate(smoothness=smoothness, noise_std=noise_std, diameter=diameter)
    eta, _ = rate.update(rate.init(), dr.Signal(batch_size=1, shift=shift))
    printed = printed_threshold(
        (shift + diameter) ** 2, smoothness=smoothness, noise_std=noise_std, batch=1
    )
    assert eta == pytest.approx(printed, rel=1e-9)


def test_printed_formulas_cancel():
    """With little noise the printed difference loses every digit; the quotient form does not."""
    printed = printed_threshold(1e4, smoothness=1.0, noise_std=1e-7, batch=1000)
    assert printed == pytest.approx(0.0, abs=1e-9) or abs(printed - 1.0) > 1e-3
    rate = dr.ConvexRate(smoothness=1.0, noise_std=1e-7, diameter=100.0)
    eta, _ = rate.update(rate.init(), dr.Signal(batch_size=1000, shift=0.0))
    assert eta == pytest.approx(1.0)


def nonconvex_minimiser(*, smoothness, noise_std, batch, loss, shift):
    """The minimum that gives the rate of Section 5, as printed."""
    with localcontext() as context:
        context.prec = 60
        L, s, B, loss, g = map(Decimal, (smoothness, noise_std, batch, loss, shift))

        def cost(eta):
            a = 2 * eta - L * eta * eta
            return (2 * loss + 2 * g) / a + L * s * s / B * eta * eta / a

        return minimise(cost, 1 / L)


@CALM
@given(scales, scales, batches, st.floats(1e-4, 1e3), shifts)
def test_nonconvex_rate_minimises_the_bound(smoothness, noise_std, batch, loss, shift):
    rate = dr.NonconvexRate(smoothness=smoothness, noise_std=noise_std)
    signal = dr.Signal(batch_size=batch, loss=loss, loss_shift=shift)
    eta, _ = rate.update(rate.init(), signal)
    brute = nonconvex_minimiser(
        smoothness=smoothness, noise_std=noise_std, batch=batch, loss=loss, shift=shift
    )
    assert eta == pytest.approx(brute, rel=1e-6)


def rates_of(rate, signals):
    state, out = rate.init(), []
    for signal in signals:
        eta, state = rate.update(state, signal)
        out.append(eta)
    return out


runs = st.lists(st.tuples(batches, shifts, st.floats(0, 5)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    "rate",
    [
        dr.LinearRate(dim=5, noise_std=1.0, initial_error=1.0, form="exact"),
        dr.LinearRate(dim=5, noise_std=1.0, initial_error=1.0, form="flow", max_rate=0.5),
        dr.LinearRate(dim=5, noise_std=1.0, initial_error=1.0, form="euler", max_rate=0.5),
        dr.ConvexRate(smoothness=1.0, noise_std=3.0, diameter=2.0),
        dr.NonconvexRate(smoothness=1.0, noise_std=3.0),
    ],
    ids=["exact", "flow", "euler", "convex", "nonconvex"],
)
@settings(CALM, max_examples=25)
@given(run=runs)
def test_rates_never_fall_when_the_shift_rises(rate, run):
    """Remarks 4.5 and Section 5, and for Algorithm 1: along whole runs, not only in one step."""
    low = [dr.Signal(batch_size=b, shift=g, loss=1.0, loss_shift=g) for b, g, _ in run]
    high = [dr.Signal(batch_size=b, shift=g + e, loss=1.0, loss_shift=g + e) for b, g, e in run]
    pairs = zip(rates_of(rate, low), rates_of(rate, high), strict=True)
    assert all(more >= less * (1 - 1e-9) for less, more in pairs)


def test_between_the_thresholds_nothing_moves():
    """Remark 4.5 says "increases"; in the dead zone a larger shift changes nothing at all."""
    rate = dr.ConvexRate(smoothness=1.0, noise_std=3.0, diameter=2.0)
    _, state = rate.update(rate.init(), dr.Signal(batch_size=10, shift=0.0))
    small, _ = rate.update(state, dr.Signal(batch_size=10, shift=0.0))
    large, _ = rate.update(state, dr.Signal(batch_size=10, shift=0.3))
    assert small == large


def test_a_crude_bound_on_the_shift_raises_the_rate():
    """Remark 4.4 calls the result conservative; it is the bolder rate, not the more careful one."""
    rate = dr.ConvexRate(smoothness=1.0, noise_std=3.0, diameter=2.0)
    true, _ = rate.update(rate.init(), dr.Signal(batch_size=1, shift=0.1))
    crude, _ = rate.update(rate.init(), dr.Signal(batch_size=1, shift=10.0))
    assert crude > true


def test_never_decays_at_standstill():
    """Once γ = 0 the convex rate stays where it is for ever, while Algorithm 1 falls as 1/t."""
    still = [dr.Signal(batch_size=10, shift=0.0)] * 1000
    convex = rates_of(dr.ConvexRate(smoothness=1.0, noise_std=3.0, diameter=2.0), still)
    linear = rates_of(dr.LinearRate(dim=5, noise_std=1.0, initial_error=1.0), still)
    assert convex[0] == convex[-1]
    assert linear[-1] == pytest.approx(1e-3, rel=0.05)
