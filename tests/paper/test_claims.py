"""Every verdict follows from the runs: break a run on purpose and see it flip."""

from __future__ import annotations

import numpy as np
import pytest

from driftrate.paper import figure1, figure2, figure3, figure4, figure5, statements
from driftrate.paper.base import NOISE_READINGS, Context, table
from driftrate.paper.claim import judge
from driftrate.paper.claims import CLAIMS

RNG = np.random.default_rng(0)
BY_NAME = {claim.name: claim for claim in CLAIMS}


def computed(module):
    return {piece.name: piece.compute() for piece in module.pieces(Context(seeds=4))}


def edited(tables, name, column, change):
    """Return the tables with one column of one table changed."""
    old = tables[name]
    values = change(old[column].to_numpy(zero_copy_only=False).copy())
    new = old.set_column(old.column_names.index(column), column, [values])
    return {**tables, name: new}


def chases(order):
    rates = figure1.RATES + figure1.BEYOND
    regret = np.array([100.0, 50.0, 20.0, 10.0])[order]
    regret = np.append(regret, [5.0, np.inf])[:, None] + RNG.normal(size=(6, 8))
    rows = table(rate=np.array(rates)[:, None], seed=np.arange(8), regret=regret)
    return {f"regret-{noise:g}": rows for noise in figure1.NOISES}


def spirals(shape, rate):
    step = np.arange(20, 2001, 20)
    tables = {}
    for kind in figure5.KINDS:
        for reading in NOISE_READINGS:
            for dim in figure5.DIMS:
                tables[f"{kind}-{reading}-{dim}"] = table(
                    method=np.array(["the paper's rule", "best constant rate"])[:, None, None],
                    seed=np.arange(4)[:, None],
                    step=step,
                    regret=np.array([1.0, 1.5])[:, None, None] * shape(step) + np.zeros((4, 1)),
                    rate=rate(step),
                )
    return tables


def level(step):
    return np.cumsum(np.abs(step / 1000 - 1) ** 3 + 0.001)


def sde(power):
    eps = np.array([1 / n for n in statements.STEPS_OF_SDE])
    gap = eps[:, None] ** power * np.exp(0.1 * RNG.normal(size=(len(eps), 64)))
    return {"sde": table(eps=eps[:, None], seed=np.arange(64), gap=gap)}


def bounds(upper):
    return {
        f"bounds-{c:g}": table(seed=np.arange(8), regret=1.5, upper=upper, lower=1.0)
        for c in statements.CONDITIONS
    }


def guides(ratio):
    path = np.array(["standstill", "drift"])[:, None, None]
    guide = np.array(statements.GUIDES)[:, None]
    regret = np.array([1.0, ratio, 1.1])[:, None]
    return {"guides": table(path=path, guide=guide, seed=np.arange(4), capped=0.5, regret=regret)}


@pytest.fixture(scope="module")
def cases():
    bursty, tail, swing = computed(figure2), computed(figure3), computed(figure4)
    quick = {p.name: p.compute() for p in statements.pieces(Context()) if p.key == ""}
    constant, moving = (lambda step: 0.0 * step + 3.99), (lambda step: 1.0 + step / 1000)
    calm = {name: old for name, old in swing.items() if not name.startswith("hold-16")}
    calm |= {f"hold-16-{r}": swing[f"hold-1-{r}"] for r in NOISE_READINGS}
    return {
        "larger-rates": (chases([0, 1, 2, 3]), chases([3, 2, 1, 0])),
        "restarts": (bursty, edited(bursty, "bursty", "rate", lambda rate: rate[::-1])),
        "exponents": (bursty, edited(bursty, "smooth", "rate", lambda rate: rate[::-1])),
        "tail": (tail, edited(tail, "trajectory", "rate", np.sqrt)),
        "oscillation": (swing, calm),
        "rise-level-rise": (spirals(level, moving), spirals(lambda step: 1.0 * step, moving)),
        "beats-constants": (
            spirals(level, moving),
            {
                name: old.set_column(0, "method", old["method"].combine_chunks()[::-1])
                for name, old in spirals(level, moving).items()
            },
        ),
        "logistic-adapts": (spirals(level, moving), spirals(level, constant)),
        "monotone": (
            edited(quick, "monotone", "rate", lambda rate: np.arange(1.0 * len(rate))),
            edited(quick, "monotone", "rate", lambda rate: -rate),
        ),
        "bounds": (bounds(1.9), bounds(1.2)),
        "sde": (sde(0.55), sde(0.2)),
        "printed": (edited(quick, "printed", "rate", lambda rate: rate + 0.1), quick),
        "estimate": (guides(1.2), guides(5.0)),
    }


@pytest.mark.parametrize("name", [c.name for c in CLAIMS if c.figure != "figure6"])
def test_a_broken_run_flips_the_verdict(name, cases):
    claim = BY_NAME[name]
    good, broken = (judge(claim, {claim.figure: tables}) for tables in cases[name])
    assert good.verdict == "holds"
    assert broken.verdict in ("does not hold", "holds in part")
    assert good.measured
    assert set(good.row()) >= {"claim", "where", "verdict", "measured", "picture"}


def test_claims_have_names_of_their_own():
    assert len(BY_NAME) == len(CLAIMS)
    assert len(CLAIMS) >= 16


@pytest.mark.parametrize("module", [figure2, figure3, figure4])
def test_pictures_are_drawn(module):
    picture = module.draw(computed(module))
    assert picture.axes
    assert all(axes.get_xlabel() or axes.get_title() for axes in picture.axes)
