"""One rank of sharded runs: `sharded_child.py OUT CHECK...`, all checks in one process."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import gloo_ranks
import sharded_checks
import sharded_resume  # noqa: F401 (it adds checks)
import sharded_uneven  # noqa: F401 (it adds checks)


def main(out: Path, names: list[str], rank: int, world: int) -> None:
    for name in names:
        sharded_checks.CHECKS[name](out)
        if rank == 0:
            (out / f"{name}.passed").touch()


if __name__ == "__main__":
    gloo_ranks.take_part(partial(main, Path(sys.argv[1]), sys.argv[2:]))
