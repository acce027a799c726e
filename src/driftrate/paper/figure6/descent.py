"""Plain SGD on many networks at once, each with a schedule that sees its own losses."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from driftrate.estimate import variance_from_samples
from driftrate.paper.figure6.adam import Trial
from driftrate.paper.figure6.halves import backward_halves
from driftrate.paper.figure6.networks import Networks, one_thread
from driftrate.paper.figure6.protocols import Constants, Method
from driftrate.schedules import Schedule, Signal

# The step of a Hessian product: small against the weights, large against rounding.
_REACH, _POWER_STEPS = 1e-3, 30


class Descent(NamedTuple):
    """Losses before each update and the rates, (seeds, steps)."""

    entropy: npt.NDArray[np.float32]
    penalty: npt.NDArray[np.float32]
    rate: npt.NDArray[np.float32]


def measure_constants(networks: Networks, x: Tensor, label: Tensor) -> list[Constants]:
    r"""Measure smoothness and noise of each network on one batch, at its current weights.

    L is the curvature along the steepest direction, ‖H v‖ after power steps v ← H v / ‖H v‖ with
    H v from two gradients; σ² is the sample variance of the gradients of single samples.

    Args:
        networks: The networks; their weights are left as they were.
        x: The batch, (networks, batch, 10).
        label: Its labels.

    Returns:
        One pair per network.

    Example:
        >>> import torch
        >>> nets = Networks([0], penalty=0.0, activated=False)
        >>> x = torch.arange(20.0).reshape(1, 2, 10)
        >>> found = measure_constants(nets, x, torch.tensor([[0, 1]]))
        >>> found[0].smoothness > 0, found[0].noise_std > 0
        (True, True)

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023): "sample estimates for σ, L", Remark 4.4.
    """
    start = networks.weights.clone()
    networks.backward(x, label)
    slope = networks.gradient.clone()
    direction = slope.clone()
    curvature = torch.zeros(networks.count)
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
    pairs = zip(curvature.tolist(), noise.tolist(), strict=True)
    return [Constants(smoothness, deviation) for smoothness, deviation in pairs]


def descend(trial: Trial, method: Method, seeds: Sequence[int]) -> Descent:
    """Train one network per seed by SGD whose rate a schedule chooses.

    Each network measures its constants on its first batch and gives its schedule, at every step,
    the loss of the batch it is about to learn from and `loss_shift`, how much that differs from
    the loss of the last batch at the same weights. Where the schedule reads half-batch gradients
    (`cross`, `spread`), it gets them too.

    Args:
        trial: The network and the stream.
        method: Makes the schedule from the constants.
        seeds: The seeds.

    Returns:
        Losses and rates.

    Example:
        >>> from driftrate.data.cytometry import CellStream, Phase, simulate_cells
        >>> stream = CellStream(simulate_cells(), phases=(Phase((0.0, 0.0, 0.0, 1.0), 3),))
        >>> from driftrate.paper.figure6.protocols import paper_rule
        >>> descend(Trial(stream), paper_rule, seeds=[0, 1]).rate.shape
        (2, 3)
    """
    with one_thread():
        return _descend(trial, method, seeds)


def _descend(trial: Trial, method: Method, seeds: Sequence[int]) -> Descent:
    networks = Networks(seeds, trial.penalty, trial.activated)
    weights, slopes = networks.views(networks.weights), networks.views(networks.gradient)
    shape = (trial.stream.steps, networks.count)
    entropy, penalty, rates = (torch.empty(shape) for _ in range(3))
    rules: list[Schedule] = []
    last: tuple[Tensor, Tensor] | None = None
    for step, batch in enumerate(trial.stream.batches(seeds)):
        x, label = (torch.from_numpy(np.ascontiguousarray(part)) for part in batch)
        if last is None:
            rules = [method(constants) for constants in measure_constants(networks, x, label)]
            states = [rule.init() for rule in rules]
            rate = [0.0] * networks.count
            before = sum(networks.forward(x, label))
        else:
            before = sum(networks.forward(*last))
        last = x, label
        halves = "cross" in rules[0].signals
        entropy[step], penalty[step], measured = _gradient(networks, x, label, halves)
        loss = entropy[step] + penalty[step]
        columns = {"loss": loss, "loss_shift": (loss - before).abs(), **measured}
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        for slot, row in enumerate(rows):
            # A network that diverged has nothing left to say; it keeps its last rate.
            if all(map(isfinite, row)):
                fields = dict(zip(columns, row, strict=True))
                signal = Signal(batch_size=float(label.shape[1]), **fields)
                rate[slot], states[slot] = rules[slot].update(states[slot], signal)
        rates[step] = torch.tensor(rate)
        for part, slope in zip(weights, slopes, strict=True):
            part.addcmul_(rates[step][:, None, None], slope, value=-1.0)
    return Descent(entropy.T.numpy(), penalty.T.numpy(), rates.T.numpy())


def _gradient(
    networks: Networks, x: Tensor, label: Tensor, halves: bool
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Leave the batch's gradient in the networks; return its losses and what its halves say."""
    if not halves:
        return *networks.backward(x, label), {}
    losses, gap = backward_halves(networks, x, label)
    square, spread = (networks.rows(part).square().sum(dim=1) for part in (networks.gradient, gap))
    parts = torch.full_like(square, 2.0)
    found = {"grad_sq": square, "parts": parts, "cross": square - spread, "spread": spread}
    return *losses, found
