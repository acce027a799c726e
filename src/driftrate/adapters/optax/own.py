"""What a transformation hides: its own rate, and the metric that its steps are taken in."""

from __future__ import annotations

from collections.abc import Callable
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
_SECOND = ("ScaleByAdamState", "ScaleByRmsState", "ScaleByRmsWithCountState")
_GROUPS = ("PartitionState", "MultiTransformState")
# Gradients of the probe, each with both signs: what does not turn with them is weight decay. All
# are small, so that no clipping bites.
_SIZES = 2.0 ** np.array([-10.0, -20.0, -30.0])
_NEAR = 1e-3  # relative: the probe may be in single precision, beside a weight decay


class Moments(NamedTuple):
    r"""Steps over √(v + r) + ε, v the second moment."""

    eps: float  # ε
    root: float  # r
    decay: float | None  # β₂ where v̂ = v/(1 - β₂^t) divides, None where v itself does


class Own(NamedTuple):
    """What is known of a transformation."""

    base: Base
    moments: Moments | None = None
    scheduled: bool = False  # whether a schedule of its own moves its rate


def inspect(optimizer: Any) -> Own:
    """Find out what a transformation hides, by a few steps on six numbers.

    The learning rate of `optax.inject_hyperparams` is read. Else: where each update is the same
    multiple of its gradient, that is the rate, of plain SGD. Where the state holds the moments of
    momentum, RMSprop or Adam, rate and ε follow from gradients of several sizes. What behaves
    otherwise, or does not run on six numbers, keeps its rate hidden.
    """
    with jax.ensure_compile_time_eval():
        try:
            return _inspected(optax.with_extra_args_support(optimizer))
        except DriftrateError:
            raise
        except Exception:  # whatever a transformation raises on a tree that is not its own
            return Own(Base(plain=False, rate=None))


def injected(state: Tree) -> Array | None:
    """Return the learning rate that a state of `optax.inject_hyperparams` shows, or None."""
    shown = (node.hyperparams.get("learning_rate") for node in nodes(state, *_INJECTED))
    return next((rate for rate in shown if rate is not None), None)


def weights(moments: Moments, state: Tree, like: Array) -> tuple[Leaves, Array]:
    r"""Return the metric's weights c/(√(v + r) + ε), and whether there are moments yet.

    c = √(1 - β₂^t) takes back that v started from 0. The moments are those before the step: they
    do not know the gradient that is measured.
    """
    (node,) = nodes(state, *_SECOND)
    seconds = [None if v is None else v.astype(like.dtype) for v in numbers(node.nu)]
    if "count" in node._fields:
        ready = node.count > 0
    else:
        # A sum, as the products are: over shards it is of their reduction.
        ready = jnp.stack([jnp.sum(v) for v in seconds if v is not None]).sum() > 0.0
    scale = jnp.ones_like(like)
    if moments.decay is not None:
        scale = jnp.sqrt(1.0 - moments.decay ** node.count.astype(like.dtype))
    return [
        None if v is None else scale / (jnp.sqrt(v + moments.root) + moments.eps) for v in seconds
    ], ready


