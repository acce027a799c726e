"""A factor on Adam's rate that a schedule measures, for many networks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from driftrate.adapters._observe import capped
from driftrate.paper.figure6.halves import backward_halves
from driftrate.paper.figure6.networks import Losses, Networks
from driftrate.schedules import Schedule, Signal

if TYPE_CHECKING:
    from driftrate.paper.figure6.adam import Adam


class Factor:
    r"""A measured factor on Adam's rate, as `driftrate.torch.attach` has it, for many networks.

    Gradients are multiplied in the metric ⟨a, b⟩ = Σ a_i b_i / (√v̂_i + ε) that Adam steps in, with
    the moments before the step. The first step has none: it shows nothing, and the factor is the
    one that the schedule starts from. A schedule that reads `cross` sees the halves of each batch,
    and how large it is; one that does not sees whole gradients, and nobody tells it.

    Args:
        schedule: The schedule; without a `max_rate` its factor is at most 1.
        networks: The networks.
        adam: Their optimiser.

    Example:
        >>> import torch
        >>> from driftrate import MeasuredRate
        >>> from driftrate.paper.figure6.adam import Adam
        >>> nets = Networks([0, 1], penalty=0.0, activated=False)
        >>> adam = Adam(nets, torch.tensor([0.01, 0.01]))
        >>> factor = Factor(MeasuredRate(), nets, adam)
        >>> for _ in range(2):
        ...     _ = factor.backward(torch.ones(2, 4, 10), torch.zeros(2, 4, dtype=torch.int64))
        ...     adam.step(factor.value)
        >>> bool(((0 < factor.value) & (factor.value <= 1)).all())
        True
    """

    def __init__(self, schedule: Schedule, networks: Networks, adam: Adam) -> None:
        self._schedule, self._networks, self._adam = capped(schedule), networks, adam
        self._halves = "cross" in self._schedule.signals
        like = torch.zeros(networks.count, dtype=torch.float64)
        self._state = self._schedule.init(like=like)
        self._blind = True  # until there are moments

    @property
    def value(self) -> Tensor:
        """The factor of each network."""
        value: Tensor = self._state[self._schedule.output]
        return value

    def backward(self, x: Tensor, label: Tensor) -> Losses:
        """Return the losses of a batch, leave its gradient in the networks, and measure it."""
        if not self._halves:
            losses = self._networks.backward(x, label)
            self._measure(Signal())
            return losses
        losses, gap = backward_halves(self._networks, x, label)
        spread = self._adam.product(gap, gap)
        self._measure(Signal(batch_size=float(label.shape[1]), parts=2, spread=spread))
        return losses

    def _measure(self, signal: Signal) -> None:
        if self._blind:
            self._blind = False
            return
        adam, gradient = self._adam, self._networks.gradient
        square = adam.product(gradient, gradient)
        signal = signal._replace(
            grad_sq=square,
            cross=None if signal.spread is None else square - signal.spread,
            dim=gradient.numel() // self._networks.count,
            # Adam's average of past gradients is the trail of them, up to a factor.
            trail=adam.product(gradient, adam.mean) / (1 - adam.beta1),
        )
        _, self._state = self._schedule.update(self._state, signal)
