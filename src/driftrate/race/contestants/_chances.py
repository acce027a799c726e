"""Scores of a network as what can be averaged, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def chances(task: str, scores: torch.Tensor) -> torch.Tensor:
    """Return what a score says: chances of classes, or a number as it is."""
    import torch

    if task == "classes":
        return torch.softmax(scores, dim=1)
    return torch.sigmoid(scores) if task == "binary" else scores


def scores(task: str, mixed: torch.Tensor) -> torch.Tensor:
    """Return scores whose chances are the mixed ones; numbers as they are."""
    import torch

    if task == "classes":
        return mixed.clamp(min=1e-30).log()
    return torch.logit(mixed, eps=1e-7) if task == "binary" else mixed
