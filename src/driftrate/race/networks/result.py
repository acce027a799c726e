"""What a network's loop found, as the result of a cell."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from driftrate.race.cell import CURVE_POINTS, Result, absurd, without_result
from driftrate.race.networks.play import Learner, Played, play
from driftrate.race.sources import Source


def play_network(learner: Learner, source: Source, seed: int, deadline: float | None) -> Result:
    """Play a stream with a network and return the result.

    Args:
        learner: What plays.
        source: The stream.
        seed: The seed of what is drawn.
        deadline: When to stop, by `time.monotonic()`.
    """
    how: Any = {"batch": source.batch, "device": source.device, "deadline": deadline}
    played = play(learner, source.task, source.phases(seed), **how)
    done = played.learned.sum()
    status, message = played.status, ""
    if status == "timeout":
        message = f"out of time after {done:,} of {source.steps:,} steps"
    elif status == "diverged":
        message = played.message or f"the loss of step {done + 1:,} is not finite"
    elif said := absurd(played.mean(), float(played.nothing[played.learned].mean())):
        status, message = "diverged", said
    found: Any = without_result(status, message)  # type: ignore[arg-type]
    found |= {"steps": int(done), "seconds_per_step": played.seconds / max(int(done), 1)}
    found |= _curves(played, source.task)
    if status == "ok":
        whole = _root(played.mean(of="error"), source.task)
        regret = None if played.regret is None else float(played.regret.sum())
        found |= {"loss": played.mean(), "error": whole, "regret": regret}
        names = source.protocol.figures if source.protocol is not None else ()
        found["figures"] = {
            name: (played.mean(name), _root(played.mean(name, "error"), source.task))
            for name in names
        }
    return cast(Result, found)


def _root(error: float, task: str) -> float:
    return error**0.5 if task == "regression" else error


def _curves(played: Played, task: str) -> dict[str, list[float] | list[int]]:
    """Return running means at a few steps of those that were learned from, and the rates there."""
    steps = int(played.learned.sum())
    points = np.unique(np.linspace(1, steps, min(steps, CURVE_POINTS)).round().astype(int))
    if not steps:
        return {}

    def running(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = np.cumsum(values[played.learned])[points - 1]
        return found

    error = running(played.error) / points
    curves: dict[str, list[float] | list[int]] = {
        "curve_steps": points.tolist(),
        "loss_curve": (running(played.loss) / points).tolist(),
        "error_curve": (error**0.5 if task == "regression" else error).tolist(),
    }
    if played.regret is not None:
        curves["regret_curve"] = running(played.regret).tolist()
    ends = [end for end, _ in played.rates]
    rates = [played.rates[place][1] for place in np.searchsorted(ends, points).tolist()]
    if None not in rates:
        curves["rate_curve"] = cast("list[float]", rates)
    return curves
