"""Products and squares of lists of tensors: accurate, in few launches, without a host sync."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
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
_NARROW = (torch.float32, torch.bfloat16, torch.float16)


def squared(tensors: Sequence[Tensor], like: Tensor, weights: Weights | None = None) -> Tensor:
    """Return the sum of all squares.

    Args:
        tensors: Gradients or parameters, dense or sparse, of any precision and device.
        like: A scalar tensor whose dtype and device the sum takes.
        weights: The metric, one weight a tensor; None for the plain one.

    Returns:
        A scalar tensor.
    """
    dots: list[Tensor] = []
    scales: list[float | Tensor] = []
    plain: list[Tensor] = []
    for tensor, weight in _paired(tensors, weights):
        numbers, own = _numbers(tensor), _of(weight, tensor)
        scale = 1.0 if own is None else own.scale
        if numbers.device.type == "cpu":
            for block, root in zip(_blocks(numbers), _roots(own), strict=False):
                dots.append(torch.dot(block, _over(block, root)))
                scales.append(scale)
        elif own is not None:
            flat = _flat(numbers)
            dots.append(torch.dot(flat, _over(flat, _root(own))))
            scales.append(scale)
        elif numbers.numel():
            plain.append(numbers)
    sums = [_added(dots, scales, like)] if dots else []
    if plain:
        norms = _stacked(torch._foreach_norm(plain, 2, like.dtype), like)
        sums.append(torch.dot(norms, norms))
    return sum(sums[1:], sums[0]) if sums else torch.zeros_like(like)


def compared(
    tensors: Sequence[Tensor],
    olds: Sequence[Tensor | None],
    like: Tensor,
    weights: Weights | None = None,
    ratio: float | Tensor = 1.0,
    *,
    wanted: Sequence[str] = ("square", "product"),
) -> dict[str, Tensor]:
    """Compare tensors with older ones in one look at each block, and change none of them.

    Args:
        tensors: The new tensors.
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
    quick: list[tuple[Tensor, Tensor]] = []
    theirs: list[Weight | None] = []
    first, last = _SUMS.index(wanted[0]), _SUMS.index(wanted[-1]) + 1
    for (new, weight), old in zip(_paired(tensors, weights), olds, strict=True):
        scale = 1.0 if weight is None else weight.scale
        if old is None or old.is_sparse is not new.is_sparse:
            square, zero = squared([new], like, [weight]), torch.zeros_like(like)
            rows.append([zero if name == "product" else square for name in wanted])
            scales.append(1.0)
        elif new.is_sparse:
            rows.append(_compared_sparse(new, old, like, weight, ratio)[first:last])
            scales.append(1.0)
        elif isinstance(ratio, float) and _is_quick(new, old, weight, like):
            quick.append((new, old))
            theirs.append(weight)
            scales.insert(len(quick) - 1, scale)
        else:
            ours = (_numbers(new), _numbers(old), _of(weight, new))
            on_host = new.device.type == "cpu"
            dense = _compared_blocks if on_host else _compared_device
            rows.append(dense(*ours, ratio, wanted))
            scales.append(scale)
    tables = [_kernel().sums(quick, theirs, ratio)[:, first:last]] if quick else []
    if rows:
        flat = _stacked([value for row in rows for value in row], like)
        tables.append(flat.view(len(rows), -1))
    if not tables:
        return {name: torch.zeros_like(like) for name in wanted}
    table = _scaled(tables[0] if len(tables) == 1 else torch.cat(tables), scales, like)
    return dict(zip(wanted, table.sum(dim=0, dtype=like.dtype), strict=True))


def _compared_sparse(
    new: Tensor,
    old: Tensor,
    like: Tensor,
    weight: Weight | None,
    ratio: float | Tensor,
) -> list[Tensor]:
    """Return all sums."""
    scaled = old * ratio
    square, before, apart, whole = (
        squared([one], like, [weight]) for one in (new, scaled, new - scaled, new + old)
    )
    return [square, (square + before - apart) / (2.0 * ratio), apart, whole]


