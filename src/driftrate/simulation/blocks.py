"""Blocks of seeds: what one thread runs at a time, with a generator of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from threading import Lock, current_thread, main_thread
from typing import Protocol

from numpy.random import SeedSequence

# A step of so many random numbers takes a millisecond, ten times as long as the interpreter's part
# of it, which threads must take in turn. Blocks have twice as many where there are more than two.
_NUMBERS = 1 << 17
# Every block follows the target by itself: with so many seeds that is a few percent of their work.
_SEEDS = 8


class Block(Protocol):
    """A part of the seeds, which can be taken forward."""

    done: int  # the steps taken
    turn: int  # the steps to take at a time

    def run(self, until: int, stop: Sequence[int] = ...) -> None:
        """Go on to a step, or end after the current one once `stop` has entries."""


def cut(seeds: int, numbers: float) -> list[slice]:
    """Divide seeds into blocks of nearly equal size, whatever the number of threads.

    A run that is small, in random numbers a step, stays one block: cutting costs it more than a
    second core gives back.

    Args:
        seeds: The number of seeds.
        numbers: What a step of one seed costs, in random numbers.

    Example:
        >>> cut(32, numbers=1024), cut(32, numbers=8192)
        ([slice(0, 32, None)], [slice(0, 16, None), slice(16, 32, None)])
    """
    total = int(seeds * numbers)
    count = max(total // (2 * _NUMBERS), min(2, total // _NUMBERS))
    count = max(1, min(count, seeds // _SEEDS))
    ends = [seeds * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def sources(seed: int, count: int) -> list[SeedSequence]:
    """Return the entropy of each block; a single block has the seed's own.

    Example:
        >>> [source.spawn_key for source in sources(0, 1) + sources(0, 2)]
        [(), (0,), (1,)]
    """
    root = SeedSequence(seed)
    return [root] if count == 1 else root.spawn(count)


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(blocks: Sequence[Block], steps: int, threads: int, report: Callable[[int], None]) -> bool:
    """Take all blocks through the steps; Ctrl-C ends them all after the same step.

    Args:
        blocks: The blocks.
        steps: The number of steps.
        threads: How many threads share them; this one is the first.
        report: Told how many steps all blocks have done.

    Returns:
        Whether all steps were done.
    """
    with _deferred_interrupt() as interrupted, _single_algebra(len(blocks) > 1):
        _together(blocks, steps, threads, report, interrupted)
        if interrupted:
            # The furthest block decides, because no block can go back.
            _together(blocks, max(block.done for block in blocks), threads, report, [])
    return not interrupted


def _together(
    blocks: Sequence[Block],
    until: int,
    threads: int,
    report: Callable[[int], None],
    stop: list[int],
) -> None:
    waiting, lock = list(blocks), Lock()
    failed: list[int] = []  # a thread that fails ends the others after their turn

    def work() -> None:
        while True:
            with lock:
                # The last in line first, so that blocks stay within a turn of each other.
                block = min(waiting, key=lambda one: one.done, default=None)
                if stop or failed or block is None or block.done >= until:
                    return
                waiting.remove(block)
            try:
                block.run(min(block.done + block.turn, until), stop)
            except BaseException:
                failed.append(1)
                raise
            with lock:
                waiting.append(block)
                report(min(one.done for one in blocks))

    threads = min(threads, len(blocks))
    if threads == 1:
        work()
        return
    with ThreadPoolExecutor(threads - 1, "driftrate-simulate") as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
    for other in others:
        other.result()


@contextmanager
def _single_algebra(several: bool) -> Iterator[None]:
    """Keep products of matrices to the thread that asks for them, where threads have blocks.

    Whether they do depends on the run alone, never on how many threads there are: products that
    are cut differently are rounded differently.
    """
    if not several or find_spec("threadpoolctl") is None:
        yield
        return
    with import_module("threadpoolctl").threadpool_limits(1, user_api="blas"):
        yield


@contextmanager
def _deferred_interrupt() -> Iterator[list[int]]:
    """Collect Ctrl-C in a list, so that no step is left half done."""
    caught: list[int] = []
    if current_thread() is not main_thread():
        yield caught
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)
