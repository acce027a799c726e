"""Covariances of the covariates: x = A w with w standard normal, A cheap to apply."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from driftrate.errors import ConfigError
from driftrate.schedules.base import Array
from driftrate.streams.backend import Backend


class Covariance(ABC):
    """Σ = A Aᵀ, held as the map A between independent normals w and covariates x."""

    dim: int  # the length of x
    size: int  # the length of w
    isotropic: bool = False

    @abstractmethod
    def whiten(self, vectors: Array) -> Array:
        """Return Aᵀv, the weights of the independent normals in <x, v>."""

    @abstractmethod
    def colour(self, vectors: Array) -> Array:
        """Return A w."""

    @abstractmethod
    def trace(self) -> float:
        """Return the trace of Σ."""

    @abstractmethod
    def on(self, backend: Backend) -> Covariance:
        """Return the same covariance with its arrays on the backend's device."""


def _values(name: str, values: npt.ArrayLike, ndim: int) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != ndim or not np.isfinite(array).all():
        raise ConfigError(f"{name} must be a finite array of {ndim} axes, got shape {array.shape}")
    return array


class Identity(Covariance):
    """Independent covariates of variance one.

    Args:
        dim: The dimension.

    Example:
        >>> Identity(3).trace()
        3.0
    """

    isotropic = True

    def __init__(self, dim: int) -> None:
        self.dim = self.size = dim

    def whiten(self, vectors: Array) -> Array:
        return vectors

    colour = whiten

    def trace(self) -> float:
        return float(self.dim)

    def on(self, backend: Backend) -> Identity:
        return self


class Diagonal(Covariance):
    """Independent covariates of different variances.

    Args:
        variances: The diagonal of Σ, all >= 0.

    Example:
        >>> Diagonal([1.0, 4.0]).colour(np.array([1.0, 1.0])).tolist()
        [1.0, 2.0]
    """

    def __init__(self, variances: npt.ArrayLike) -> None:
        self._variances = _values("variances", variances, 1)
        if (self._variances < 0).any():
            raise ConfigError(f"variances must be >= 0, got {self._variances.min()}")
        self._deviations: Array = np.sqrt(self._variances)
        self.dim = self.size = len(self._variances)

    def whiten(self, vectors: Array) -> Array:
        return vectors * self._deviations

    colour = whiten

    def trace(self) -> float:
        return float(self._variances.sum())

    def on(self, backend: Backend) -> Diagonal:
        copy = Diagonal(self._variances)
        copy._deviations = backend.asarray(self._deviations)
        return copy


class LowRank(Covariance):
    """A diagonal plus a few common factors: Σ = diag(variances) + U Uᵀ, applied in O(dim · rank).

    Args:
        variances: The diagonal part, all >= 0.
        factor: U, of shape (dim, rank).

    Example:
        >>> LowRank([1.0, 1.0], [[1.0], [0.0]]).trace()
        3.0
    """

    def __init__(self, variances: npt.ArrayLike, factor: npt.ArrayLike) -> None:
        self._diagonal = Diagonal(variances)
        self._factor: Array = _values("factor", factor, 2)
        self.dim = self._diagonal.dim
        if self._factor.shape[0] != self.dim:
            shape = self._factor.shape
            raise ConfigError(f"factor must have {self.dim} rows as variances, got shape {shape}")
        self.size = self.dim + self._factor.shape[1]
        self._trace = self._diagonal.trace() + float((self._factor**2).sum())

    def whiten(self, vectors: Array) -> Array:
        xp = array_namespace(vectors)
        return xp.concat([self._diagonal.whiten(vectors), vectors @ self._factor], axis=-1)

    def colour(self, vectors: Array) -> Array:
        own, common = vectors[..., : self.dim], vectors[..., self.dim :]
        return self._diagonal.colour(own) + common @ self._factor.T

    def trace(self) -> float:
        return self._trace

    def on(self, backend: Backend) -> LowRank:
        copy = LowRank(self._diagonal._variances, self._factor)
        copy._diagonal = self._diagonal.on(backend)
        copy._factor = backend.asarray(self._factor)
        return copy
