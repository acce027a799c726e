"""The door: find out what an optimizer hides, then put a rate around it."""

from __future__ import annotations

from typing import Literal

import optax

from driftrate.adapters._observe import Base, check_batch_size, check_schedule, settle
from driftrate.adapters.optax.own import Own, inspect
from driftrate.adapters.optax.rate import Rate
from driftrate.errors import ConfigError
from driftrate.schedules.base import Schedule

Mode = Literal["sequence", "parts", "given"]
_MODES = {
    "sequence": 'mode="sequence"',
    "parts": 'mode="parts" with update(..., parts=gradients)',
    "given": 'mode="given" with update(..., signal=dr.Signal(...))',
}


def attach(
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    *,
    mode: Mode | None = None,
    batch_size: float | None = None,
    relative: bool | None = None,
    metric: Literal["plain", "moments"] | None = None,
    scheduler: Literal["refuse", "multiply"] = "refuse",
) -> optax.GradientTransformationExtraArgs:
    r"""Let a schedule set the rate of an optimizer, at each of its updates.

    A schedule's rate is either the learning rate, whatever that of the optimizer was:
    `optax.sgd(0.1)` and `optax.sgd(1.0)` take the same steps; or a factor on the optimizer's own
    (`relative`). Transformations hide their rate. That of `optax.inject_hyperparams` is read; else
    a few updates of six numbers show that of SGD, momentum, RMSprop, Adam and the like, also
    behind clipping. Where the rate stays hidden, a factor works, and a rate is refused with what
    to write instead.

    The schedule sees the raw gradient, before the optimizer preconditions or clips it, and its
    rate scales the very update that this gradient led to. The rate is strong float32 (float64 for
    float64 parameters) and multiplies in that precision; updates keep their type, complex ones
    too, where ⟨a, b⟩ = Re Σ conj(a_i) b_i. A missing gradient (None, or float0 of whole numbers)
    counts as 0 and stays as it is.

    By mode, `cross` and `spread` come from

    - "sequence": the gradients g_{t-1} and g_t of two successive updates, whose noises are
      independent: cross = ⟨g_t, g_{t-1}⟩, spread = ‖g_t - g_{t-1}‖²/2, the noise of one gradient.
      Nothing to do. Keeps a copy of the last gradient. The first update has none to compare with
      and takes the rate that the schedule starts from.
    - "parts": `update(mean, state, params, parts=gradients)`, the gradients of k micro-batches of
      equal size stacked on a first axis; see `from_parts` and `split_value_and_grad`.
    - "given": `update(..., signal=dr.Signal(...))`.

    In every mode `grad_sq`, `trail`, `dim` and `step_length` (the norm of the last update) are
    measured where the schedule reads them, and fields given in `signal=` stand before measured
    ones. For accumulation put `optax.MultiSteps` around the result: it then steps on real updates
    alone.

    Args:
        optimizer: Any gradient transformation that ends in a descent direction.
        schedule: Any schedule of driftrate. What it reads and no mode can measure (`shift`, `loss`,
            `loss_shift`) is told in `signal=`, at each update.
        mode: Where the signal comes from; by default "sequence" for schedules that read `cross` or
            `spread` or `trail`, else "given". Without parts, in "sequence", `MeasuredRate` reads
            `grad_sq` and `trail` alone, and a trail is kept instead of the last gradient.
        batch_size: B, for schedules that read it; `signal=` overrides it.
        relative: Whether the schedule's rate is a factor on the optimizer's own; one with
            `max_rate=None` then gets 1, `MeasuredRate` `relative=True`, which lowers a rate that is
            too high. None: True for schedules with no `max_rate` that measure products of
            gradients under an optimizer other than plain SGD, whose steps are not rate times
            gradient; else False. So `MeasuredRate()` measures the curvature under plain SGD,
            whatever its rate is, and multiplies the rate of Adam by the measured factor, 0 to 1.
        metric: In which metric gradients are multiplied and squared. "plain": Σ a_i b_i.
            "moments": Σ a_i b_i c/(√v_i + ε), c = √(1 - β₂^t), with Adam's v of the update before:
            the metric that such an optimizer steps in. Its first update has no moments and takes
            the rate that the schedule starts from. None: "moments" for Adam, RMSprop and the like
            where the mode measures products, else "plain".
        scheduler: What to do with a schedule of the optimizer's own (`optax.sgd(schedule)`):
            "refuse", or "multiply" both rates.

    Returns:
        A transformation that takes the extra arguments `signal` and `parts` and hands all extra
        arguments on to the optimizer. Its state is a `RateState`.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> import driftrate as dr
        >>> from driftrate.optax import record
        >>> rate = dr.LinearRate(dim=2, noise_std=1.0)
        >>> optimizer = attach(optax.sgd(0.1), rate, batch_size=16)
        >>> params = jnp.ones(2)
        >>> state = optimizer.init(params)
        >>> step = jax.jit(optimizer.update)
        >>> updates, state = step(params, state, params, signal=dr.Signal(shift=0.5))
        >>> print(record(state)["shift"])
        0.5
    """
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ConfigError(
            f"attach: optimizer must be an optax.GradientTransformation, got {optimizer!r}"
        )
    if metric not in (None, "plain", "moments"):
        raise ConfigError(f'attach: metric must be "plain", "moments" or None, got {metric!r}')
    if scheduler not in ("refuse", "multiply"):
        raise ConfigError(f'attach: scheduler must be "refuse" or "multiply", got {scheduler!r}')
    check_schedule(schedule)
    own = inspect(optimizer)
    if own.scheduled and scheduler == "refuse":
        raise ConfigError(
            "attach: the optimizer has a learning rate schedule of its own: give it a number, or"
            ' attach(..., scheduler="multiply") for the product of both'
        )
    return _attached(optimizer, schedule, own, mode, batch_size, relative, metric)


