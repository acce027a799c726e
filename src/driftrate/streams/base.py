"""Streams with normal covariates, whose labels depend on x only through <x, θ°_t>."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import array_api_compat.numpy as np_compat
import numpy as np
import numpy.typing as npt

from driftrate.errors import ConfigError
from driftrate.schedules.base import Array
from driftrate.streams.backend import Backend, NumpyBackend
from driftrate.streams.covariance import Covariance, Identity
from driftrate.streams.nature import FixedPath, Nature
from driftrate.streams.target import Standing, Target

CovarianceLike = Covariance | Sequence[Covariance] | Callable[[int], Covariance] | None


class Stream(ABC):
    """Batches (x, y) with x ~ N(0, Σ_t) and y drawn given <x, θ°_t> + ε, ε ~ N(0, noise_std²).

    The loss of one sample is that of a generalised linear model, A(p) - y p with p = <x, θ> (and a
    constant in y). A subclass gives the link: how labels are drawn, the residual A'(p) - y, the
    loss, and the means of A and A'' under a normal.
    """

    def __init__(
        self,
        path: npt.ArrayLike | Nature,
        batch_size: int | npt.ArrayLike = 256,
        noise_std: float = 0.1,
        covariance: CovarianceLike = None,
    ) -> None:
        self.nature = path if isinstance(path, Nature) else FixedPath(path)
        self.steps, self.dim = self.nature.steps, self.nature.dim
        self.batch_sizes = self._check_batch_sizes(batch_size)
        if isinstance(noise_std, bool) or not 0 <= noise_std < np.inf:
            raise ConfigError(f"noise_std must be a finite number >= 0, got {noise_std!r}")
        self.noise_std = float(noise_std)
        if isinstance(covariance, Sequence) and len(covariance) != self.steps:
            got = len(covariance)
            raise ConfigError(f"covariance must be one or one per step ({self.steps}), got {got}")
        self._covariance = Identity(self.dim) if covariance is None else covariance
        self._first_covariance = self._covariance_at(0)
        self._still = isinstance(self._covariance, Covariance)

    # The link ------------------------------------------------------------------------------------

    @abstractmethod
    def labels(self, backend: Backend, predictor: Array) -> Array:
        """Draw labels given <x, θ°> + ε."""

    @abstractmethod
    def residual(self, xp: Any, prediction: Array, labels: Array) -> Array:
        """Return A'(p) - y, the slope of one sample's loss in p = <x, θ>."""

    @abstractmethod
    def loss(self, xp: Any, prediction: Array, labels: Array) -> Array:
        """Return one sample's loss."""

    @abstractmethod
    def moments(self, xp: Any, variance: Array) -> tuple[Array, Array]:
        """Return E A(p) and E A''(p) for p ~ N(0, variance)."""

    @abstractmethod
    def second_moment(self, standing: Standing) -> Array:
        """Return E[r² ‖x‖²] of one sample, r the residual."""

    def scale(self, xp: Any, signal: Array, total: Array) -> Array:
        """Return c of the oracle θ* = c θ°; 1 unless noise makes the model misspecified."""
        return xp.ones_like(signal)

    def offset(self, target: Target) -> Array:
        """Return the part of the expected loss that does not depend on the weights."""
        return 0.0

    def excess(self, standing: Standing) -> Array:
        """Return ℓ̄_t(θ) - ℓ̄_t(θ*), the regret of one step."""
        target = standing.target
        excess = standing.potential - target.floor - target.slope * standing.alignment
        return standing.backend.positive(excess)  # rounding can make it negative

    def gradient_sq(self, standing: Standing) -> Array:
        """Return ‖∇ℓ̄_t(θ)‖²."""
        a, b, c = standing.coloured
        kappa, pull = standing.curvature, standing.pull
        return standing.backend.positive(kappa**2 * a + 2 * kappa * pull * b + pull**2 * c)

    # Nature --------------------------------------------------------------------------------------

    def target(
        self, step: int, backend: Backend, last: Target | None = None, weights: Array | None = None
    ) -> Target:
        """Return nature at a step.

        Args:
            step: The step, from 0.
            backend: Where its arrays are put.
            last: The target one step before; None at the first step.
            weights: The learner's weights θ_t; only adaptive nature reads them.

        Returns:
            The target.
        """
        xp, adaptive = backend.xp, self.nature.adaptive
        row = None if self.table is None else self.table[step]
        batch_size = int(self.batch_sizes[step])
        if row is not None and last is not None and row[-1] == 0.0:
            return last.resting(step, batch_size)
        before = last.position if last is not None and adaptive else None
        position = self.nature.position(step, before, weights)
        source = self._first_covariance if self._still else self._covariance_at(step)
        same = last is not None and source is last.source
        if last is not None and same and not adaptive and (position == last.position).all():
            return last.resting(step, batch_size)
        covariance = last.covariance if last is not None and same else source.on(backend)
        parameter = position if adaptive else backend.asarray(position)
        whitened = covariance.whiten(parameter)
        if row is None:
            signal = xp.astype(xp.vecdot(whitened, whitened), backend.real)
            scale, slope, floor = self._profile(xp, signal)
            oracle = backend.small(scale) * parameter if adaptive else scale * parameter
            oracle = xp.astype(oracle, backend.dtype)
        else:
            signal, scale, slope, floor, shift = row
            oracle = parameter if scale == 1.0 else scale * parameter
        move = None if last is None else oracle - last.oracle
        if move is None:
            shift = 0.0
        elif row is None:
            shift = xp.astype(xp.sqrt(xp.vecdot(move, move)), backend.real)
        return Target(
            step=step,
            batch_size=batch_size,
            source=source,
            covariance=covariance,
            position=position,
            parameter=parameter,
            whitened=whitened,
            oracle=oracle,
            scale=scale,
            signal=signal,
            slope=slope,
            floor=floor,
            total=signal + self.noise_std**2,
            move=move,
            shift=shift,
        )

    def standing(self, weights: npt.ArrayLike, step: int) -> Standing:
        """Return how weights stand to the oracle: regret, expected loss, its gradient, its noise.

        Args:
            weights: An array of shape (..., dim).
            step: The step, from 0.

        Returns:
            The standing.

        Example:
            >>> import numpy as np
            >>> from driftrate.streams import LinearStream
            >>> stream = LinearStream(np.ones((3, 2)), batch_size=4, noise_std=0.1)
            >>> float(stream.standing([1.0, 3.0], step=0).regret)
            2.0
        """
        array = np.asarray(weights, dtype=np.float64)
        if array.shape[-1:] != (self.dim,):
            raise ConfigError(f"weights must have shape (..., {self.dim}), got {array.shape}")
        if self.nature.adaptive:
            raise ConfigError("the target of an adaptive nature is known only in a simulation")
        backend = NumpyBackend(0, "float64")
        target = self.target(step, backend)
        return Standing(self, target, backend, array - target.oracle)

    def _profile(self, xp: Any, signal: Array) -> tuple[Array, Array, Array]:
        total = signal + self.noise_std**2
        scale = self.scale(xp, signal, total)
        return scale, self.moments(xp, total)[1], self.moments(xp, scale**2 * signal)[0]

    @cached_property
    def table(self) -> list[tuple[float, ...]] | None:
        """Signal, scale, slope, floor and shift of every step, where the path is fixed."""
        if not isinstance(self.nature, FixedPath) or not self._still:
            return None
        path, signal, shift = self.nature.path, np.empty(self.steps), np.zeros(self.steps)
        for step, row in enumerate(path):
            white = self._first_covariance.whiten(row.astype(np.float64))
            signal[step] = white @ white
        scale, slope, floor = self._profile(np_compat, signal)
        for step in range(1, self.steps):
            if not np.array_equal(path[step], path[step - 1]):
                move = scale[step] * path[step] - scale[step - 1] * path[step - 1]
                shift[step] = np.linalg.norm(move)
        columns = (signal, scale, slope, floor, shift)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _covariance_at(self, step: int) -> Covariance:
        given = self._covariance
        if not isinstance(given, Covariance):
            given = given[step] if isinstance(given, Sequence) else given(step)
        if not isinstance(given, Covariance) or given.dim != self.dim:
            got = f"dimension {given.dim}" if isinstance(given, Covariance) else repr(given)
            want = f"a Covariance of dimension {self.dim}"
            raise ConfigError(f"covariance at step {step} must be {want}, got {got}")
        return given

    def _check_batch_sizes(self, batch_size: int | npt.ArrayLike) -> npt.NDArray[np.int64]:
        sizes = np.asarray(batch_size)
        if sizes.dtype.kind not in "iu" or (sizes < 1).any():
            got = sizes.min() if sizes.dtype.kind in "iuf" and sizes.size else sizes.dtype
            raise ConfigError(f"batch_size must be integers >= 1, got {got}")
        if sizes.ndim and sizes.shape != (self.steps,):
            want = f"a number or one per step ({self.steps})"
            raise ConfigError(f"batch_size must be {want}, got shape {sizes.shape}")
        return np.broadcast_to(sizes.astype(np.int64), (self.steps,))
