"""The networks of the race, described without torch and made with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from driftrate.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

HIDDEN = (128, 128)


def widths(text: str | None) -> tuple[int, ...]:
    """Return the widths of hidden layers from text with commas between.

    Example:
        >>> widths("300, 150"), widths(None)
        ((300, 150), (128, 128))
    """
    if text is None:
        return HIDDEN
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        said = "whole numbers from 1 on with commas between, such as 128,128"
        raise ConfigError(f"hidden must be {said}, got {text!r}")
    return found


@dataclass(frozen=True)
class Network:
    """A ReLU network with the first weights that torch gives it.

    Args:
        task: What is predicted.
        features: The number of columns.
        outputs: The number of scores: the classes if there are more than two, else 1.
        hidden: The widths of the hidden layers.

    Example:
        >>> Network("regression", features=3, outputs=1, hidden=(8,)).module(seed=0)
        Sequential(
          (0): Linear(in_features=3, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=1, bias=True)
        )
    """

    task: Literal["regression", "binary", "classes"]
    features: int
    outputs: int
    hidden: tuple[int, ...] = HIDDEN

    def module(self, seed: int) -> nn.Module:
        """Return the network, its first weights drawn with a seed."""
        import torch
        from torch import nn

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers: list[nn.Module] = []
            width = self.features
            for after in self.hidden:
                layers += [nn.Linear(width, after), nn.ReLU()]
                width = after
            return nn.Sequential(*layers, nn.Linear(width, self.outputs))


@dataclass(frozen=True)
class Transformer:
    """A byte-level language model: what comes next at every place of a context.

    Args:
        width: The width of a layer.
        layers: The number of layers.
        heads: The number of heads of attention.
        context: The bytes of a row.
        task: What is predicted: one of the bytes.
        outputs: How many bytes there are.
    """

    width: int = 192
    layers: int = 4
    heads: int = 6
    context: int = 128
    task: Literal["classes"] = "classes"
    outputs: int = 256

    def module(self, seed: int) -> nn.Module:
        """Return the model, its first weights drawn with a seed."""
        import torch

        from driftrate.race.networks._transformer import Decoder

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Decoder(self.width, self.layers, self.heads, self.context, self.outputs)
