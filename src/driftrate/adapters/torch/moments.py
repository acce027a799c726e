"""An optimizer's memory, and how to forget it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from driftrate.errors import ConfigError

# Averages that start from 0, by the names that torch's optimizers give them.
_MOMENTS = {
    "acc_delta", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg", "max_exp_avg_sq",
    "momentum_buffer", "square_avg",
}  # fmt: skip


def forget(optimizer: Optimizer, share: float) -> None:
    """Multiply the moments by a share, in place: a captured graph goes on with them.

    Args:
        optimizer: Any optimizer whose state has known names.
        share: What is left of them; 0 resets their step counts too.
    """
    if share == 1.0:
        return
    states: list[dict[str, Any]] = list(optimizer.state.values())
    names = {name for state in states for name, value in state.items() if value is not None}
    unknown = sorted(names - _MOMENTS - {"step"})
    if unknown:
        raise ConfigError(
            f"{type(optimizer).__name__} keeps {unknown}, which are not moments that start from 0:"
            ' use moments="keep"'
        )
    for state in states:
        for name, value in state.items():
            if isinstance(value, Tensor) and (name in _MOMENTS or share == 0.0):
                # Not a product: NaN times 0 would stay.
                _ = value.zero_() if share == 0.0 else value.mul_(share)
            elif name == "step" and share == 0.0:
                state[name] = 0
