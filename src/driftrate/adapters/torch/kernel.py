"""What is measured in one look at each coordinate, for devices that Triton knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

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
    # Before 3.3, that of torch 2.7, it takes no tuples.
    available = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 3)

    # Triton reads the annotations of its arguments, and knows none of Python's. What a launch looks
    # at comes in tuples: a launch takes the host longer than a device needs for a small tensor.
    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _turn(here, programs, before, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Return where a program begins in a tensor, the first block of which is number `before`.

        All blocks of a launch are dealt out in turn, so that small tensors do not meet the same few
        programs.
        """
        return ((here + programs - before % programs) % programs).to(tl.int64) * BLOCK

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _squares(  # type: ignore[no-untyped-def]
        tensors, counts, out, MANY: tl.constexpr, BLOCK: tl.constexpr
    ):
        here = tl.program_id(0)
        programs = tl.num_programs(0)
        before = 0
        square = tl.zeros((BLOCK,), tl.float32)
        for i in tl.static_range(MANY):
            tensor, count = tensors[i], counts[i]
            first = _turn(here, programs, before, BLOCK)
            before += tl.cdiv(count, BLOCK)
            for start in range(first, count, programs * BLOCK):
                at = start + tl.arange(0, BLOCK)
                a = tl.load(tensor + at, mask=at < count, other=0.0).to(tl.float32)
                square += a * a
        tl.store(out + here, tl.sum(square))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _sums(  # type: ignore[no-untyped-def]
        news,
        olds,
        moments,
        counts,
        epsilons,
        out,
        ratio,
        MANY: tl.constexpr,
        WEIGHED: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        here = tl.program_id(0)
        programs = tl.num_programs(0)
        before = 0
        for i in tl.static_range(MANY):
            new, old, count = news[i], olds[i], counts[i]
            first = _turn(here, programs, before, BLOCK)
            before += tl.cdiv(count, BLOCK)
            square = tl.zeros((BLOCK,), tl.float32)
            product = tl.zeros((BLOCK,), tl.float32)
            apart = tl.zeros((BLOCK,), tl.float32)
            whole = tl.zeros((BLOCK,), tl.float32)
            for start in range(first, count, programs * BLOCK):
                at = start + tl.arange(0, BLOCK)
                inside = at < count
                a = tl.load(new + at, mask=inside, other=0.0).to(tl.float32)
                b = tl.load(old + at, mask=inside, other=0.0).to(tl.float32)
                over = 1.0
                if WEIGHED:
                    v = tl.load(moments[i] + at, mask=inside, other=1.0).to(tl.float32)
                    over = 1.0 / (tl.sqrt(v) + epsilons[i])
                gap = a - ratio * b
                both = a + b
                square += over * a * a
                product += over * a * b
                apart += over * gap * gap
                whole += over * both * both
            row = out + 4 * i * programs + here
            tl.store(row, tl.sum(square))
            tl.store(row + programs, tl.sum(product))
            tl.store(row + 2 * programs, tl.sum(apart))
            tl.store(row + 3 * programs, tl.sum(whole))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _look(  # type: ignore[no-untyped-def]
        weights,
        averages,
        gradients,
        counts,
        good,
        out,
        SHARE: tl.constexpr,
        MANY: tl.constexpr,
        GIVEN: tl.constexpr,
        FOLLOWS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        here = tl.program_id(0)
        programs = tl.num_programs(0)
        follows = True
        if FOLLOWS:
            # A weight that is not finite must not spoil an average where the step is not good.
            follows = tl.load(good) != 0
        before = 0
        along = tl.zeros((BLOCK,), tl.float32)
        size = tl.zeros((BLOCK,), tl.float32)
        for i in tl.static_range(MANY):
            weight, average, count = weights[i], averages[i], counts[i]
            followed = tl.where(follows, count, 0)
            first = _turn(here, programs, before, BLOCK)
            before += tl.cdiv(count, BLOCK)
            for start in range(first, count, programs * BLOCK):
                at = start + tl.arange(0, BLOCK)
                inside = at < count
                w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
                slow = tl.load(average + at, mask=inside, other=0.0)
                lead = w - slow
                if GIVEN:
                    g = tl.load(gradients[i] + at, mask=inside, other=0.0).to(tl.float32)
                    along += g * lead
                    size += w * w
                if FOLLOWS:
                    tl.store(average + at, slow + SHARE * lead, mask=at < followed)
        if GIVEN:
            tl.store(out + 2 * here, tl.sum(along))
            tl.store(out + 2 * here + 1, tl.sum(size))


# Tensors of one launch at most: each is a loop of its own in the machine code.
_TOGETHER = 8
# Enough programs to fill a device, few enough that their sums are added up in one small kernel.
_PROGRAMS = 1024
_BLOCK = 1024
# So many programs a processor of the device hide each other's waiting for memory.
_EACH, _WIDE, _WARPS = 8, 2048, 8


def takes(tensor: Tensor, place: torch.device) -> bool:
    """Whether kernels read this tensor: dense numbers of the device, single precision at most."""
    return tensor.dtype in NARROW and tensor.device == place and tensor.is_contiguous()


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """Return ‖a‖² of all tensors together, in single precision; `takes` holds for each."""
    place = tensors[0].device
    rows = [*_launches(_counts(tensors), _WIDE, _most(place))]
    out = torch.empty((len(rows), rows[0].programs), dtype=torch.float32, device=place)
    with _on(place):
        for row, (some, counts, programs) in zip(out, rows, strict=True):
            _squares[(programs,)](
                tuple(tensors[some]), counts, row, len(counts), _WIDE, num_warps=_WARPS
            )
    return out.sum()


def sums(pairs: Sequence[tuple[Tensor, Tensor, Weight | None]], ratio: float) -> Tensor:
    """Return the sums of `partial`, a row a pair."""
    return partial(pairs, ratio).sum(dim=-1)


def partial(pairs: Sequence[tuple[Tensor, Tensor, Weight | None]], ratio: float) -> Tensor:
    """Return ⟨a, a⟩, ⟨a, b⟩, ‖a - ratio·b‖² and ‖a + b‖² of each pair, in single precision.

    Args:
        pairs: Dense real tensors of one device, no wider than single precision, and their metric,
            whose scale is left out; all have one or none has.
        ratio: The factor of b in the difference.

    Returns:
        A tensor of shape (pairs, 4, terms), the terms still to be added up.
    """
    place = pairs[0][0].device
    news, olds = [new.contiguous() for new, *_ in pairs], [old.contiguous() for _, old, _ in pairs]
    weights = [weight for *_, weight in pairs if weight is not None]
    moments = [weight.moment.contiguous() for weight in weights] or news
    epsilons = [weight.eps for weight in weights] or [0.0] * len(pairs)
    # As many terms in every call: those of several calls are added up together.
    out = torch.empty((len(pairs), 4, _PROGRAMS), dtype=torch.float32, device=place)
    with _on(place):
        for some, counts, _ in _launches(_counts(news), _BLOCK, _PROGRAMS):
            _sums[(_PROGRAMS,)](
                *(tuple(every[some]) for every in (news, olds, moments)),
                counts,
                tuple(epsilons[some]),
                out[some],
                ratio,
                len(counts),
                bool(weights),
                _BLOCK,
            )
    return out


def looked(
    weights: Sequence[Tensor],
    averages: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    good: Tensor | None,
) -> Tensor:
    """Return ⟨g, w - w̄⟩ and ‖w‖² of all that have a gradient; let averages follow where good.

    Args:
        weights: Tensors of one device for which `takes` holds.
        averages: Their averages in single precision, changed in place.
        gradients: Their gradients; None adds nothing to the sums.
        good: Whether the averages follow, on the device; None: they do not.

    Returns:
        Both sums, in single precision.
    """
    every = [*zip(weights, averages, gradients, strict=True)]
    given = [(w, slow, g) for w, slow, g in every if g is not None]
    others = [(w, slow, w) for w, slow, g in every if g is None]
    sums = _look_at(given, good, True)
    if good is not None:
        _look_at(others, good, False)
    return torch.zeros(2, device=weights[0].device) if sums is None else sums


def _look_at(
    every: Sequence[tuple[Tensor, Tensor, Tensor]], good: Tensor | None, given: bool
) -> Tensor | None:
    """Launch the kernel for tensors that all have a gradient or all have none."""
    if not every:
        return None
    weights, averages, gradients = zip(*every, strict=True)
    place = weights[0].device
    rows = [*_launches(_counts(weights), _WIDE, _most(place))]
    # Every program has a place of its own: added in order, the sums are the same each time.
    out = torch.empty((len(rows), rows[0].programs, 2), dtype=torch.float32, device=place)
    with _on(place):
        for row, (some, counts, programs) in zip(out, rows, strict=True):
            _look[(programs,)](
                weights[some],
                averages[some],
                gradients[some],
                counts,
                out if good is None else good,
                row,
                1.0 / HORIZON,
                len(counts),
                given,
                good is not None,
                _WIDE,
                num_warps=_WARPS,
            )
    return out.sum(dim=(0, 1)) if given else None


class _Launch(NamedTuple):
    some: slice
    counts: tuple[int, ...]
    programs: int


def _launches(counts: tuple[int, ...], block: int, most: int) -> Iterator[_Launch]:
    """Yield what each launch looks at; all have as many programs."""
    parts = [counts[at : at + _TOGETHER] for at in range(0, len(counts), _TOGETHER)]
    blocks = max(sum(-(-count // block) for count in part) for part in parts)
    programs = max(1, min(most, blocks))
    if len(parts) > 1:  # sums that begin at an odd place would have a kernel of their own
        programs = -(-programs // 4) * 4
    for number, part in enumerate(parts):
        first = number * _TOGETHER
        yield _Launch(slice(first, first + len(part)), part, programs)


def _counts(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(tensor.numel() for tensor in tensors)


@lru_cache
def _most(place: torch.device) -> int:
    """Return the programs of a launch at most."""
    if place.type != "cuda":
        return _EACH
    return _EACH * int(torch.cuda.get_device_properties(place).multi_processor_count)


def _on(place: torch.device) -> Any:
    return torch.cuda.device(place) if place.type == "cuda" else nullcontext()
