"""A factor on Adam's rate that a schedule measures, for many networks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from driftrate.adapters._observe import Base, Space, measure, of_parts, settle
from driftrate.paper.figure6.halves import backward_halves
from driftrate.paper.figure6.networks import Losses, Networks
from driftrate.schedules import Schedule, Signal

if TYPE_CHECKING:
    from driftrate.paper.figure6.adam import Adam

Mode = Literal["sequence", "parts"]
_MODES = {"sequence": "whole gradients", "parts": "halves of each batch"}


class Factor:
    r"""A measured factor on Adam's rate, as `driftrate.torch.attach` has it, for many networks.

    Gradients are multiplied in the metric ⟨a, b⟩ = Σ a_i b_i / (√v̂_i + ε) that Adam steps in, with
    the moments before the step. The first step has none: it shows nothing, and the factor is the
    one that the schedule starts from.

    Args:
        schedule: The schedule; without a `max_rate` its factor is at most 1.
        networks: The networks.
        adam: Their optimiser.
        mode: "sequence" for whole gradients; "parts" for the halves of each batch, whose size is
            then told too.
    """

    def __init__(self, schedule: Schedule, networks: Networks, adam: Adam, mode: Mode) -> None:
        base = Base(plain=False, rate=None)
        loop = settle(schedule, base, modes=_MODES, mode=mode, relative=True)
        self._schedule, self._networks, self._adam = loop.schedule, networks, adam
        self._halves = mode == "parts"
        self._space = Space(adam.product, torch.sub)
        self._state = self._schedule.init(like=torch.zeros(networks.count, dtype=torch.float64))
        self._blind = True  # until there are moments

    @property
    def value(self) -> Tensor:
        """The factor of each network."""
        value: Tensor = self._state[self._schedule.output]
        return value

    def backward(self, x: Tensor, label: Tensor) -> Losses:
        """Return the losses of a batch, leave its gradient in the networks, and measure it."""
        if self._halves:
            losses, gap = backward_halves(self._networks, x, label)
        else:
            losses, gap = self._networks.backward(x, label), None
        if self._blind:
            self._blind = False
            return losses
        adam, gradient, reads = self._adam, self._networks.gradient, self._schedule.signals
        found = measure(self._space, reads, gradient, trail=adam.mean)
        if "trail" in found:
            # Adam's average of past gradients is the trail of them, up to a factor.
            found["trail"] = found["trail"] / (1 - adam.beta1)
        found["dim"] = gradient.numel() // self._networks.count
        if gap is not None:
            # Each half is the gap away from the mean of the two.
            found |= of_parts(found["grad_sq"], 2.0 * adam.product(gap, gap), 2)
            found["batch_size"] = float(label.shape[1])
        signal = Signal(**{name: found[name] for name in reads if name in found})
        _, self._state = self._schedule.update(self._state, signal)
        return losses
