"""The C step of `Pursuit` is compiled from the package's file, where nobody else can write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from driftrate.adapters.torch import pursuit_fast


@pytest.mark.skipif(pursuit_fast.compiled() is None, reason="no C compiler here")
def test_nobody_else_writes_where_it_is_compiled_nor_has_a_say_in_the_working_folder(
    tmp_path, monkeypatch
):
    for name in ("cc", "math.h", "stdint.h", "pursuit_fast.c", "libm.so", "pursuit.so"):
        (tmp_path / name).write_text("no compiler, header or library")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    seen, run = [], pursuit_fast._run

    def watched(call, end):
        folder = Path(call[call.index("-o") + 1]).parent
        seen.append((folder, stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid))
        return run(call, end)

    monkeypatch.setattr(pursuit_fast, "_run", watched)
    pursuit_fast.compiled.cache_clear()
    assert pursuit_fast.compiled() is not None
    assert [one[1:] for one in seen] == [(0o700, os.getuid())]
    assert not seen[0][0].exists()
