"""What cannot be stacked: refused by the module's name, at construction or at the first batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from driftrate.errors import ConfigError

_NORMS = (
    "updates running statistics, which one batched pass cannot: use GroupNorm or LayerNorm, "
    "track_running_stats=False, or model.eval() to leave the statistics as they are"
)
_RANDOM = "draws random numbers, which one batched pass cannot: set {} to 0, or call model.eval()"
_MAKE = "which one batched pass cannot: make it without"


def refuse(model: nn.Module) -> None:
    """Refuse a model that `torch.func` cannot stack, by the name of the module.

    Raises:
        ConfigError: It says which module, why, and what to do.

    Example:
        >>> refuse(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        driftrate.errors.ConfigError: Hedged: BatchNorm1d '1' updates running statistics, ...
        >>> refuse(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)).eval())
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"Hedged: not a torch module: {type(model).__name__}")
    for name, module in model.named_modules():
        why = _why(module)
        if why is not None:
            raise ConfigError(f"Hedged: {_told(name, module)} {why}")
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ConfigError(f"Hedged: {type(model).__name__} has no parameter that requires_grad")
    kinds = sorted({f"{p.dtype} on {p.device}" for p in trained})
    if len(kinds) > 1 or not trained[0].is_floating_point():
        raise ConfigError(
            f"Hedged: parameters must be real, of one dtype and on one device, got {kinds}"
        )


def _why(module: nn.Module) -> str | None:
    """Return why a module cannot be stacked, None if it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by TorchScript: give the Python module"
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return "wraps a model: give the module inside"
    if any(is_lazy(p) for p in module.parameters(recurse=False)):
        return "has no weights yet: call the model once on a batch before"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and (module.max_norm or module.sparse):
        return f"has {'max_norm' if module.max_norm else 'sparse gradients'}, {_MAKE}"
    if isinstance(module, (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)):
        return "draws random numbers, which one batched pass cannot: use MaxPool"
    return _why_training(module) if module.training else None


def _why_training(module: nn.Module) -> str | None:
    """Return why a module cannot be stacked while it trains."""
    if isinstance(module, _NormBase) and module.track_running_stats:
        return _NORMS
    if isinstance(module, _DropoutNd):
        return _RANDOM.format("p") if module.p > 0 else None
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return _RANDOM.format("dropout") if module.dropout > 0 else None
    if isinstance(module, nn.RReLU):
        return "draws random numbers, which one batched pass cannot: use LeakyReLU"
    hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
    if type(module).__name__ == "_SpectralNorm" or "SpectralNorm" in hooks:
        return "updates the vectors of a spectral norm in place, which one batched pass cannot"
    return None


def _told(name: str, module: nn.Module) -> str:
    return f"{type(module).__name__} {name!r}" if name else type(module).__name__


@contextmanager
def first_pass(model: nn.Module, alone: Callable[[], Any]) -> Iterator[None]:
    """Watch the first batched pass, for what no list of modules can foresee.

    Args:
        model: What is stacked.
        alone: The same pass without stacking; an error that it has too is the caller's own.

    Raises:
        ConfigError: A module failed that works alone, or it changed one of its buffers.
    """
    inside: list[tuple[str, nn.Module]] = []
    before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}
    hooks = []
    for name, module in model.named_modules():
        enter = lambda module, args, name=name: inside.append((name, module))  # noqa: E731
        hooks += [module.register_forward_pre_hook(enter)]
        hooks += [module.register_forward_hook(lambda module, args, out: inside.pop() and None)]
    try:
        yield
    except (RuntimeError, ValueError, NotImplementedError) as error:
        for hook in hooks:
            hook.remove()
        where = _told(*inside[-1]) if inside else "the loss"
        alone()
        text = str(error).strip().partition("\n")[0]
        raise ConfigError(f"Hedged: {where} cannot be stacked by torch.func: {text}") from error
    finally:
        for hook in hooks:
            hook.remove()
    for name, (buffer, version) in before.items():
        if _buffer(model, name) is not buffer or buffer._version != version:
            raise ConfigError(
                f"Hedged: the buffer {name!r} changes in the forward pass, which one batched pass"
                " cannot: the copies share buffers, leave them as they are"
            )


def _buffer(model: nn.Module, name: str) -> Tensor | None:
    owner, _, last = name.rpartition(".")
    return model.get_submodule(owner)._buffers.get(last)
