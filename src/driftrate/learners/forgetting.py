r"""Least squares and Newton steps with forgetting, in information form, for many members at once.

A member knows the weights θ with the information A, in units of the noise. With n rows a batch and
a memory of m rows, a step forgets, reads the batch and moves:

    κ = exp(-n/m),   A ← √κ A √κ + (1 - κ)/v,                                        `forget`
    P = A⁻¹,   θ ← θ - P Xᵀ (I + W X P Xᵀ)⁻¹ g,   A ← A + Xᵀ W X                     `gains`, `step`

with g the derivative of each row's loss by its score and W the second one. For numbers g = Xθ - y
and W = 1: recursive least squares. What is forgotten falls back to the prior, of variance v a
weight: else A would vanish in directions in which nothing is seen. κ is a number a weight, so that
an intercept may have a memory of its own; A keeps no negative eigenvalue then (Schur's theorem).

There are two forms of A. *Separate*: (members, outputs, blocks, s, s), in which outputs, and blocks
of s features each, are taken for independent in A, but share the residual. With one output and one
block nothing is left out. *Joint*: (members, outputs·dim, outputs·dim), for softmax.

Reference:
    Åström and Wittenmark (1995), "Adaptive Control", chapters 2 and 11; Kulhavý and Zarrop (1993),
    "On a general concept of forgetting".
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LARGEST = 500  # weights in one matrix: more are parted into outputs, then into blocks
BLOCK, SMALLEST = 64, 8  # features in a block, where one output has too many for one matrix
NUMBERS = 2_000_000  # in all matrices together: 16 MB, some times as much while a step is taken
# A class' chance counts as at least this, so that a sure mistake still moves the weights.
LEAST = 0.01


def start(dim: int, outputs: int, prior: Floats, joint: bool) -> Floats:
    """Return the information of members who know their prior alone.

    Args:
        dim: The number of features.
        outputs: The number of scores.
        prior: v, (members,).
        joint: Whether outputs are coupled, as those of a softmax are.
    """
    size = dim * outputs
    if joint and size <= LARGEST:
        return _diagonal(1.0 / prior, (size,))
    block = dim
    if dim > LARGEST:
        block = min(BLOCK, NUMBERS // (len(prior) * size))
        # Small blocks cost more time than they are worth.
        block = block if block >= SMALLEST else 1
    return _diagonal(1.0 / prior, (outputs, -(-dim // block), block))


def _diagonal(values: Floats, shape: tuple[int, ...]) -> Floats:
    eye = np.eye(shape[-1])
    out: Floats = np.multiply.outer(values, np.broadcast_to(eye, (*shape[:-1], *eye.shape)))
    return out


def joint(info: Floats) -> bool:
    """Return whether the information is of the joint form."""
    return info.ndim == 3


def _split(rows: Floats, info: Floats, fill: float | None) -> Floats:
    """Return features (..., dim) as blocks (..., blocks, s), the last one filled up.

    With None it is filled up with what comes last.
    """
    blocks, size = info.shape[2:4]
    short = blocks * size - rows.shape[-1]
    if short:
        last = rows[..., -1:] if fill is None else fill
        edge = np.broadcast_to(last, (*rows.shape[:-1], short))
        rows = np.concatenate([rows, edge], axis=-1)
    return rows.reshape(*rows.shape[:-1], blocks, size)


def solve(matrices: Floats, right: Floats) -> Floats:
    """Solve; where rounding has made a matrix singular, its diagonal grows by a part in 10^10."""
    try:
        found = np.linalg.solve(matrices, right)
    except np.linalg.LinAlgError:
        found = np.linalg.solve(matrices * (1.0 + 1e-10 * np.eye(matrices.shape[-1])), right)
    return cast(Floats, found)


def forget(info: Floats, keep: Floats, prior: Floats) -> Floats:
    """Return what is left of the information.

    Args:
        info: A.
        keep: κ, (members, dim).
        prior: v, (members,).

    Example:
        >>> info = start(2, 1, np.array([0.5]), joint=False)
        >>> forget(4.0 * info, np.array([[0.5, 1.0]]), np.array([0.5]))[0, 0, 0].round(2).tolist()
        [[5.0, 0.0], [0.0, 8.0]]
    """
    if joint(info):
        keep = np.tile(keep, (1, info.shape[-1] // keep.shape[-1]))
        back = (1.0 - keep) / prior[:, None]
    else:
        keep = _split(keep, info, None)[:, None]
        back = (1.0 - keep) / prior[:, None, None, None]
    # Nearly all weights are kept alike: the others' rows and columns are few.
    most = keep.max(axis=-1, keepdims=True)
    out: Floats = info * most[..., None]
    for place in np.flatnonzero((keep < most).any(axis=tuple(range(keep.ndim - 1)))):
        part = np.sqrt(keep[..., place] / most[..., 0])[..., None]
        out[..., place, :] *= part
        out[..., :, place] *= part
    diagonal = np.einsum("...ii->...i", out)
    diagonal += back
    return out


def gains(info: Floats, x: Floats) -> tuple[Floats, Floats]:
    """Return P Xᵀ, (members, outputs, blocks, s, rows), and X P Xᵀ, (members, outputs, rows, rows).

    The diagonal of the latter is the variance of a row's score, in units of the noise. Only for the
    separate form.
    """
    parts = _split(x, info, 0.0).transpose(1, 2, 0)
    gain: Floats = parts / info if info.shape[-1] == 1 else solve(info, parts)
    if info.shape[2] == 1:
        return gain, x @ gain[:, :, 0]
    flat = gain.reshape(*info.shape[:2], -1, len(x))
    return gain, parts.reshape(-1, len(x)).T @ flat


def step(
    info: Floats, x: Floats, slope: Floats, curve: Floats, found: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Return how far the weights move, (members, outputs, dim), and the information after it.

    Args:
        info: A, separate.
        x: The rows, (rows, dim).
        slope: g, (members, outputs, rows).
        curve: W, (members, outputs, rows) or (rows,).
        found: What `gains` returned for them.
    """
    gain, inner = found
    inside = curve[..., :, None] * inner
    diagonal = np.einsum("...ii->...i", inside)
    diagonal += 1.0
    turned = solve(inside, slope[..., None])
    moved = (gain @ turned[:, :, None])[..., 0]
    parts = _split(x, info, 0.0).swapaxes(0, 1)
    weight = curve if curve.ndim == 1 else curve[:, :, None, None]
    seen = np.swapaxes(parts, -1, -2) * weight @ parts
    return moved.reshape(*moved.shape[:2], -1)[..., : x.shape[1]], info + seen


