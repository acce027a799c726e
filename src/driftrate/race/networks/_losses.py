"""The losses and errors of `driftrate.race.models`, on tensors."""

from __future__ import annotations

import torch
from torch import nn


def loss(task: str, scores: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Return the loss that `models.losses` defines: its mean, or with "none" that of each row.

    Scores are (rows, outputs), or those of several places of a row, (rows, places, outputs).
    """
    if task == "classes":
        flat = scores.reshape(-1, scores.shape[-1])
        return nn.functional.cross_entropy(flat, y.reshape(-1), reduction=reduction)
    if task == "binary":
        single = scores[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(single, y, reduction=reduction)
    return 0.5 * nn.functional.mse_loss(scores[:, 0], y, reduction=reduction)


def errors(task: str, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the error of every row: squared for a regression, else whether the class is wrong."""
    if task == "regression":
        return (scores[:, 0] - y) ** 2
    if task == "binary":
        return (scores[:, 0] > 0) != (y > 0.5)
    return scores.argmax(dim=-1) != y