def check_moments(state: Tree, params: Tree) -> None:
    """Refuse a metric whose moments are not those of all parameters."""
    shapes, *seconds = (
        [None if leaf is None else jnp.shape(leaf) for leaf in numbers(tree)]
        for tree in (params, *(node.nu for node in nodes(state, *_SECOND)))
    )
    if seconds != [shapes]:
        raise ConfigError(
            'attach: metric="moments" needs one second moment of each parameter, the optimizer has'
            f' {len(seconds)} sets of them: use metric="plain"'
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
    params = jnp.ones(2 * len(_SIZES))
    start = optimizer.init(params)

    def run(*sizes: Any) -> list[tuple[Any, Any]]:
        """Step from the start; return what of each update turns with the gradient, and states."""
        state, found = start, []
        for size in sizes:
            gradient = jnp.asarray(np.outer(size, [1.0, -1.0]).reshape(-1), params.dtype)
            update, state = optimizer.update(gradient, state, params)
            pairs = np.asarray(update, np.float64).reshape(-1, 2)
            found.append(((pairs[:, 0] - pairs[:, 1]) / 2.0, state))
        return found

    check_inner(start)
    hyper = [node.hyperparams_states for node in nodes(start, _INJECTED[0])]
    scheduled = bool(nodes(start, "ScaleByScheduleState")) or any(
        "learning_rate" in states for states in hyper
    )
    shown = injected(start)
    if nodes(start, *_GROUPS) or jax.tree.leaves(nodes(start, "MaskedState")):
        # Of parts of the parameters: six numbers are one part.
        return Own(Base(False, None if shown is None else float(shown)), None, scheduled)
    sizes = np.array([_SIZES, -_SIZES[::-1], 0.25 * _SIZES])
    turned = run(*sizes)
    steps = np.array([step for step, _ in turned])
    if not np.any(steps):
        raise ConfigError("attach: the optimizer's updates are 0: give it a learning rate")
    largest = np.arange(len(sizes)), np.argmax(abs(sizes), axis=1)
    rates = -steps[largest] / sizes[largest]
    ideal = -rates[:, None] * sizes
    plain = (
        _near(steps, ideal, _NEAR * np.max(abs(ideal), axis=1, keepdims=True))
        and (scheduled or _near(rates, rates[0]))
        and all(map(np.array_equal, _memory(start), _memory(turned[-1][1])))
    )
    rate, moments = (rates[0], None) if plain else _with_memory(run)
    if shown is not None:
        rate = float(shown)
    return Own(Base(plain, abs(float(rate)) if rate else None), moments, scheduled)


def _memory(state: Tree) -> list[Any]:
    """Return the arrays of a state but for the trace of momentum, which updates show."""
    rest = jax.tree.leaves(state, is_leaf=lambda node: type(node).__name__ == "TraceState")
    return [np.asarray(leaf) for leaf in rest if not isinstance(leaf, tuple) and jnp.ndim(leaf)]


def _with_memory(run: Callable[..., Any]) -> tuple[float | None, Moments | None]:
    """Return the rate of momentum, RMSprop or Adam, and how the second moments divide."""
    (first, state), (second, later) = run(_SIZES, 0.0 * _SIZES)
    found, traces = nodes(state, *_SECOND), nodes(later, "TraceState")
    moments, rate, size = None, -first[0] / _SIZES[0], _SIZES[0]
    # What of the rate the first update has, and the second of the first, by what kind it is.
    kinds = [(1.0, 0.0)]
    if len(found) > 1:
        return None, None
    if found:
        (node,) = found
        shares = np.asarray(numbers(node.nu)[0][::2], np.float64) / _SIZES**2
        decay = float(1.0 - shares[0])
        corrected = "count" in node._fields
        solved = _solve(-first, 1.0 if corrected else 1.0 - decay)
        if solved is None or not 0.0 <= decay < 1.0 or not _near(shares, shares[0]):
            return None, None
        rate, eps, root = solved
        moments = Moments(eps, root, decay if corrected else None)
        if "mu" in node._fields:
            # Adam, then Nadam; the second gradient is 0, v̂ after it is this much.
            keep, v = 1.0 - float(numbers(node.mu)[0][0]) / size, decay / (1.0 + decay) * size**2
            falls = (np.sqrt(size**2 + root) + eps) / (np.sqrt(v + root) + eps)
            ahead = 1.0 + keep / (1.0 + keep)
            nadam = keep**2 * (1.0 - keep) / (1.0 - keep**3) / ahead
            kinds = [(1.0, keep / (1.0 + keep) * falls), (ahead, nadam * falls)]
    elif not traces or not _near(run(0.25 * _SIZES)[0][0], 0.25 * first):
        return None, None
    if traces:
        (before,), (after,) = nodes(state, "TraceState"), traces
        keep = float(numbers(after.trace)[0][0]) / float(numbers(before.trace)[0][0])
        kinds = [(1.0, keep), (1.0 + keep, keep**2 / (1.0 + keep))]
    for share, ratio in kinds:
        if _near(second[0], ratio * first[0], _NEAR * abs(first[0])):
            return rate / share, moments
    return None, moments


def _solve(steps: Any, s: float) -> tuple[float, float, float] | None:
    r"""Return η, ε and r of steps η g/(√(s g² + r) + ε), ε or r 0; None where neither fits."""
    if not np.all(steps):
        return None
    for power in (1.0, 2.0):
        # (g/step)^p is linear in g^p: √s/η g + ε/η, or s/η² g² + r/η².
        x, y = _SIZES**power, abs(_SIZES / steps) ** power
        slope = (y[0] - y[2]) / (x[0] - x[2])
        rest = max(y[2] - slope * x[2], 0.0)
        if slope > 0.0 and _near(slope * x[1] + rest, y[1]):
            unit = s ** (0.5 * power) / slope
            term = float(rest * unit)
            rate = float(np.sign(steps[0]) * unit ** (1.0 / power))
            return rate, *((term, 0.0) if power == 1.0 else (0.0, term))
    return None


def _near(a: Any, b: Any, margin: Any = None) -> bool:
    margin = _NEAR * np.max(np.abs(b)) if margin is None else margin
    return bool(np.all(np.abs(np.subtract(a, b)) <= margin))
