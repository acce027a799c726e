"""One step of `Pursuit` on the CPU in one look at each coordinate, where there is a C compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from driftrate.adapters import _pursuit as law

_SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ["-O3", "-std=c99", "-fPIC", "-shared"]
# Vectors need to be told that sums may be taken in lanes and that no root sets an error.
_FLAGS += ["-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"]
# Sums are of pieces of this size, in order: they do not depend on the number of threads.
_PIECE = 1 << 18

Move = Callable[..., None]
Piece = tuple[Any, ...]


@lru_cache(maxsize=1)
def compiled() -> Move | None:
    """Return the C function, compiled for this machine at the first call; None if it cannot be."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        return None
    numbers = {
        "KEEP": law.KEEP,
        "FORGET": 1 - law.KEEP,
        "SPIKE": law.SPIKE,
        "SMALLEST": law.SMALLEST,
        "LARGEST": law.LARGEST,
    }
    given = [f"-D{name}=((float){value!r})" for name, value in numbers.items()]
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "pursuit.so")
        for machine in (["-march=native"], []):  # not every compiler knows its machine
            call = [compiler, *_FLAGS, *machine, *given, str(_SOURCE), "-o", library, "-lm"]
            try:
                subprocess.run(call, check=True, capture_output=True, timeout=60)
                # Once loaded, the file may go.
                move: Any = ctypes.CDLL(library).pursuit_move
            except (OSError, subprocess.SubprocessError):
                continue
            move.restype = None
            move.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
            return move  # type: ignore[no-any-return]
    return None


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


def takes(p: Tensor, grad: Tensor) -> bool:
    """Whether the C function can move these weights."""
    return p.is_cpu and p.dtype == grad.dtype == torch.float32 and compiled() is not None


def apart(spans: Iterable[tuple[int, int]]) -> bool:
    """Whether no two spans of memory, starts and sizes, share any."""
    every = sorted(spans)
    return all(start + size <= then for (start, size), (then, _) in pairwise(every))


def move(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[dict[str, Any]],
    factors: Tensor,
    decays: Sequence[bool],
) -> Tensor:
    """Move dense tensors for which `takes` holds, see `pursuit_step.move`."""
    one = compiled()
    assert one is not None
    pieces: list[Piece] = []
    counts = []
    row = factors.data_ptr()
    for p, grad, state, decay in zip(params, grads, states, decays, strict=True):
        size, w, g, v = p.numel(), p.data_ptr(), grad.data_ptr(), state["square"].data_ptr()
        h, u = state["trail"].data_ptr(), state["lead"].data_ptr()
        for start in range(0, size, _PIECE):
            at, count = 4 * start, min(_PIECE, size - start)  # four bytes a number
            pieces.append((w + at, g + at, v + at, h + at, u + at, row, count, decay))
        counts.append(-(-size // _PIECE))
        row += 4 * factors.stride(0)
        torch.autograd.graph.increment_version(p)
    workers = torch.get_num_threads()
    sums = np.zeros((len(pieces), 2))
    first = sums.ctypes.data
    places = range(first, first + 16 * len(pieces), 16)  # two doubles each
    many = workers > 1 and len(pieces) > len(params)
    # What shares memory is moved in order.
    if many and apart((start, 4 * piece[6]) for piece in pieces for start in piece[:5]):
        list(_threads(workers).map(lambda piece, place: one(*piece, place), pieces, places))
    else:
        for piece, place in zip(pieces, places, strict=True):
            one(*piece, place)
    if counts != [1] * len(counts):
        parts = iter(sums)
        sums = np.array([sum((next(parts) for _ in range(n)), np.zeros(2)) for n in counts])
    return torch.from_numpy(sums.astype(np.float32))
