"""Adam on many networks at once, each with its own rate and its own resets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from driftrate.data.cytometry import CellStream
from driftrate.paper.figure6.factor import Factor, Mode
from driftrate.paper.figure6.networks import Networks, one_thread
from driftrate.schedules import Schedule

# Networks trained together: enough to hide the cost of a call, few enough to stay in the cache.
_TOGETHER = 96


class Setting(NamedTuple):
    """One way to run Adam: a rate, and the steps (from 0) before which its moments are reset."""

    rate: float
    resets: tuple[int, ...] = ()


class Curves(NamedTuple):
    """Losses of each step before its update, and its rate, (..., seeds, steps)."""

    entropy: npt.NDArray[np.float32]
    penalty: npt.NDArray[np.float32]
    rate: npt.NDArray[np.float32]


class Adam:
    r"""Adam as Keras writes it, over a stack of networks.

    With m and v the moving averages of g and g², and t the steps since the network's last reset,

        θ ← θ - η √(1 - β₂ᵗ)/(1 - β₁ᵗ) m / (√v + ε),   β₁ = 0.9, β₂ = 0.999, ε = 1e-7.

    A reset sets m, v and t to 0 and leaves the weights.

    Args:
        networks: The networks.
        rates: η of each.

    Example:
        >>> import torch
        >>> nets = Networks([0], penalty=0.0, activated=False)
        >>> before = nets.weights.clone()
        >>> _ = nets.backward(torch.ones(1, 5, 10), torch.zeros(1, 5, dtype=torch.int64))
        >>> Adam(nets, torch.tensor([0.01])).step()
        >>> round(float((nets.weights - before).abs().max()), 4)
        0.01

    Reference:
        Kingma and Ba (2015), "Adam: a method for stochastic optimization", Section 2.
    """

    beta1, beta2, epsilon = 0.9, 0.999, 1e-7

    def __init__(self, networks: Networks, rates: Tensor) -> None:
        self._networks, self._rates = networks, rates.double()
        # mean is m, square v
        self.mean, self._square, self._root, self._step = (networks.zeros() for _ in range(4))
        self._root.fill_(self.epsilon)
        self._count = torch.zeros(networks.count, dtype=torch.float64)
        self._weights, self._steps = networks.views(networks.weights), networks.views(self._step)
        self._moments = networks.views(self.mean) + networks.views(self._square)

    def reset(self, chosen: Tensor) -> None:
        """Forget the moments of the networks chosen by a mask."""
        for moment in self._moments:
            moment[chosen] = 0.0
        self._count[chosen] = 0.0

    def product(self, one: Tensor, other: Tensor) -> Tensor:
        """Return Σ a_i b_i / (√v̂_i + ε) of each network: the product in the metric of its steps."""
        terms = self._networks.views(torch.div(one, self._root).mul_(other))
        sums = torch.stack([term.sum(dim=(1, 2)) for term in terms]).double().sum(dim=0)
        return self._unbias() * sums

    def step(self, factor: Tensor | float = 1.0) -> None:
        """Move all networks against `networks.gradient`, their rates times a factor."""
        gradient = self._networks.gradient
        self.mean.lerp_(gradient, 1 - self.beta1)
        self._square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        torch.sqrt(self._square, out=self._root).add_(self.epsilon)
        torch.div(self.mean, self._root, out=self._step)
        self._count += 1
        bias = self._unbias() / (1 - self.beta1**self._count)
        scale = (-self._rates * factor * bias).float()[:, None, None]
        for weights, step in zip(self._weights, self._steps, strict=True):
            weights.addcmul_(scale, step)

    def _unbias(self) -> Tensor:
        """Return √(1 - β₂ᵗ), which takes back that v started from 0."""
        return (1 - self.beta2**self._count).sqrt()


@dataclass(frozen=True, eq=False)
class Trial:
    """The network and the stream that optimisers are tried on."""

    stream: CellStream
    penalty: float = 1e-4  # c of the penalty c Σ W²
    activated: bool = False  # whether the logits are the last layer after its ELU


@one_thread()
def train(
    trial: Trial,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    schedule: Schedule | None = None,
    mode: Mode = "sequence",
) -> Curves:
    """Train one network per setting and seed; the settings of a seed see the same cells and start.

    Args:
        trial: The network and the stream.
        settings: Rates and resets.
        seeds: The seeds.
        schedule: Measures a factor on the rate of every step, or None for the rate as it is.
        mode: What it measures: whole gradients, or halves of each batch.

    Returns:
        The losses on every batch and the rates, (settings, seeds, steps).

    Example:
        >>> from driftrate.data.cytometry import CellStream, Phase, simulate_cells
        >>> stream = CellStream(simulate_cells(), phases=(Phase((0.0, 0.0, 0.0, 1.0), 3),))
        >>> curves = train(Trial(stream), [Setting(0.01), Setting(0.1, (2,))], seeds=[0, 1])
        >>> curves.entropy.shape
        (2, 2, 3)
    """
    block = max(1, _TOGETHER // len(settings))
    parts = [
        _train_block(trial, settings, seeds[start : start + block], schedule, mode)
        for start in range(0, len(seeds), block)
    ]
    return Curves(*(np.concatenate(part, axis=1) for part in zip(*parts, strict=True)))


def _train_block(
    trial: Trial,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    schedule: Schedule | None,
    mode: Mode,
) -> Curves:
    networks = Networks(list(seeds) * len(settings), trial.penalty, trial.activated)
    rates = torch.tensor([setting.rate for setting in settings]).repeat_interleave(len(seeds))
    adam = Adam(networks, rates)
    factor = None if schedule is None else Factor(schedule, networks, adam, mode)
    columns = [torch.empty(trial.stream.steps, networks.count) for _ in Curves._fields]
    entropy, penalty, rate = columns
    for step, (x, label) in enumerate(trial.stream.batches(seeds)):
        chosen = torch.tensor([step in setting.resets for setting in settings])
        if chosen.any():
            adam.reset(chosen.repeat_interleave(len(seeds)))
        everywhere = torch.from_numpy(x).repeat(len(settings), 1, 1)
        labels = torch.from_numpy(label).repeat(len(settings), 1)
        entropy[step], penalty[step] = (factor or networks).backward(everywhere, labels)
        share = 1.0 if factor is None else factor.value
        adam.step(share)
        rate[step] = rates * share
    shape = (len(settings), len(seeds), trial.stream.steps)
    return Curves(*(column.T.reshape(shape).numpy() for column in columns))
