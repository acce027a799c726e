"""Playing one cell: test, then train, batch by batch."""

from __future__ import annotations

import sys
import time
import warnings
from contextlib import ExitStack
from math import isfinite
from typing import Any, cast

import numpy as np

from driftrate.errors import ConfigError, DataError
from driftrate.race.cell import (
    CURVE_POINTS,
    Cell,
    Result,
    Status,
    absurd,
    one_line,
    without_result,
)
from driftrate.race.code import code_of
from driftrate.race.contestants import Contestant, Player, Setup, contestants
from driftrate.race.endings import ending
from driftrate.race.models import Floats, Task, errors, losses
from driftrate.race.networks.play import Learner
from driftrate.race.networks.result import play_network
from driftrate.race.sources import NOT_FILES, Batch, Source, resolve


class _Tally:
    """Sums over the steps and curves at a few of them: memory does not grow with the stream."""

    def __init__(self, task: Task, steps: int) -> None:
        self._task = task
        points = np.linspace(1, steps, min(steps, CURVE_POINTS)).round()
        self._points = {int(point) for point in points}
        self.steps, self.seconds = 0, 0.0
        self._loss = self._error = self._regret = self._nothing = 0.0
        self._oracle = False
        self._curves: dict[str, list[float]] = {}
        self._places: list[int] = []

    def add(self, batch: Batch, scores: Floats, rate: float | None) -> bool:
        """Add one step and return True; leave it out and return False if its loss is not finite."""
        loss = float(losses(self._task, scores, batch.y).mean())
        if not isfinite(loss):
            return False
        self.steps += 1
        self._loss += loss
        self._error += float(errors(self._task, scores, batch.y).mean())
        self._nothing += float(losses(self._task, np.zeros_like(scores), batch.y).mean())
        if batch.oracle is not None and batch.expected is not None:
            # The loss is linear in y but for what p does not change, so E[y|x] may stand for y.
            excess = losses(self._task, scores, batch.expected)
            excess = excess - losses(self._task, batch.oracle, batch.expected)
            self._oracle = True
            self._regret += float(excess.mean())
        if self.steps in self._points:
            self._places.append(self.steps)
            shown = rate if rate is None or isfinite(rate) else 0.0
            for key, value in {**self.means(), "rate": shown}.items():
                if value is not None:
                    self._curves.setdefault(f"{key}_curve", []).append(value)
        return True

    def means(self) -> dict[str, float | None]:
        """Return the mean loss and error so far, and the sum of regret."""
        error = self._error / self.steps
        return {
            "loss": self._loss / self.steps,
            "error": error**0.5 if self._task == "regression" else error,
            "regret": self._regret if self._oracle else None,
        }

    def end(self) -> Result:
        """Return the result of a cell played to its end: `diverged` where its loss is absurd."""
        said = absurd(self._loss / max(self.steps, 1), self._nothing / max(self.steps, 1))
        return self.result("diverged" if said else "ok", said)

    def result(self, status: Status, message: str) -> Result:
        """Return the result; only a cell that is ok has a loss."""
        found: Any = {**without_result(status, message), "steps": self.steps, **self._curves}
        found["seconds_per_step"] = self.seconds / max(self.steps, 1)
        found["curve_steps"] = self._places
        if status == "ok" and self.steps:
            found.update(self.means())
        return cast(Result, found)


def play(cell: Cell, deadline: float | None = None) -> Result:
    """Play a cell to its end, whatever the contestant does.

    Every batch is predicted with the weights before it and then trained on. Where the oracle is
    known, the regret of a step is the expected excess loss given the batch's features,

        mean over rows of E[ℓ(p, y) - ℓ(p*, y) | x],

    with p* the score of the best weights. It needs no weights of the predictor.
    Networks have a loop of their own, of the same meaning (`driftrate.race.networks.play`).

    Args:
        cell: The cell.
        deadline: When to stop, by `time.monotonic()`; read between steps.

    Returns:
        The result; the error of a regression is the root of the mean squared one. `failed` says in
        one line what was raised, `diverged` at which step the loss was not finite any more, how the
        method refused numbers that were not, or that the mean loss is over a thousand times that of
        predicting nothing (a score of 0 for every row), `timeout` how far it came, `not played`
        what is wrong that is not the method's: a file that is gone or has changed, no memory. None
        of these has a loss, an error or a regret.

    Example:
        >>> spec = "synthetic:standstill,dim=2,steps=50"
        >>> cell = Cell(spec, "HedgedSGD", "default", 0, spec, model="linear", batch=8)
        >>> result = play(cell)
        >>> result["status"], result["steps"]
        ('ok', 50)
    """
    with ExitStack() as stack:
        # A method that diverges overflows.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(np.errstate(all="ignore"))
        try:
            source, contestant = _prepare(cell)
        except Exception as error:  # nothing that the method did
            return without_result("not played", one_line(error))
        tally = _Tally(source.task, source.steps)
        try:
            setup = Setup(source.make_model(), source.batch, source.steps, cell.seed, source.device)
            player = contestant.make(cell.setting, setup)
            _one_thread(stack)
            if source.model == "mlp":
                result = play_network(cast(Learner, player), source, cell.seed, deadline)
            else:
                result = _play(player, source, tally, cell.seed, deadline)
        except Exception as error:  # a contestant may raise anything; the race goes on
            result = tally.result(ending(error), one_line(error))
    changed = _changed(cell)
    return result if changed is None else without_result("not played", changed)


def _play(
    player: Player, source: Source, tally: _Tally, seed: int, deadline: float | None
) -> Result:
    for batch in source.batches(seed):
        if deadline is not None and time.monotonic() >= deadline:
            done = f"{tally.steps:,} of {source.steps:,} steps"
            return tally.result("timeout", f"out of time after {done}")
        begin = time.perf_counter()
        scores = player.step(batch.x, batch.y)
        tally.seconds += time.perf_counter() - begin
        if not tally.add(batch, scores, player.rate):
            step = f"step {tally.steps + 1:,}"
            return tally.result("diverged", f"the loss of {step} is not finite")
    return tally.end()


def _prepare(cell: Cell) -> tuple[Source, Contestant]:
    entrants = contestants()
    if cell.method not in entrants:
        raise ConfigError(f"method must be one of {', '.join(entrants)}, got {cell.method!r}")
    contestant = entrants[cell.method]
    if cell.code not in ("", code_of(contestant)):
        other = f"{cell.method} or a package that it needs is not the one that the race began with"
        raise DataError(f"{other}: start the race again, with the same versions on all workers")
    return _source(cell), contestant


def _source(cell: Cell) -> Source:
    source = resolve(cell.stream, cell)
    if source.fingerprint != cell.fingerprint:
        raise DataError(f"{source.name} has changed since the race began: start the race again")
    return source


def _changed(cell: Cell) -> str | None:
    """Return what happened to a file while a cell was played; None if nothing."""
    if cell.stream.partition(":")[0] in NOT_FILES:
        return None
    try:
        _source(cell)
    except Exception as error:
        return one_line(error)
    return None


def _one_thread(stack: ExitStack) -> None:
    """Let a cell use one thread; to be called when its contestant has loaded its packages."""
    from threadpoolctl import threadpool_limits

    stack.enter_context(threadpool_limits(1))
    torch = sys.modules.get("torch")
    if torch is not None:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
