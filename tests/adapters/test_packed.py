"""Small parameters are looked at in one vector, and nothing is lost by it."""

from __future__ import annotations

import copy

import pytest
import torch

import driftrate as dr
import driftrate.torch
from driftrate.adapters.torch import packed as packing
from driftrate.adapters.torch.packed import packed

SCHEDULES = {
    "lead": dr.MeasuredRate(),
    "trail": dr.MeasuredRate(max_rate=0.05),
    "memory": dr.Estimated(dr.ConvexRate(1.0, 1.0, 1.0), dr.estimate.DebiasedShift()),
    "step length": dr.Estimated(
        dr.NonconvexRate(smoothness=4.0, noise_std=1.0), dr.estimate.LossShift()
    )
    if hasattr(dr.estimate, "LossShift")
    else dr.MeasuredRate(max_rate=0.1),
}
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
