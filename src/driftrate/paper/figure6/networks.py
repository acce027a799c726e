"""Many small networks at once: stacked weights, one batched product a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import elu_

WIDTHS = (10, 64, 32, 16, 8, 4)


class Losses(NamedTuple):
    """What one batch costs each network."""

    entropy: Tensor  # the mean cross entropy of the batch
    penalty: Tensor  # c Σ W², over the kernels


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: products this small only lose by sharing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Networks:
    r"""A stack of perceptrons 10 → 64 → 32 → 16 → 8 → 4 with ELU between their layers.

    The loss of each is the mean cross entropy of its batch plus c Σ W² over all kernels (not the
    biases). The gradient is written out, not recorded: with a = ELU(z), da/dz = min(a + 1, 1).
    All weights of all networks lie in one vector, layer after layer, so that an optimiser is a few
    operations on vectors; `kernels` and `biases` are views of it.

    Args:
        seeds: One per network: its initial kernels, Glorot uniform; biases start at 0.
        penalty: c.
        activated: Whether the last layer too has an ELU, so that the logits are over -1.

    Example:
        >>> import torch
        >>> nets = Networks([0, 1], penalty=0.0, activated=False)
        >>> losses = nets.backward(torch.ones(2, 5, 10), torch.zeros(2, 5, dtype=torch.int64))
        >>> losses.entropy.shape, nets.gradient.shape == nets.weights.shape
        (torch.Size([2]), True)

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Section 6.2; Glorot and Bengio (2010).
    """

    def __init__(self, seeds: Sequence[int], penalty: float, activated: bool) -> None:
        self.count, self.penalty, self.activated = len(seeds), penalty, activated
        shapes = list(pairwise(WIDTHS))
        self._shapes = [(self.count, *shape) for shape in shapes]
        self._shapes += [(self.count, 1, outer) for _, outer in shapes]
        self._sizes = list(map(prod, self._shapes))
        self.weights, self.gradient = self.zeros(), self.zeros()
        self.kernels, self.biases = self._split(self.weights)
        self._slopes, self._bias_slopes = self._split(self.gradient)
        for slot, seed in enumerate(seeds):
            rng = np.random.default_rng([1, seed])
            for kernel, shape in zip(self.kernels, shapes, strict=True):
                limit = np.sqrt(6 / sum(shape))
                kernel[slot] = torch.from_numpy(rng.uniform(-limit, limit, shape))

    def zeros(self) -> Tensor:
        """Return a vector like `weights`, of zeros."""
        return torch.zeros(sum(self._sizes))

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return a vector like `weights` cut into one array a layer, networks first."""
        parts = torch.split(vector, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def rows(self, vector: Tensor) -> Tensor:
        """Return a vector like `weights` as one row per network, copied."""
        return torch.cat([part.flatten(1) for part in self.views(vector)], dim=1)

    def forward(self, x: Tensor, label: Tensor) -> Losses:
        """Return the losses of a batch x of (networks, batch, 10) with labels (networks, batch)."""
        logits = self._activations(x)[-1]
        chosen = logits.log_softmax(-1).gather(-1, label[..., None])
        return Losses(-chosen.mean(dim=(1, 2)), self._penalties())

    def backward(self, x: Tensor, label: Tensor) -> Losses:
        """Return the losses of a batch and leave its gradient in `gradient`."""
        activations, place = self._activations(x), label[..., None]
        chances = activations[-1].log_softmax(-1)
        entropy = -chances.gather(-1, place).mean(dim=(1, 2))
        slope = chances.exp_()
        slope.scatter_add_(-1, place, slope.new_full((), -1.0).expand(place.shape))
        slope /= label.shape[1]
        for layer in reversed(range(len(self.kernels))):
            if self.activated or layer < len(self.kernels) - 1:
                slope *= (activations[layer + 1] + 1.0).clamp_(max=1.0)
            torch.bmm(activations[layer].mT, slope, out=self._slopes[layer])
            torch.sum(slope, dim=1, keepdim=True, out=self._bias_slopes[layer])
            if layer:
                slope = torch.bmm(slope, self.kernels[layer].mT)
        if self.penalty:
            kernels = sum(kernel.numel() for kernel in self.kernels)
            self.gradient[:kernels].add_(self.weights[:kernels], alpha=2 * self.penalty)
        return Losses(entropy, self._penalties())

    def _activations(self, x: Tensor) -> list[Tensor]:
        found, last = [x], len(self.kernels) - 1
        for layer, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            value = torch.baddbmm(bias, found[-1], kernel)
            found.append(elu_(value) if self.activated or layer < last else value)
        return found

    def _penalties(self) -> Tensor:
        squares = [torch.linalg.vector_norm(kernel, dim=(1, 2)) ** 2 for kernel in self.kernels]
        return self.penalty * torch.stack(squares).sum(dim=0)

    def _split(self, vector: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        views = self.views(vector)
        return views[: len(views) // 2], views[len(views) // 2 :]
