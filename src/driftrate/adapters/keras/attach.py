"""The door: check everything, then make the optimizer to train with."""

from __future__ import annotations

from typing import Any, Literal

import keras

from driftrate.adapters._observe import Base, check_batch_size, check_schedule, settle
from driftrate.adapters.keras.metric import is_adam_like
from driftrate.adapters.keras.optimizer import ScheduledOptimizer
from driftrate.errors import ConfigError
from driftrate.schedules.base import Schedule

Mode = Literal["sequence", "accumulation"]
_MODES = {
    "sequence": 'mode="sequence"',
    "accumulation": 'mode="accumulation" with gradient_accumulation_steps=2 or more',
}


def attach(
    optimizer: keras.optimizers.Optimizer,
    schedule: Schedule,
    *,
    mode: Mode | None = None,
    batch_size: float | None = None,
    relative: bool | None = None,
    metric: Literal["plain", "moments"] | None = None,
    scheduler: Literal["refuse", "multiply"] = "refuse",
) -> ScheduledOptimizer:
    r"""Let a schedule drive a Keras optimizer; hand the result to `model.compile`.

    Before each update the schedule sees the gradient as the loss gives it, before the optimizer
    clips it and freed of a loss scale, and sets `optimizer.learning_rate` for that very update.
    By mode, `cross` and `spread` come from

    - "sequence": the gradients g_{t-1} and g_t of two successive updates, whose noises are
      independent: cross = ⟨g_t, g_{t-1}⟩, spread = ‖g_t - g_{t-1}‖²/2. Keeps the last gradient. The
      first update has none to compare with and takes the rate that the schedule starts from.
    - "accumulation": the micro-batches of an optimizer with `gradient_accumulation_steps=k`, k >=
      2, which are k independent parts of one batch. To split a batch of 64 in two, `fit` with
      batches of 32 and k = 2: Keras shows an optimizer no samples to split. Keeps no gradient.

    In every mode `grad_sq`, `trail` (one gradient is kept), `dim` and `step_length` are measured
    where the schedule reads them. A missing gradient counts as 0. With accumulation the schedule
    steps on real updates alone. A signal that is not finite leaves its state and rate as they were.

    All state is in Keras variables: a `.keras` file holds it and restores it bit by bit, `fit`
    goes on where the last `fit` ended. Import `driftrate.keras` before `load_model`.

    Args:
        optimizer: A fresh Keras optimizer.
        schedule: Any schedule of driftrate. What it reads and no mode can measure (`shift`, `loss`,
            `loss_shift`) is told by `ScheduledOptimizer.tell`, for the next update alone.
        mode: By default "sequence" for schedules that read `cross`, `spread` or `trail`, else
            nothing is compared.
        batch_size: B, for schedules that read it; with accumulation that of all k micro-batches.
        relative: Whether the schedule's rate is a factor on the rate that the optimizer came with,
            and not the learning rate itself; one with `max_rate=None` then gets 1. None: True for
            schedules with no `max_rate` that measure products of gradients under an optimizer other
            than plain SGD.
        metric: In which metric gradients are multiplied: "plain", Σ a_i b_i, or that of the second
            moments, Σ a_i b_i c/(√v_i + ε), c = √(1 - β₂^t), as the update before left them. None:
            "moments" for Adam, AdamW, Nadam, RMSprop and Lamb, else "plain".
        scheduler: What to do with a `LearningRateSchedule` of the optimizer's own: "refuse", or
            "multiply" the rate by its share of its first value.

    Returns:
        The optimizer to train with.

    Example:
        >>> import keras
        >>> import driftrate as dr
        >>> rate = dr.Estimated(dr.LinearRate(dim=8, noise_std=1.0), dr.estimate.DebiasedShift())
        >>> sgd = keras.optimizers.SGD(gradient_accumulation_steps=2)
        >>> optimizer = attach(sgd, rate, mode="accumulation", batch_size=64)
        >>> optimizer.mode
        'accumulation'
    """
    check_schedule(schedule)
    _check(optimizer, mode)
    if metric not in (None, "plain", "moments"):
        raise ConfigError(f'attach: metric must be "plain", "moments" or None, got {metric!r}')
    if metric == "moments" and not is_adam_like(optimizer):
        raise ConfigError(
            f'attach: metric="moments" needs Adam, AdamW, Nadam, RMSprop or Lamb, got'
            f' {type(optimizer).__name__}: use metric="plain"'
        )
    check_batch_size(batch_size)
    inner, theirs = _unscheduled(optimizer, scheduler)
    plain = isinstance(inner, keras.optimizers.SGD) and not inner.momentum
    base = float(inner.learning_rate.value)
    loop, deep = (
        settle(
            schedule,
            Base(plain, base, network),
            modes=_MODES,
            mode=mode,
            relative=relative,
            weights=True,
        )
        for network in (False, True)
    )
    moments = metric != "plain" and is_adam_like(inner) and loop.mode is not None
    # The derivative of the loss along the way has no choice of a metric in it.
    moments = moments and "lead" not in loop.schedule.signals
    return ScheduledOptimizer(
        inner,
        loop.schedule,
        loop.mode,
        batch_size=batch_size,
        relative=loop.relative,
        metric="moments" if moments else "plain",
        scheduler=theirs,
        network=None if deep.schedule == loop.schedule else deep.schedule,
    )


def _check(optimizer: Any, mode: str | None) -> None:
    """Refuse what cannot work, before anything is touched."""
    if keras.backend.backend() not in ("torch", "jax"):
        raise ConfigError(
            f"driftrate.keras needs the torch or jax backend, not {keras.backend.backend()}: set"
            " KERAS_BACKEND before Keras is imported"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(f"attach: optimizer must be a Keras optimizer, got {optimizer!r}")
    if isinstance(optimizer, ScheduledOptimizer):
        raise ConfigError(f"attach: the optimizer already follows {optimizer.schedule.name}")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigError(
            "attach: gradients inside a LossScaleOptimizer are scaled: put it outside,"
            " LossScaleOptimizer(attach(optimizer, schedule))"
        )
    if optimizer.built:
        raise ConfigError("attach: the optimizer has trained before: attach a new one")
    if mode == "accumulation" and (optimizer.gradient_accumulation_steps or 1) < 2:
        raise ConfigError(
            f'attach: mode="accumulation" needs {type(optimizer).__name__}'
            '(gradient_accumulation_steps=2) or more, and smaller batches; else use mode="sequence"'
        )


def _unscheduled(optimizer: Any, scheduler: str) -> tuple[Any, Any]:
    """Return the optimizer with a number as its rate, and the schedule that it had, or None."""
    if scheduler not in ("refuse", "multiply"):
        raise ConfigError(f'attach: scheduler must be "refuse" or "multiply", got {scheduler!r}')
    theirs = optimizer._learning_rate
    if hasattr(theirs, "assign"):  # a variable; not keras.Variable in Keras 3.6
        return optimizer, None
    known = isinstance(theirs, keras.optimizers.schedules.LearningRateSchedule)
    first = float(theirs(0)) if known else 0.0
    if scheduler == "refuse" or first <= 0.0:
        raise ConfigError(
            f"attach: two schedules for one rate: give {type(optimizer).__name__} a number as its"
            ' learning_rate, or a LearningRateSchedule that starts above 0 and scheduler="multiply"'
        )
    return optimizer.from_config({**optimizer.get_config(), "learning_rate": first}), theirs