def _compared_device(
    new: Tensor, old: Tensor, weight: Weight | None, ratio: float | Tensor, wanted: Sequence[str]
) -> list[Tensor]:
    """Return the sums in torch's own kernels, the weight's scale left out."""
    ours, theirs = _flat(new), _flat(old)
    root = None if weight is None else _root(weight)

    def take(name: str) -> Tensor:
        if name in ("square", "product"):
            return torch.dot(_over(ours, root), ours if name == "square" else theirs)
        both = ours + theirs if name == "whole" else ours - theirs * ratio
        return torch.dot(_over(both, root), both)

    return [take(name) for name in wanted]


def _compared_blocks(
    new: Tensor, old: Tensor, weight: Weight | None, ratio: float | Tensor, wanted: Sequence[str]
) -> list[Tensor]:
    """Return the sums on the host, with scratch memory for a block alone."""
    dots: list[Tensor] = []
    scratch: list[Tensor] = []
    moments = repeat(None) if weight is None else _blocks(weight.moment)
    for ours, theirs, moment in zip(_blocks(new), _blocks(old), moments, strict=False):
        if not scratch:
            scratch = [torch.empty_like(ours) for _ in range(3)]
        root, over, both = (one[: len(ours)] for one in scratch)  # the last block may be smaller
        if moment is not None and weight is not None:
            torch.sqrt(moment.to(ours.dtype), out=root).add_(weight.eps)
        divided = None
        for name in wanted:
            one = ours
            if name in ("apart", "whole"):
                factor = 1.0 if name == "whole" else -float(ratio)
                one = torch.add(ours, theirs, alpha=factor, out=both)
            if moment is None:
                over = one
            elif divided is not one:
                torch.div(one, root, out=over)
            divided = None if one is both else one
            dots.append(torch.dot(over, theirs if name == "product" else one))
    total = torch.stack(dots).view(-1, len(wanted)).sum(dim=0, dtype=torch.float64)
    return [*total]


def _is_quick(new: Tensor, old: Tensor, weight: Weight | None, like: Tensor) -> bool:
    """Whether one kernel can take all sums of dense tensors at once."""
    if not like.is_cuda or _kernel() is None:
        return False
    every = (new, old) if weight is None else (new, old, weight.moment)
    return all(one.dtype in _NARROW and one.device == like.device for one in every)


@cache
def _kernel() -> Any:
    """Return the kernel's module, or None where Triton is not installed."""
    kernel = import_module("driftrate.adapters.torch.kernel")  # late: it brings all of Triton
    return kernel if kernel.available else None


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
    weights: Weights | None = None,
) -> Tensor:
    """Return Σ ‖new - factor·old‖², and leave the new tensors in the buffers.

    It costs no memory beyond a block on the host, a tensor on a device; in the plain metric the
    difference on a device is taken in the buffer itself.

    Args:
        buffers: The old tensors by owner; an owner without one has the old tensor 0.
        owners: Whose tensors are given.
        tensors: Their new tensors.
        like: A scalar tensor whose dtype and device the sum takes.
        factor: A number, or a scalar tensor that is not read back from a device.
        weights: The metric, one weight a tensor; None for the plain one.

    Returns:
        A scalar tensor.
    """
    known = [buffers.get(owner) for owner in owners]
    at_once = [
        weight is None and new.device.type != "cpu" and _replaceable(old, new)
        for (new, weight), old in zip(_paired(tensors, weights), known, strict=True)
    ]
    rest = [place for place, there in enumerate(at_once) if not there]
    total = torch.zeros_like(like)
    if rest:
        others = compared(
            [tensors[place] for place in rest],
            [known[place] for place in rest],
            like,
            None if weights is None else [weights[place] for place in rest],
            factor,
            wanted=("apart",),
        )
        total = others["apart"]
    news = [_numbers(new) for new, there in zip(tensors, at_once, strict=True) if there]
    if news:
        olds = [_numbers(buffers[p]) for p, there in zip(owners, at_once, strict=True) if there]
        total = total + _contrast_in_place(olds, news, factor, like)
    keep(buffers, owners, tensors)
    return total


