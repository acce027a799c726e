"""Plain SGD on many networks at once, each with a schedule that sees its own losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from driftrate.estimate import variance_from_samples
from driftrate.paper.figure6.adam import Curves, Trial
from driftrate.paper.figure6.networks import Networks, one_thread
from driftrate.schedules import Schedule, Signal

# The step of a Hessian product: small against the weights, large against rounding.
_REACH, _POWER_STEPS = 1e-3, 30


class Constants(NamedTuple):
    """What a schedule of the paper must be told about a network's loss."""

    smoothness: float
    noise_std: float


Method = Callable[[float, float], Schedule]  # from the constants


def measure_constants(networks: Networks, x: Tensor, label: Tensor) -> list[Constants]:
    r"""Measure smoothness and noise of each network on one batch, at its current weights.

    L is the curvature along the steepest direction, ‖H v‖ after power steps v ← H v / ‖H v‖ with
    H v from two gradients; σ² is the sample variance of the gradients of single samples.

    Args:
        networks: The networks; their weights are left as they were.
        x: The batch, (networks, batch, 10).
        label: Its labels.

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023): "sample estimates for σ, L", Remark 4.4.
    """
    start = networks.weights.clone()
    networks.backward(x, label)
    slope, direction = networks.gradient.clone(), networks.gradient.clone()
    for _ in range(_POWER_STEPS):
        length = networks.rows(direction).norm(dim=1).clamp_min(1e-30)
        for part in networks.views(direction):
            part.div_(length[:, None, None])
        networks.weights.copy_(start + _REACH * direction)
        networks.backward(x, label)
        direction = (networks.gradient - slope) / _REACH
    curvature = networks.rows(direction).norm(dim=1)
    networks.weights.copy_(start)
    samples = []
    for place in range(x.shape[1]):
        networks.backward(x[:, place : place + 1], label[:, place : place + 1])
        samples.append(networks.rows(networks.gradient))
    noise = variance_from_samples(torch.stack(samples)).sqrt()
    return list(map(Constants, curvature.tolist(), noise.tolist()))


@one_thread()
def descend(trial: Trial, method: Method, seeds: Sequence[int]) -> Curves:
    """Train one network per seed by SGD whose rate a schedule chooses.

    Each network measures its constants on its first batch and gives its schedule, at every step,
    the loss of the batch it is about to learn from and `loss_shift`, how much that differs from
    the loss of the last batch at the same weights.

    Args:
        trial: The network and the stream.
        method: Makes the schedule from the constants.
        seeds: The seeds.

    Returns:
        Losses and rates, (seeds, steps).

    Example:
        >>> from driftrate import NonconvexRate
        >>> from driftrate.data.cytometry import CellStream, Phase, simulate_cells
        >>> stream = CellStream(simulate_cells(), phases=(Phase((0.0, 0.0, 0.0, 1.0), 3),))
        >>> descend(Trial(stream), NonconvexRate, seeds=[0, 1]).rate.shape
        (2, 3)
    """
    networks = Networks(seeds, trial.penalty, trial.activated)
    weights, slopes = networks.views(networks.weights), networks.views(networks.gradient)
    columns = [torch.empty(trial.stream.steps, networks.count) for _ in Curves._fields]
    entropy, penalty, rates = columns
    last: tuple[Tensor, Tensor] | None = None
    for step, batch in enumerate(trial.stream.batches(seeds)):
        x, label = (torch.from_numpy(np.ascontiguousarray(part)) for part in batch)
        if last is None:
            rules = [method(*constants) for constants in measure_constants(networks, x, label)]
            states, rate = [rule.init() for rule in rules], [0.0] * networks.count
        before = sum(networks.forward(*(last or (x, label))))
        last = x, label
        entropy[step], penalty[step] = networks.backward(x, label)
        loss = entropy[step] + penalty[step]
        shifts = (loss - before).abs().tolist()
        for slot, (value, shift) in enumerate(zip(loss.tolist(), shifts, strict=True)):
            # A network that diverged has nothing left to say; it keeps its last rate.
            if isfinite(value) and isfinite(shift):
                signal = Signal(batch_size=float(label.shape[1]), loss=value, loss_shift=shift)
                rate[slot], states[slot] = rules[slot].update(states[slot], signal)
        rates[step] = torch.tensor(rate)
        for part, slope in zip(weights, slopes, strict=True):
            part.addcmul_(rates[step][:, None, None], slope, value=-1.0)
    return Curves(*(column.T.numpy() for column in columns))
