"""What `Pursuit` keeps of a tensor: made, checked before a step and at load, and resized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters import _pursuit as law
from driftrate.adapters.torch.sharded import is_dtensor, laid_out, local
from driftrate.errors import StateError

SHORT = (torch.bfloat16, torch.float16)
TRAINED = (torch.float32, torch.float64, *SHORT)
KEPT = ("square", "trail", "lead")
_NAMES = frozenset({"law", *KEPT, "rest"})
LAW = (law.NUMBERS,)
_SINGLE = torch.float32
_RESIZE = "call optimizer.resize(param) after a parameter was grown, cut, moved or cast"

State = Mapping[str, Any]


def started(p: Tensor) -> dict[str, Tensor]:
    """Return the state of a tensor's coordinates before its first gradient."""
    state = {name: torch.zeros_like(p, dtype=_SINGLE) for name in KEPT}
    if p.dtype in SHORT:
        state["rest"] = torch.zeros_like(p)
    return state


def check(index: int, p: Tensor, grad: Tensor | None, state: State) -> None:
    """Raise `StateError` unless gradient and state fit the weights as they are now.

    Args:
        index: Of the parameter, for messages.
        p: The weights.
        grad: Their gradient; None for none.
        state: What is kept of them.
    """
    kind, place = p.dtype, p.device
    if kind not in TRAINED:
        raise StateError(f"parameter {index} has become {_name(kind)}: give it a type of before")
    if grad is not None:
        again = "call optimizer.zero_grad() and backward() after a parameter has changed"
        _check_shape(f"the gradient of parameter {index}", grad, p.shape, again)
        _check_place(f"the gradient of parameter {index}", grad, place, again)
    check_form(index, p, state, _RESIZE)
    if "trail" in state and ("rest" in state) != (kind in SHORT):
        has = "a" if "rest" in state else "no"
        raise StateError(f"parameter {index} is {_name(kind)} and has {has} rest: {_RESIZE}")
    spread = _spread(p)
    for name, value in state.items():
        what = f"the {name} of parameter {index}"
        _check_place(what, value, place, _RESIZE)
        if name == "rest" and value.dtype != kind:
            raise StateError(f"{what} is {_name(value.dtype)}, not {_name(kind)}: {_RESIZE}")
        if name != "law" and _spread(value) != spread:
            raise StateError(f"{what} is spread as {_spread(value)}, not {spread}: {_RESIZE}")
        _check_apart(what, value)
    _check_apart(f"parameter {index}", p)


def check_form(index: int, p: Tensor, state: Any, how: str) -> None:
    """Raise `StateError` unless a state has the tensors of a parameter, in their shapes and types.

    Args:
        index: Of the parameter.
        p: The parameter.
        state: The state.
        how: What to do about it.
    """
    if not isinstance(state, Mapping) or not _NAMES.issuperset(state):
        raise StateError(
            f"the state of parameter {index} is not of Pursuit: load one that Pursuit saved"
        )
    for name in KEPT if state.keys() - {"law"} else ():
        if name not in state:
            raise StateError(f"parameter {index} has no {name} in its state: {how}")
    for name, value in state.items():
        what = f"the {name} of parameter {index}"
        if not isinstance(value, Tensor):
            raise StateError(f"{what} is {value!r:.40}, not a tensor: {how}")
        _check_shape(what, value, LAW if name == "law" else p.shape, how)
        if value.dtype not in (SHORT if name == "rest" else (_SINGLE,)):
            wanted = "of 16 bits" if name == "rest" else "float32"
            raise StateError(f"{what} is {_name(value.dtype)}, not {wanted}: {how}")


def check_saved(index: int, p: Tensor, state: Any) -> None:
    """Raise `StateError` where a saved state is not one that this parameter could have."""
    how = "load the state of the same model, as it was saved"
    check_form(index, p, state, how)
    if "law" not in state:
        raise StateError(f"parameter {index} has no law in its state: {how}")
    for name, value in state.items():
        here = local(value)
        good = law.sound(torch, law.Law(*here)) if name == "law" else here.isfinite().all()
        if not good or (name == "square" and (here < 0).any()):
            raise StateError(
                f"the {name} of parameter {index} holds a number that is not finite or below 0:"
                " load a state of before"
            )


def check_rates(number: int, group: Mapping[str, Any]) -> None:
    """Raise `StateError` where a saved group lacks a rate or has none that can be gone on with."""
    for name in ("lr", "weight_decay"):
        value = group.get(name)
        try:
            good = 0.0 <= float(value) < float("inf")  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):  # no number, or a tensor of several
            good = False
        if not good:
            raise StateError(
                f"the {name} of group {number} is {value!r:.40}: it must be finite and not negative"
            )


def resized(index: int, p: Tensor, state: State) -> dict[str, Tensor]:
    """Return a state that fits the weights as they are: what is new starts as new."""
    new = {"law": state["law"].to(p.device)}
    if len(state) > 1:
        new |= started(p)
    for name in [one for one in new if one in state and one != "law"]:  # on all ranks in one order
        old, whole = state[name], torch.zeros(p.shape, dtype=new[name].dtype, device=p.device)
        if old.dim() != p.dim():
            raise StateError(
                f"parameter {index} has {p.dim()} dimensions, its state {old.dim()}: what is kept"
                " of it has no place there, make a new optimizer"
            )
        both = tuple(slice(min(sizes)) for sizes in zip(old.shape, p.shape, strict=True))
        # A remainder in another type is below the new one's last bit, or means nothing in it.
        if name != "rest" or old.dtype == p.dtype:
            whole[both] = laid_out(old, whole)[both].to(p.device)
        new[name].copy_(laid_out(whole, p))
    return new


def restored(p: Tensor, saved: State) -> dict[str, Tensor]:
    """Return a copy of a saved state, on the parameter's device and with a rest if it needs one."""
    state = {}
    for name, value in saved.items():
        kind = p.dtype if name == "rest" else _SINGLE
        whole = value if name == "law" else laid_out(value.detach(), p)
        state[name] = whole.detach().to(device=p.device, dtype=kind, copy=True)
    if p.dtype not in SHORT:
        state.pop("rest", None)
    elif "trail" in state:
        state.setdefault("rest", torch.zeros_like(p))
    return state


def _check_shape(what: str, value: Tensor, shape: Sequence[int], how: str) -> None:
    if value.shape != shape:
        raise StateError(f"{what} is of shape {tuple(value.shape)}, not {tuple(shape)}: {how}")


def _check_place(what: str, value: Tensor, place: torch.device, how: str) -> None:
    if value.device != place:
        raise StateError(f"{what} is on {value.device}, not {place}: {how}")


def _check_apart(what: str, tensor: Tensor) -> None:
    """Refuse a tensor two of whose coordinates may be one number, as in what `expand` returns."""
    if tensor.is_contiguous():
        return
    here, reach = local(tensor), 0
    for stride, size in sorted(zip(here.stride(), here.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise StateError(
                f"{what} holds one number twice (shape {tuple(here.shape)}, strides"
                f" {here.stride()}): give it memory of its own, as .contiguous() does"
            )
        reach += stride * (size - 1)


def _spread(tensor: Any) -> Any:
    """Return over which devices it is spread, and how; None where it is whole."""
    return (tensor.device_mesh, tensor.placements) if is_dtensor(tensor) else None


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
