"""Products and squares of lists of tensors: accurate, in few launches, without a host sync."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from driftrate._torch.metric import Weight, Weights

Buffers = dict[Tensor, Tensor]  # by parameter; tensors hash by identity

# A float32 sum of 10^7 squares in one go is off by 7e-4 on a CPU, in blocks by 1e-7; and a block
# stays in the cache, so that the second look at it is free.
_BLOCK = 1 << 17


class Compared(NamedTuple):
    """Sums over all coordinates of new and old tensors.

    Args:
        square: ⟨new, new⟩.
        product: ⟨new, old⟩.
        apart: ‖new - ratio·old‖², or None where it was not asked for.
    """

    square: Tensor
    product: Tensor
    apart: Tensor | None


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
    apart: bool = True,
) -> Compared:
    """Compare tensors with older ones in one look at each block, and change none of them.

    Args:
        tensors: The new tensors.
        olds: The old ones; None and a change between dense and sparse count as 0.
        like: A scalar tensor whose dtype and device the sums take.
        weights: The metric, one weight a tensor; None for the plain one.
        ratio: A factor of the old tensors in `apart`.
        apart: Whether the difference is wanted too. It is taken before it is squared: as a
            difference of squares it would drown in rounding where new and old agree.

    Returns:
        The sums.
    """
    rows: list[Sequence[Tensor]] = []
    scales: list[float | Tensor] = []
    for (new, weight), old in zip(_paired(tensors, weights), olds, strict=True):
        scales.append(1.0)
        if old is None or old.is_sparse is not new.is_sparse:
            square = squared([new], like, [weight])
            rows.append((square, torch.zeros_like(like), square))
        elif new.is_sparse:
            square, before, off = (
                squared([one], like, [weight]) for one in (new, old * ratio, new - old * ratio)
            )
            rows.append((square, (square + before - off) / (2.0 * ratio), off))
        else:
            rows.append(
                _compared_dense(_numbers(new), _numbers(old), _of(weight, new), ratio, apart)
            )
            scales[-1] = 1.0 if weight is None else weight.scale
    if not rows:
        return Compared(*(torch.zeros_like(like) for _ in range(3)))
    sums = [_added([row[place] for row in rows], scales, like) for place in range(2 + apart)]
    return Compared(sums[0], sums[1], sums[2] if apart else None)


def _compared_dense(
    new: Tensor, old: Tensor, weight: Weight | None, ratio: float | Tensor, apart: bool
) -> list[Tensor]:
    """Return the two or three sums, the weight's scale left out."""
    if new.device.type == "cpu":
        return _compared_blocks(new, old, weight, float(ratio), apart)
    ours, theirs = _flat(new), _flat(old)
    root = None if weight is None else _root(weight)
    over = _over(ours, root)
    sums = [torch.dot(over, ours), torch.dot(over, theirs)]
    del over
    if apart:
        scaled = isinstance(ratio, Tensor)
        gap = ours - theirs * ratio if scaled else torch.sub(ours, theirs, alpha=float(ratio))
        sums.append(torch.dot(_over(gap, root), gap))
    return sums


def _compared_blocks(
    new: Tensor, old: Tensor, weight: Weight | None, ratio: float, apart: bool
) -> list[Tensor]:
    """Return the two or three sums on the host, with scratch memory for a block alone."""
    dots: list[Tensor] = []
    scratch: list[Tensor] = []
    moments = repeat(None) if weight is None else _blocks(weight.moment)
    for ours, theirs, moment in zip(_blocks(new), _blocks(old), moments, strict=False):
        if not scratch:
            scratch = [torch.empty_like(ours) for _ in range(3)]
        root, over, gap = (one[: len(ours)] for one in scratch)  # the last block may be smaller
        if moment is None or weight is None:
            over = ours
        else:
            torch.sqrt(moment.to(ours.dtype), out=root).add_(weight.eps)
            torch.div(ours, root, out=over)
        dots += [torch.dot(over, ours), torch.dot(over, theirs)]
        if apart:
            torch.sub(ours, theirs, alpha=ratio, out=gap)
            dots.append(torch.dot(gap if moment is None else torch.div(gap, root, out=over), gap))
    total = torch.stack(dots).view(-1, 3 if apart else 2).sum(dim=0, dtype=torch.float64)
    return [*total]


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
        )
        total = total if others.apart is None else others.apart
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
    total = _stacked(values, like)
    if any(isinstance(scale, Tensor) for scale in scales):
        # Filled, not copied from the host, which would make the device wait.
        tensors = [
            scale if isinstance(scale, Tensor) else torch.full_like(like, scale) for scale in scales
        ]
        total = total.to(like.dtype) * _stacked(tensors, like)
    elif any(scale != 1.0 for scale in scales):
        factors = torch.tensor(scales, dtype=like.dtype, device=like.device)
        total = total.to(like.dtype) * factors
    return total.sum(dtype=like.dtype)


def _replaceable(old: Tensor | None, new: Tensor) -> bool:
    return (
        old is not None
        and not (old.is_sparse or new.is_sparse)
        and (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    )
