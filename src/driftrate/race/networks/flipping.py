"""Slowly changing regression: bits that flip one at a time, seen through a fixed random network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from driftrate.race.networks.network import Network
from driftrate.race.networks.phases import Phase, Protocol

_BITS, _FLIPPING = 21, 15
_EVERY, _FLIPS = 2500, 20
_UNITS, _SHARE = 100, 0.7


def flipping() -> Protocol:
    """Return a regression whose inputs change slowly.

    Of 21 bits the first 15 stay until one of them flips, every 2,500 rows; five are drawn anew at
    each row and the last is 1. The target is that of 100 threshold units,

        y = Σ_i v_i 1[u_i x > θ_i],   θ_i = 0.7 · 21 - S_i,

    with weights u and v of ±1, where S_i counts the weights of -1 of unit i.

    Reference:
        Dohare et al. (2024), "Loss of plasticity in deep continual learning", Nature 632.
    """
    network = Network("regression", _BITS, 1)
    return Protocol("flipping", network, _EVERY * _FLIPS, "flipping-1", _draw)


def _draw(seed: int) -> Iterator[Phase]:
    rng = np.random.default_rng([7, seed])
    first = rng.choice([-1.0, 1.0], (_BITS, _UNITS))
    last = rng.choice([-1.0, 1.0], _UNITS)
    threshold = _SHARE * _BITS - (first < 0).sum(axis=0)
    slow = rng.integers(0, 2, _FLIPPING)
    for _ in range(_FLIPS):
        x = np.ones((_EVERY, _BITS))
        x[:, :_FLIPPING] = slow
        x[:, _FLIPPING:-1] = rng.integers(0, 2, (_EVERY, _BITS - 1 - _FLIPPING))
        y = (x @ first > threshold) @ last
        yield Phase("flips", x.astype(np.float32), y.astype(np.float32))
        bit = rng.integers(_FLIPPING)
        slow[bit] = 1 - slow[bit]
