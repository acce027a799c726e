"""An optimizer's memory, and how to forget it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from driftrate.errors import ConfigError

# Averages that start from 0, by the names that torch's optimizers give them.
_MOMENTS = frozenset(
    {
        "acc_delta",
        "exp_avg",
        "exp_avg_sq",
        "exp_inf",
        "grad_avg",
        "max_exp_avg_sq",
        "momentum_buffer",
        "square_avg",
    }
)


def forget(optimizer: Optimizer, policy: str, decay: float) -> None:
    """Keep, decay or reset the moments, in place: a captured graph goes on with them.

    Args:
        optimizer: Any optimizer whose state has known names.
        policy: "keep", "decay" or "reset".
        decay: What "decay" leaves of them.
    """
    if policy == "keep":
        return
    states: list[dict[str, Any]] = list(optimizer.state.values())
    names = {name for state in states for name, value in state.items() if value is not None}
    unknown = sorted(names - _MOMENTS - {"step"})
    if unknown:
        raise ConfigError(
            f"{type(optimizer).__name__} keeps {unknown}, which are not moments that start from 0:"
            ' use moments="keep"'
        )
    factor = 0.0 if policy == "reset" else decay
    for state in states:
        for name, value in state.items():
            if isinstance(value, Tensor) and (name in _MOMENTS or policy == "reset"):
                # Not a product: NaN times 0 would stay.
                _ = value.zero_() if factor == 0.0 else value.mul_(factor)
            elif name == "step" and policy == "reset":
                state[name] = 0
