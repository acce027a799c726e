"""What a transformation hides: its own rate, and the metric that its steps are taken in."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from driftrate.adapters._observe import Base
from driftrate.adapters.optax.state import STATES
from driftrate.adapters.optax.trees import Leaves, Tree, nodes, numbers
from driftrate.errors import ConfigError, DriftrateError
from driftrate.schedules.base import Array

# By name: optax shows not all of them.
_INJECTED = ("InjectStatefulHyperparamsState", "InjectHyperparamsState")
_SCHEDULED = ("ScaleByScheduleState",)
_SECOND = ("ScaleByAdamState", "ScaleByRmsState", "ScaleByRmsWithCountState")
_GROUPS = ("PartitionState", "MultiTransformState")
# Gradients of the probe, each with both signs: what does not turn with them is weight decay. All
# are small, so that no clipping bites.
_SIZES = 2.0 ** np.array([-10.0, -20.0, -30.0])
_SIGNS = np.array([1.0, -1.0])
_NEAR = 1e-3  # relative: the probe may be in single precision, beside a weight decay


class Moments(NamedTuple):
    r"""Steps over √(v + r) + ε, v the second moment.

    Args:
        eps: ε.
        root: r.
        decay: β₂ where v̂ = v/(1 - β₂^t) divides, None where v itself does.
    """

    eps: float
    root: float
    decay: float | None


class Own(NamedTuple):
    """What is known of a transformation.

    Args:
        base: Its own rate.
        moments: How its second moments divide, or None.
        scheduled: Whether a schedule of its own moves its rate.
    """

    base: Base
    moments: Moments | None = None
    scheduled: bool = False


HIDDEN = Own(Base(plain=False, rate=None))


def inspect(optimizer: Any) -> Own:
    """Find out what a transformation hides, by a few steps on six numbers.

    The learning rate of `optax.inject_hyperparams` is read. Else: where each update is the same
    multiple of its gradient, that is the rate, of plain SGD. Where the state holds the moments of
    momentum, RMSprop or Adam, rate and ε follow from gradients of several sizes. What behaves
    otherwise, or does not run on six numbers, keeps its rate hidden.
    """
    with jax.ensure_compile_time_eval():
        try:
            return _inspected(optimizer)
        except DriftrateError:
            raise
        except Exception:  # whatever a transformation raises on a tree that is not its own
            return HIDDEN


def injected(state: Tree) -> Array | None:
    """Return the learning rate that a state of `optax.inject_hyperparams` shows, or None."""
    for node in called(state, *_INJECTED):
        if "learning_rate" in node.hyperparams:
            return node.hyperparams["learning_rate"]
    return None


def called(tree: Tree, *names: str) -> list[Any]:
    """Find the records of the given class names, in a chain or in a wrapper's state."""

    def found(node: Any) -> bool:
        return type(node).__name__ in names

    return [node for node in jax.tree.leaves(tree, is_leaf=found) if found(node)]


def weights(moments: Moments, state: Tree, like: Array) -> tuple[Leaves, Array]:
    r"""Return the metric's weights c/(√(v + r) + ε), and whether there are moments yet.

    c = √(1 - β₂^t) takes back that v started from 0. The moments are those before the step: they
    do not know the gradient that is measured.
    """
    (node,) = called(state, *_SECOND)
    seconds = [None if v is None else v.astype(like.dtype) for v in numbers(node.nu)]
    scale, ready = jnp.ones_like(like), jnp.zeros((), bool)
    if "count" in node._fields:
        ready = node.count > 0
    else:
        for v in seconds:
            ready = ready if v is None else ready | jnp.any(v > 0.0)
    if moments.decay is not None:
        scale = jnp.sqrt(1.0 - moments.decay ** node.count.astype(like.dtype))
    return [
        None if v is None else scale / (jnp.sqrt(v + moments.root) + moments.eps) for v in seconds
    ], ready


