"""Paths of the target θ*_t: plain arrays of shape (steps, dim)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, pi
from typing import Any

import numpy as np
import numpy.typing as npt

from driftrate.errors import ConfigError
from driftrate.schedules._checks import count
from driftrate.schedules.base import Array

Path = npt.NDArray[Any]
_BLOCK = 1 << 20  # entries at a time, so that float32 paths need no float64 copy


def _unit(rng: np.random.Generator, steps: int, dim: int) -> Path:
    """Return directions drawn uniformly from the sphere."""
    z = rng.standard_normal((steps, dim))
    unit: Path = z / np.linalg.norm(z, axis=1, keepdims=True)
    return unit


def _start(start: Array, dim: int) -> Path:
    """Return a start of the given length along the first axis, or the vector given."""
    if np.ndim(start) == 0:
        vector = np.zeros(dim)
        vector[0] = start
        return vector
    vector = np.asarray(start, dtype=np.float64)
    if vector.shape != (dim,):
        raise ConfigError(f"start must be a number or a vector of {dim}, got shape {vector.shape}")
    return vector


def spiral_row(
    dim: int,
    steps: int,
    index: int,
    start: float = 1.0,
    end: float = -1.0,
    frequency: float = 4.0,
    hold: int = 1,
) -> Path:
    """Return one row of `spiral`, for paths too large to store.

    Args:
        dim: The dimension.
        steps: The number of steps of the whole path.
        index: Which row, from 0.
        start: The radius' cube root at the first step.
        end: The same at the last step.
        frequency: The base frequency k.
        hold: Steps between jumps, ℓ.

    Returns:
        A vector of shape (dim,).

    Example:
        >>> bool((spiral_row(4, 100, 7, hold=5) == spiral(4, 100, hold=5)[7]).all())
        True
    """
    source = min(-(-(index + 1) // hold) * hold, steps) - 1
    share = source / (steps - 1) if steps > 1 else 0.0
    radius = start + (end - start) * share
    phase = (np.arange(dim) // 2 + 1) * (2 * frequency * pi * share)
    row = np.cos(phase)
    row[1::2] = np.sin(phase[1::2])
    return np.asarray(radius**3 * row)


def spiral(
    dim: int,
    steps: int,
    start: float = 1.0,
    end: float = -1.0,
    frequency: float = 4.0,
    hold: int = 1,
    dtype: str = "float64",
) -> Path:
    """Return the paper's high-dimensional spiral (Section 6.1).

    θ*_t(i) = r(t)³ cos(⌈i/2⌉ 2kπ α(t)) for odd i and the sine for even i, with r going linearly
    from `start` to `end` and α from 0 to 1; held for `hold` steps: θ*_{min(⌈t/ℓ⌉ℓ, T)}.

    Args:
        dim: The dimension.
        steps: The number of steps T.
        start: The radius' cube root at the first step, a.
        end: The same at the last step, b.
        frequency: The base frequency k.
        hold: Steps between jumps, ℓ.
        dtype: The array's precision.

    Returns:
        An array of shape (steps, dim).

    Example:
        >>> path = spiral(dim=2, steps=2000)
        >>> path[0].round(6).tolist(), path[-1].round(6).tolist()
        ([1.0, 0.0], [-1.0, 0.0])

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), equation (22).
    """
    dim, steps, hold = count("dim", dim), count("steps", steps), count("hold", hold)
    path = np.empty((steps, dim), dtype=dtype)
    for first in range(0, steps, hold):
        path[first : first + hold] = spiral_row(dim, steps, first, start, end, frequency, hold)
    return path


def warmup_spiral(
    jumps: int = 17, hold: int = 100, turn: float = pi / 4, decay: float = 0.9
) -> Path:
    """Return the discrete spiral in the plane of Figure 1.

    It starts at (1, 0) and jumps clockwise by `turn` every `hold` steps; each jump multiplies the
    radius by `decay`. The paper prints neither constant; with these the path looks like its figure.

    Args:
        jumps: How many positions.
        hold: Steps at each.
        turn: The angle of a jump, in radians.
        decay: The factor by which a jump shrinks the radius.

    Returns:
        An array of shape (jumps * hold, 2).

    Example:
        >>> warmup_spiral().shape
        (1700, 2)

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Figure 1.
    """
    k = np.arange(count("jumps", jumps))
    radius, angle = decay**k, -turn * k
    corners = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return np.repeat(corners, count("hold", hold), axis=0)


def standstill(dim: int, steps: int, start: Array = 1.0) -> Path:
    """Return a target that rests.

    Args:
        dim: The dimension.
        steps: The number of steps.
        start: Its distance from the origin, or its position.

    Returns:
        An array of shape (steps, dim).

    Example:
        >>> float(shifts(standstill(dim=3, steps=5)).sum())
        0.0
    """
    return np.tile(_start(start, count("dim", dim)), (count("steps", steps), 1))


def bursty(
    dim: int, steps: int, size: float = 1.0, every: int = 100, seed: int = 0, start: Array = 1.0
) -> Path:
    """Return a target that jumps by `size` in a random direction every `every` steps.

    Args:
        dim: The dimension.
        steps: The number of steps.
        size: The length of a jump.
        every: The steps from one jump to the next.
        seed: Seed of the directions.
        start: Its first distance from the origin, or its first position.

    Returns:
        An array of shape (steps, dim).

    Example:
        >>> shifts(bursty(dim=3, steps=7, size=2.0, every=3)).round(12).tolist()
        [0.0, 0.0, 2.0, 0.0, 0.0, 2.0]
    """
    dim, steps, every = count("dim", dim), count("steps", steps), count("every", every)
    pieces = ceil(steps / every)
    jumps = size * _unit(np.random.default_rng(seed), pieces, dim)
    jumps[0] = _start(start, dim)
    return np.repeat(np.cumsum(jumps, axis=0), every, axis=0)[:steps]


def _walk(dim: int, lengths: Path, seed: int, start: Array) -> Path:
    moves = _unit(np.random.default_rng(seed), len(lengths), dim) * lengths[:, None]
    return np.cumsum(np.concatenate([_start(start, dim)[None], moves]), axis=0)


def random_walk(
    dim: int, steps: int, size: float = 0.03, seed: int = 0, start: Array = 1.0
) -> Path:
    """Return a target that moves by `size` in a new random direction every step.

    Args:
        dim: The dimension.
        steps: The number of steps.
        size: The length of a step.
        seed: Seed of the directions.
        start: Its first distance from the origin, or its first position.

    Returns:
        An array of shape (steps, dim).

    Example:
        >>> shifts(random_walk(dim=3, steps=4)).round(12).tolist()
        [0.03, 0.03, 0.03]
    """
    lengths = np.full(count("steps", steps) - 1, float(size))
    return _walk(count("dim", dim), lengths, seed, start)


def smooth(dim: int, steps: int, exponent: float = 0.5, seed: int = 0, start: Array = 1.0) -> Path:
    """Return a target that comes to rest: random directions, γ_t = t^{-α}.

    Args:
        dim: The dimension.
        steps: The number of steps.
        exponent: The decay α.
        seed: Seed of the directions.
        start: Its first distance from the origin, or its first position.

    Returns:
        An array of shape (steps, dim).

    Example:
        >>> shifts(smooth(dim=3, steps=4, exponent=1.0)).round(4).tolist()
        [1.0, 0.5, 0.3333]
    """
    lengths = np.arange(1, count("steps", steps), dtype=np.float64) ** -exponent
    return _walk(count("dim", dim), lengths, seed, start)


def concatenate(pieces: Sequence[Path]) -> Path:
    """Join paths end to end, each moved so that it continues where the last one stopped.

    Args:
        pieces: Paths of one dimension.

    Returns:
        An array of shape (sum of steps, dim).

    Example:
        >>> path = concatenate([standstill(2, 3), random_walk(2, 3, size=0.1)])
        >>> shifts(path).round(12).tolist()
        [0.0, 0.0, 0.0, 0.1, 0.1]
    """
    if not pieces or len({np.shape(piece)[1:] for piece in pieces}) != 1:
        shapes = [np.shape(piece) for piece in pieces]
        raise ConfigError(f"concatenate needs paths of one dimension, got shapes {shapes}")
    joined = [np.asarray(pieces[0])]
    for piece in pieces[1:]:
        joined.append(np.asarray(piece) - piece[0] + joined[-1][-1])
    return np.concatenate(joined)


def shifts(path: Path) -> Path:
    """Return the shifts γ_t = ‖θ*_{t+1} - θ*_t‖ of a path (Definition 2.1).

    Args:
        path: An array of shape (steps, dim).

    Returns:
        An array of shape (steps - 1,).

    Example:
        >>> shifts(np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])).tolist()
        [5.0, 0.0]

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Definition 2.1.
    """
    rows = max(1, _BLOCK // path.shape[1])
    out = np.empty(len(path) - 1)
    for first in range(0, len(out), rows):
        block = np.asarray(path[first : first + rows + 1], dtype=np.float64)
        out[first : first + rows] = np.linalg.norm(np.diff(block, axis=0), axis=1)
    return out
