"""A finished simulation: regret, rates and terms of the bounds; saved to Parquet, or drawn."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, fields
from importlib import import_module
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from driftrate.errors import ConfigError, MissingDependency
from driftrate.theory.bounds import (
    LossBound,
    PathBound,
    convex_lower,
    convex_upper,
    nonconvex_upper,
)

Floats = npt.NDArray[np.float64]
_FORMAT = 1
COLUMNS = ("regret", "step_regret", "gradient_regret", "rates", "distance", "shift")


@dataclass(frozen=True)
class Terms:
    """What the regret bounds need besides the run itself, each of shape (seeds, steps).

    Args:
        loss: ℓ̄_t(θ_t).
        loss_shift: |ℓ̄_t(θ_t) - ℓ̄_{t-1}(θ_t)|, 0 at the first step.
        noise_std: The deviation of one sample's gradient at θ_t.
        shift_product: <θ*_{t-1} - θ*_t, θ_t - θ*_{t-1}>, 0 at the first step.
    """

    loss: Floats
    loss_shift: Floats
    noise_std: Floats
    shift_product: Floats


@dataclass(frozen=True, eq=False)
class Run:
    """What `simulate` returns. Arrays are of shape (seeds, kept steps) unless said otherwise.

    Args:
        name: The schedule's name.
        step: The steps that were kept, from 1, of shape (kept steps,).
        batch_size: B_t, of shape (kept steps,).
        regret: Cumulative dynamic regret Σ_{s <= t} (ℓ̄_s(θ_s) - ℓ̄_s(θ*_s)); inf once diverged.
        step_regret: The regret of each step.
        gradient_regret: Σ_{s <= t} ‖∇ℓ̄_s(θ_s)‖², the non-convex notion (Section 5).
        rates: η_t.
        distance: D_t = ‖θ_t - θ*_t‖.
        shift: γ_{t-1} = ‖θ*_t - θ*_{t-1}‖, 0 at the first step.
        diverged_at: The step at which a seed diverged, 0 for never, of shape (seeds,).
        final_distance: ‖θ_{T+1} - θ*_T‖, of shape (seeds,).
        final_weights: θ_{T+1}, of shape (seeds, dim).
        weights: θ_t, of shape (seeds, kept steps, dim), where asked for.
        terms: What bounds need, where asked for.

    Example:
        >>> import driftrate as dr
        >>> stream = dr.streams.LinearStream(dr.streams.spiral(dim=4, steps=100), batch_size=16)
        >>> run = dr.simulate(stream, dr.LinearRate(dim=4, noise_std=0.1), seeds=3)
        >>> run.regret.shape, run.name
        ((3, 100), 'LinearRate')
    """

    name: str
    step: npt.NDArray[np.int64]
    batch_size: npt.NDArray[np.int64]
    regret: Floats
    step_regret: Floats
    gradient_regret: Floats
    rates: Floats
    distance: Floats
    shift: Floats
    diverged_at: npt.NDArray[np.int64]
    final_distance: Floats
    final_weights: npt.NDArray[Any]
    weights: npt.NDArray[Any] | None = None
    terms: Terms | None = None

    @property
    def seeds(self) -> int:
        """How many seeds ran."""
        return int(self.regret.shape[0])

    @property
    def total(self) -> Floats:
        """The regret at the end, of shape (seeds,)."""
        return self.regret[:, -1]

    def upper_bound(self, smoothness: float, noise_std: npt.ArrayLike | None = None) -> PathBound:
        """Return the convex upper bound's terms step by step.

        Args:
            smoothness: L.
            noise_std: A bound on the deviation of one sample's gradient; None for the true one.

        Returns:
            The terms of Theorem 4.2 (`theory.convex_upper`), of shape (seeds, steps).

        Example:
            >>> import driftrate as dr
            >>> stream = dr.streams.LinearStream(dr.streams.spiral(dim=4, steps=50), batch_size=16)
            >>> record = dr.simulation.Record(terms=True)
            >>> run = dr.simulate(stream, dr.ConstantRate(0.1), seeds=64, record=record)
            >>> bool(run.upper_bound(smoothness=1.0).total.mean() > run.total.mean())
            True
        """
        return convex_upper(self.rates, smoothness=smoothness, **self._path_terms(noise_std))

    def lower_bound(
        self, smoothness: float, strong_convexity: float, noise_std: npt.ArrayLike | None = None
    ) -> PathBound:
        """Return the convex lower bound's terms step by step.

        Args:
            smoothness: L.
            strong_convexity: μ.
            noise_std: The deviation of one sample's gradient; None for the true one.

        Returns:
            The terms of Theorem 4.7 (`theory.convex_lower`), of shape (seeds, steps).
        """
        return convex_lower(
            self.rates,
            smoothness=smoothness,
            strong_convexity=strong_convexity,
            **self._path_terms(noise_std),
        )

    def gradient_bound(
        self, smoothness: float, noise_std: npt.ArrayLike | None = None
    ) -> LossBound:
        """Return the bound on `gradient_regret` step by step.

        Args:
            smoothness: L.
            noise_std: A bound on the deviation of one sample's gradient; None for the true one.

        Returns:
            The terms of Theorem 5.1 (`theory.nonconvex_upper`), of shape (seeds, steps).
        """
        terms = self._every_step()
        return nonconvex_upper(
            self.rates,
            batch_sizes=self.batch_size,
            losses=terms.loss,
            loss_shifts=_ahead(terms.loss_shift),
            smoothness=smoothness,
            noise_std=terms.noise_std if noise_std is None else noise_std,
        )

    def _path_terms(self, noise_std: npt.ArrayLike | None) -> dict[str, Any]:
        terms = self._every_step()
        return {
            "batch_sizes": self.batch_size,
            "distances": np.concatenate([self.distance, self.final_distance[:, None]], axis=1),
            "shifts": _ahead(self.shift),
            "cross": _ahead(terms.shift_product),
            "noise_std": terms.noise_std if noise_std is None else noise_std,
        }

    def _every_step(self) -> Terms:
        if self.terms is None or len(self.step) != self.step[-1]:
            want = "simulate(..., record=Record(terms=True))"
            raise ConfigError(f"bounds need every step and its terms: {want}")
        return self.terms

    def to_parquet(self, path: str | PathLike[str]) -> None:
        """Write the run, one row per seed and kept step.

        Args:
            path: The file to write.
        """
        arrow = _need("pyarrow")
        parquet = _need("pyarrow.parquet")
        shape = self.regret.shape
        columns: dict[str, Any] = {
            "seed": np.repeat(np.arange(shape[0]), shape[1]),
            "step": np.tile(self.step, shape[0]),
            "batch_size": np.tile(self.batch_size, shape[0]),
        }
        for name in COLUMNS:
            columns[name] = getattr(self, name).ravel()
        if self.terms is not None:
            for field in fields(Terms):
                columns[f"terms.{field.name}"] = getattr(self.terms, field.name).ravel()
        if self.weights is not None:
            flat = arrow.array(self.weights.ravel())
            columns["weights"] = arrow.FixedSizeListArray.from_arrays(flat, self.weights.shape[-1])
        about = {
            "format": _FORMAT,
            "name": self.name,
            "seeds": shape[0],
            "diverged_at": self.diverged_at.tolist(),
            "final_distance": self.final_distance.tolist(),
            "final_weights": b64encode(self.final_weights.tobytes()).decode(),
            "dtype": str(self.final_weights.dtype),
        }
        table = arrow.table(columns).replace_schema_metadata({"driftrate": json.dumps(about)})
        parquet.write_table(table, path)

    @classmethod
    def from_parquet(cls, path: str | PathLike[str]) -> Run:
        """Read a run that `to_parquet` wrote.

        Args:
            path: The file to read.

        Returns:
            The run.
        """
        table = _need("pyarrow.parquet").read_table(path)
        meta = (table.schema.metadata or {}).get(b"driftrate")
        if meta is None:
            raise ConfigError(f"{path} is not a run: it lacks driftrate's metadata")
        about = json.loads(meta)
        if about["format"] != _FORMAT:
            raise ConfigError(f"{path} has format {about['format']}, this version reads {_FORMAT}")
        seeds = about["seeds"]
        final = np.frombuffer(b64decode(about["final_weights"]), dtype=about["dtype"])

        def column(name: str) -> Any:
            return table.column(name).to_numpy().reshape(seeds, -1)

        weights = None
        if "weights" in table.column_names:
            flat = table.column("weights").combine_chunks().flatten().to_numpy()
            weights = flat.reshape(seeds, table.num_rows // seeds, -1)
        terms = None
        if "terms.loss" in table.column_names:
            terms = Terms(**{f.name: column(f"terms.{f.name}") for f in fields(Terms)})
        return cls(
            name=about["name"],
            step=column("step")[0],
            batch_size=column("batch_size")[0],
            diverged_at=np.asarray(about["diverged_at"], dtype=np.int64),
            final_distance=np.asarray(about["final_distance"]),
            final_weights=final.reshape(seeds, -1),
            weights=weights,
            terms=terms,
            **{name: column(name) for name in COLUMNS},
        )

    def plot(self, axes: Any = None) -> Any:
        """Draw cumulative regret (mean and the range of the seeds) and the rates.

        Args:
            axes: Two matplotlib axes, or None for a new figure.

        Returns:
            The figure.
        """
        pyplot = _need("matplotlib.pyplot")
        if axes is None:
            _, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        drawn = ((self.regret, "cumulative regret"), (self.rates, "rate"))
        for axis, (values, label) in zip(axes, drawn, strict=True):
            alive = np.where(np.isfinite(values), values, np.nan)[self.diverged_at == 0]
            if len(alive):
                (line,) = axis.plot(self.step, alive.mean(axis=0), label=self.name)
                low, high = alive.min(axis=0), alive.max(axis=0)
                axis.fill_between(self.step, low, high, color=line.get_color(), alpha=0.2, lw=0)
            axis.set(xlabel="step", ylabel=label)
        axes[0].legend()
        return axes[0].figure


def _ahead(values: Floats) -> Floats:
    """Return the values of the next step, 0 after the last: shifts are revealed a step late."""
    return np.concatenate([values[:, 1:], np.zeros_like(values[:, :1])], axis=1)


def _need(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingDependency(f"this needs {package}: pip install 'driftrate[paper]'") from error
