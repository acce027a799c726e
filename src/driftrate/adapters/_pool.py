"""A pool of memories for raw features: scales that move, the pool that moves with them.

scikit-learn's estimators and River's models are this, behind their frameworks' own arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from driftrate.adapters._history import History
from driftrate.adapters._observe import Policy, policies
from driftrate.errors import SignalError, StateError
from driftrate.estimate import RunningScale, Scale
from driftrate.estimate.robust import quantile
from driftrate.learners import HedgedFilter
from driftrate.learners.hedged_filter_step import LEAST
from driftrate.schedules.base import State

Floats = NDArray[np.float64]

POOL = HedgedFilter()
LEAVE_OUT = "leave rows without a target out"
_AT_ONCE = 1_000_000  # scores of members held at once while predicting
# Of challengers; chosen on the development streams and on drawn changes (docs/hedged_filter.md).
BLOCK = 64  # rows that are compared with the units and the noise of all rows
WITHIN, NORMAL = 0.9, 1.645  # so many of a block are within so many deviations of its median
FAR = 10.0  # times too large: deviations of features, and the variance of the noise
TWICE, QUIET = 2, 4  # blocks in a row that are far, to begin a trial, or not, to end a wait
TRIAL = 8.0  # rows for each feature and each row of a block
RECENT = 64.0  # rows over which squared errors are compared
BETTER = 0.6  # times the pool's squared error, and the challenger takes its place
NATS = 20.0  # less log loss in all, and the same
LONGEST = 4.0  # trials between two, where challengers keep losing
ROUNDING = 1e-12  # of the median or the scale: what varies by less is constant


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

    def losses(self, x: Floats, y: NDArray[Any]) -> Floats:
        """Return the squared errors of rows, or their log losses, (rows,)."""
        if not int(self.state["classes"]):
            squares: Floats = (self.means(x) - y) ** 2
            return squares
        logs: Floats = -np.log(np.maximum(self.chances(x)[np.arange(len(y)), y], LEAST))
        return logs

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

    *Sudden changes.* After a change of units the scale is still that of all rows, and the noise is
    often far too large. So every 64 rows are compared with both. A trial begins where, in two
    blocks in a row, nine tenths of a column vary ten times less than its scale says, or ten times
    more than it said before, or where the noise has ten times the variance of the numbers. A
    challenger, a new pool in units of its own, then learns the same rows. The two change places
    when the challenger has 0.6 of the squared error of recent rows, or 20 nats less log loss in
    all; the loser stays for another trial, in which it can come back. A column that rests for a
    while costs the time of a trial and changes no forecast. First rows that are absurd are overcome
    in the same way.

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

    version: ClassVar[int] = 2

    def __init__(self, width: int, classes: int | None = None, intercept: bool = True) -> None:
        # Numbers are a column before the features: one scale follows both.
        self._before = int(classes is None)
        self.scale = RunningScale(self._before + width, centred=intercept)
        self.history, self.steps, self.rows = History(), 0, 0.0
        state = POOL.init(1 + width, classes)
        self.now = Standing(state, self._units(), 0.0, intercept)
        columns = self._before + width
        self._block, self._filled = np.zeros((BLOCK, columns)), 0
        self._calm = np.zeros(columns)  # 1/s at the last block that was not far
        self._far = 0  # blocks in a row that were; negative: that were not
        self._challenger: ShiftedPool | None = None
        self._losses, self._most = np.zeros(2), inf  # its own and the challenger's; of one row
        self._left, self._lost = 0.0, 0  # rows until a trial may end or begin; trials in a row

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
        columns = np.concatenate([y[:, None], x], axis=1) if self._before else x
        challenger = self._challenger
        if challenger is not None and challenger.steps:
            self._compare(x, y, challenger)
        self._step(x, y, columns, weight)
        if challenger is not None:
            challenger._step(x, y, columns, weight)
            if challenger.rows >= BLOCK and self._has_won():
                self.scale, challenger.scale = challenger.scale, self.scale
                self.now, challenger.now = challenger.now, self.now
                self._losses, self._left, self._lost = np.zeros(2), self._trial(), -1
        self._left -= len(x)
        for start in range(0, len(x), BLOCK):
            self._watch(columns[start : start + BLOCK])
        if self.history.due():
            self.history.add(self.rows, self.now.memory())

    def _step(
        self, x: Floats, y: NDArray[Any], columns: Floats, weight: Floats | None = None
    ) -> None:
        """Move the units and the pool; `columns`: all that has units."""
        state, _, level, intercept = self.now
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

    def _watch(self, columns: Floats) -> None:
        """Fill the block; where it is full let a challenger begin or end."""
        begin, self._filled = self._filled, self._filled + len(columns)
        self._block[begin : self._filled] = columns[: BLOCK - begin]
        if self._filled < BLOCK:
            return
        self._filled = 0
        if self._challenger is not None:
            if self._left <= 0:
                self._end_trial(self._lost + 1)
            return
        if not self._is_far():
            self._calm, self._far = self.scale.now.inverse, min(self._far, 0) - 1
            if self._far <= -QUIET:
                self._left, self._lost = 0.0, 0
            return
        self._far = max(self._far, 0) + 1
        if self._far >= TWICE and self._left <= 0:
            self._challenger = ShiftedPool(self.width, self.classes or None, self.now.intercept)
            self._losses, self._left = np.zeros(2), self._trial()

    def _compare(self, x: Floats, y: NDArray[Any], other: ShiftedPool) -> None:
        """Follow both losses: of classes their sums, of numbers their means over recent rows."""
        losses = np.array([pool.now.losses(x, y) for pool in (self, other)])
        if not self._before:
            self._losses = self._losses + losses.sum(axis=1)
            return
        kept = (1.0 - 1.0 / RECENT) ** len(x)
        # No error counts for more than that of the best constant: outliers decide no trial.
        mean = np.fmin(losses, self._most).mean(axis=1)
        self._losses = kept * self._losses + (1.0 - kept) * mean

    def _has_won(self) -> bool:
        ours, theirs = self._losses
        return bool(theirs < (BETTER * ours if self._before else ours - NATS))

    def _trial(self) -> float:
        return TRIAL * (BLOCK + self.width)

    def _end_trial(self, lost: int) -> None:
        """Go on without a challenger, and for a while with none if some have lost."""
        self._challenger, self._lost, self._calm = None, lost, self.scale.now.inverse
        self._left = self._trial() * min(2**lost, LONGEST) if lost else 0.0

    @np.errstate(over="ignore", invalid="ignore")
    def _is_far(self) -> bool:
        """Return whether the block tells of other units, or of less noise, than the pool."""
        middle = quantile(self._block, 0.5) if self.now.intercept else np.zeros(1)
        spread = quantile(np.abs(self._block - middle), WITHIN) / NORMAL
        part = spread * self.scale.now.inverse
        shrunk = (part > ROUNDING) & (part < 1.0 / FAR) & (spread > ROUNDING * np.abs(middle))
        far = bool((shrunk | (spread * self._calm > FAR)).any())
        if self._before and spread[0] > 0.0:
            self._most = float(spread[0]) ** 2
            far |= bool(self.now.state["noise"].min() > FAR * self._most)
        return far

    def widen(self, width: int, classes: int | None = None) -> None:
        """Go on with more features, which were 0 until now, and more classes."""
        state, _, level, intercept = self.now
        self.scale.widen(self._before + width)
        state = POOL.widen(state, 1 + width, classes)
        self.now = Standing(state, self._units(), level, intercept)
        more = self._before + width - len(self._calm)
        self._block = np.pad(self._block, ((0, 0), (0, more)))
        self._calm = np.pad(self._calm, (0, more))
        if self._challenger is not None:
            self._challenger.widen(width, classes)

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
        if saved.get("version") == (1, POOL.version):  # that had no challengers
            now = saved["now"]
            classes = int(now.state["classes"]) or None
            ShiftedPool.__init__(self, len(now.scale.centre), classes, now.intercept)
            saved = {**saved, "version": known}
        if saved.get("version") != known:
            raise StateError(
                f"the saved pool is of version {saved.get('version')}; this driftrate reads"
                f" version {known}"
            )
        self.__dict__.update({name: value for name, value in saved.items() if name != "version"})


def is_missing(target: Any) -> bool:
    """Return whether a target is None, NaN, NaT or pandas.NA.

    Example:
        >>> [is_missing(target) for target in (None, float("nan"), 0, "", "nan")]
        [True, True, False, False, False]
    """
    if target is None:
        return True
    try:
        return bool(target != target)  # noqa: PLR0124
    except (TypeError, ValueError):  # pandas.NA has no truth value
        return True


def check_present(targets: Iterable[Any]) -> None:
    """Refuse targets of which one is missing."""
    for row, target in enumerate(targets):
        if is_missing(target):
            raise SignalError(f"y holds {target!r} in row {row}; {LEAVE_OUT}")


def _raised(state: State, by: float) -> State:
    """Return the pool for numbers that are larger by so much."""
    weights = state["weights"].copy()
    weights[..., 0] += by
    return {**state, "weights": weights, "range": state["range"] + by}
