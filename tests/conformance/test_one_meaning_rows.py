"""One meaning a call, for the loops that show rows: River and scikit-learn.

A linear problem with jumps, 1,000 steps in double precision: each follows plain SGD in NumPy, and
what torch's `attach` gives for the same loss, to a relative 1e-9.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from river import linear_model, optim

import driftrate as dr
import driftrate.river
import driftrate.torch
from driftrate.sklearn import ShiftRegressor

DIM, STEPS, HOLD, NOISE = 5, 1000, 250, 0.3
TOLD = dr.LinearRate(dim=DIM, noise_std=NOISE, max_rate=0.1)
SCHEDULES = {"measured": dr.MeasuredRate(), "told": TOLD}


def problem(rows):
    """Features (steps, rows, dim), labels (steps, rows), and the shift before each step."""
    rng = np.random.default_rng(7)
    target = np.repeat(rng.standard_normal((STEPS // HOLD, DIM)), HOLD, axis=0)
    x = rng.standard_normal((STEPS, rows, DIM))
    y = np.einsum("trd,td->tr", x, target) + NOISE * rng.standard_normal((STEPS, rows))
    moved = np.linalg.norm(np.diff(target, axis=0), axis=1)
    return x, y, np.r_[0.0, moved].tolist()


def tells(schedule, shift):
    return {"shift": shift} if "shift" in schedule.signals else {}


@cache
def in_numpy(schedule, rows, scale, base=None):
    """SGD on scale·½r², a schedule's rate times `base` where it is a factor."""
    if isinstance(schedule, dr.MeasuredRate):
        schedule = dr.MeasuredRate(mode="sequence", relative=base is not None)
    state, theta, trail, seen = schedule.init(), np.zeros(DIM), np.zeros(DIM), []
    for x, y, shift in zip(*problem(rows), strict=True):
        gradient = scale * (x.T @ (x @ theta - y)) / rows
        signal = dr.Signal(
            batch_size=rows,
            dim=DIM,
            grad_sq=float(gradient @ gradient),
            trail=float(gradient @ trail),
            **tells(schedule, shift),
        )
        factor, state = schedule.update(state, signal)
        rate = factor if base is None else factor * base
        theta, trail = theta - rate * gradient, 0.9 * trail + gradient
        seen.append([rate, *theta])
    return np.array(seen)


def in_torch(optimizer, schedule, rows, scale, relative=None, **options):
    weights = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    inner = getattr(torch.optim, optimizer)([weights], **options)
    rate = driftrate.torch.attach(inner, schedule, batch_size=rows, relative=relative)
    seen = []
    for x, y, shift in zip(*problem(rows), strict=True):
        inner.zero_grad()
        residual = torch.from_numpy(x) @ weights - torch.from_numpy(y)
        (0.5 * scale * residual.square().mean()).backward()
        if told := tells(schedule, shift):
            rate.tell(**told)
        inner.step()
        used = inner.param_groups[0]["lr"]
        seen.append([float(used), *weights.detach().numpy()])
    return np.array(seen)


def in_river(optimizer, schedule, relative=None, **options):
    """One row a step; River's squared error is r², twice ½r²."""
    inner = getattr(optim, optimizer)(**options)
    follower = driftrate.river.attach(inner, schedule, relative=relative)
    model = linear_model.LinearRegression(follower, intercept_lr=0.0)
    seen = []
    for x, y, shift in zip(*problem(1), strict=True):
        if told := tells(schedule, shift):
            follower.tell(**told)
        model.learn_one(dict(enumerate(x[0].tolist())), float(y[0]))
        assert follower.record["rate"] == follower.learning_rate
        assert follower.record["factor"] == follower.learning_rate / options["lr"]
        seen.append([follower.learning_rate, *(model.weights[place] for place in range(DIM))])
    return np.array(seen)


def in_scikit_learn(schedule, rows, mode="sequence"):
    model, seen = ShiftRegressor(schedule=schedule, mode=mode, fit_intercept=False), []
    for x, y, shift in zip(*problem(rows), strict=True):
        if told := tells(schedule, shift):
            model.tell(**told)
        model.partial_fit(x, y)
        seen.append([model.record["rate"], *model.coef_])
    return np.array(seen)


def agree(found, expected):
    rates, weights = found[:, 0], found[:, 1:]
    assert np.ptp(expected[:, 0]) > 0  # the rate follows something
    np.testing.assert_allclose(rates, expected[:, 0], rtol=1e-9, atol=1e-15)
    off = np.linalg.norm(weights - expected[:, 1:], axis=1)
    assert (off <= 1e-9 * np.maximum(np.linalg.norm(expected[:, 1:], axis=1), 1e-3)).all()


@pytest.mark.parametrize("lr", [0.1, 1.0])
@pytest.mark.parametrize("name", SCHEDULES)
def test_river_is_plain_descent_and_torch(name, lr):
    schedule = SCHEDULES[name]
    found = in_river("SGD", schedule, lr=lr)
    agree(found, in_numpy(schedule, 1, scale=2.0))  # a rate: the optimizer's own says nothing
    if lr == 0.1:
        agree(found, in_torch("SGD", schedule, 1, scale=2.0, lr=lr))


def test_a_factor_multiplies_the_rate_of_the_optimizer():
    schedule = dr.MeasuredRate()
    found = in_river("SGD", schedule, relative=True, lr=0.1)
    agree(found, in_numpy(schedule, 1, scale=2.0, base=0.1))
    agree(found, in_torch("SGD", schedule, 1, scale=2.0, relative=True, lr=0.1))


@pytest.mark.parametrize("name", SCHEDULES)
def test_river_has_the_metric_of_adam(name):
    # Torch adds ε to the corrected root, River to the raw one: it is made too small to show.
    # Under Adam torch's attach takes the rate of networks where it is not told which factor.
    schedule = {**SCHEDULES, "measured": dr.MeasuredRate(relative=True)}[name]
    found = in_river("Adam", schedule, lr=0.01, eps=1e-16)
    agree(found, in_torch("Adam", schedule, 1, scale=2.0, lr=0.01, eps=1e-16))


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", SCHEDULES)
def test_scikit_learn_is_plain_descent_and_torch(name, rows):
    schedule = SCHEDULES[name]
    found = in_scikit_learn(schedule, rows)
    agree(found, in_numpy(schedule, rows, scale=1.0))
    if rows > 1:
        agree(found, in_torch("SGD", schedule, rows, scale=1.0, lr=0.1))


def test_scikit_learn_reads_single_rows_as_a_sequence():
    schedule = SCHEDULES["measured"]
    agree(in_scikit_learn(schedule, 1, mode="parts"), in_numpy(schedule, 1, scale=1.0))
