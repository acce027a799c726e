"""The moments of River's optimizers: the metric that they step in, and how to forget them."""

from __future__ import annotations

from collections.abc import Hashable
from inspect import signature
from math import sqrt
from typing import Any

import numpy as np
from river import optim

from driftrate.adapters._observe import Space
from driftrate.adapters.river import vectors
from driftrate.adapters.river.vectors import Numbers, Row
from driftrate.errors import ConfigError

# The second moment of those that divide by its root, by its name in River.
_SECOND = {optim.Adam: "v", optim.AMSGrad: "v_hat", optim.Nadam: "v", optim.RMSProp: "g2"}
# Averages and sums that start from 0.
_MOMENTS = ("m", "v", "v_hat", "g2", "s", "u")
PLAIN = Space(vectors.dot, vectors.minus)


def check_metric(optimizer: Any, metric: str | None) -> str:
    """Return "plain" or "moments"; None is "moments" where the optimizer is of Adam's kind."""
    if metric not in (None, "plain", "moments"):
        raise ConfigError(f'attach: metric must be "plain", "moments" or None, got {metric!r}')
    kind, known = type(optimizer).__name__, type(optimizer) in _SECOND
    if metric == "moments" and not known:
        able = sorted(one.__name__ for one in _SECOND)
        raise ConfigError(f'attach: metric="moments" is for {able}, got {kind}: use metric="plain"')
    return metric or ("moments" if known else "plain")


class Metric:
    r"""The metric of Adam and its kin: ⟨a, b⟩ = Σ_i a_i b_i c/(√v_i + ε).

    Their step is about η times the gradient over √v + ε, so that this product says how much of a
    step is signal. c = √(1 - β₂^t) takes back that v started from 0; RMSProp has c = 1 and River's
    √(v_i + ε). The moments are those before the step: they do not know the gradient that is
    measured. A coordinate that has none yet is left out.
    """

    def __init__(self, optimizer: Any) -> None:
        moments = getattr(optimizer, _SECOND[type(optimizer)])
        self._moments = {} if moments is None else moments
        self._inside = isinstance(optimizer, optim.RMSProp)
        self._eps = optimizer.eps
        self._scale = 1.0
        if hasattr(optimizer, "beta_2") and getattr(optimizer, "correct_bias", True):
            self._scale = sqrt(1.0 - optimizer.beta_2**optimizer.n_iterations)
        self._names: list[Hashable] | None = None  # of the last row, and its inverse roots
        self._of = np.empty(0)
        self.space = Space(self._dot, vectors.minus)

    def size(self, vector: Any) -> int:
        """Return how many coordinates of a vector have moments."""
        if isinstance(vector, np.ndarray):
            return vector.size if isinstance(self._moments, np.ndarray) else 0
        if isinstance(vector, vectors.Row):
            return int(np.count_nonzero(self._inverse(vector)))
        return vectors.size({key: one for key, one in vector.items() if key in self._moments})

    def _dot(self, a: Any, b: Any) -> float:
        if isinstance(a, np.ndarray):
            return self._scale * float(np.vdot(a / self._root(self._moments), b))
        if isinstance(a, vectors.Row):
            over = a.like(a.values * self._inverse(a))
            return self._scale * vectors.dot(over, b)
        total = 0.0
        for key, one in a.items():
            if key in b and key in self._moments:
                total += float(np.sum(one * b[key] / self._root(self._moments[key])))
        return self._scale * total

    def _inverse(self, row: Row) -> Numbers:
        """Return 1/(√v + ε) of a row's coordinates, 0 where there is no moment."""
        if self._names is not row.names and self._names != row.names:
            moments = vectors.as_dict(self._moments)
            found = np.array([moments.get(name, np.inf) for name in row.names], float)
            self._names, self._of = row.names, 1.0 / self._root(found)
        return self._of

    def _root(self, moment: Any) -> Any:
        return (moment + self._eps) ** 0.5 if self._inside else moment**0.5 + self._eps


def decay(optimizer: Any, share: float) -> None:
    """Multiply the moments of an optimizer; refuse where a product would spoil what it keeps."""
    kind = type(optimizer)
    settings = {"lr", "n_iterations", *signature(kind).parameters}
    unknown = sorted(vars(optimizer).keys() - settings - {*_MOMENTS})
    if unknown:
        raise ConfigError(
            f"notify_shift: {kind.__name__} keeps {unknown}, which are not moments that start from"
            ' 0: use moments="keep" or moments="reset"'
        )
    for name in _MOMENTS:
        moment = getattr(optimizer, name, None)
        if isinstance(moment, dict):
            for key in moment:
                moment[key] *= share
        elif moment is not None:
            setattr(optimizer, name, moment * share)
