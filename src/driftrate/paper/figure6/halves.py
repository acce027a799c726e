"""The gradient of a batch in two halves, whose difference shows its noise."""

from __future__ import annotations

import torch
from torch import Tensor

from driftrate.paper.figure6.networks import Losses, Networks


def backward_halves(networks: Networks, x: Tensor, label: Tensor) -> tuple[Losses, Tensor]:
    r"""Take the gradient of a batch in two halves of equal size.

    With g_1 and g_2 the gradients of the halves, (g_1 + g_2)/2 is the batch's, and half their
    difference shows the noise: in any metric, spread = ‖(g_1 - g_2)/2‖².

    Args:
        networks: The networks; the batch's gradient is left in `networks.gradient`.
        x: The batch, (networks, batch, 10), with an even number of samples.
        label: Its labels.

    Returns:
        The losses of the batch, and (g_1 - g_2)/2.
    """
    (x1, x2), (label1, label2) = x.chunk(2, dim=1), label.chunk(2, dim=1)
    first = networks.backward(x1, label1)
    gap = networks.gradient.clone()
    second = networks.backward(x2, label2)
    gap.sub_(networks.gradient).div_(2)
    networks.gradient.add_(gap)
    return Losses(torch.lerp(first.entropy, second.entropy, 0.5), second.penalty), gap
