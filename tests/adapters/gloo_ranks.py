"""Both ends of a gloo run on this machine: a test starts the ranks, and a rank runs its part.

No elastic agent stands between: it hides what the ranks said.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class Ended(NamedTuple):
    """How a rank ended: its exit code, below 0 for a signal, and all that it printed."""

    code: int
    said: str


def start(child: str, folder: Path, world: int, *more: object, limit: float = 120) -> list[Ended]:
    """Run the script `child FOLDER MORE...` as `world` ranks, and wait until all have ended.

    Ranks that have not ended after `limit` seconds are aborted, and tell where they were.
    """
    shared = {"RENDEZVOUS": f"file://{folder}/rendezvous", "WORLD_SIZE": str(world)}
    shared |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, str(HERE / child), str(folder), *map(str, more)]
    told = [folder / f"rank-{rank}.txt" for rank in range(world)]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, path in enumerate(told):
            env = {**os.environ, **shared, "RANK": str(rank)}
            with path.open("wb") as out:  # a file, which no rank waits for as for a full pipe
                one = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
            ranks.append(one)
        end = time.monotonic() + limit
        while time.monotonic() < end and any(one.poll() is None for one in ranks):
            time.sleep(0.02)
        for one in ranks:
            if one.poll() is None:
                one.send_signal(signal.SIGABRT)  # faulthandler prints the stacks
        for one in ranks:
            one.wait(10)
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    return [Ended(one.returncode, path.read_text()) for one, path in zip(ranks, told, strict=True)]


def report(ranks: list[Ended]) -> str:
    """Return what every rank said, for a test that fails."""
    return "\n".join(f"rank {k}: exit {r.code}\n{r.said[-3000:]}" for k, r in enumerate(ranks))


def take_part(part: Callable[[int, int], None]) -> None:
    """Join the other ranks, run `part(rank, world)`, and end this process; call it last.

    At the end all wait for all, so that nobody leaves while another still talks. The process then
    ends at once, with its process group and without the interpreter's teardown. For a thread of
    gloo asks for the interpreter's lock to let go of what a finished call has kept. If by then DDP
    is the group's last owner, it holds the lock and waits for that thread: both wait for ever. If
    the interpreter is going, asking for its lock aborts the process (pytorch#179291).
    """
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    code = 0
    try:
        where, patience = os.environ["RENDEZVOUS"], timedelta(seconds=60)
        dist.init_process_group(
            "gloo", init_method=where, rank=rank, world_size=world, timeout=patience
        )
        part(rank, world)
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
