"""A pool of memories for raw features: scales that move, the pool that moves with them.

scikit-learn's estimators and River's models are this, behind their frameworks' own arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from driftrate.adapters._history import History
from driftrate.adapters._observe import Policy, policies
from driftrate.errors import SignalError, StateError
from driftrate.estimate import RunningScale, Scale
from driftrate.learners import HedgedFilter
from driftrate.schedules.base import State

Floats = NDArray[np.float64]

POOL = HedgedFilter()
_AT_ONCE = 1_000_000  # scores of members held at once while predicting


class Standing(NamedTuple):
    """A pool for raw features at one moment: what predicts. It is replaced, never written to.

    Args:
        state: Of a `HedgedFilter`, for a constant feature (0 where there is no intercept) and the
            scaled ones.
        scale: The units of the features.
        level: What is added to forecasts of numbers.
        intercept: Whether there is one.
    """

    state: State
    scale: Scale
    level: float
    intercept: bool

    def features(self, x: Floats) -> Floats:
        """Return the constant feature and the scaled ones, (rows, 1 + features)."""
        out = np.empty((len(x), x.shape[1] + 1))
        out[:, 0] = float(self.intercept)
        out[:, 1:] = self.scale(x)
        return out

    def means(self, x: Floats) -> Floats:
        """Return forecasts of numbers (rows,)."""
        found = [POOL.predict(self.state, self.features(part)) for part in self._parts(x)]
        return np.concatenate(found) + self.level

    def interval(self, x: Floats, coverage: float) -> Floats:
        """Return the limits between which numbers will lie, (rows, 2)."""
        parts = self._parts(x)
        found = [POOL.interval(self.state, self.features(part), coverage) for part in parts]
        return np.concatenate(found, axis=1).T + self.level

    def chances(self, x: Floats) -> Floats:
        """Return the chances of classes (rows, classes)."""
        found = [POOL.predict(self.state, self.features(part)) for part in self._parts(x)]
        return np.concatenate(found)

    def log_chances(self, x: Floats) -> Floats:
        """Return logarithms of the chances (rows, classes)."""
        found: Floats = np.log(np.maximum(self.chances(x), np.finfo(np.float64).tiny))
        return found

    def scores(self, x: Floats) -> Floats:
        """Return logarithms of chances (rows, classes), of two classes that of their ratio."""
        logs = self.log_chances(x)
        return logs[:, 1:] - logs[:, :1] if logs.shape[1] == 2 else logs

    def linear(self) -> tuple[Floats, Floats]:
        """Return the members' mean weights for raw features (outputs, features), and intercepts."""
        mean = np.tensordot(POOL.shares(self.state), self.state["weights"], 1)
        weights = mean[:, 1:] * self.scale.inverse
        first = mean[:, 0] if self.intercept else np.zeros(len(mean))
        return weights, first - weights @ self.scale.centre + self.level

    def memory(self) -> float:
        """Return how many past rows the pool believes in."""
        return POOL.memory(self.state)

    def _parts(self, x: Floats) -> Iterator[Floats]:
        members, outputs, _ = self.state["weights"].shape
        most = max(1, _AT_ONCE // (members * outputs))
        return (x[start : start + most] for start in range(0, max(len(x), 1), most))


class ShiftedPool:
    """A `HedgedFilter` of raw features, whose scale is that of the rows so far.

    Rows are measured before they are learned, so that a step uses the units of its own rows. When
    units move, weights and information move with them: the model of raw features stays what it was.
    Numbers are centred by their running mean in the same way.

    Args:
        width: The number of features.
        classes: The number of classes, or None for numbers.
        intercept: Whether there is an intercept. Without one neither features nor numbers are
            centred.

    Attributes:
        now: What predicts, a `Standing`.
        history: Rows seen and rows believed in.
        steps: How many steps were taken.
    """

    version: ClassVar[int] = 1

    def __init__(self, width: int, classes: int | None = None, intercept: bool = True) -> None:
        # Numbers are a column before the features: one scale follows both.
        self._before = int(classes is None)
        self.scale = RunningScale(self._before + width, centred=intercept)
        self.history, self.steps, self.rows = History(), 0, 0.0
        state = POOL.init(1 + width, classes)
        self.now = Standing(state, self._units(), 0.0, intercept)

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.now.scale.centre)

    @property
    def classes(self) -> int:
        """The number of classes; 0 for numbers."""
        return int(self.now.state["classes"])

    @property
    def record(self) -> dict[str, float]:
        """Return nothing: filters have no rate."""
        return {}

    def check_steps(self, steps: int) -> None:
        """Take any number of steps in one call: none has to be told anything."""

    def tell(self, **fields: float) -> None:
        """Refuse: a pool measures everything."""
        raise SignalError(f"tell: {POOL.name} needs nothing told, got {sorted(fields)}")

    def learn(self, x: Floats, y: NDArray[Any], weight: Floats | None = None) -> None:
        """Take one step on rows that come after all those before.

        Args:
            x: Raw features (rows, width); NaN where a value is missing.
            y: Numbers, or places of classes (rows,).
            weight: How often each row counts, > 0 (rows,); once if None.
        """
        state, _, level, intercept = self.now
        columns = np.concatenate([y[:, None], x], axis=1) if self._before else x
        moved = self.scale.update(columns, weight)
        # What has learned nothing has its prior in the units of its first rows.
        if moved is not None and self.steps:
            a, b = (part[self._before :] for part in moved)
            one, nothing = np.ones(1), np.zeros(1)
            state = POOL.transform(state, np.concatenate([one, a]), np.concatenate([nothing, b]))
        if self._before:
            centre = float(self.scale.now.centre[0])
            if centre != level and self.steps:
                state = _raised(state, level - centre)
            level, y = centre, y - centre
        now = Standing(state, self._units(), level, intercept)
        state = POOL.update(state, now.features(x), y, weight)
        self.now = now._replace(state=state)
        self.steps += 1
        self.rows += len(x) if weight is None else float(weight.sum())
        if self.history.due():
            self.history.add(self.rows, self.now.memory())

    def widen(self, width: int, classes: int | None = None) -> None:
        """Go on with more features, which were 0 until now, and more classes."""
        state, _, level, intercept = self.now
        self.scale.widen(self._before + width, self.rows)
        state = POOL.widen(state, 1 + width, classes)
        self.now = Standing(state, self._units(), level, intercept)

    def notify_shift(self, policy: Policy, decay: float) -> None:
        """Let forecasts stay, and be as unsure of them as at the start, in part or in whole."""
        left, _ = policies(policy, None, decay)
        if left == 1.0 or not self.steps:
            return
        state = self.now.state
        start = POOL.init(1 + self.width, self.classes or None)
        forgets = "info", "remembered", "rows"  # shares are dealt out next as after so many rows
        new = {name: left * state[name] + (1.0 - left) * start[name] for name in forgets}
        # Not 0, for the noise is known.
        new["steps"] = np.asarray(max(1.0, left * float(state["steps"])))
        self.now = self.now._replace(state={**state, **new})

    def _units(self) -> Scale:
        """Return the units of the features alone."""
        return Scale(*(part[self._before :] for part in self.scale.now))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "version": (self.version, POOL.version)}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        known = self.version, POOL.version
        if saved.get("version") != known:
            raise StateError(
                f"the saved pool is of version {saved.get('version')}; this driftrate reads"
                f" version {known}"
            )
        self.__dict__.update({name: value for name, value in saved.items() if name != "version"})


def _raised(state: State, by: float) -> State:
    """Return the pool for numbers that are larger by so much."""
    weights = state["weights"].copy()
    weights[..., 0] += by
    return {**state, "weights": weights, "range": state["range"] + by}
