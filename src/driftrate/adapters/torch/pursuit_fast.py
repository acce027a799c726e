"""One step of `Pursuit` on the CPU in one look at each coordinate, where there is a C compiler."""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
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

# Seconds for the compiler: it needs a fraction of one, on a busy machine a few.
_LIMIT = 15.0

LOG = logging.getLogger("driftrate")

Move = Callable[..., None]
Piece = tuple[Any, ...]


@lru_cache(maxsize=1)
def compiled() -> Move | None:
    """Return the C function, compiled for this machine at the first call; None if it cannot be.

    Which of both it is, and why, is logged once.
    """
    try:
        call = shlex.split(os.environ.get("CC") or "") or ["cc"]
        if shutil.which(call[0]) is None:
            raise FileNotFoundError(f"there is no C compiler {call[0]!r}: install one or set CC")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            move = _loaded(call, os.path.join(folder, "pursuit.so"))
    except (AttributeError, OSError, ValueError, subprocess.SubprocessError) as error:
        LOG.warning("Pursuit takes the step as written, several times slower: %s", error)
        return None
    LOG.info("Pursuit takes the step that %s has compiled", shlex.join(call))
    return move


def _loaded(compiler: Sequence[str], library: str) -> Move:
    """Return the function of the library that a compiler has made."""
    numbers = {
        "KEEP": law.KEEP,
        "FORGET": 1 - law.KEEP,
        "SPIKE": law.SPIKE,
        "SMALLEST": law.SMALLEST,
        "LARGEST": law.LARGEST,
    }
    given = [f"-D{name}=((float){value!r})" for name, value in numbers.items()]
    call = [*compiler, *_FLAGS, *given, str(_SOURCE), "-o", library, "-lm"]
    end = time.monotonic() + _LIMIT
    try:
        _run([*call, "-march=native"], end)
    except subprocess.CalledProcessError:  # not every compiler knows its machine
        _run(call, end)
    move: Any = ctypes.CDLL(library).pursuit_move  # once loaded, the file may go
    move.restype = None
    move.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    return move  # type: ignore[no-any-return]


def _run(call: Sequence[str], end: float) -> None:
    """Run a compiler; at the end of its time it is killed, with all that it has started."""
    nothing = subprocess.DEVNULL  # a pipe would be waited for as long as any child holds it
    with subprocess.Popen(
        call, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    ) as process:
        try:
            code = process.wait(max(end - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{call[0]} has not ended after {_LIMIT:.0f} s") from None
        finally:
            if process.poll() is None and os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
    if code:
        raise subprocess.CalledProcessError(code, call[0])


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
