"""Contestants that behave in every way: run in child processes, which find this file by its path.

The method says how: `ok`, `slow`, `raises`, `exits`, `crashes`, `killed` (as by the system where
memory runs out), `greedy`, `diverges`, `explodes`, `hangs` (between two steps, where the clock is
read) or `stuck` (in one step that never returns).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

STEPS = 40
RAISED = {
    "raises": ZeroDivisionError("a step went wrong"),
    "exits": SystemExit("a package that ends the program"),
    "greedy": MemoryError("Unable to allocate 74.5 GiB"),
    "explodes": OverflowError("math range error"),
}


def play(cell, deadline=None):
    """Play a made-up cell: its numbers follow from the cell alone."""
    if "TOY_NOTES" in os.environ:  # for tests that count what is played
        with Path(os.environ["TOY_NOTES"]).open("a") as notes:
            notes.write(f"{cell.key()}\n")
    rng = np.random.default_rng([int(cell.key()[:8], 16)])
    losses = 1.0 + 0.1 * len(cell.method) + 0.1 * rng.random(STEPS)
    result = {
        "status": "ok",
        "message": "",
        "loss": losses.mean(),
        "error": losses.mean() / 2,
        "regret": losses.sum(),
        "steps": STEPS,
        "seconds_per_step": float(time.perf_counter() % 1),
        "curve_steps": list(range(1, STEPS + 1)),
        "loss_curve": list(np.cumsum(losses) / np.arange(1, STEPS + 1)),
        "error_curve": list(losses / 2),
        "regret_curve": list(np.cumsum(losses)),
        "rate_curve": list(1.0 / np.arange(1, STEPS + 1)),
        "memory_curve": [],
    }
    match cell.method:
        case "slow":
            time.sleep(0.15)
        case "chatty":
            print("a package that prints", flush=True)
        case method if method in RAISED:
            raise RAISED[method]
        case "crashes":
            os.abort()
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "diverges":
            result |= {"status": "diverged", "message": "loss is inf at step 3", "loss": None}
        case "hangs":
            while deadline is None or time.monotonic() < deadline:
                time.sleep(0.01)
            result |= {"status": "timeout", "message": "over its limit", "loss": None}
        case "stuck":
            time.sleep(20)
    return result


def play_and_tell_parent(cell, deadline=None):
    """Play, and note which process this one looks after."""
    with Path(os.environ["TOY_PARENTS"]).open("a") as notes:
        notes.write(f"{os.getppid()}\n")
    return play(cell, deadline)


def play_and_kill_parent(cell, deadline=None):
    """Kill the process that looks after this one."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(20)
