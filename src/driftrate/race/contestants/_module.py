"""A model of the race as a torch module, for the contestants that are torch optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from driftrate.race.models import Floats, Model
from driftrate.race.networks.network import Network, Transformer


class Linear(nn.Module):
    """A linear model that starts at 0; its scores are (rows, outputs).

    It has no bias of its own: x has a column of ones.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(model.features, model.outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return x @ self.first


def module(model: Model | Network | Transformer, seed: int) -> nn.Module:
    """Return the module of a model, with the first weights of a seed."""
    return Linear(model) if isinstance(model, Model) else model.module(seed)


def tensors(task: str, x: Floats, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch in single precision."""
    kind = torch.int64 if task == "classes" else torch.float32
    return torch.from_numpy(x).to(torch.float32), torch.from_numpy(y).to(kind)
