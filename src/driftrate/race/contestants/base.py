"""What a contestant is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from driftrate.errors import ConfigError, MissingDependency
from driftrate.race.cell import canonical
from driftrate.race.models import MODELS, Floats, Labels, Model
from driftrate.race.networks.network import Network, Transformer

# The models whose scores are linear in the weights, and the networks.
LINEAR_MODELS = ("linear", "logistic", "softmax")
NETWORKS = ("mlp",)
TORCH = ("torch", "torch")
OTHER = 1_000_003  # added to a seed, for first weights that no seed of a stream draws


class Setup(NamedTuple):
    """What a contestant knows before the first batch.

    Args:
        model: The model to train.
        batch: The number of rows in a batch.
        steps: The number of batches, for the few methods that must be told their horizon.
        seed: The seed of first weights.
        device: Where torch keeps them.
    """

    model: Model | Network | Transformer
    batch: int
    steps: int
    seed: int
    device: str = "cpu"

    @property
    def linear(self) -> Model:
        """The model, for a method that trains none but linear ones."""
        if not isinstance(self.model, Model):
            raise ConfigError(f"this method trains linear models alone, got {self.model!r}")
        return self.model


class Player(Protocol):
    """A contestant at work.

    One that trains networks also has `learn` and `scores`, which are `step` and `forecast` on
    tensors. One that knows how many past rows it believes in says so as `memory`.
    """

    @property
    def rate(self) -> float | None:
        """The rate of the last step, None for a method that has none."""

    def step(self, x: Floats, y: Labels) -> Floats:
        """Train on a batch and return its scores by the weights of before."""

    def forecast(self, x: Floats) -> Floats:
        """Return the scores of rows that are not learned from."""


@dataclass(frozen=True)
class Contestant:
    """A method, its defaults and its grid.

    Args:
        name: Its name.
        family: Its kind, for the table.
        build: Makes a player from a `Setup` and the options of a setting.
        grid: The settings beside the default, as options of `build`.
        first_order: Whether it keeps no matrix.
        ours: Whether it is of this library.
        packages: The packages it needs, each as (module, what to install).
        least: The lowest version of the last package that has the method, where an older one will
            do for all others: major and minor.
        models: The models that it can train.
        by_row: Whether it learns from the rows of a batch one after the other, as many steps as
            rows, where others take one.
    """

    name: str
    family: str
    build: Callable[..., Player]
    grid: tuple[dict[str, Any], ...] = ()
    first_order: bool = True
    ours: bool = False
    packages: tuple[tuple[str, str], ...] = ()
    least: tuple[int, int] | None = None
    models: tuple[str, ...] = MODELS
    by_row: bool = False

    def settings(self, model: str) -> list[str]:
        """Return `"default"` and the grid as canonical JSON; none for a model it cannot train."""
        if model not in self.models:
            return []
        return ["default", *(canonical(point) for point in self.grid)]

    def available(self) -> str | None:
        """Return None, or which package is missing or too old."""
        missing = [pip for module, pip in self.packages if find_spec(module) is None]
        if missing:
            return f"needs {', '.join(missing)}: pip install 'driftrate[race]'"
        if self.least is not None:
            package = self.packages[-1][1]
            major, minor = version(package).split(".")[:2]
            if (int(major), int(minor)) < self.least:
                wanted = f"{package}>={self.least[0]}.{self.least[1]}"
                return f"needs {wanted}: pip install '{wanted}'"
        return None

    def make(self, setting: str, setup: Setup) -> Player:
        """Return a player at a setting."""
        reason = self.available()
        if reason is not None:
            raise MissingDependency(f"{self.name} {reason}")
        try:
            options = {} if setting == "default" else json.loads(setting)
        except json.JSONDecodeError:
            said = f"a setting must be 'default' or JSON of options, got {setting!r}"
            raise ConfigError(said) from None
        return self.build(setup, **options)


def grid(name: str, values: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Return a grid over one option.

    Example:
        >>> grid("lr", [0.1, 0.3])
        ({'lr': 0.1}, {'lr': 0.3})
    """
    return tuple({name: value} for value in values)
