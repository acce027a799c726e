"""The loop of a network: every batch is predicted, then learned from; scores are read in blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from driftrate.race.cell import one_line
from driftrate.race.endings import ending
from driftrate.race.networks.phases import BATCH, Phase

if TYPE_CHECKING:
    import torch

# Scores are kept on the device and read back after so many steps: a read of each would wait for it.
_BLOCK = 50
# A text's batch has a thousand times as many scores.
_TEXT_BLOCK = 8


class Learner(Protocol):
    """What plays: a contestant that trains networks."""

    @property
    def rate(self) -> float | None:
        """The rate of the last step, None for a method that has none."""

    def learn(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Train on a batch and return its scores by the weights of before."""

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of rows that are not learned from."""


@dataclass
class Played:
    """The loss and the error of every batch, in order, and where each phase is among them.

    The error is squared for a regression, else the share of wrong classes. `nothing` is the loss
    of a score of 0 for every row; `regret` is there where the best weights are known. `status` is
    `ok`, `timeout`, or `diverged` with a first loss that is not finite, at which it ends, or which
    the method refused, as `message` says.
    """

    loss: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]
    nothing: npt.NDArray[np.float64]
    regret: npt.NDArray[np.float64] | None
    learned: npt.NDArray[np.bool_]
    spans: dict[str, list[slice]]
    rates: list[tuple[int, float | None]] = field(repr=False)
    seconds: float
    status: str = "ok"
    message: str = ""

    def mean(self, phase: str | None = None, of: str = "loss") -> float:
        """Return the mean loss or error over a phase, or over all that was learned from."""
        values = cast("npt.NDArray[np.float64]", getattr(self, of))
        if phase is None:
            return float(values[self.learned].mean())
        return float(np.concatenate([values[span] for span in self.spans[phase]]).mean())


def batches(
    phases: Iterator[Phase], batch: int
) -> Iterator[tuple[Phase, npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield each phase with its rows in whole batches, (batches, batch, ...).

    Rows that do not fill a batch go before the next phase of the same name, and are dropped where
    the name changes.
    """
    left: Phase | None = None
    for phase in phases:
        now = phase if left is None or left.name != phase.name else phase.after(left)
        count = len(now.y) // batch
        left = now.rows(slice(count * batch, None))
        now = now.rows(slice(count * batch))
        x = now.x.reshape(count, batch, *now.x.shape[1:])
        yield now, x, now.y.reshape(count, batch, *now.y.shape[1:])


def play(
    learner: Learner,
    task: str,
    phases: Iterator[Phase],
    *,
    batch: int = BATCH,
    device: str = "cpu",
    deadline: float | None = None,
) -> Played:
    """Play phases to their end, or to the first loss that is not finite.

    Args:
        learner: What plays.
        task: What is predicted.
        phases: The rows.
        batch: The rows of a batch.
        device: Where the learner's weights lie.
        deadline: When to stop, by `time.monotonic()`; read between blocks.

    Returns:
        What came of every batch.

    Example:
        >>> from driftrate.race.contestants import Setup, contestants
        >>> from driftrate.race.networks.network import Network
        >>> rng = np.random.default_rng(0)
        >>> x = rng.standard_normal((640, 3)).astype(np.float32)
        >>> rows = Phase("all", x, (x @ np.ones(3)).astype(np.float32))
        >>> setup = Setup(Network("regression", 3, 1), batch=16, steps=40, seed=0)
        >>> played = play(contestants()["adam"].make("default", setup), "regression", iter([rows]))
        >>> played.status, len(played.loss), bool(played.loss[-1] < played.loss[0])
        ('ok', 40, True)
    """
    import torch

    tally = _Tally(task)
    begin = time.perf_counter()
    for phase, rows, targets in batches(phases, batch):
        x = torch.from_numpy(np.ascontiguousarray(rows)).to(device)
        y = torch.from_numpy(np.ascontiguousarray(targets)).to(device)
        block = _BLOCK
        if x.dtype == torch.uint8:
            x, block = x.long(), _TEXT_BLOCK
        for first in range(0, len(y), block):
            if deadline is not None and time.monotonic() >= deadline:
                return tally.end("timeout", time.perf_counter() - begin)
            xs, ys = x[first : first + block], y[first : first + block]
            scores: list[torch.Tensor] = []
            said = ""
            try:
                for a, b in zip(xs, ys, strict=True):
                    scores.append(learner.learn(a, b) if phase.learn else learner.scores(a))
            except Exception as error:
                if ending(error) != "diverged":
                    raise
                said = one_line(error)
            done = len(scores)
            if done and not tally.add(phase, first, torch.stack(scores), ys[:done], learner.rate):
                return tally.end("diverged", time.perf_counter() - begin)
            if said:
                return tally.end("diverged", time.perf_counter() - begin, said)
    return tally.end("ok", time.perf_counter() - begin)


class _Tally:
    """What is read of each block."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.pieces: dict[str, list[npt.NDArray[Any]]] = {}
        self.spans: dict[str, list[slice]] = {}
        self.rates: list[tuple[int, float | None]] = []
        self.steps = 0

    def add(
        self,
        phase: Phase,
        first: int,
        scores: torch.Tensor,
        y: torch.Tensor,
        rate: float | None,
    ) -> bool:
        """Add a block of steps (steps, rows, ...); return False if a loss is not finite."""
        import torch

        from driftrate.race.networks._losses import errors, loss

        steps = len(y)
        flat, target = scores.reshape(-1, scores.shape[-1]), y.reshape(-1)
        found = {
            "loss": loss(self.task, flat, target, "none"),
            "nothing": loss(self.task, torch.zeros_like(flat), target, "none"),
            "error": errors(self.task, flat, target),
        }
        if phase.oracle is not None and phase.expected is not None:
            rows = slice(first * y.shape[1], (first + steps) * y.shape[1])
            truth = torch.from_numpy(phase.expected[rows]).to(flat)
            best = torch.from_numpy(phase.oracle[rows]).to(flat).reshape(len(truth), -1)
            # The loss is linear in y but for what p does not change: E[y|x] may stand for y.
            excess = loss(self.task, flat, truth, "none") - loss(self.task, best, truth, "none")
            found["regret"] = excess
        values = {
            key: value.double().reshape(steps, -1).mean(dim=1).cpu().numpy()
            for key, value in found.items()
        }
        fine = np.isfinite(values["loss"])
        kept = steps if fine.all() else int(fine.argmin())
        for key, value in values.items():
            self.pieces.setdefault(key, []).append(value[:kept])
        self.pieces.setdefault("learned", []).append(np.full(kept, phase.learn))
        self.spans.setdefault(phase.name, []).append(slice(self.steps, self.steps + kept))
        self.steps += kept
        self.rates.append((self.steps, rate if rate is None or isfinite(rate) else 0.0))
        return kept == steps

    def end(self, status: str, seconds: float, message: str = "") -> Played:
        """Return all of it."""
        empty = np.empty(0)
        whole = {key: np.concatenate(pieces) for key, pieces in self.pieces.items()}
        return Played(
            loss=whole.get("loss", empty),
            error=whole.get("error", empty),
            nothing=whole.get("nothing", empty),
            regret=whole.get("regret"),
            learned=whole.get("learned", empty.astype(bool)),
            spans=self.spans,
            rates=self.rates,
            seconds=seconds,
            status=status,
            message=message,
        )
