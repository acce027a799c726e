"""A model of the race as a torch module, for the contestants that are torch optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from driftrate.race.models import Floats, Model


class Net(nn.Module):
    """The model with the given flat weights; its scores have the shape of `Model.scores`.

    The first layer has no bias of its own: x has a column of ones.
    """

    def __init__(self, model: Model, theta: Floats) -> None:
        super().__init__()
        self.single = model.task != "classes"
        flat = torch.from_numpy(theta.astype(np.float32))
        width = model.hidden or model.outputs
        cut = model.features * width
        self.first = nn.Parameter(flat[:cut].reshape(model.features, width).clone())
        self.second: nn.Linear | None = None
        if model.hidden:
            self.second = nn.Linear(model.hidden, model.outputs)
            rest = flat[cut:].reshape(model.hidden + 1, model.outputs)
            with torch.no_grad():
                self.second.weight.copy_(rest[:-1].T)
                self.second.bias.copy_(rest[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        out = x @ self.first
        if self.second is not None:
            out = self.second(torch.relu(out))
        return out[:, 0] if self.single else out


def loss(task: str, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a batch, the one that `models.losses` defines."""
    if task == "regression":
        return 0.5 * nn.functional.mse_loss(scores, y)
    if task == "binary":
        return nn.functional.binary_cross_entropy_with_logits(scores, y)
    return nn.functional.cross_entropy(scores, y)


def tensors(task: str, x: Floats, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch in single precision."""
    kind = torch.int64 if task == "classes" else torch.float32
    return torch.from_numpy(x).to(torch.float32), torch.from_numpy(y).to(kind)
