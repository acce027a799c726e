"""One step of `Pursuit` in one look at each coordinate, for devices that Triton knows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from driftrate.adapters import _pursuit as law
from driftrate.adapters.torch import pursuit_fast

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:  # torch for the CPU alone comes without it
    available = False
else:
    available = True

    # Triton reads the annotations of its arguments, and knows none of Python's.
    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _move(  # type: ignore[no-untyped-def]
        p,
        g,
        v,
        h,
        u,
        rest,
        factors,
        out,
        count,
        EPS: tl.constexpr,
        SHORT: tl.constexpr,
        DECAYS: tl.constexpr,
        BLOCK: tl.constexpr,
        KEEP: tl.constexpr,
        SPIKE: tl.constexpr,
        SMALLEST: tl.constexpr,
        LARGEST: tl.constexpr,
    ):
        here = tl.program_id(0)
        programs = tl.num_programs(0)
        length = tl.load(factors)
        keep = tl.load(factors + 1)
        fade = tl.load(factors + 2)
        forth = tl.load(factors + 3)
        back = tl.load(factors + 4)
        hold = tl.load(factors + 5)
        signal = tl.zeros((BLOCK,), tl.float32)
        push = tl.zeros((BLOCK,), tl.float32)
        for start in range(here.to(tl.int64) * BLOCK, count, programs * BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < count
            grad = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
            old = tl.load(v + at, mask=inside, other=0.0)
            trail = tl.load(h + at, mask=inside, other=0.0)
            lead = tl.load(u + at, mask=inside, other=0.0)
            weight = tl.load(p + at, mask=inside, other=0.0).to(tl.float32)
            size = tl.abs(grad)
            grad = tl.where((size >= SMALLEST) & (size <= LARGEST), grad, 0.0)
            most = tl.where(old > 0.0, SPIKE * tl.sqrt((1 - KEEP) * old), LARGEST)
            grad = tl.minimum(tl.maximum(grad, -most), most)
            square = tl.where(grad == 0.0, old, KEEP * old + grad * grad)
            delta = length * grad / tl.maximum(tl.sqrt(square), 1e-30)
            still = grad == 0.0
            step = tl.where(still, 0.0, back * lead - forth * delta)
            signal += grad * trail
            push += grad * lead
            tl.store(v + at, square, mask=inside)
            tl.store(h + at, (trail + step) * fade, mask=inside)
            tl.store(u + at, tl.where(still, lead, hold * (lead - delta)), mask=inside)
            if SHORT:
                dropped = tl.load(rest + at, mask=inside, other=0.0).to(tl.float32)
                weight += tl.where(tl.abs(dropped) <= EPS * tl.abs(weight), dropped, 0.0)
            if DECAYS:
                weight = weight * keep
            moved = weight + step
            kept = moved.to(p.dtype.element_ty)
            moves = inside & (grad != 0.0)
            tl.store(p + at, kept, mask=moves)
            if SHORT:
                tl.store(rest + at, (moved - kept.to(tl.float32)).to(kept.dtype), mask=moves)
        tl.store(out + 2 * here, tl.sum(signal))
        tl.store(out + 2 * here + 1, tl.sum(push))


# Among the fastest of the launches tried on an H200: with four warps a weight waits longer.
_BLOCK, _WARPS = 1024, 8
_KINDS = (torch.float32, torch.bfloat16, torch.float16)
# So many programs a processor of the device hide each other's waiting for memory.
_EACH = 4


@lru_cache
def _programs(place: torch.device) -> int:
    if place.type != "cuda":
        return _EACH
    return _EACH * int(torch.cuda.get_device_properties(place).multi_processor_count)


def takes(p: Tensor, grad: Tensor) -> bool:
    """Whether the kernel can move these weights."""
    if not (available and p.is_cuda and p.dtype in _KINDS and grad.dtype in _KINDS):
        return False
    return _compiles(p.device, p.dtype)


@lru_cache
def _compiles(place: torch.device, kind: torch.dtype) -> bool:
    """Whether Triton compiles here, for which it needs a C compiler and a folder of its own."""
    p = torch.zeros(16, dtype=kind, device=place)
    state: dict[str, Any] = {name: p.float() for name in ("square", "trail", "lead")}
    if kind != torch.float32:
        state["rest"] = p.clone()
    try:
        move([p], [p.clone()], [state], torch.zeros(1, 6, device=place), [True])
    except Exception as error:  # whatever it lacks
        pursuit_fast.LOG.warning("Pursuit takes the step as written on %s: %s", place, error)
        return False
    return True


def move(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[dict[str, Any]],
    factors: Tensor,
    decays: Sequence[bool],
) -> Tensor:
    """Move dense tensors of one device for which `takes` holds, see `pursuit_step.move`."""
    place = params[0].device
    most = _programs(place)
    # Every program has a place of its own for its sum: added in order, they are the same each time.
    out = torch.zeros((len(params), most, 2), dtype=torch.float32, device=place)
    every = zip(params, grads, states, factors, decays, out, strict=True)
    with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
        for p, grad, state, row, decay, sums in every:
            short = "rest" in state
            _move[(max(min(most, triton.cdiv(p.numel(), _BLOCK)), 1),)](
                p,
                grad,
                state["square"],
                state["trail"],
                state["lead"],
                state["rest"] if short else p,
                row,
                sums,
                p.numel(),
                torch.finfo(p.dtype).eps,
                short,
                decay,
                _BLOCK,
                law.KEEP,
                law.SPIKE,
                law.SMALLEST,
                law.LARGEST,
                num_warps=_WARPS,
            )
            torch.autograd.graph.increment_version(p)
    return out.sum(dim=1)
