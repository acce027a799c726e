"""One step of a pool of memories: what a batch says of each member, and where that moves it."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from driftrate.learners import densities, forgetting
from driftrate.learners.memories import Members

Floats = NDArray[np.float64]

# Tuned as the members are.
NOISE_ROWS = 500.0  # memory of the noise, and of how sure the intervals were
QUICK = 3.0  # over t is the weight of the newest noise at first: it may be far below the first one
STUCK = 4.0  # the mean surprise, of 6 at most, above which a member is as wrong as one can be
SURE = 6.0  # deviations of a batch's mean surprise from which on it is a jump
SLOW = 0.01  # weight of the newest curvature, once a hundred were seen
SLACK = 2.0  # times the rate that this batch's curvature alone would allow
HALVES = 4  # how often a step is halved that raised the loss of its own batch
LEAST = 1e-12  # of the chance of a class, and of the noise beside the target's square
_TINY = 1e-300


class Step(NamedTuple):
    """What a batch says of all members, filters first.

    Args:
        moved: How far each filter moves, (filters, outputs, dim), to be subtracted.
        info: What each filter knows then.
        logs: The log score of each row, (members, rows).
        slope: The derivative of each row's loss by its scores, (members, rows, outputs).
        curve: The second derivative of the fastest copy's loss, (rows, outputs).
        fade: What each filter kept of what it knew where a jump contradicted it, (filters,).
        noise: The squared scale of numbers, (members,).
        stuck: For how many batches in a row every member was as wrong as one can be.
        scale: The scale that each row was forecast with, (members, rows).
    """

    moved: Floats
    info: Floats
    logs: Floats
    slope: Floats
    curve: Floats
    fade: Floats
    noise: Floats = np.zeros(0)
    stuck: float = 0.0
    scale: Floats = np.zeros(0)


def scores(weights: Floats, x: Floats) -> Floats:
    """Return the scores of all members, (members, rows, outputs)."""
    count, outputs, dim = weights.shape
    flat = (x @ weights.reshape(-1, dim).T).reshape(len(x), count, outputs)
    scores: Floats = flat.swapaxes(0, 1)
    return scores


def chances(scores: Floats, classes: int) -> Floats:
    """Return the chances of the classes, (..., rows, classes); all the same where not finite."""
    if classes == 2:
        one = 0.5 * (1.0 + np.tanh(0.5 * scores))
        chances = np.concatenate([1.0 - one, one], axis=-1)
    else:
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        chances /= chances.sum(axis=-1, keepdims=True)
    return np.where(np.isfinite(chances), chances, 1.0 / classes)


def mean(scores: Floats, shares: Floats, limits: Floats) -> Floats:
    """Return the mixture of forecasts, without those further out than targets ever were."""
    low, high = 2.0 * limits - limits[::-1]
    if not low <= high:  # nothing was seen
        return np.zeros(scores.shape[1])
    inside = (scores >= low) & (scores <= high)
    if inside.all():
        mean: Floats = shares @ scores
        return mean
    kept = np.where(inside, shares[:, None], 0.0)
    total = kept.sum(axis=0)
    mean = np.einsum("kn,kn->n", kept, np.where(inside, scores, 0.0)) / np.where(
        total > 0, total, 1.0
    )
    return np.where(total > 0, mean, np.clip(np.nan_to_num(scores[0]), low, high))


def spread(noise: Floats, inner: Floats) -> Floats:
    """Return the variance of each member's score, in units of the noise; that of copies is 0.

    Args:
        noise: Of each member, (members,).
        inner: X P Xᵀ of the filters, (filters, 1, rows, rows).
    """
    found = np.zeros((len(noise), inner.shape[-1]))
    found[: len(inner)] = np.einsum("kii->ki", inner[:, 0])
    return found


def numbers(
    info: Floats,
    noise: Floats | None,
    stuck: float,
    centres: Floats,
    x: Floats,
    y: Floats,
    weight: Floats,
    who: Members,
    older: float,
) -> Step:
    """Return what targets that are numbers say.

    Args:
        info: What is left of the filters' information; overwritten.
        noise: The squared scale of each member's noise, None before the first batch.
        stuck: For how many batches in a row every member was as wrong as one can be.
        centres: The forecasts, (members, rows).
        x: Features.
        y: Targets.
        weight: What each row counts.
        who: The members.
        older: Which step this is, from 1 on.
    """
    residual, filters, rows = centres - y, len(info), float(weight.sum())
    square, found = residual**2, forgetting.gains(info, x)
    sure = spread(residual[:, 0], found[1])
    first = noise is None
    if noise is None:
        # No member knows yet what of its error is noise: all say what the first of them says.
        noise = (square / (1.0 + sure[0])) @ weight / rows
    # A target that can be foretold without an error leaves noise of rounding.
    noise = np.maximum(noise, LEAST * float(y @ y) / len(y) + _TINY)
    scale = np.sqrt(noise[:, None] * (1.0 + sure))
    told = densities.surprise(square / scale**2) @ weight / rows
    leaps = who.tracks & (told[:filters] > 1.0 + SURE / sqrt(rows))
    fade = np.ones(filters)
    if leaps.any() and not first:
        # With A divided by (above - 1)/(usual - 1) the batch would be as usual.
        usual = sure[:filters] @ weight / rows
        above = square[:filters] @ weight / rows / noise[:filters] - 1.0
        fade = np.where(leaps, np.minimum(usual / above, 1.0), 1.0)
        part = np.tile(fade[leaps, None], x.shape[1])
        info[leaps] = forgetting.forget(info[leaps], part, who.prior[leaps])
        for whole, anew in zip(found, forgetting.gains(info[leaps], x), strict=True):
            whole[leaps] = anew
    pulled = (residual[:filters] * weight)[:, None]
    moved, info = forgetting.step(info, x, pulled, weight, found)
    stuck = stuck + 1.0 if told.min() > STUCK else 0.0
    after = follow(noise, told, square @ weight / rows, rows, stuck, older)
    logs = densities.log_density(residual, scale)
    curve = np.ones((len(x), 1))
    return Step(moved, info, logs, residual[..., None], curve, fade, after, stuck, scale)


def follow(
    noise: Floats, told: Floats, square: Floats, rows: float, stuck: float, older: float
) -> Floats:
    """Return the squared scale of Student's t, of the highest likelihood over some past.

    Surprise is bounded, and a scale that is far too small would grow by a part a step: a target
    that was constant until now leaves none. Where all are stuck it may grow to what the batch says.

    Args:
        noise: The squared scale before.
        told: The mean surprise of the batch.
        square: Its mean squared residual.
        rows: How many rows it counts.
        stuck: For how many batches in a row every member was as wrong as one can be.
        older: Which step this is, from 1 on.
    """
    share = min(max(QUICK / older, rows / NOISE_ROWS), 1.0)
    after: Floats = noise * (1.0 + share * (told - 1.0))
    if stuck > 1.0:
        after = np.maximum(after, np.minimum(noise * 4.0 ** (stuck - 1.0) ** 2, square))
    return after


def classes(
    info: Floats,
    weights: Floats,
    scores_: Floats,
    x: Floats,
    y: NDArray[Any],
    weight: Floats,
    count: int,
) -> Step:
    """Return what targets that are classes say.

    Args:
        info: What is left of the filters' information.
        weights: Of the filters.
        scores_: Of all members, (members, rows, outputs).
        x: Features.
        y: The classes of the rows.
        weight: What each row counts.
        count: K, the number of classes.
    """
    filters, index, found = len(info), np.arange(len(y)), chances(scores_, count)
    logs = np.log(np.maximum(found[:, index, y], LEAST))
    shown = found[..., 1:] if count == 2 else found
    slope = shown - (y[:, None] if count == 2 else np.eye(count)[y])
    curve = shown * (1.0 - shown)
    pulled = slope[:filters].swapaxes(1, 2) * weight
    if forgetting.joint(info):
        moved, info = forgetting.step_joint(info, x, pulled, found[:filters], weight)
    else:
        held = np.maximum(curve[:filters], forgetting.LEAST * (1.0 - forgetting.LEAST))
        held = held.swapaxes(1, 2) * weight
        moved, info = forgetting.step(info, x, pulled, held, forgetting.gains(info, x))
    before = logs[:filters] @ weight
    for _ in range(HALVES):
        then = chances(scores(weights - moved, x), count)[:, index, y]
        worse = np.log(np.maximum(then, LEAST)) @ weight < before
        if not worse.any():
            break
        moved = np.where(worse[:, None, None], 0.5 * moved, moved)
    return Step(moved, info, logs, slope, curve[filters], np.ones(filters))


def descend(
    slope: Floats,
    curve: Floats,
    x: Floats,
    weight: Floats,
    curvature: tuple[float, float],
    older: float,
) -> tuple[Floats, tuple[float, float]]:
    r"""Return the step of each SGD copy at the fastest stable rate, and the curvature.

    That is the noise-free optimum ⟨Hu, u⟩/‖Hu‖² along the gradient u of the fastest copy, in
    running means and, with some slack, in this batch.

    Args:
        slope: Of the copies, (copies, rows, outputs).
        curve: Of the fastest copy, (rows, outputs).
        x: Features.
        weight: What each row counts.
        curvature: The running means of ⟨Hu, u⟩ and ‖Hu‖² of unit vectors u.
        older: Which step this is, from 1 on.
    """
    along, curved = curvature
    part = weight / weight.sum()
    gradients = (slope.swapaxes(1, 2) * part) @ x
    u = gradients[0]
    bent = ((x @ u.T) * curve * part[:, None]).T @ x
    inner, square, length = (float(np.vdot(a, b)) for a, b in ((bent, u), (bent, bent), (u, u)))
    share = max(1.0 / older, SLOW)
    if inner > 0.0 and isfinite(square):
        along += share * (inner / length - along)
        curved += share * (square / length - curved)
    rate = along / max(curved, _TINY)
    if inner > 0.0 and square > 0.0:
        rate = min(rate, SLACK * inner / square)
    return rate * gradients, (along, curved)
