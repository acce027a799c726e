"""Products and squares of lists of tensors: accurate, in few launches, without a host sync."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, reduce
from importlib import import_module
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters.torch.metric import Weight, Weights

Buffers = dict[Tensor, Tensor]  # by parameter; tensors hash by identity

# A float32 sum of 10^7 squares in one go is off by 7e-4 on a CPU, in blocks by 1e-7; and a block
# stays in the cache, so that the second look at it is free.
_BLOCK = 1 << 17
# The sums that `compared` takes, in the kernel's order.
_SUMS = ("square", "product", "apart", "whole")
NARROW = (torch.float32, torch.bfloat16, torch.float16)


def squared(tensors: Sequence[Tensor], like: Tensor, weights: Weights | None = None) -> Tensor:
    """Return the sum of all squares: `compared`'s `square`, of sparse tensors too."""
    quick: list[Tensor] = []
    plain: list[Tensor] = []
    rest: list[tuple[Tensor, Weight | None]] = []
    fast = kernel() if like.is_cuda else None
    for tensor, weight in zip(tensors, weights or repeat(None, len(tensors)), strict=True):
        numbers = _numbers(tensor)
        if weight is not None or numbers.device.type == "cpu":
            rest.append((numbers, _of(weight, tensor)))
        elif fast is not None and fast.takes(numbers, like.device):
            quick.append(numbers)
        elif numbers.numel():
            plain.append(numbers)
    found: list[Tensor] = []
    if rest:
        some = [numbers for numbers, _ in rest]
        sums = compared(some, some, like, [weight for _, weight in rest], wanted=("square",))
        found.append(sums["square"])
    if quick:
        found.append(kernel().squares(quick).to(like.dtype))
    if plain:
        norms = stacked(torch._foreach_norm(plain, 2, like.dtype), like)
        found.append(torch.dot(norms, norms))
    return reduce(torch.add, found) if found else torch.zeros_like(like)


def compared(
    tensors: Sequence[Tensor],
    olds: Sequence[Tensor | None],
    like: Tensor,
    weights: Weights | None = None,
    ratio: float = 1.0,
    *,
    wanted: Sequence[str] = ("square", "product"),
) -> dict[str, Tensor]:
    """Compare tensors with older ones in one look at each block, and change none of them.

    Args:
        tensors: The new tensors, dense or sparse, of any precision and device.
        olds: The old ones; None and a change between dense and sparse count as 0.
        like: A scalar tensor whose dtype and device the sums take.
        weights: The metric, one weight a tensor; None for the plain one.
        ratio: A factor of the old tensors in `apart`.
        wanted: Which sums to take: neighbours in square, product, apart, whole.

    Returns:
        The sums over all coordinates by name: `square` is ⟨new, new⟩, `product` ⟨new, old⟩,
        `whole` ‖new + old‖² and `apart` ‖new - ratio·old‖², taken before it is squared: as a
        difference of squares it would drown in rounding where new and old agree.
    """
    rows: list[list[Tensor]] = []
    scales: list[float | Tensor] = []
    quick: list[tuple[Tensor, Tensor, Weight | None]] = []
    first, last = _SUMS.index(wanted[0]), _SUMS.index(wanted[-1]) + 1
    every = weights or repeat(None, len(tensors))
    for new, old, weight in zip(tensors, olds, every, strict=True):
        if old is None or old.is_sparse is not new.is_sparse:
            square, zero = squared([new], like, [weight]), torch.zeros_like(like)
            rows.append([zero if name == "product" else square for name in wanted])
            scales.append(1.0)
        elif new.is_sparse:
            each = (new, old * ratio, new - old * ratio, new + old)
            square, before, apart, whole = (squared([one], like, [weight]) for one in each)
            along = (square + before - apart) / (2.0 * ratio)
            rows.append([square, along, apart, whole][first:last])
            scales.append(1.0)
        elif _is_quick(new, old, weight, like):
            quick.append((new, old, weight))
        else:
            found = _compared_blocks(new, old, weight, ratio, wanted)
            rows += found
            scales += [1.0 if weight is None else weight.scale] * len(found)
    tables = []
    if quick:
        tables.append(kernel().sums(quick, ratio)[:, first:last])
        scales = [1.0 if weight is None else weight.scale for *_, weight in quick] + scales
    if rows:
        flat = stacked([value for row in rows for value in row], like)
        tables.append(flat.view(len(rows), -1))
    if not tables:
        return {name: torch.zeros_like(like) for name in wanted}
    table = _scaled(tables[0] if len(tables) == 1 else torch.cat(tables), scales, like)
    return dict(zip(wanted, table.sum(dim=0, dtype=like.dtype), strict=True))


