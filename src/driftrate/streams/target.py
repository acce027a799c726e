"""Nature at one step (`Target`), and the learner's weights relative to it (`Standing`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from driftrate.schedules.base import Array
from driftrate.streams.backend import Backend
from driftrate.streams.covariance import Covariance

if TYPE_CHECKING:
    from driftrate.streams.base import Stream


class _once:  # noqa: N801
    """A property computed once; that of functools takes a lock each time before Python 3.12."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)
        return value


@dataclass(slots=True)  # not frozen: a frozen one takes four times as long to make, every step
class Target:
    """Nature at one step: the labels' parameter θ°, the oracle θ* = c θ°, and their moments.

    Numbers are Python floats on a fixed path, else arrays that broadcast against one per seed.
    """

    step: int
    batch_size: int
    source: Covariance  # the stream's own
    covariance: Covariance  # the same on the backend
    position: Array  # θ°_t as nature gave it
    parameter: Array  # θ°_t on the backend
    whitened: Array  # Aᵀθ°_t
    oracle: Array  # θ*_t, the minimiser of the expected loss
    scale: Array  # c
    signal: Array  # Var <x, θ°>
    total: Array  # signal plus the variance of the noise inside the link
    slope: Array  # E[y <x, v>] = slope * θ°ᵀΣv, by Stein's identity
    floor: Array  # E A(<x, θ*>)
    move: Array | None  # θ*_t - θ*_{t-1}; None where the oracle rests
    shift: Array  # its length, γ_{t-1}

    def resting(self, step: int, batch_size: int) -> Target:
        """Return the same target one step later."""
        return replace(self, step=step, batch_size=batch_size, move=None, shift=0.0)


class Standing:
    """A learner's weights relative to the target: exact expectations from inner products.

    p = <x, θ> is normal, so Stein's identity reduces every mean to one over p. With δ = θ - θ*,
    s² = θᵀΣθ, κ(v) = E A''(sqrt(v) Z) and k the labels' mean slope,

        ℓ̄(θ) = E A(sZ) - k θ°ᵀΣθ,        ∇ℓ̄(θ) = Σ (κ(s²) δ + (c κ(s²) - k) θ°).

    Args:
        stream: The stream.
        target: Nature at the step.
        backend: Where the arrays live.
        error: δ, of shape (..., dim).
    """

    def __init__(self, stream: Stream, target: Target, backend: Backend, error: Array) -> None:
        self.stream, self.target, self.backend, self.error = stream, target, backend, error

    def _dot(self, a: Array, b: Array) -> Array:
        xp = self.backend.xp
        return xp.astype(xp.vecdot(a, b), self.backend.real, copy=False)

    @_once
    def whitened(self) -> Array:
        """Aᵀδ."""
        return self.target.covariance.whiten(self.error)

    @_once
    def excess_sq(self) -> Array:
        """δᵀΣδ, the variance of <x, δ>."""
        return self._dot(self.whitened, self.whitened)

    @_once
    def alignment(self) -> Array:
        """δᵀΣθ°."""
        return self._dot(self.whitened, self.target.whitened)

    @_once
    def distance_sq(self) -> Array:
        """‖δ‖², the paper's D_t²."""
        if self.target.covariance.isotropic:
            return self.excess_sq
        return self._dot(self.error, self.error)

    @_once
    def variance(self) -> Array:
        """θᵀΣθ, the variance of <x, θ>."""
        t = self.target
        total = self.excess_sq + 2 * t.scale * self.alignment + t.scale**2 * t.signal
        return self.backend.positive(total)

    @_once
    def _moments(self) -> tuple[Array, Array]:
        return self.stream.moments(self.backend.xp, self.variance)

    @property
    def potential(self) -> Array:
        """E A(<x, θ>)."""
        return self._moments[0]

    @property
    def curvature(self) -> Array:
        """κ = E A''(<x, θ>)."""
        return self._moments[1]

    @_once
    def regret(self) -> Array:
        """ℓ̄_t(θ) - ℓ̄_t(θ*), the regret of one step (equation 2)."""
        return self.stream.excess(self)

    @property
    def expected_loss(self) -> Array:
        """ℓ̄_t(θ)."""
        t = self.target
        label = t.slope * (self.alignment + t.scale * t.signal)
        return self.potential - label + self.stream.offset(t)

    @_once
    def pull(self) -> Array:
        """The weight c κ - k of Σθ° in the gradient."""
        return self.target.scale * self.curvature - self.target.slope

    @_once
    def coloured_sq(self) -> Array:
        """‖Σδ‖²."""
        if self.target.covariance.isotropic:
            return self.excess_sq
        coloured = self.target.covariance.colour(self.whitened)
        return self._dot(coloured, coloured)

    @_once
    def coloured(self) -> tuple[Array, Array, Array]:
        """‖Σδ‖², <Σδ, Σθ°> and ‖Σθ°‖²."""
        covariance = self.target.covariance
        if covariance.isotropic:
            return self.coloured_sq, self.alignment, self.target.signal
        a, b = covariance.colour(self.whitened), covariance.colour(self.target.whitened)
        return self.coloured_sq, self._dot(a, b), self._dot(b, b)

    @property
    def gradient(self) -> Array:
        """∇ℓ̄_t(θ), of shape (..., dim)."""
        small, t = self.backend.small, self.target
        whitened = small(self.curvature) * self.whitened + small(self.pull) * t.whitened
        return t.covariance.colour(whitened)

    @_once
    def gradient_sq(self) -> Array:
        """‖∇ℓ̄_t(θ)‖², the regret of the non-convex notion (Section 5)."""
        return self.stream.gradient_sq(self)

    @property
    def descent(self) -> Array:
        """<∇ℓ̄_t(θ), θ - θ*>."""
        return self.curvature * self.excess_sq + self.pull * self.alignment

    @property
    def batch_gradient_sq(self) -> Array:
        """E‖g‖² of the batch gradient g: ‖∇ℓ̄‖² plus the noise."""
        one = self.stream.second_moment(self)
        return self.gradient_sq + (one - self.gradient_sq) / self.target.batch_size