def scale_by_rate(
    schedule: Schedule,
    *,
    mode: Mode | None = None,
    batch_size: float | None = None,
    flip_sign: bool = True,
) -> optax.GradientTransformationExtraArgs:
    r"""Scale updates by a schedule's rate: u_t ↦ -η_t u_t, the last link of an `optax.chain`.

    It measures what reaches it. Behind a preconditioner that is not the gradient any more: where
    the schedule is to see gradients, use `attach`, or give `signal=` or `parts=`.

    Args:
        schedule: Any schedule of driftrate.
        mode: Where the signal comes from, as in `attach`.
        batch_size: B, for schedules that read it.
        flip_sign: Whether to descend, as in `optax.scale_by_learning_rate`.

    Returns:
        A transformation as `attach` returns it.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> import driftrate as dr
        >>> chain = optax.chain(optax.clip(1.0), scale_by_rate(dr.ConstantRate(0.5)))
        >>> params = jnp.array([4.0])
        >>> updates, _ = chain.update(params, chain.init(params), params)
        >>> print(updates)
        [-0.5]
    """
    sign = optax.scale(-1.0) if flip_sign else optax.identity()
    own = Own(Base(plain=True, rate=1.0))
    return _attached(sign, schedule, own, mode, batch_size, False, None)


def _attached(
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    own: Own,
    mode: str | None,
    batch_size: float | None,
    relative: bool | None,
    metric: str | None,
) -> optax.GradientTransformationExtraArgs:
    """Put a rate around an optimizer of which it is known what it hides."""
    check_batch_size(batch_size)
    loop = settle(schedule, own.base, modes=_MODES, mode=mode, relative=relative)
    if not loop.relative and own.base.rate is None:
        raise ConfigError(
            f"attach: {schedule.name} sets the learning rate, and the optimizer hides its own:"
            " write optax.inject_hyperparams(optax.lion)(learning_rate=...), or relative=True for"
            " a factor on it"
        )
    if metric == "moments" and own.moments is None:
        raise ConfigError(
            'attach: metric="moments" needs an optimizer with the second moments of Adam or'
            ' RMSprop: use metric="plain"'
        )
    if metric == "plain" or (metric is None and loop.mode == "given"):
        own = own._replace(moments=None)
    rate = Rate(optax.with_extra_args_support(optimizer), loop, own, batch_size)
    return optax.GradientTransformationExtraArgs(rate.init, rate.update)