def step_joint(
    info: Floats, x: Floats, slope: Floats, chances: Floats, weight: Floats
) -> tuple[Floats, Floats]:
    """Return the same for a softmax: W = diag(p) - ppᵀ of each row couples the outputs.

    Args:
        info: A, joint.
        x: The rows, (rows, dim).
        slope: p - y, weighted, (members, outputs, rows).
        chances: p, (members, rows, outputs).
        weight: What each row counts, (rows,).
    """
    members, outputs, _ = slope.shape
    info = info.copy()
    blocks = info.reshape(members, outputs, x.shape[1], outputs, x.shape[1])
    chances = np.maximum(chances, LEAST)
    chances = np.moveaxis(chances / chances.sum(axis=-1, keepdims=True), -1, 1)
    for i in range(outputs):
        for j in range(i + 1):
            curve = (float(i == j) - chances[:, j]) * chances[:, i] * weight
            seen = (x.T * curve[:, None, :]) @ x
            blocks[:, i, :, j, :] += seen
            if i != j:
                blocks[:, j, :, i, :] += seen
    moved = solve(info, (slope @ x).reshape(members, -1, 1))
    return moved.reshape(members, outputs, -1), info


def transform(info: Floats, scale: Floats, shift: Floats) -> Floats:
    """Return the information on the weights of moved features z' = Mz: M A Mᵀ.

    Args:
        info: A.
        scale: z'_i = scale_i z_i + shift_i z_0, (dim,); of the first feature it is 1.
        shift: (dim,); of the first feature it is 0. Of blocks only the first
            heeds it.
    """
    if joint(info):
        outputs = info.shape[-1] // len(scale)
        shape = (len(info), outputs, len(scale), outputs, len(scale))
        blocks = info.reshape(shape)
        rows = scale[:, None, None] * blocks + shift[:, None, None] * blocks[:, :, :1]
        both = scale * rows + shift * rows[..., :1]
        return both.reshape(info.shape)
    scale = _split(scale, info, 1.0)[..., None]
    shift = _split(shift, info, 0.0)[..., None].copy()
    shift[1:] = 0.0
    rows = scale * info + shift * info[..., :1, :]
    across = np.swapaxes(scale, -1, -2), np.swapaxes(shift, -1, -2)
    moved: Floats = across[0] * rows + across[1] * rows[..., :1]
    return moved


def widen(info: Floats, old: tuple[int, int], new: tuple[int, int], prior: Floats) -> Floats:
    """Return the information on more weights, of which the new ones have their prior alone.

    Args:
        info: A.
        old: The outputs and features there were.
        new: The outputs and features that there shall be. From one output (two classes) to several
            the score s becomes -s/2 and s/2.
        prior: v, (members,).
    """
    wider = start(new[1], new[0], prior, joint=new[0] > 1)
    (outputs, dim), count = old, len(info)
    if outputs == 1 < new[0]:
        outputs = 2
        # In blocks both scores have the curvature of the one, and what couples them is left out.
        info = _two_scores(info, prior) if joint(wider) else np.repeat(info, 2, axis=1)
    coupled = (count, outputs, dim, outputs, dim)
    if joint(wider):
        both = (count, new[0], new[1], new[0], new[1])
        wider.reshape(both)[:, :outputs, :dim, :outputs, :dim] = info.reshape(coupled)
        return wider
    if joint(info):
        own = info.reshape(coupled)
        info = np.stack([own[:, k, :, k, :] for k in range(outputs)], axis=1)[:, :, None]
    for block in range(-(-dim // wider.shape[-1])):
        # Where blocks become other ones, what both have is kept.
        there, begin = divmod(block * wider.shape[-1], info.shape[-1])
        size = min(wider.shape[-1], info.shape[-1] - begin, dim - block * wider.shape[-1])
        cut = slice(begin, begin + size)
        wider[:, :outputs, block, :size, :size] = info[:, :, there, cut, cut]
    return wider


def _two_scores(info: Floats, prior: Floats) -> Floats:
    """Return the joint information on the scores -s/2 and s/2 of two classes."""
    dim = info.shape[-1]
    seen = info[:, 0, 0] - _diagonal(1.0 / prior, (dim,))
    pair = np.array([[1.0, -1.0], [-1.0, 1.0]])
    both: Floats = np.einsum("ab,kij->kaibj", pair, seen)
    return both.reshape(len(info), 2 * dim, 2 * dim) + _diagonal(1.0 / prior, (2 * dim,))
