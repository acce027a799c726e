"""The door: find out what an optimizer hides, then put a rate around it."""

from __future__ import annotations

from typing import Literal

import optax

from driftrate.adapters._observe import Base, check_batch_size, check_schedule, settle
from driftrate.adapters.optax.own import Own, inspect
from driftrate.adapters.optax.rate import ByShape, Rate
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

    The schedule sees the raw gradient, before the optimizer preconditions or clips it, and its
    rate scales the very update that this gradient led to. `cross` and `spread` come, by mode, from

    - "sequence": the gradients g_{t-1} and g_t of two successive updates, whose noises are
      independent: cross = ⟨g_t, g_{t-1}⟩, spread = ‖g_t - g_{t-1}‖²/2. Keeps the last gradient. The
      first update has none to compare with and takes the rate that the schedule starts from.
    - "parts": `update(mean, state, params, parts=gradients)`, the gradients of k micro-batches of
      equal size stacked on a first axis; see `from_parts` and `split_value_and_grad`.
    - "given": `update(..., signal=dr.Signal(...))`.

    In every mode `grad_sq`, `trail`, `dim` and `step_length` are measured where the schedule reads
    them, and fields given in `signal=` stand before measured ones. Rates and products are float32
    (float64 for float64 parameters), ⟨a, b⟩ = Re Σ conj(a_i) b_i; updates keep their type. A
    missing gradient (None, or float0 of whole numbers) counts as 0. For accumulation put
    `optax.MultiSteps` around the result.

    Args:
        optimizer: Any gradient transformation that ends in a descent direction.
        schedule: Any schedule of driftrate. What it reads and no mode can measure (`shift`, `loss`,
            `loss_shift`) is told in `signal=`, at each update.
        mode: By default "sequence" for schedules that read `cross`, `spread` or `trail`, else
            "given". In "sequence" `MeasuredRate` reads `grad_sq` and `trail`; then the trail is
            kept, not the last gradient.
        batch_size: B, for schedules that read it; `signal=` overrides it.
        relative: Whether the schedule's rate is a factor on the optimizer's own, and not the
            learning rate itself; one with `max_rate=None` then gets 1. None: True for schedules
            with no `max_rate` that measure products of gradients under an optimizer other than
            plain SGD. The optimizer's own rate is read from `optax.inject_hyperparams`, else
            measured on six numbers (SGD, momentum, RMSprop, Adam and the like, also behind
            clipping); where it stays hidden, only a factor works.
        metric: In which metric gradients are multiplied. "plain": Σ a_i b_i. "moments": Σ a_i b_i
            c/(√v_i + ε), c = √(1 - β₂^t), with Adam's v of the update before; the first update has
            none and takes the rate that the schedule starts from. None: "moments" for Adam, RMSprop
            and the like where the mode measures products.
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
    check_batch_size(batch_size)
    own = inspect(optimizer)
    if own.scheduled and scheduler == "refuse":
        raise ConfigError(
            "attach: the optimizer has a learning rate schedule of its own: give it a number, or"
            ' attach(..., scheduler="multiply") for the product of both'
        )
    if metric == "moments" and own.moments is None:
        raise ConfigError(
            'attach: metric="moments" needs an optimizer with the second moments of Adam or'
            ' RMSprop: use metric="plain"'
        )

    def rate(network: bool) -> Rate:
        base = own.base._replace(network=network)
        loop = settle(schedule, base, modes=_MODES, mode=mode, relative=relative, weights=True)
        if not loop.relative and base.rate is None:
            raise ConfigError(
                f"attach: {schedule.name} sets the learning rate, and the optimizer hides its own:"
                " write optax.inject_hyperparams(optax.lion)(learning_rate=...), or relative=True"
                " for a factor on it"
            )
        plain = metric == "plain" or (metric is None and loop.mode == "given")
        # The derivative of the loss along the way has no choice of a metric in it.
        known = own._replace(moments=None) if plain or "lead" in loop.schedule.signals else own
        return Rate(optimizer, loop, known, batch_size, normalises=own.moments is not None)

    layer, network = rate(False), rate(True)
    if layer.schedule == network.schedule:
        return layer.transformation()
    return ByShape(layer, network).transformation()


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
        schedule: As in `attach`.
        mode: As in `attach`.
        batch_size: As in `attach`.
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
    check_batch_size(batch_size)
    own = Own(Base(plain=True, rate=1.0))
    loop = settle(schedule, own.base, modes=_MODES, mode=mode, relative=False)
    sign = optax.scale(-1.0) if flip_sign else optax.identity()
    return Rate(sign, loop, own, batch_size).transformation()
