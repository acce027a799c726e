"""The metric in which gradients are compared: plain, or the one that the optimizer steps in."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, optim

from driftrate.errors import ConfigError

# Second moments by the names that torch's optimizers give them, the one that divides first.
_SECOND = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")
_KIN = (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop, optim.SparseAdam)


class Weight(NamedTuple):
    """The weights c/(√v + ε) of a parameter's coordinates.

    Args:
        moment: v, in the parameter's shape.
        eps: ε.
        scale: c = √(1 - β₂^t), which takes back that v started from 0.
    """

    moment: Tensor
    eps: float
    scale: float | Tensor


Weights = Sequence[Weight | None]  # of parameters; None: plain


def is_adam_like(optimizer: optim.Optimizer) -> bool:
    """Whether the optimizer is known to divide by the root of a second moment."""
    return isinstance(optimizer, _KIN)


class Metric:
    r"""The metric of Adam and its kin: ⟨a, b⟩ = Σ_i a_i b_i / (√v̂_i + ε).

    Their step is about η times the gradient over √v̂ + ε, so that this product says how much of a
    step is signal. The moments are those before the step: they do not know the gradient that is
    measured. A parameter that has none yet is left out.
    """

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._optimizer = optimizer

    def knows(self, owner: Tensor) -> bool:
        """Return whether a parameter has moments."""
        return any(name in self._optimizer.state.get(owner, {}) for name in _SECOND)

    def weights(self, owners: Sequence[Tensor]) -> list[Weight | None]:
        """Return the weights of each parameter, None where there are no moments yet."""
        groups = {p: group for group in self._optimizer.param_groups for p in group["params"]}
        found: list[Weight | None] = []
        counted: dict[float, list[tuple[int, Tensor]]] = {}
        for place, owner in enumerate(owners):
            state, group = self._optimizer.state.get(owner, {}), groups[owner]
            moment = next((state[name] for name in _SECOND if name in state), None)
            if moment is None:
                if state:
                    raise ConfigError(
                        f'metric="moments": {type(self._optimizer).__name__} keeps'
                        f' {sorted(state)}, none of {list(_SECOND)}: use metric="plain"'
                    )
                found.append(None)
                continue
            scale, step = 1.0, state.get("step", 0)
            if "betas" in group:
                beta = float(group["betas"][1])
                if isinstance(step, Tensor) and step.device.type != "cpu":
                    counted.setdefault(beta, []).append((place, step))
                else:
                    scale = sqrt(1.0 - beta ** float(step))
            found.append(Weight(moment, float(group["eps"]), scale))
        for beta, steps in counted.items():  # on a device all at once, and never read back
            scales: Any = torch._foreach_pow(beta, [step for _, step in steps])
            torch._foreach_neg_(scales)
            torch._foreach_add_(scales, 1.0)
            torch._foreach_sqrt_(scales)
            for (place, _), scale in zip(steps, scales, strict=True):
                weight = found[place]
                found[place] = None if weight is None else weight._replace(scale=scale)
        return found


def weighed(
    metric: Metric | None, owners: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], Weights | None]:
    """Return the parameters that the metric knows, their gradients and weights."""
    if metric is None:
        return [*owners], [*gradients], None
    every = metric.weights(owners)
    known = [place for place, weight in enumerate(every) if weight]
    return (
        [owners[at] for at in known],
        [gradients[at] for at in known],
        [every[at] for at in known],
    )
