"""The paper's claims: each in our words, with a rule that judges it from runs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from driftrate.paper import figure1, figure2, figure4, figure5, statements
from driftrate.paper.base import NOISE_READINGS, Tables, Verdict
from driftrate.paper.claim import Claims, Found
from driftrate.paper.figure6 import claims as figure6_claims
from driftrate.paper.style import columns

CLAIMS = Claims()


def _share(good: int, total: int) -> Verdict:
    """Return how much of a claim holds."""
    return "holds" if good == total else "does not hold" if good == 0 else "holds in part"


def _error(values: Any) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


@CLAIMS.add(
    "figure1",
    "Figure 1",
    "Larger constant rates can have less regret, until they diverge.",
    "at each noise level, mean regret falls by over two standard errors from rate to rate;"
    " holds if so at all levels tried",
)
def _larger_rates(tables: Tables) -> Found:
    def falls(a: Any, b: Any) -> bool:
        return bool(np.mean(a) - np.mean(b) > 2 * np.hypot(_error(a), _error(b)))

    good = []
    for noise in figure1.NOISES:
        rate, regret = columns(tables[f"regret-{noise:g}"], "rate", "regret")
        runs = [regret[rate == value] for value in figure1.RATES]
        if all(falls(a, b) for a, b in pairwise(runs)):
            good.append(noise)
    rate, regret = columns(tables[f"regret-{figure1.DRAWN:g}"], "rate", "regret")
    low, high = (regret[rate == value] for value in (figure1.RATES[0], figure1.RATES[-1]))
    beyond = np.mean(regret[rate == figure1.BEYOND[-1]])
    text = (
        f"noise {figure1.DRAWN:g}: regret {np.mean(low):.0f} ± {_error(low):.0f} at 0.003,"
        f" {np.mean(high):.1f} ± {_error(high):.1f} at 0.1; holds up to {max(good, default=0):g};"
        f" beyond, at rate {figure1.BEYOND[-1]:g}, it is {beyond:.3g}"
    )
    return _share(len(good), len(figure1.NOISES)), text


@CLAIMS.add(
    "figure2",
    "Figure 2, left",
    "At a jump the rate goes up, and it comes down after it.",
    "in every episode the first rate exceeds the last one of the episode before, and no rate"
    " exceeds the one before it",
)
def _restarts(tables: Tables) -> Found:
    jump, error, rate = columns(tables["bursty"], "jump", "error", "rate")
    good, ratios = 0, []
    for size in figure2.JUMPS:
        for first in figure2.ERRORS:
            line = rate[(jump == size) & (error == first)]
            for begin in range(figure2.EPISODE, len(line), figure2.EPISODE):
                episode = line[begin : begin + figure2.EPISODE]
                decays = bool(np.all(np.diff(episode) <= 0)) and episode[-1] < episode[0]
                good += episode[0] > line[begin - 1] and decays
                ratios.append(episode[0] / line[begin - 1])
    lift = f"a jump lifts the rate {np.median(ratios):.1f}-fold (median)"
    return _share(good, len(ratios)), f"{good} of {len(ratios)} episodes; {lift}"


@CLAIMS.add(
    "figure2",
    "Figure 2, right",
    "The more shift (the smaller α), the larger the rate.",
    "for neighbouring α the rates are ordered at every step",
)
def _exponents(tables: Tables) -> Found:
    alpha, error, rate = columns(tables["smooth"], "alpha", "error", "rate")
    ordered = []
    for first in figure2.ERRORS:
        lines = [rate[(alpha == value) & (error == first)] for value in figure2.EXPONENTS]
        ordered += [bool(np.all(more >= less)) for more, less in pairwise(lines)]
    ends = {a: rate[(alpha == a) & (error == figure2.ERRORS[0])][-1] for a in figure2.EXPONENTS}
    text = ", ".join(f"{end:.3f} (α = {a:g})" for a, end in ends.items())
    return _share(sum(ordered), len(ordered)), f"rate at step {figure2.STEPS}: {text}"


@CLAIMS.add(
    "figure3",
    "Figure 3, Lemma 3.6",
    "Without shift the rate falls as 1/t.",
    "the slope of log rate in log t over the last decade is -1 within 0.05, and the schedule"
    " follows the corrected lemma to 0.1 %",
)
def _tail(tables: Tables) -> Found:
    step, rate, lemma = columns(tables["trajectory"], "step", "rate", "rate_lemma")
    late = step >= step.max() / 10
    slope = np.polyfit(np.log(step[late]), np.log(rate[late]), 1)[0]
    gap = float(np.max(np.abs(rate / lemma - 1)))
    verdict: Verdict = "holds" if abs(slope + 1) < 0.05 and gap < 1e-3 else "does not hold"
    return verdict, f"slope {slope:.3f} over the last decade; off the corrected lemma by {gap:.1e}"


@CLAIMS.add(
    "figure4",
    "Figure 4",
    "The coarser the path's steps, the more the rate oscillates.",
    "the mean range of the rate within 16 steps grows with ℓ, for both readings of 0.1",
)
def _oscillation(tables: Tables) -> Found:
    good, text = 0, []
    for reading in NOISE_READINGS:
        swings = [figure4.swing(tables, hold, reading) for hold in figure4.HOLDS]
        good += swings == sorted(swings) and swings[0] < swings[-1]
        text.append(" < ".join(f"{s:.4f}" for s in swings))
    measured = f"{text[0]} (0.1 a deviation), {text[1]} (a variance)"
    measured = f"mean range of the rate within 16 steps for ℓ = 1, 4, 16: {measured}"
    return _share(good, len(NOISE_READINGS)), measured


@CLAIMS.add(
    "figure5",
    "Figure 5",
    "Regret rises, levels off and rises again, for every d.",
    "for each d, model and reading of 0.1, regret grows in the middle tenth of the run at less"
    " than a quarter of the pace of the first and of the last fifth",
)
def _rise_level_rise(tables: Tables) -> Found:
    good, worst = 0, 0.0
    cases = [(k, r, d) for k in figure5.KINDS for r in NOISE_READINGS for d in figure5.DIMS]
    for kind, reading, dim in cases:
        step, regret = figure5.curves(tables, kind, reading, dim, "the paper's rule")
        marks = np.array([0.01, 0.2, 0.45, 0.55, 0.8, 1.0])
        grown = np.interp(marks * figure5.STEPS, step, regret.mean(axis=0))
        first, middle, last = np.diff(grown)[::2] / np.diff(marks)[::2]
        ratio = float(middle / min(first, last))
        good += ratio < 0.25
        worst = max(worst, ratio)
    text = f"at the origin {worst:.3f} of the pace at the ends, or less"
    return _share(good, len(cases)), f"{good} of {len(cases)} cases; {text}"


@CLAIMS.add(
    "figure5",
    "Theorem 3.3 and Figure 5",
    "Algorithm 1 is optimal: no constant rate does better on the spiral.",
    "mean regret below that of the best constant rate in hindsight, for each d",
)
def _beats_constants(tables: Tables) -> Found:
    good, ratios = 0, []
    for dim in figure5.DIMS:
        ours, best = (
            figure5.curves(tables, "linear", "deviation", dim, method)[1][:, -1].mean()
            for method in ("the paper's rule", "best constant rate")
        )
        good += ours < best
        ratios.append(ours / best)
    text = f"regret over that of the best constant rate: {min(ratios):.2f} to {max(ratios):.2f}"
    return _share(good, len(figure5.DIMS)), text


@CLAIMS.add(
    "figure5",
    "Section 6.1 and Proposition 4.3",
    "On the logistic stream the convex rule adapts its rate to the shift.",
    "for each d, the rates of the run vary by more than 5 %",
)
def _logistic_adapts(tables: Tables) -> Found:
    spans = {}
    for dim in figure5.DIMS:
        method, rate = columns(tables[f"logistic-deviation-{dim}"], "method", "rate")
        rates = rate[method == "the paper's rule"]
        spans[dim] = (float(rates.min()), float(rates.max()))
    good = sum(high / low > 1.05 for low, high in spans.values())
    low, high = min(s[0] for s in spans.values()), max(s[1] for s in spans.values())
    text = f"all rates of all runs lie in [{low:.2f}, {high:.2f}]; 1/L is 4"
    return _share(good, len(spans)), text


@CLAIMS.add(
    "statements",
    "Remark 4.5 and Sections 3 and 5",
    "All three schedules increase with the shift.",
    "over 61 shifts no rate falls; strict where under a quarter of them leave it as it was",
)
def _monotone(tables: Tables) -> Found:
    name, rate = columns(tables["monotone"], "schedule", "rate")
    names = list(dict.fromkeys(name))
    rises = {n: bool(np.all(np.diff(rate[name == n]) >= 0)) for n in names}
    flat = {n: float(np.mean(np.diff(rate[name == n]) == 0)) for n in names}
    # A rate that never falls but stays for many shifts increases weakly, not strictly.
    good = sum(rises[n] + (flat[n] < 0.25) for n in names)
    fallen = [n for n in names if not rises[n]]
    text = ("falls: " + ", ".join(fallen) if fallen else "no rate ever falls") + "; unchanged over "
    text += ", ".join(f"{flat[n]:.0%} of shifts ({n})" for n in names)
    return _share(good, 2 * len(names)), text


@CLAIMS.add(
    "statements",
    "Theorems 4.2 and 4.7",
    "Upper and lower regret bounds enclose the regret and differ by constants.",
    "mean regret lies between the bounds within three standard errors, and their ratio is at"
    " most 2 L/μ",
)
def _bounds(tables: Tables) -> Found:
    good, text = 0, []
    for condition in statements.CONDITIONS:
        regret, upper, lower = columns(tables[f"bounds-{condition:g}"], "regret", "upper", "lower")
        above = np.mean(upper - regret) >= -3 * _error(upper - regret)
        below = np.mean(regret - lower) >= -3 * _error(regret - lower)
        ratio = upper.mean() / lower.mean()
        good += bool(above and below and ratio <= 2 * condition * 1.001)
        text.append(f"{ratio:.2f} (L/μ = {condition:g})")
    return _share(good, len(statements.CONDITIONS)), "upper over lower: " + ", ".join(text)


@CLAIMS.add(
    "statements",
    "Proposition 3.1",
    "SGD follows the SDE as ε → 0.",
    "the slope of the median sup error in ε is at least 1/2, within three jackknife errors",
)
def _sde(tables: Tables) -> Found:
    eps, seed, gap = columns(tables["sde"], "eps", "seed", "gap")
    order = np.lexsort((seed, eps))
    grid = np.unique(eps)
    gaps = gap[order].reshape(len(grid), -1)

    def slope(values: Any) -> float:
        return float(np.polyfit(np.log(grid), np.log(np.median(values, axis=1)), 1)[0])

    groups = [slope(np.delete(gaps, np.s_[k::16], axis=1)) for k in range(16)]
    spread = float(np.sqrt(15.0) * np.std(groups))  # jackknife over sixteen groups
    found = slope(gaps)
    verdict: Verdict = "holds" if found + 3 * spread >= 0.5 else "does not hold"
    text = f"the median gap falls as ε^{found:.2f} ± {spread:.2f} (the bound: at least 1/2)"
    return verdict, text


@CLAIMS.add(
    "statements",
    "Algorithm 1",
    "Algorithm 1 as printed moves the rate at all.",
    "some rate is above 0 when v starts at 0 as printed",
)
def _printed(tables: Tables) -> Found:
    (rate,) = columns(tables["printed"], "rate")
    verdict: Verdict = "holds" if rate.max() > 0 else "does not hold"
    return verdict, f"started at v = 0, the largest of {len(rate)} rates is {rate.max():g}"


@CLAIMS.add(
    "statements",
    "Remarks 3.5 and 4.4",
    "The moving average of step lengths is a usable estimate of the shift.",
    "on each of four paths, regret at most 1.5 times that with the true shift, and the rate"
    " leaves its cap at least one step in twenty",
)
def _estimate(tables: Tables) -> Found:
    path, guide, capped, regret = columns(tables["guides"], "path", "guide", "capped", "regret")
    good, text = 0, []
    names = list(dict.fromkeys(path))
    for name in names:
        told, ours = (regret[(path == name) & (guide == g)].mean() for g in statements.GUIDES[:2])
        at_cap = capped[(path == name) & (guide == statements.GUIDES[1])].mean()
        good += bool(ours <= 1.5 * told and at_cap < 0.95)
        cost = f"{name}: {ours / told:.2f} times the regret"
        text.append(f"{cost}, at the cap {at_cap:.0%} of the time")
    return _share(good, len(names)), "; ".join(text)


CLAIMS += figure6_claims.CLAIMS
