"""A rule that reads one number per step that is no field of `Signal`."""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from numbers import Real
from typing import Any, ClassVar

from array_api_compat import array_namespace, is_array_api_obj, is_numpy_namespace

from driftrate.errors import SignalError
from driftrate.schedules import _scalars
from driftrate.schedules.base import Array, Rule, State, select


class Tracker(Rule):
    """A pure rule `(state, value) -> (estimate, state)` on one number >= 0 per step.

    It estimates a constant of a schedule (a smoothness, a diameter), not a field of `Signal`, so
    it is used beside the schedule, not inside `Estimated`. `init`, `dump` and `load` are those of
    every rule. So is the treatment of bad values: Python and NumPy ones are refused; those of other
    libraries are never read back and leave the state as it was.
    """

    output: ClassVar[str] = "estimate"
    signals: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[str]  # the name of the number, for errors

    @abstractmethod
    def _step(self, xp: Any, state: State, signal: Array) -> tuple[Array, State]:
        """Return the estimate and the next state; `signal` is the number, checked."""

    def update(self, state: State, signal: Array) -> tuple[Array, State]:
        """Take one step.

        Args:
            state: What `init`, `load` or the last `update` returned; it is not modified.
            signal: The number, >= 0, or an array of the state's library.

        Returns:
            The estimate and the next state.
        """
        last = state[self.output]
        if type(last) is float:
            return self._step(_scalars, state, self._number(signal))
        xp = array_namespace(last)
        if not is_array_api_obj(signal):
            value = xp.full_like(last, self._number(signal))
        else:
            value = xp.asarray(signal, dtype=last.dtype)
        good = xp.isfinite(value) & (value >= 0.0)
        if is_numpy_namespace(xp):
            if not good.all():
                raise self._bad(value[~good].flat[0])
            return self._step(xp, state, value)
        estimate, new = self._step(xp, state, value)
        return xp.where(good, estimate, last), select(xp, good, new, state)

    def _number(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < inf:
            raise self._bad(value)
        return float(value)

    def _bad(self, value: object) -> SignalError:
        want = f"the {self.reads} must be a finite number >= 0"
        return SignalError(f"{self.name}: {want}, got {value!r}")
