"""Arrays and random numbers: NumPy on the host, torch on any device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

import array_api_compat.numpy as np_compat
import numpy as np

from driftrate.errors import ConfigError, MissingDependency
from driftrate.schedules.base import Array

DTYPES = ("float32", "float64")


class Backend(ABC):
    """One array library, one device, one generator.

    Weights and samples have the chosen precision (`dtype`); the few numbers per seed are always
    float64, so that float32 costs accuracy only where it saves time.
    """

    xp: Any
    dtype: Any
    real: Any  # float64 of the library
    device: Any = None
    host: bool = False  # whether values can be read without waiting for a device

    @abstractmethod
    def asarray(self, values: Array, *, scalar: bool = False) -> Array:
        """Return the values on the device, as weights or (`scalar`) as one number per seed."""

    @abstractmethod
    def fill_normal(self, out: Array) -> None:
        """Fill a contiguous array with independent standard normals."""

    @abstractmethod
    def scalar_normal(self, *shape: int) -> Array:
        """Return independent standard normals in float64."""

    @abstractmethod
    def chisquare(self, freedom: float, *shape: int) -> Array:
        """Return chi-squares in float64; zeros for 0 degrees of freedom."""

    @abstractmethod
    def uniform(self, *shape: int) -> Array:
        """Return uniforms on [0, 1)."""

    @abstractmethod
    def poisson(self, mean: Array) -> Array:
        """Return Poisson counts with the given means, in the dtype of `mean`."""

    @abstractmethod
    def add_scaled(self, out: Array, factor: Array, normals: Array) -> None:
        """Add factor * normals to every lane of `out` in place; the normals may be overwritten."""

    @abstractmethod
    def positive(self, array: Array) -> Array:
        """Return max(array, 0); NaN stays NaN."""

    @abstractmethod
    def to_numpy(self, array: Array) -> np.ndarray:
        """Return the array on the host."""

    def zeros(self, *shape: int, scalar: bool = False) -> Array:
        """Return zeros."""
        dtype = self.real if scalar else self.dtype
        return self.xp.zeros(shape, dtype=dtype, device=self.device)

    def empty(self, *shape: int) -> Array:
        """Return an array of weights to be filled."""
        return self.xp.empty(shape, dtype=self.dtype, device=self.device)

    def small(self, array: Array) -> Array:
        """Return float64 numbers in the precision of the weights, with an axis for the weights."""
        return self.xp.astype(array, self.dtype, copy=False)[..., None]

    def normal(self, *shape: int) -> Array:
        """Return independent standard normals in the precision of the weights."""
        out = self.empty(*shape)
        self.fill_normal(out)
        return out


class NumpyBackend(Backend):
    """NumPy with the SFC64 generator, the fastest of NumPy's for normals."""

    # From 2.1 on NumPy follows the array API itself, without the cost of a wrapper per call.
    xp = np if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else np_compat
    real = np.float64
    host = True

    def __init__(self, seed: int | np.random.SeedSequence, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._generator = np.random.Generator(np.random.SFC64(seed))

    def asarray(self, values: Array, *, scalar: bool = False) -> Array:
        return np.asarray(values, dtype=self.real if scalar else self.dtype)

    def fill_normal(self, out: Array) -> None:
        self._generator.standard_normal(out=out, dtype=out.dtype)

    def scalar_normal(self, *shape: int) -> Array:
        return self._generator.standard_normal(shape)

    def chisquare(self, freedom: float, *shape: int) -> Array:
        return 2 * self._generator.standard_gamma(0.5 * freedom, shape)

    def uniform(self, *shape: int) -> Array:
        return self._generator.random(shape, dtype=self.dtype)

    def poisson(self, mean: Array) -> Array:
        # NumPy refuses means over 9e18 and NaN; such a learner has diverged already.
        safe = np.where(mean < 1e18, mean, 1e18)
        counts = self._generator.poisson(safe).astype(mean.dtype)
        return np.where(mean < 1e18, counts, np.inf)

    def add_scaled(self, out: Array, factor: Array, normals: Array) -> None:
        """Add factor * normals in place; the last lane, often the only one, takes no temporary."""
        for lane in range(len(out) - 1):
            out[lane] += factor[lane] * normals
        normals *= factor[-1]
        out[-1] += normals

    def positive(self, array: Array) -> Array:
        return np.maximum(array, 0.0)

    def to_numpy(self, array: Array) -> np.ndarray:
        return np.asarray(array)


class TorchBackend(Backend):
    """Torch with a generator on the device; no value is read back to the host."""

    def __init__(self, seed: Any, dtype: str, device: Any) -> None:
        try:
            self._torch = import_module("torch")
            self.xp = import_module("array_api_compat.torch")
        except ImportError as error:
            message = "backend='torch' needs torch: pip install 'driftrate[torch]'"
            raise MissingDependency(message) from error
        torch = self._torch
        self.dtype, self._narrow = getattr(torch, dtype), np.dtype(dtype)
        self.real = torch.float64
        self.device = torch.device("cpu" if device is None else device)
        self._generator = torch.Generator(device=self.device)
        self._generator.manual_seed(seed)
        self._drawn = {"device": self.device, "generator": self._generator}

    def asarray(self, values: Array, *, scalar: bool = False) -> Array:
        dtype = self.real if scalar else self.dtype
        if isinstance(values, np.ndarray) and not values.flags.writeable:
            # Torch warns of memory that it could write into.
            values = values.astype(np.float64 if scalar else self._narrow)
        return self._torch.as_tensor(values, dtype=dtype, device=self.device)

    def fill_normal(self, out: Array) -> None:
        out.normal_(generator=self._generator)

    def scalar_normal(self, *shape: int) -> Array:
        return self._torch.randn(shape, dtype=self.real, **self._drawn)

    def chisquare(self, freedom: float, *shape: int) -> Array:
        if freedom == 0:
            return self.zeros(*shape, scalar=True)
        half = self._torch.full(shape, 0.5 * freedom, dtype=self.real, device=self.device)
        # The public torch.distributions.Gamma takes no generator; it calls this function.
        return 2 * self._torch._standard_gamma(half, generator=self._generator)

    def uniform(self, *shape: int) -> Array:
        return self._torch.rand(shape, dtype=self.dtype, **self._drawn)

    def poisson(self, mean: Array) -> Array:
        sane = self._torch.where(mean < 1e18, mean, 0.0)  # a learner beyond has diverged already
        return self._torch.poisson(sane, generator=self._generator)

    def add_scaled(self, out: Array, factor: Array, normals: Array) -> None:
        """Add factor * normals in place, in one kernel."""
        out.addcmul_(normals, factor)

    def positive(self, array: Array) -> Array:
        return self._torch.clamp(array, min=0.0)

    def to_numpy(self, array: Array) -> np.ndarray:
        # In order on the device, where that is cheap.
        return np.asarray(array.contiguous().cpu().numpy())


def make_backend(name: str, seed: int | np.random.SeedSequence, dtype: str, device: Any) -> Backend:
    """Return the backend "numpy" or "torch" with a fresh generator; the device is for torch."""
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {DTYPES}, got {dtype!r}")
    if name == "numpy":
        if device is not None:
            raise ConfigError(f"backend='numpy' has no device, got device={device!r}; use 'torch'")
        return NumpyBackend(seed, dtype)
    if name == "torch":
        return TorchBackend(seed, dtype, device)
    raise ConfigError(f"backend must be 'numpy' or 'torch', got {name!r}")
