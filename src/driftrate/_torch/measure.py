"""Squares and differences of lists of tensors: accurate, in few launches, without a host sync."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

Buffers = dict[Tensor, Tensor]  # by parameter; tensors hash by identity

# A float32 sum of 10^7 squares in one go is off by 7e-4 on a CPU, in blocks by 1e-7; and a block
# stays in the cache, so that the second look at it is free.
_BLOCK = 1 << 16


def _numbers(tensor: Tensor) -> Tensor:
    """Return what the tensor holds: of a sparse one the values, of a complex one pairs."""
    plain = tensor.coalesce().values() if tensor.is_sparse else tensor
    return torch.view_as_real(plain) if plain.is_complex() else plain


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    for block in torch.split(tensor.reshape(-1), _BLOCK):
        yield block if block.dtype in (torch.float32, torch.float64) else block.float()


def _add_up(host: list[Tensor], device: list[Tensor], like: Tensor) -> Tensor:
    """Add squares from the host and squared norms from devices, where and as `like` is."""
    sums = []
    if host:
        sums.append(torch.stack(host).sum(dtype=like.dtype).to(like.device))
    if device:
        norms = torch.stack([norm.to(like.device, non_blocking=True) for norm in device])
        sums.append(torch.dot(norms, norms))
    return sum(sums[1:], sums[0]) if sums else torch.zeros_like(like)


def squared(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """Return the sum of all squares.

    Args:
        tensors: Gradients or parameters, dense or sparse, of any precision and device.
        like: A scalar tensor whose dtype and device the sum takes.

    Returns:
        A scalar tensor.
    """
    numbers = [_numbers(tensor) for tensor in tensors]
    host = [torch.dot(b, b) for t in numbers if t.device.type == "cpu" for b in _blocks(t)]
    device = [t for t in numbers if t.device.type != "cpu" and t.numel()]
    norms = list(torch._foreach_norm(device, 2, like.dtype)) if device else []
    return _add_up(host, norms, like)


def _replaceable(old: Tensor | None, new: Tensor) -> bool:
    return (
        old is not None
        and not (old.is_sparse or new.is_sparse)
        and (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    )


def keep(buffers: Buffers, owners: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy the tensors into their owners' buffers, in place where a buffer fits."""
    into, what = [], []
    for owner, tensor in zip(owners, tensors, strict=True):
        if _replaceable(buffers.get(owner), tensor):
            into.append(buffers[owner])
            what.append(tensor)
        else:
            copy = tensor.coalesce().clone() if tensor.is_sparse else tensor.clone()
            buffers[owner] = copy.detach()
    if into:
        torch._foreach_copy_(into, what)


def contrast(
    buffers: Buffers,
    owners: Sequence[Tensor],
    tensors: Sequence[Tensor],
    like: Tensor,
    factor: float | Tensor = 1.0,
    *,
    replace: bool = True,
) -> Tensor:
    """Return Σ ‖new - factor·old‖², and leave the new tensors in the buffers.

    The difference is taken before it is squared: as a difference of squares it would drown in
    rounding where new and old agree. It costs no memory beyond a block: on the host it is taken
    block by block, on a device in the buffer itself.

    Args:
        buffers: The old tensors by owner; an owner without one has the old tensor 0.
        owners: Whose tensors are given.
        tensors: Their new tensors.
        like: A scalar tensor whose dtype and device the sum takes.
        factor: A number, or a scalar tensor that is not read back from a device.
        replace: Whether to leave the new tensors in the buffers. On a device the old ones are
            lost either way.

    Returns:
        A scalar tensor.
    """
    host: list[Tensor] = []
    olds: list[Tensor] = []
    news: list[Tensor] = []
    alone: list[Tensor] = []
    ratio = float(factor) if isinstance(factor, Tensor) and factor.device.type == "cpu" else factor
    for owner, new in zip(owners, tensors, strict=True):
        old = buffers.get(owner)
        if old is None or old.is_sparse is not new.is_sparse:
            alone.append(new)
        elif new.is_sparse:
            alone.append(new - old * ratio)
        elif new.device.type == "cpu":
            number = float(ratio)
            for ours, theirs in zip(_blocks(_numbers(new)), _blocks(_numbers(old)), strict=True):
                apart = torch.sub(ours, theirs, alpha=number)
                host.append(torch.dot(apart, apart))
        else:
            olds.append(_numbers(old))
            news.append(_numbers(new))
    sums = [_add_up(host, [], like)] if host else []
    if alone:
        sums.append(squared(alone, like))
    if olds:
        sums.append(_device_contrast(olds, news, ratio, like))
    total = sum(sums[1:], sums[0]) if sums else torch.zeros_like(like)
    if replace:
        keep(buffers, owners, tensors)
    return total


def product(pairs: Iterable[tuple[Tensor, Tensor]], like: Tensor) -> Tensor:
    """Return Σ ⟨new, old⟩ of dense tensors on devices, in one pass and with none of them changed.

    The dot product of two bfloat16 tensors is summed in float32 and rounded to bfloat16: a share of
    2^-9 off. Float16 would overflow.
    """
    dots = [torch.dot(new.reshape(-1), old.reshape(-1)) for new, old in pairs]
    same = [dot.to(like.device, non_blocking=True) for dot in dots]
    return torch.stack(same).sum(dtype=like.dtype)


def _device_contrast(
    olds: list[Tensor], news: list[Tensor], ratio: float | Tensor, like: Tensor
) -> Tensor:
    if isinstance(ratio, Tensor):
        torch._foreach_mul_(olds, ratio)
        torch._foreach_sub_(olds, news)
        return squared(olds, like)
    # One pass instead of two: ‖new - c·old‖² = c²‖old - new/c‖².
    torch._foreach_add_(olds, news, alpha=-1.0 / ratio)
    return squared(olds, like) * (ratio * ratio)
