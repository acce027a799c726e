"""Rates that see the oracle: references for other rates, not for use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from driftrate.schedules.base import Array
from driftrate.streams.target import Standing


class Clairvoyant(ABC):
    """A rule that chooses the rate before the batch is drawn, from the true distance to θ*."""

    @property
    def name(self) -> str:
        """The rule's name."""
        return type(self).__name__

    @abstractmethod
    def rate(self, standing: Standing) -> Array:
        """Return the rate of the step, in the shape of `standing.regret`."""


@dataclass(frozen=True)
class GreedyRate(Clairvoyant):
    """The rate that brings the learner nearest to the oracle in expectation, one step at a time.

        η_t = <∇ℓ̄_t(θ_t), θ_t - θ*_t> / E‖g_t‖²,

    which is v/E‖g‖² with v = ‖θ_t - θ*_t‖² in linear regression with identity covariance.

    Example:
        >>> from driftrate.simulation import GreedyRate, simulate
        >>> from driftrate.streams import LinearStream, standstill
        >>> stream = LinearStream(standstill(dim=4, steps=50), batch_size=16, noise_std=0.1)
        >>> run = simulate(stream, GreedyRate(), seeds=8)
        >>> bool((run.rates[:, 0] > run.rates[:, -1]).all())
        True
    """

    def rate(self, standing: Standing) -> Array:
        """Return the rate of the step."""
        xp = standing.backend.xp
        square = standing.batch_gradient_sq
        positive = square > 0
        return xp.where(positive, standing.descent / xp.where(positive, square, 1.0), 0.0)