def check_moments(state: Tree, params: Tree) -> None:
    """Refuse a metric whose moments are not those of all parameters."""
    found = called(state, *_SECOND)
    shapes = [None if leaf is None else jnp.shape(leaf) for leaf in numbers(params)]
    if len(found) == 1:
        seconds = [None if v is None else v.shape for v in numbers(found[0].nu)]
        if seconds == shapes:
            return
    raise ConfigError(
        'attach: metric="moments" needs one second moment of each parameter, the optimizer has'
        f' {len(found)} sets of them: use metric="plain"'
    )


def check_inner(state: Tree) -> None:
    """Refuse what a rate cannot be put around."""
    if nodes(state, optax.MultiStepsState):
        raise ConfigError(
            "attach: the schedule would count mini-steps as updates: put MultiSteps outside,"
            " optax.MultiSteps(attach(optimizer, schedule), k)"
        )
    if nodes(state, *STATES):
        raise ConfigError("attach: the optimizer is already attached to a schedule")


def _inspected(optimizer: Any) -> Own:
    probe = _Probe(optax.with_extra_args_support(optimizer))
    check_inner(probe.start)
    hyper = [node.hyperparams_states for node in called(probe.start, _INJECTED[0])]
    scheduled = bool(called(probe.start, *_SCHEDULED)) or any("learning_rate" in h for h in hyper)
    masked = [jax.tree.leaves(node) for node in called(probe.start, "MaskedState")]
    shown = injected(probe.start)
    if called(probe.start, *_GROUPS) or any(masked):
        # Of parts of the parameters: six numbers are one part.
        return Own(Base(False, None if shown is None else float(shown)), None, scheduled)
    first, other = probe.gradient, probe.gradient[::-1]
    turns = [(g, probe.odd(u)) for g, u in probe.run(first, other, 0.25 * first)]
    rates = [-u[np.argmax(abs(g))] / g[np.argmax(abs(g))] for g, u in turns]
    if not any(np.any(u) for _, u in turns):
        raise ConfigError("attach: the optimizer's updates are 0: give it a learning rate")
    plain = (
        all(
            _near(u, -rate * g, _NEAR * abs(rate) * abs(g).max())
            for rate, (g, u) in zip(rates, turns, strict=True)
        )
        and (scheduled or _near(rates, rates[0]))
        and not probe.remembers()
    )
    rate, moments = (rates[0], None) if plain else probe.solve()
    if shown is not None:
        rate = float(shown)
    return Own(Base(plain, abs(float(rate)) if rate else None), moments, scheduled)


