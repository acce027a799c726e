"""The sums of two gradients in one look at each coordinate, for devices that Triton knows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from driftrate.adapters.torch.metric import Weight

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


# Enough programs to fill a device, few enough that their sums are added up in one small kernel.
_PROGRAMS = 1024
_BLOCK = 1024


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
    with torch.cuda.device(place):
        for (new, old, weight), row in zip(pairs, out, strict=True):
            a, b = new.contiguous(), old.contiguous()
            moment = a if weight is None else weight.moment.contiguous()
            eps = 0.0 if weight is None else weight.eps
            _sums[(_PROGRAMS,)](
                a, b, moment, row, a.numel(), ratio, eps, weight is not None, _BLOCK
            )
    return out
