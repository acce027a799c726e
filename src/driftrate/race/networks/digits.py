"""Protocols on handwritten digits: permuted anew, at rest and then shifted, at rest for long."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from driftrate.data.tables import fingerprint
from driftrate.errors import DataError, needs
from driftrate.race.networks.network import Network
from driftrate.race.networks.phases import Phase, Protocol

FILE = "digits10k.npz"
FULL = "mnist_784@1"
_MD5 = "0298d579eb1b86163de7723944c7e495"  # of the file of all digits, as OpenML gives it
_FULL_ROWS = 60_000
PIXELS, CLASSES = 784, 10
NETWORK = Network("classes", PIXELS, CLASSES, hidden=(300, 150))
# Digits that are never learned from where a protocol scores what was not seen.
HELD_OUT = 2000
_AFTER_TASKS, _AFTER_ROWS = 6, 2500
_NOISE_ROWS = 200
_PLASTIC_TASKS, _PLASTIC_ROWS, _BLOCK = 200, 2500, 20
_PASSES = 30

Pixels = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
# One task: what a change makes of the digits that it is given.
_Change = Callable[[np.random.Generator, int, Pixels, Labels], tuple[Pixels, Labels]]


def folder() -> Path:
    """Return the folder of the data, $DRIFTRATE_DATA or ../shared/data."""
    return Path(os.environ.get("DRIFTRATE_DATA", "../shared/data"))


def _load(path: Path) -> tuple[Pixels, Labels]:
    return _arrays(path, fingerprint(path))


@lru_cache(maxsize=1)
def _arrays(path: Path, mark: str) -> tuple[Pixels, Labels]:
    try:
        with np.load(path) as found:
            return _scaled(found["x"]), found["y"].astype(np.int64)
    except (OSError, KeyError, ValueError) as error:
        told = "set DRIFTRATE_DATA to the folder that has it"
        raise DataError(f"{path} cannot be read as digits: {error}; {told}") from error


@lru_cache(maxsize=1)
def _download() -> tuple[Pixels, Labels]:
    """Return all 70,000 digits, the 60,000 to learn from first; scikit-learn keeps them."""
    with needs(FULL, "sklearn"):
        from sklearn.datasets import fetch_openml
    name, _, edition = FULL.partition("@")
    try:
        found = fetch_openml(name, version=int(edition), as_frame=False, parser="liac-arff")
    except (OSError, ValueError) as error:
        raise DataError(f"{FULL} of openml.org cannot be had: {error}; try again") from error
    # scikit-learn has compared the content with the checksum that came along with it.
    if found.details.get("md5_checksum") != _MD5:
        raise DataError(f"{FULL} of openml.org is not the file it was")
    return _scaled(found.data), found.target.astype(np.int64)


def _scaled(x: npt.NDArray[Any]) -> Pixels:
    return (x / np.float32(255.0)).astype(np.float32)


def _of(
    name: str, rows: int, draw: Callable[..., Iterator[Phase]], *what: Any, figures: Any = ()
) -> Protocol:
    path = folder() / FILE
    kind = f"{fingerprint(path)}-{name}"
    return Protocol(name, NETWORK, rows, kind, lambda seed: draw(path, seed, *what), figures)


def permuted(what: str, rows: int, tasks: int) -> Protocol:
    """Return digits with pixels or labels permuted anew at every task.

    Each task shows the first `rows` of a fresh order of all digits.

    Args:
        what: `pixels` or `labels`.
        rows: Rows of a task.
        tasks: How many tasks.
    """
    return _of(f"{what}_{rows}", rows * tasks, _permuted, what, rows, tasks, tasks)


def plasticity() -> Protocol:
    """Return 200 tasks of digits with permuted pixels, in blocks of 20 that are scored apart."""
    rows = _PLASTIC_ROWS * _PLASTIC_TASKS
    early, late = _block(_BLOCK), _block(_PLASTIC_TASKS - 1)
    what = ("pixels", _PLASTIC_ROWS, _PLASTIC_TASKS, _BLOCK)
    return _of("plasticity", rows, _permuted, *what, figures=(early, late))


def _block(task: int) -> str:
    first = task - task % _BLOCK
    return f"tasks {first + 1} to {first + _BLOCK}"


def _permuted(
    path: Path, seed: int, what: str, rows: int, tasks: int, block: int
) -> Iterator[Phase]:
    x, y = _load(path)
    rng, changed = np.random.default_rng([3, seed]), CHANGES[what]()
    for task in range(tasks):
        order = rng.permutation(len(y))[:rows]
        name = "tasks" if block == tasks else _block(task)
        yield Phase(name, *changed(rng, task, x[order], y[order]))


def stationary() -> Protocol:
    """Return 30 passes over 8,000 digits that do not change, then 2,000 that were not seen."""
    rows = _PASSES * (10_000 - HELD_OUT)
    return _of("stationary", rows, _stationary, figures=("held out",))


def _stationary(path: Path, seed: int) -> Iterator[Phase]:
    rng, (x, y), (unseen, truth) = _split(path, seed)
    for _ in range(_PASSES):
        order = rng.permutation(len(y))
        yield Phase("passes", x[order], y[order])
    yield Phase("held out", unseen, truth, learn=False)


def rest(change: str, full: bool = False) -> Protocol:
    """Return one pass over 8,000 distinct digits, 2,000 held out, then six tasks of 2,500 rows.

    Args:
        full: Take all digits, by their public download: 60,000, and 10,000 held out.
        change: What the tasks are: new `labels` or `pixels` each; `gradual`, pixels that wander
            from one order to the next over each task; `return`, one other order of the pixels
            and the old one by turns; `noise`, 200 rows of random labels and then the old task.
    """
    after = _AFTER_TASKS * _AFTER_ROWS
    shown = ("rest", "held out", "after") if change == "labels" else ("after",)
    if not full:
        rows = 10_000 - HELD_OUT + after
        return _of(f"rest_{change}", rows, _rest, change, figures=shown)
    name = f"full_rest_{change}"
    draw = partial(_rest, None, change=change)
    return Protocol(name, NETWORK, _FULL_ROWS + after, f"{FULL}-{name}", draw, shown)


def _rest(path: Path | None, seed: int, change: str) -> Iterator[Phase]:
    rng, (x, y), unseen = _split(path, seed)
    order = rng.permutation(len(y))
    yield Phase("rest", x[order], y[order])
    yield Phase("held out", *unseen, learn=False)
    after = np.random.default_rng([5, seed])
    changed = CHANGES[change]()
    for task in range(_AFTER_TASKS):
        order = after.permutation(len(y))[:_AFTER_ROWS]
        yield Phase("after", *changed(after, task, x[order], y[order]))


def _split(
    path: Path | None, seed: int
) -> tuple[np.random.Generator, tuple[Pixels, Labels], tuple[Pixels, Labels]]:
    rng = np.random.default_rng([4, seed])
    if path is None:
        x, y = _download()
        return rng, (x[:_FULL_ROWS], y[:_FULL_ROWS]), (x[_FULL_ROWS:], y[_FULL_ROWS:])
    x, y = _load(path)
    order = rng.permutation(len(y))
    kept, unseen = order[HELD_OUT:], order[:HELD_OUT]
    return rng, (x[kept], y[kept]), (x[unseen], y[unseen])


def _new_pixels(rng: np.random.Generator, task: int, x: Pixels, y: Labels) -> tuple[Pixels, Labels]:
    return x[:, rng.permutation(PIXELS)], y


def _new_labels(rng: np.random.Generator, task: int, x: Pixels, y: Labels) -> tuple[Pixels, Labels]:
    return x, rng.permutation(CLASSES)[y]


def _noise_first(
    rng: np.random.Generator, task: int, x: Pixels, y: Labels
) -> tuple[Pixels, Labels]:
    noise = rng.integers(0, CLASSES, _NOISE_ROWS)
    return x, np.concatenate([noise, y[_NOISE_ROWS:]])


class _Return:
    """One other order of the pixels, and the old one back, by turns."""

    def __init__(self) -> None:
        self.other: npt.NDArray[np.int64] | None = None

    def __call__(
        self, rng: np.random.Generator, task: int, x: Pixels, y: Labels
    ) -> tuple[Pixels, Labels]:
        if self.other is None:
            self.other = rng.permutation(PIXELS)
        return (x[:, self.other] if task % 2 == 0 else x), y


class _Gradual:
    """Each pixel moves from its old place to its new one at a row of its own."""

    def __init__(self) -> None:
        self.order = np.arange(PIXELS)

    def __call__(
        self, rng: np.random.Generator, task: int, x: Pixels, y: Labels
    ) -> tuple[Pixels, Labels]:
        after = rng.permutation(PIXELS)
        when = rng.random(PIXELS)
        moved = np.arange(len(y))[:, None] / len(y) >= when
        shown = np.where(moved, x[:, after], x[:, self.order])
        self.order = after
        return shown, y


# Made for each stream: some remember the task before.
CHANGES: dict[str, Callable[[], _Change]] = {
    "pixels": lambda: _new_pixels,
    "labels": lambda: _new_labels,
    "gradual": _Gradual,
    "return": _Return,
    "noise": lambda: _noise_first,
}
