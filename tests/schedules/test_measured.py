"""The measured rate: what it promises, at a small scale, with room for sampling error."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import driftrate as dr
from driftrate.errors import ConfigError, SignalError
from driftrate.streams import LinearStream, bursty, random_walk, spiral, standstill

MODES = ("parts", "sequence")
PRODUCTS = ("cross", "spread", "grad_sq", "trail")


class Loop:
    """SGD on ‖θ‖²/2 from θ = (distance, 0, ...), with noise of the square `noise` a batch."""

    def __init__(self, seed, *, dim=64, distance=1.0, noise=1.0, batch=32.0):
        self.rng = np.random.default_rng(seed)
        self.theta, self.trail = np.zeros(dim), np.zeros(dim)
        self.theta[0] = distance
        self.noise, self.batch = noise, batch

    def draw(self, rule, *, tail=None, times=1.0):
        """Return what the next batch shows; `tail` is its noise's degrees of freedom."""
        shape = (2, self.theta.size)
        if tail is None:
            noise = self.rng.standard_normal(shape)
        else:
            noise = self.rng.standard_t(tail, shape)
        halves = self.theta + noise * math.sqrt(2.0 * self.noise / self.theta.size)
        halves *= times
        found = dr.estimate.from_parts(halves)
        self.gradient = halves.mean(axis=0)
        values = {
            "batch_size": self.batch,
            "dim": float(self.theta.size),
            "parts": 2.0,
            "cross": float(found.cross),
            "spread": float(found.spread),
            "grad_sq": float(found.grad_sq),
            "trail": float(self.gradient @ self.trail),
        }
        return {name: values[name] for name in rule.signals}

    def step(self, rate):
        """Move against the gradient that was drawn last."""
        self.theta = self.theta - rate * self.gradient
        self.trail = 0.9 * self.trail + self.gradient

    def run(self, rule, state, steps, **fault):
        """Take steps; return the rows, the rates and the state."""
        rows, rates = [], []
        for _ in range(steps):
            rows.append(self.draw(rule, **fault))
            rate, state = rule.update(state, dr.Signal(**rows[-1]))
            self.step(rate)
            rates.append(rate)
        return rows, rates, state


def record(rule, steps, seed, **options):
    return Loop(seed, **options).run(rule, rule.init(), steps)[0]


sizes = st.floats(-30.0, 30.0).map(lambda power: 10.0**power)
signed = st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), sizes).map(math.prod)
batches = st.sampled_from([1.0, 3.0, 1000.0, 3000.0])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(batches, signed, sizes, signed), min_size=2, max_size=12),
    missing=st.sets(st.sampled_from(["batch_size", "dim", "parts", "trail"])),
    mode=st.sampled_from(MODES),
    lagged=st.booleans(),
    top=st.sampled_from([None, "relative", 1e-6, 1.0, 1e6]),
    single=st.booleans(),
)
def test_any_signal_gives_a_rate_in_range(rows, missing, mode, lagged, top, single):
    relative = top == "relative"
    rule = dr.MeasuredRate(None if relative else top, mode, lagged, relative)
    most = {None: np.inf, "relative": 1.0}.get(top, top)
    state = rule.init(like=np.zeros((), np.float32)) if single else rule.init()
    for batch, cross, square, trail in rows:
        fields = {
            "batch_size": batch,
            "dim": 10.0,
            "parts": 2.0,
            "cross": cross,
            "spread": square,
            "grad_sq": square,
            "trail": trail,
        }
        kept = {name: value for name, value in fields.items() if name not in missing}
        with np.errstate(all="ignore"):
            rate, state = rule.update(state, dr.Signal(**kept))
        assert 0.0 <= rate <= most * (1.0 + 1e-6)
        assert all(np.all(np.isfinite(value)) for value in state.values())


