"""What is measured in one look at each coordinate, for devices that Triton knows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache

import torch
from torch import Tensor

from driftrate.adapters.torch.measure import NARROW
from driftrate.adapters.torch.metric import Weight
from driftrate.schedules.base import HORIZON

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:  # torch for the CPU alone comes without it
    available = False
else:
    available = True

    # Triton reads the annotations of its arguments, and knows none of Python's.
    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _sums(  # type: ignore[no-untyped-def]
        new, old, moment, out, count, ratio, eps, WEIGHED: tl.constexpr, BLOCK: tl.constexpr
    ):
        here = tl.program_id(0)
        programs = tl.num_programs(0)
        square = tl.zeros((BLOCK,), tl.float32)
        product = tl.zeros((BLOCK,), tl.float32)
        apart = tl.zeros((BLOCK,), tl.float32)
        whole = tl.zeros((BLOCK,), tl.float32)
        for start in range(here.to(tl.int64) * BLOCK, count, programs * BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < count
            a = tl.load(new + at, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(old + at, mask=inside, other=0.0).to(tl.float32)
            over = 1.0
            if WEIGHED:
                v = tl.load(moment + at, mask=inside, other=1.0).to(tl.float32)
                over = 1.0 / (tl.sqrt(v) + eps)
            gap = a - ratio * b
            both = a + b
            square += over * a * a
            product += over * a * b
            apart += over * gap * gap
            whole += over * both * both
        tl.store(out + here, tl.sum(square))
        tl.store(out + programs + here, tl.sum(product))
        tl.store(out + 2 * programs + here, tl.sum(apart))
        tl.store(out + 3 * programs + here, tl.sum(whole))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _look(  # type: ignore[no-untyped-def]
        weight,
        average,
        gradient,
        good,
        out,
        count,
        SHARE: tl.constexpr,
        GIVEN: tl.constexpr,
        FOLLOWS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        here = tl.program_id(0)
        programs = tl.num_programs(0)
        followed = count
        if FOLLOWS:
            # A weight that is not finite must not spoil an average where the step is not good.
            followed = tl.where(tl.load(good) != 0, count, 0)
        along = tl.zeros((BLOCK,), tl.float32)
        size = tl.zeros((BLOCK,), tl.float32)
        for start in range(here.to(tl.int64) * BLOCK, count, programs * BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < count
            w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
            slow = tl.load(average + at, mask=inside, other=0.0)
            lead = w - slow
            if GIVEN:
                g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
                along += g * lead
                size += w * w
            if FOLLOWS:
                tl.store(average + at, slow + SHARE * lead, mask=at < followed)
        if GIVEN:
            tl.store(out + 2 * here, tl.sum(along))
            tl.store(out + 2 * here + 1, tl.sum(size))


# Enough programs to fill a device, few enough that their sums are added up in one small kernel.
_PROGRAMS = 1024
_BLOCK = 1024
# So many programs a processor of the device hide each other's waiting for memory.
_EACH, _WIDE, _WARPS = 8, 2048, 8


def sums(pairs: Sequence[tuple[Tensor, Tensor, Weight | None]], ratio: float) -> Tensor:
    """Return the sums of `partial`, a row a pair."""
    return partial(pairs, ratio).sum(dim=-1)


def partial(pairs: Sequence[tuple[Tensor, Tensor, Weight | None]], ratio: float) -> Tensor:
    """Return ⟨a, a⟩, ⟨a, b⟩, ‖a - ratio·b‖² and ‖a + b‖² of each pair, in single precision.

    Args:
        pairs: Dense real tensors of one device, no wider than single precision, and their metric,
            whose scale is left out.
        ratio: The factor of b in the difference.

    Returns:
        A tensor of shape (pairs, 4, terms), the terms still to be added up.
    """
    place = pairs[0][0].device
    out = torch.empty((len(pairs), 4, _PROGRAMS), dtype=torch.float32, device=place)
    with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
        for (new, old, weight), row in zip(pairs, out, strict=True):
            a, b = new.contiguous(), old.contiguous()
            moment = a if weight is None else weight.moment.contiguous()
            eps = 0.0 if weight is None else weight.eps
            _sums[(_PROGRAMS,)](
                a, b, moment, row, a.numel(), ratio, eps, weight is not None, _BLOCK
            )
    return out


@lru_cache
def _programs(place: torch.device) -> int:
    if place.type != "cuda":
        return _EACH
    return _EACH * int(torch.cuda.get_device_properties(place).multi_processor_count)


def takes_lead(weight: Tensor, average: Tensor, gradient: Tensor | None) -> bool:
    """Whether the kernel can look at these: dense numbers of one device, in single precision."""
    some = (weight, average) if gradient is None else (weight, average, gradient)
    return (
        weight.is_cuda
        and average.dtype is torch.float32
        and all(
            one.dtype in NARROW and one.device == weight.device and one.is_contiguous()
            for one in some
        )
    )


def looked(
    weights: Sequence[Tensor],
    averages: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    good: Tensor | None,
) -> Tensor:
    """Return ⟨g, w - w̄⟩ and ‖w‖² of all that have a gradient; let averages follow where good.

    Args:
        weights: Tensors of one device for which `takes_lead` holds.
        averages: Their averages, changed in place.
        gradients: Their gradients; None adds nothing to the sums.
        good: Whether the averages follow, on the device; None: they do not.

    Returns:
        Both sums, in single precision.
    """
    place = weights[0].device
    most = _programs(place)
    # Every program has a place of its own: added in order, the sums are the same each time.
    out = torch.zeros((len(weights), most, 2), dtype=torch.float32, device=place)
    with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
        every = zip(weights, averages, gradients, out, strict=True)
        for weight, average, gradient, sums in every:
            _look[(max(min(most, triton.cdiv(weight.numel(), _WIDE)), 1),)](
                weight,
                average,
                weight if gradient is None else gradient,
                average if good is None else good,
                sums,
                weight.numel(),
                1.0 / HORIZON,
                gradient is not None,
                good is not None,
                _WIDE,
                num_warps=_WARPS,
            )
    return out.sum(dim=(0, 1))