class _Probe:
    """A transformation on six numbers: gradients of three sizes and two signs, weights of 1."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.params = jnp.ones(2 * len(_SIZES))
        self.gradient = np.outer(_SIZES, _SIGNS).reshape(-1)
        self.start = optimizer.init(self.params)
        self.states: list[Any] = []

    def run(self, *gradients: Any) -> list[tuple[Any, Any]]:
        """Step from the start; return gradients and updates, and keep the states."""
        state, found, self.states = self.start, [], []
        for gradient in gradients:
            array = jnp.asarray(gradient, self.params.dtype)
            update, state = self.optimizer.update(array, state, self.params)
            found.append((gradient, np.asarray(update, np.float64)))
            self.states.append(state)
        return found

    def odd(self, update: Any) -> Any:
        """Return the part of an update that turns with the gradient's sign."""
        pairs = np.asarray(update).reshape(-1, 2)
        half = (pairs[:, 0] - pairs[:, 1]) / 2.0
        return np.outer(half, _SIGNS).reshape(-1)

    def remembers(self) -> bool:
        """Whether gradients so far change what later ones lead to, however little these do."""
        before, after = (
            [
                np.asarray(leaf)
                for leaf in jax.tree.leaves(state, is_leaf=_is_trace)
                if not _is_trace(leaf) and jnp.ndim(leaf)
            ]
            for state in (self.start, self.states[-1])
        )
        return not all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))

    def solve(self) -> tuple[float | None, Moments | None]:
        """Return the rate of momentum, RMSprop or Adam, and how the second moments divide."""
        (_, one), (_, two) = self.run(self.gradient, 0.0 * self.gradient)
        sizes, first, second = _SIZES, self.odd(one)[::2], self.odd(two)[::2]
        found, traces = called(self.states[0], *_SECOND), called(self.states[1], "TraceState")
        moments, top = None, -first[0] / sizes[0]
        # What of the rate the first update has, and the second of the first, by what kind it is.
        kinds = [(1.0, 0.0)]
        if found:
            if len(found) > 1:
                return None, None
            (node,) = found
            shares = np.asarray(numbers(node.nu)[0][::2], np.float64) / sizes**2
            decay = float(1.0 - shares[0])
            corrected = "count" in node._fields
            solved = _solve(sizes, -first, 1.0 if corrected else 1.0 - decay)
            if solved is None or not 0.0 <= decay < 1.0 or not _near(shares, shares[0]):
                return None, None
            top, eps, root = solved
            moments = Moments(eps, root, decay if corrected else None)
            if "mu" in node._fields:
                keep = 1.0 - float(numbers(node.mu)[0][0]) / sizes[0]
                kinds = _first_moments(keep, decay, sizes[0], eps, root)
        if traces:
            (before,), (after,) = called(self.states[0], "TraceState"), traces
            keep = float(numbers(after.trace)[0][0]) / float(numbers(before.trace)[0][0])
            kinds = [(1.0, keep), (1.0 + keep, keep**2 / (1.0 + keep))]
        if not found:
            ((_, small),) = self.run(0.25 * self.gradient)
            if not traces or not _near(self.odd(small)[::2], 0.25 * first):
                return None, None
        for share, ratio in kinds:
            if _near(second[0], ratio * first[0], _NEAR * abs(first[0])):
                return top / share, moments
        return None, moments


def _solve(sizes: Any, steps: Any, second: float) -> tuple[float, float, float] | None:
    r"""Return η, ε and r of steps η g/(√(s g² + r) + ε), ε or r being 0; None where neither fits.

    Args:
        sizes: g, three of them.
        steps: The steps, of η's sign.
        second: s.
    """
    if not np.all(steps):
        return None
    for power in (1.0, 2.0):
        # (g/step)^p is linear in g^p: √s/η g + ε/η, or s/η² g² + r/η².
        x, y = sizes**power, abs(sizes / steps) ** power
        slope = (y[0] - y[2]) / (x[0] - x[2])
        rest = max(y[2] - slope * x[2], 0.0)
        if slope > 0.0 and _near(slope * x[1] + rest, y[1]):
            unit = second ** (0.5 * power) / slope
            term = float(rest * unit)
            rate = float(np.sign(steps[0]) * unit ** (1.0 / power))
            return rate, *((term, 0.0) if power == 1.0 else (0.0, term))
    return None


def _first_moments(
    keep: float, decay: float, size: float, eps: float, root: float
) -> list[tuple[float, float]]:
    """Return what Adam's first update has of the rate and its second of the first; Nadam's too.

    The second gradient is 0.
    """
    later = decay / (1.0 + decay) * size**2  # v̂ after it
    falls = (np.sqrt(size**2 + root) + eps) / (np.sqrt(later + root) + eps)
    ahead = 1.0 + keep / (1.0 + keep)
    second = keep**2 * (1.0 - keep) / (1.0 - keep**3)
    return [(1.0, keep / (1.0 + keep) * falls), (ahead, second / ahead * falls)]


def _is_trace(node: Any) -> bool:
    return type(node).__name__ == "TraceState"  # momentum, which the updates show


def _near(a: Any, b: Any, margin: float = 0.0) -> bool:
    return bool(np.all(np.abs(np.subtract(a, b)) <= (margin or _NEAR * np.max(np.abs(b)))))