def product(pairs: Iterable[tuple[Tensor, Tensor]], like: Tensor) -> Tensor:
    """Return Σ ⟨new, old⟩ of dense tensors on devices, in one pass and with none of them changed.

    The dot product of two bfloat16 tensors is summed in float32 and rounded to bfloat16: a share of
    2^-9 off. Float16 would overflow.
    """
    dots = [torch.dot(new.reshape(-1), old.reshape(-1)) for new, old in pairs]
    return _stacked(dots, like).sum(dtype=like.dtype)


def _contrast_in_place(
    olds: list[Tensor], news: list[Tensor], ratio: float | Tensor, like: Tensor
) -> Tensor:
    if isinstance(ratio, Tensor):
        torch._foreach_mul_(olds, ratio)
        torch._foreach_sub_(olds, news)
        return squared(olds, like)
    # One pass instead of two: ‖new - c·old‖² = c²‖old - new/c‖².
    torch._foreach_add_(olds, news, alpha=-1.0 / ratio)
    return squared(olds, like) * (ratio * ratio)


def _numbers(tensor: Tensor) -> Tensor:
    """Return what the tensor holds: of a sparse one the values, of a complex one pairs."""
    plain = tensor.coalesce().values() if tensor.is_sparse else tensor
    return torch.view_as_real(plain) if plain.is_complex() else plain


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    for block in torch.split(tensor.reshape(-1), _BLOCK):
        yield block if block.dtype in (torch.float32, torch.float64) else block.float()


def _flat(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    return flat.float() if flat.dtype == torch.float16 else flat


def _of(weight: Weight | None, tensor: Tensor) -> Weight | None:
    """Return the weight of the numbers that the tensor holds."""
    if weight is None:
        return None
    moment = weight.moment
    if tensor.is_sparse and not moment.is_sparse:
        moment = moment.sparse_mask(tensor.coalesce())
    return weight._replace(moment=_numbers(moment))


def _roots(weight: Weight | None) -> Iterable[Tensor | None]:
    """Return √v + ε block by block."""
    if weight is None:
        return repeat(None)
    return (block.sqrt().add_(weight.eps) for block in _blocks(weight.moment))


def _root(weight: Weight) -> Tensor:
    return _flat(weight.moment).sqrt().add_(weight.eps)


def _over(tensor: Tensor, root: Tensor | None) -> Tensor:
    return tensor if root is None else tensor / root.to(tensor.dtype)


def _paired(
    tensors: Sequence[Tensor], weights: Weights | None
) -> Iterable[tuple[Tensor, Weight | None]]:
    return zip(tensors, repeat(None, len(tensors)) if weights is None else weights, strict=True)


def _stacked(values: Iterable[Tensor], like: Tensor) -> Tensor:
    return torch.stack([value.to(like.device, non_blocking=True) for value in values])


def _added(values: Sequence[Tensor], scales: Sequence[float | Tensor], like: Tensor) -> Tensor:
    """Add scalars from anywhere up, each times its scale, where and as `like` is."""
    table = _stacked(values, like).view(len(values), 1)
    return _scaled(table, scales, like).sum(dtype=like.dtype)


def _scaled(table: Tensor, scales: Sequence[float | Tensor], like: Tensor) -> Tensor:
    """Return the rows, each times its scale."""
    if any(isinstance(scale, Tensor) for scale in scales):
        # Filled, not copied from the host, which would make the device wait.
        tensors = [
            scale if isinstance(scale, Tensor) else torch.full_like(like, scale) for scale in scales
        ]
        return table.to(like.dtype) * _stacked(tensors, like).unsqueeze(1)
    if any(scale != 1.0 for scale in scales):
        factors = torch.tensor(scales, dtype=like.dtype, device=like.device)
        return table.to(like.dtype) * factors.unsqueeze(1)
    return table


def _replaceable(old: Tensor | None, new: Tensor) -> bool:
    return (
        old is not None
        and not (old.is_sparse or new.is_sparse)
        and (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    )