@pytest.mark.parametrize("mode", MODES)
def test_resumes_bitwise(mode):
    rule = dr.MeasuredRate(max_rate=1.0, mode=mode)
    rows = record(rule, 60, seed=2)
    state = rule.init()
    for row in rows[:30]:
        _, state = rule.update(state, dr.Signal(**row))
    again = rule.load(json.loads(json.dumps(rule.dump(state))))
    for row in rows[30:]:
        rate, state = rule.update(state, dr.Signal(**row))
        other, again = rule.update(again, dr.Signal(**row))
        assert rate == other
    assert rule.dump(state) == rule.dump(again)


@pytest.mark.parametrize("top", [None, 1.0])
def test_floats_and_arrays_agree(top):
    rule = dr.MeasuredRate(max_rate=top)
    one, many = rule.init(), rule.init(like=np.zeros(3))
    for row in record(rule, 100, seed=3):
        rate, one = rule.update(one, dr.Signal(**row))
        rates, many = rule.update(many, dr.Signal(**row))
        np.testing.assert_allclose(rates, rate, rtol=1e-11)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_scale_of_the_loss_changes_the_rate_alone(mode, factor):
    """Gradients c times as large, with 1/L told accordingly, give 1/c of the rate."""
    small = dr.MeasuredRate(max_rate=1.0, mode=mode)
    large = dr.MeasuredRate(max_rate=1.0 / factor, mode=mode)
    a, b = small.init(), large.init()
    for row in record(small, 100, seed=4):
        times = {k: v * factor**2 if k in PRODUCTS else v for k, v in row.items()}
        first, a = small.update(a, dr.Signal(**row))
        second, b = large.update(b, dr.Signal(**times))
        assert second * factor == pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"max_rate": 1.0}, {}, {"relative": True}])
def test_lagged_depends_on_the_past_alone(mode, options):
    rule = dr.MeasuredRate(mode=mode, lagged=True, **options)
    loop = Loop(5)
    rows, rates, state = loop.run(rule, rule.init(), 21)
    assert rates[0] == 0.0
    calm, _ = rule.update(state, dr.Signal(**rows[3]))
    loud = {k: v * 100.0 if k in PRODUCTS else v for k, v in rows[7].items()}
    assert rule.update(state, dr.Signal(**loud))[0] == calm > 0.0


def test_noise_does_not_pass_for_curvature():
    """The noise of ⟨g, h⟩ is in the step's way too: L would come out as 4/(Dη) too large."""
    nature = stream(random_walk(128, 500, size=0.03), batch=4, noise=0.1)
    told = dr.simulate(nature, dr.MeasuredRate(max_rate=1.0), 16, seed=3).total
    found = dr.simulate(nature, dr.MeasuredRate(), 16, seed=3).total
    error = math.hypot(1.5 * told.std(ddof=1), found.std(ddof=1)) / 4.0
    assert found.mean() < 1.5 * told.mean() + 3.0 * error


@pytest.mark.parametrize("mode", MODES)
def test_a_loud_batch_is_stepped_along_no_farther_while_curvature_is_a_guess(mode):
    """A hundred or four hundred times the usual square: steps of one length, not of two."""
    rule = dr.MeasuredRate(mode=mode)
    loop = Loop(3, dim=4)
    state = loop.run(rule, rule.init(), 1)[2]
    row, lengths = loop.draw(rule) | {"trail": 0.0}, []
    for times in (10.0, 20.0):
        loud = {k: v * times**2 if k in PRODUCTS else v for k, v in row.items()}
        lengths.append(rule.update(state, dr.Signal(**loud))[0] * times)
    assert lengths[1] == pytest.approx(lengths[0], rel=0.1)


def test_the_parts_of_a_jump_do_not_pass_for_a_small_curvature():
    """Where its halves disagree, what was foreseen is far below 0, and so would L be."""
    rule, loop = dr.MeasuredRate(), Loop(4, dim=4)
    state = loop.run(rule, rule.init(), 100)[2]
    before = state["curvature_xy"] / state["curvature_xx"]
    row = loop.draw(rule)
    jump = row | {"cross": -2000.0 * row["spread"], "spread": 3000.0 * row["spread"]}
    state = rule.update(state, dr.Signal(**jump))[1]
    state = rule.update(state, dr.Signal(**loop.draw(rule)))[1]
    assert state["curvature_xy"] / state["curvature_xx"] > 0.9 * before > 0.0


