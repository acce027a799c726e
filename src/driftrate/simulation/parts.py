"""Cross and spread of a batch's parts without drawing the parts."""

from __future__ import annotations

from typing import Any

from driftrate.schedules.base import Array
from driftrate.streams.backend import Backend


def cross_and_spread(xp: Any, mean_sq: Array, parts_sq: Array, parts: int) -> tuple[Array, Array]:
    """Return the signal and the noise that k part gradients g_j with the mean g show.

        cross  = mean of <g_i, g_j> over i ≠ j = (k² ‖g‖² - Σ ‖g_j‖²)/(k (k - 1)),
        spread = Σ ‖g_j - g‖²/(k (k - 1))      = (Σ ‖g_j‖² - k ‖g‖²)/(k (k - 1)).

    `mean_sq` is ‖g‖², `parts_sq` Σ ‖g_j‖² and `parts` k.

    Example:
        >>> import numpy as np
        >>> cross_and_spread(np, np.float64(4.0), np.float64(10.0), parts=2)
        (np.float64(3.0), np.float64(1.0))
    """
    pairs = parts * (parts - 1)
    spread = (parts_sq - parts * mean_sq) / pairs
    return (parts**2 * mean_sq - parts_sq) / pairs, xp.clip(spread, 0.0, None)


def outside_sq(backend: Backend, norms_sq: Array, tail: Array, freedom: Array, least: int) -> Array:
    """Draw Σ_j R_j² ‖ξ_j‖² given ξ = Σ_j (R_j/R) ξ_j, for k independent ξ_j ~ N(0, I_m).

    Stack the ξ_j as rows of Ξ. An orthogonal map Q of the rows, whose first row is R_j/R, does not
    change their law, so Ξ = Qᵀ [ξ; H] with H a (k-1) x m matrix of normals independent of ξ. In a
    basis of R^m that starts with ξ/‖ξ‖, H is a column of normals and a matrix of which the norms
    need only the Bartlett factor: a triangle of normals with roots of chi-squares on the diagonal.
    That is k(k+1)/2 numbers instead of k m.

    `norms_sq` holds R_j², of shape (lanes, seeds, k); `tail` ‖ξ‖ and `freedom` m, of shape (lanes,
    seeds). Only `least`, the smallest m, decides what is drawn, so that lanes share the draws.
    """
    xp = backend.xp
    seeds, parts = norms_sq.shape[1:]
    total = xp.sum(norms_sq, axis=-1)[..., None]
    unit = xp.sqrt(norms_sq / xp.where(total > 0, total, 1.0))
    first = unit[..., :1]

    def spun(head: Array, rest: Array) -> Array:
        """Return Σ_j R_j² (Qᵀ[head; rest])_j², Qᵀ the Householder map from e_1 to -unit."""
        dot = head * (1 + first[..., 0]) + xp.vecdot(unit[..., 1:], rest)
        share = (dot / (1 + first[..., 0]))[..., None]
        top = head[..., None] - share * (1 + first)
        below = rest - share * unit[..., 1:]
        return xp.vecdot(norms_sq[..., 1:], below * below) + (norms_sq[..., :1] * top * top)[..., 0]

    exists = xp.astype(freedom > 0, backend.real)[..., None]
    beside = backend.scalar_normal(seeds, parts - 1) * exists
    out = spun(-tail, beside)
    nothing = xp.zeros_like(tail)
    for column in range(parts - 1):
        # m differs between lanes only where a learner is on a special point: lanes share the base,
        # and squares of normals make up the difference.
        base = max(least - 1 - column, 0)
        square = backend.chisquare(float(base), seeds) + nothing
        spare = backend.scalar_normal(seeds, 2)
        degrees = xp.clip(freedom - 1 - column, 0.0, None)
        for i in range(2):
            square = square + xp.where(degrees > base + i, spare[:, i] ** 2, 0.0)
        below = backend.scalar_normal(seeds, parts - 2 - column)
        some = xp.where(degrees > 0, 1.0, 0.0)
        entries = [nothing] * column + [xp.sqrt(square)]
        entries += [below[:, i] * some for i in range(parts - 2 - column)]
        out = out + spun(nothing, xp.stack(entries, axis=-1))
    return out