def _compared_blocks(
    new: Tensor, old: Tensor, weight: Weight | None, ratio: float, wanted: Sequence[str]
) -> list[list[Tensor]]:
    """Return the sums of dense tensors, a row a block, the weight's scale left out."""
    roots: Iterable[Tensor | None] = repeat(None)
    if weight is not None:
        roots = (block.sqrt().add_(weight.eps) for block in blocks(weight.moment))
    rows = []
    for ours, theirs, root in zip(blocks(new), blocks(old), roots, strict=False):
        over = _over(ours, root) if wanted[0] in ("square", "product") else ours
        row = []
        for name in wanted:
            if name in ("square", "product"):
                row.append(torch.dot(over, ours if name == "square" else theirs))
            else:
                both = torch.add(ours, theirs, alpha=1.0 if name == "whole" else -ratio)
                row.append(torch.dot(_over(both, root), both))
        rows.append(row)
    return rows


def partial_sums(
    new: Tensor, old: Tensor, weight: Weight | None, ratio: float, like: Tensor
) -> Tensor | None:
    """Return the terms of all four sums of one pair, in a kernel; None where there is none.

    Of shape (4, terms), the weight's scale left out. `summed` adds up those of many pairs at once:
    one launch for all of them, where each sum by itself would be several.
    """
    if old.is_sparse or new.is_sparse or not _is_quick(new, old, weight, like):
        return None
    terms: Tensor = kernel().partial([(new, old, weight)], ratio)[0]
    return terms


def summed(
    terms: Sequence[Tensor], weights: Sequence[Weight | None], like: Tensor
) -> dict[str, Tensor]:
    """Return the sums of pairs by name, one entry a pair, from what `partial_sums` returned."""
    scales = [1.0 if weight is None else weight.scale for weight in weights]
    table = _scaled(torch.stack([*terms]).sum(dim=-1), scales, like)
    return dict(zip(_SUMS, table.to(like.dtype).unbind(dim=1), strict=True))


def _is_quick(new: Tensor, old: Tensor, weight: Weight | None, like: Tensor) -> bool:
    """Whether one kernel can take all sums of dense tensors at once."""
    if not like.is_cuda or kernel() is None:
        return False
    every = (new, old) if weight is None else (new, old, weight.moment)
    # A kernel counts by the new one: past the end of a shorter one is what is not theirs.
    return all(
        one.dtype in NARROW and one.device == like.device and one.shape == new.shape
        for one in every
    )


@cache
def kernel() -> Any:
    """Return the module of the kernels, or None where Triton is not installed."""
    found = import_module("driftrate.adapters.torch.kernel")  # late: it brings all of Triton
    return found if found.available else None


def keep(buffers: Buffers, owners: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy the tensors into their owners' buffers, in place where a buffer fits."""
    into, what = [], []
    for owner, new in zip(owners, tensors, strict=True):
        old = buffers.get(owner)
        if old is None or old.is_sparse or new.is_sparse or _form(old) != _form(new):
            copy = new.coalesce().clone() if new.is_sparse else new.clone()
            buffers[owner] = copy.detach()
        else:
            into.append(old)
            what.append(new)
    if into:
        torch._foreach_copy_(into, what)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _numbers(tensor: Tensor) -> Tensor:
    """Return what the tensor holds: of a sparse one the values, of a complex one pairs."""
    plain = tensor.coalesce().values() if tensor.is_sparse else tensor
    return torch.view_as_real(plain) if plain.is_complex() else plain


def blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the numbers of a dense tensor, on a device all at once."""
    flat = _numbers(tensor).reshape(-1)
    whole = flat.device.type != "cpu" or flat.numel() <= _BLOCK
    for block in (flat,) if whole else torch.split(flat, _BLOCK):
        yield block if block.dtype in (torch.float32, torch.float64) else block.float()


def _of(weight: Weight | None, tensor: Tensor) -> Weight | None:
    """Return the weight of the numbers that the tensor holds."""
    if weight is None:
        return None
    moment = weight.moment
    if tensor.is_sparse and not moment.is_sparse:
        moment = moment.sparse_mask(tensor.coalesce())
    return weight._replace(moment=_numbers(moment))


def _over(tensor: Tensor, root: Tensor | None) -> Tensor:
    return tensor if root is None else tensor / root.to(tensor.dtype)


def stacked(values: Iterable[Tensor], like: Tensor) -> Tensor:
    """Return scalars of any device in one tensor."""
    return torch.stack([value.to(like.device, non_blocking=True) for value in values])


def _scaled(table: Tensor, scales: Sequence[float | Tensor], like: Tensor) -> Tensor:
    """Return the rows, each times its scale."""
    numbers = [scale for scale in scales if not isinstance(scale, Tensor)]
    if len(numbers) == len(scales):
        if all(scale == numbers[0] for scale in numbers):
            return table if numbers[0] == 1.0 else table.to(like.dtype) * numbers[0]
        if like.device.type == "cpu":
            factors = torch.tensor(numbers, dtype=like.dtype)
            return table.to(like.dtype) * factors.unsqueeze(1)
    # Filled, not copied from the host, which would make the device wait.
    every = [s if isinstance(s, Tensor) else torch.full_like(like, s) for s in scales]
    return table.to(like.dtype) * stacked(every, like).unsqueeze(1)