@pytest.mark.parametrize("times", [0.1, 3.0, 1000.0])
def test_a_curvature_far_from_the_guess_is_found(times):
    """A gradient of `times` the size has that curvature; the first guess is 1.6."""
    rule, ends = dr.MeasuredRate(), []
    for seed in range(8):
        loop = Loop(seed, noise=0.1)
        loop.run(rule, rule.init(), 60, times=times)
        ends.append(float(loop.theta @ loop.theta))
    # A tenth of a first square of 1: a rate of 2/L and more would have left thousands.
    assert max(ends) < 0.1


def test_a_relative_rate_is_lower_where_the_base_rate_is_too_high():
    """With a base rate b the curvature is b in the units of the factor."""
    ends = {}
    for base in (0.1, 10.0):
        rule, factors = dr.MeasuredRate(mode="sequence", relative=True), []
        for seed in range(8):
            loop, state = Loop(seed, noise=0.1), rule.init()
            for _ in range(60):
                factor, state = rule.update(state, dr.Signal(**loop.draw(rule)))
                loop.step(base * factor)
            factors.append(factor)
            assert np.linalg.norm(loop.theta) < 1.0
        ends[base] = np.array(factors)
    gap = ends[0.1].mean() - ends[10.0].mean()
    error = math.hypot(ends[0.1].std(ddof=1), ends[10.0].std(ddof=1)) / math.sqrt(8)
    assert gap > 4.0 * error


def test_reads_the_sequence_where_there_are_no_parts():
    rule = dr.MeasuredRate(max_rate=0.5, lagged=True)
    assert rule.reading(("batch_size", "cross", "spread")) is rule
    assert rule.reading(("grad_sq", "trail")) == dr.MeasuredRate(0.5, "sequence", True)
    constant = dr.ConstantRate(0.1)
    assert constant.reading(()) is constant
    assert constant.optional == frozenset()


def stream(path, batch=64, noise=1.0):
    return LinearStream(path, batch_size=batch, noise_std=noise)


@pytest.mark.parametrize(
    "rule", [dr.MeasuredRate(1.0), dr.MeasuredRate(1.0, "sequence"), dr.MeasuredRate()]
)
def test_a_jump_in_many_dimensions_does_not_throw_it(rule):
    """Thirty times as many coordinates as samples: half again the greedy rate would diverge."""
    nature = stream(bursty(128, 300, every=137), batch=4, noise=0.1)
    found = dr.simulate(nature, rule, 4, seed=8).total
    greedy = dr.simulate(nature, dr.simulation.GreedyRate(), 4, seed=8).total
    assert found.max() < 3.0 * greedy.mean()


@pytest.mark.parametrize("mode", MODES)
def test_no_run_is_lost_where_a_long_descent_ends_in_a_jump(mode):
    """The signal falls by four decades and rises again: the dimension must survive the descent."""
    nature = stream(spiral(512, 140, hold=100), batch=256, noise=0.1)
    found = dr.simulate(nature, dr.MeasuredRate(1.0, mode), 48, seed=1).total
    assert found.max() < 2.0 * np.median(found)


def test_no_run_is_lost_after_several_descents():
    """What was foretold wrongly for long, after each of them, must not pass for a small D."""
    nature = stream(spiral(512, 2000, hold=100)[:700], batch=256, noise=0.1)
    found = dr.simulate(nature, dr.MeasuredRate(1.0, "sequence"), 64, seed=4).total
    assert found.max() < 2.0 * np.median(found)


