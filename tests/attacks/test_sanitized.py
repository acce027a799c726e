"""Pursuit's compiled step under AddressSanitizer: `pytest -m slow tests/attacks/test_sanitized.py`.

As a script it is the child process that takes the steps.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -g"
SIZES = (0, 1, 2, 15, 17, 4095, 4096, 4097, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (1 << 19) + 5)


def steps():
    """Move tensors of all sizes, each at the end of its memory."""
    import torch

    import driftrate.torch
    from driftrate.adapters.torch import pursuit_fast

    assert pursuit_fast.compiled() is not None
    torch.set_num_threads(3)
    params = [torch.nn.Parameter(torch.zeros(size + 1)[1:]) for size in SIZES]
    params += [torch.nn.Parameter(torch.ones(3, size)) for size in SIZES[:-2]]
    optimizer = driftrate.torch.Pursuit(params)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn(p.shape)
        optimizer.step()
    assert all(bool(p.isfinite().all()) for p in params)


def past(name):
    """Move a tensor of which something is a number short."""
    import torch

    from driftrate.adapters.torch import pursuit_fast

    p, grad, *kept = (torch.zeros(64 - (name == one)) for one in ("p", "g", "v", "h", "u"))
    every = [p, grad, *kept, torch.zeros(6), torch.zeros(2, dtype=torch.float64)]
    w, g, v, h, u, factors, signals = (one.data_ptr() for one in every)
    pursuit_fast.compiled()(w, g, v, h, u, factors, 64, 0, signals)


@pytest.fixture(scope="module")
def sanitizer():
    """Return the environment of a child whose step is watched."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    try:
        call = [*compiler, "-print-file-name=libasan.so"]
        found = subprocess.run(call, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no C compiler that answers: {error}")
    library = Path(found.strip())
    if not (library.is_absolute() and library.exists()):
        pytest.skip(f"{compiler[0]} has no AddressSanitizer")
    options = {"ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": str(library.resolve())}
    return {**os.environ, **options, "CC": shlex.join(compiler) + " " + FLAGS}


def child(sanitizer, *words):
    call = [sys.executable, __file__, *words]
    return subprocess.run(
        call, env=sanitizer, capture_output=True, text=True, check=False, timeout=240
    )


@pytest.mark.slow
def test_the_compiled_step_stays_in_its_memory(sanitizer):
    ended = child(sanitizer, "steps")
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["g", "h"])
def test_a_step_past_the_end_would_be_seen(sanitizer, name):
    ended = child(sanitizer, "past", name)
    assert ended.returncode != 0
    assert "heap-buffer-overflow" in ended.stderr, ended.stderr[-3000:]
    assert "pursuit.so" in ended.stderr


if __name__ == "__main__":
    {"steps": steps, "past": past}[sys.argv[1]](*sys.argv[2:])