def test_no_run_takes_its_own_noise_for_drift():
    """In two coordinates one hypothesis' noise is another's signal: each keeps its own."""
    nature = stream(standstill(2, 800), batch=4, noise=1.0)
    found = dr.simulate(nature, dr.MeasuredRate(1.0, "sequence"), 512, seed=0).total
    # Of 6,720 other runs none was so far off; without the bound on the level one of these is.
    assert found.max() < 6.0 * np.median(found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", [standstill(64, 600), bursty(64, 600, every=137)])
def test_near_the_clairvoyant_rate(mode, path):
    measured = dr.simulate(stream(path), dr.MeasuredRate(max_rate=1.0, mode=mode), 16, seed=7)
    greedy = dr.simulate(stream(path), dr.simulation.GreedyRate(), 16, seed=7)
    ratio = measured.total / greedy.total.mean()
    error = ratio.std(ddof=1) / 4.0
    assert ratio.mean() - 3.0 * error < {"parts": 1.5, "sequence": 1.8}[mode]


@pytest.mark.slow
def test_comes_to_rest():
    """The optimum's regret grows by the same amount every decade."""
    run = dr.simulate(stream(standstill(16, 3_000), 16), dr.MeasuredRate(1.0), 16, seed=8)
    late = run.regret[:, 2_999] - run.regret[:, 299]
    early = run.regret[:, 299] - run.regret[:, 29]
    error = (late - 1.5 * early).std(ddof=1) / 4.0
    assert (late - 1.5 * early).mean() < 3.0 * error
    # A rate that stays at what serves the first thirty steps pays ten times as much.
    assert run.rates[:, -300:].mean() < 0.2 * run.rates[:, 29:60].mean()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_chance_of_a_jump_does_not_blur_what_is_known_at_rest(mode):
    """Its moments, carried into the rest's, would make the rate a plaything of the noise."""
    nature = stream(standstill(128, 1_500))
    rules = [dr.MeasuredRate(1.0, mode), dr.simulation.GreedyRate()]
    runs = dr.simulate(nature, rules, 16, seed=2)
    measured, greedy = (run.regret[:, -1] - run.regret[:, 499] for run in runs)
    ratio = measured / greedy.mean()
    # A fourth over the clairvoyant's; where the moments are carried it is half.
    assert ratio.mean() + 3.0 * ratio.std(ddof=1) / 4.0 < 1.25


@pytest.mark.parametrize("mode", MODES)
def test_the_chance_of_change_fades_without_end(mode):
    """One that stays at 10^-6 a step leaves a rate that stays, too: seen from 10^4 steps on."""
    rule, loop = dr.MeasuredRate(1.0, mode), Loop(5)
    state = loop.run(rule, rule.init(), 30)[2] | {"rest": 1e9}
    state |= {"weight": np.array([1.0] + 7 * [1e-10])}
    state = loop.run(rule, state, 1)[2]
    assert state["weight"][1:].sum() < 1e-7


@pytest.mark.parametrize("mode", MODES)
def test_finds_a_jump_after_rest(mode):
    path = standstill(128, 505)
    path[500:, 1] += 1.0
    run = dr.simulate(stream(path), dr.MeasuredRate(max_rate=1.0, mode=mode), 200, seed=9)
    square = run.distance[:, 500:] ** 2
    greedy = square / (square + (129 * square + 128) / 64)
    found = (run.rates[:, 500:] > 0.5 * greedy).any(axis=1).mean()
    # At least 95 of 100, less three standard errors: one product of halves a step finds 79.
    assert found > 0.95 - 3.0 * math.sqrt(0.95 * 0.05 / 200)


@pytest.mark.parametrize("mode", MODES)
def test_the_tail_of_the_square_is_learned_at_rest(mode):
    """Normal noise has a thin one; noise that doubles from batch to batch has not."""
    rule = dr.MeasuredRate(1.0, mode)
    even, odd = Loop(1, distance=0.0), Loop(1, distance=0.0)
    regular, irregular = even.run(rule, rule.init(), 200)[2], rule.init()
    for octave in np.random.default_rng(2).standard_normal(200):
        irregular = odd.run(rule, irregular, 1, times=2.0**octave)[2]
    assert regular["thin"] > 0.5
    assert irregular["thin"] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_long_rest_does_not_make_it_deaf(mode):
    """Where the squares were regular, a jump after 10⁴ steps of rest is plain all the same."""
    found = 0
    for seed in range(24):
        rule, loop = dr.MeasuredRate(1.0, mode), Loop(seed, distance=0.0)
        state = loop.run(rule, rule.init(), 300)[2] | {"rest": 1e4}
        loop.theta[1] += 1.8
        # Half of B/(B + D + 1), the highest rate in so little noise for normal covariates.
        found += max(loop.run(rule, state, 3)[1]) > 0.5 * 32 / (32 + 65)
    # At least 95 of 100, less three standard errors.
    assert found / 24 > 0.95 - 3.0 * math.sqrt(0.95 * 0.05 / 24)


FAULTS = {
    "huge": (1, {"times": 1e8}),
    "zero": (10, {"times": 0.0}),
    "student": (50, {"tail": 2.0}),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", FAULTS)
def test_recovers_within_50_steps(mode, fault):
    """From wherever a fault leaves it, the best one can reach in 50 steps is v = N/50."""
    rule, squares = dr.MeasuredRate(max_rate=1.0, mode=mode), []
    steps, options = FAULTS[fault]
    for seed in range(5):
        loop = Loop(seed)
        _, before, state = loop.run(rule, rule.init(), 100)
        _, during, state = loop.run(rule, state, steps, **options)
        _, after, _ = loop.run(rule, state, 50)
        assert all(0.0 <= rate <= 1.0 for rate in before + during + after)
        squares.append((loop.theta**2).sum())
    # A sum of 64 squares deviates by √(2/64) of itself, the median of five by less.
    assert np.median(squares) < (1.0 + 3.0 * math.sqrt(2 / 64)) * loop.noise / 50


@pytest.mark.parametrize("mode", MODES)
def test_the_state_tells_that_an_odd_gradient_is_not_stepped_along(mode):
    rule, loop = dr.MeasuredRate(1.0, mode), Loop(1)
    _, _, state = loop.run(rule, rule.init(), 30)
    _, rates, state = loop.run(rule, state, 1, times=1e8)
    assert rates == [0.0]
    assert state["rate"] == 0.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_follows_a_change_of_the_batch_size(mode, factor):
    rule = dr.MeasuredRate(max_rate=1.0, mode=mode)
    loop = Loop(11, batch=1000.0)
    _, _, state = loop.run(rule, rule.init(), 100)
    loop.batch, loop.noise = loop.batch * factor, loop.noise / factor
    square = (loop.theta**2).sum()
    _, rates, _ = loop.run(rule, state, 50)
    assert all(0.0 <= rate <= 1.0 for rate in rates)
    if factor > 1.0:  # there is next to no noise now: it goes straight to the optimum
        assert (loop.theta**2).sum() < 0.1 * square
    else:  # a thousand times the noise: it hardly moves
        assert rates[-1] < 0.1


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_is_no_number_is_refused_or_passed_over(mode):
    rule = dr.MeasuredRate(max_rate=1.0, mode=mode)
    rows = record(rule, 20, seed=12)
    bad = {k: math.nan if k in PRODUCTS else v for k, v in rows[-1].items()}
    name = next(name for name in rule.signals if name in PRODUCTS)
    for like in (None, np.zeros(2)):
        with pytest.raises(SignalError, match=f"{name} must be a finite number.*nan"):
            rule.update(rule.init(like=like), dr.Signal(**bad))
    state = rule.init(like=torch.zeros(2))
    for row in rows:
        _, state = rule.update(state, dr.Signal(**row))
    broken = {k: torch.full((2,), v) for k, v in bad.items()}
    rate, after = rule.update(state, dr.Signal(**broken))
    assert torch.equal(rate, state["rate"])
    assert all(torch.equal(after[key], state[key]) for key in state)


def test_refuses_what_it_cannot_be():
    with pytest.raises(ConfigError, match="max_rate"):
        dr.MeasuredRate(max_rate=0.0)
    with pytest.raises(ConfigError, match="lagged"):
        dr.MeasuredRate(lagged=1)
    with pytest.raises(ConfigError, match="mode"):
        dr.MeasuredRate(max_rate=1.0, mode="other")
