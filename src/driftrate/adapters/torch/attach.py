"""The door: check everything, then hook a rate to an optimizer."""

from __future__ import annotations

from typing import Literal
from weakref import ref

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from driftrate.adapters._observe import capped, is_factor
from driftrate.adapters.torch.memory import Memory
from driftrate.adapters.torch.metric import Metric, is_adam_like
from driftrate.adapters.torch.rate import ATTACHED, TOLD, Rate
from driftrate.adapters.torch.sources import Accumulated, Gradients, Parts, Ranks, Source
from driftrate.adapters.torch.trail import Momentum, Trail, keeps_trail
from driftrate.errors import ConfigError, MissingSignal
from driftrate.schedules.base import Schedule

Mode = Literal["sequence", "parts", "accumulation", "ranks"]

_SOURCES: dict[str, type[Source]] = {
    source.name: source for source in (Gradients, Parts, Accumulated, Ranks)
}
_ALWAYS = frozenset({"grad_sq", "step_length"})


def attach(
    optimizer: Optimizer,
    schedule: Schedule,
    *,
    mode: Mode | None = None,
    ddp: DistributedDataParallel | Literal[False] | None = None,
    batch_size: float | None = None,
    relative: bool | None = None,
    metric: Literal["plain", "moments"] | None = None,
) -> Rate:
    r"""Let a schedule set the rate of an optimizer, before each of its steps.

    It works through the optimizer's own step hooks: the loop does not change, nothing is patched,
    and a step that a loss scaler skips does not count. Where the signal comes from:

    - "sequence": each gradient against the one before, cross = ⟨g_t, g_{t-1}⟩ and spread =
      ‖g_t - g_{t-1}‖²/2. Nothing to do. Keeps the last gradient. The first step has
      none to compare with and takes the rate that the schedule starts from.
    - "parts": `rate.backward(closure, x, y)`, or `with rate.part():` around the one backward pass
      of each of two or more equal parts of a batch. Keeps no gradient: a part's is seen before it
      is added to the others'.
    - "accumulation": every backward pass between two steps is a part (micro-batches of equal
      size). Nothing to do. Two losses on the same samples are not parts: use another mode.
    - "ranks": the gradients of a DDP model's ranks before they are averaged. Nothing to do.

    A schedule that reads `trail` (`MeasuredRate`) gets it in every mode; without parts, in
    "sequence", `MeasuredRate` reads that and ‖g_t‖² alone. The trail is the optimizer's own where
    that keeps it, which costs nothing: the first moment of Adam, AdamW, NAdam and RAdam with
    β₁ = 0.9, the buffer of SGD with momentum 0.9, both without weight decay in the gradient. Else
    it is kept, at the cost of one gradient copy.

    All are measured on the gradients that the optimizer uses: clipping by norm multiplies signal
    and noise alike (so that their ratio stays), clipping by value is felt in sequence mode only,
    and loss scaling is taken back out. A missing gradient counts as 0. A step whose gradients are
    not finite leaves the schedule's state, its rate and a trail of its own as they were.

    With parameters on the CPU the schedule runs on Python floats. On an accelerator it runs there
    without any host sync where all rates are tensors of that device (`lr=torch.tensor(...,
    device=)`, with fused or capturable optimizers), also inside a CUDA graph; where a rate is a
    Python float, one read a step fetches it. On CUDA the schedule's update is compiled at the
    first step that has a signal (`torch.compile`: half a minute for `MeasuredRate`, seconds once
    torch's cache has it) and replayed as a CUDA graph of its own; where torch cannot compile, a
    warning says so, and the graph replays the update as it is written.

    Labels that arrive late: take the step when the labels arrive, on the gradient at the weights
    of that time. The signal is then of data as old as the delay: the rate rises after a shift by
    the delay later, and what is measured as noise is not touched. A gradient that was taken at old
    weights and is applied late measures ∇ at those weights: the signal stays high for the delay
    after the weights have arrived, the weights swing past the target, and without a cap on the
    rate that can grow for ever (`examples/late_labels.py`). Batches that overlap (the same rows,
    revised labels) are not independent: their common noise counts as signal.

    Args:
        optimizer: Any optimizer whose groups have an `lr` and whose step reads it after a closure.
        schedule: A `driftrate` schedule. What it reads and no mode can measure (`shift`, `loss`,
            `loss_shift`) is told by `rate.tell` before each step; `loss` is also taken from
            `step(closure)` and `rate.backward`.
        mode: Where the signal comes from; by default "ranks" with `ddp`, else "sequence", and
            nothing for a schedule that reads no gradient.
        ddp: The `DistributedDataParallel` model; False says that other processes do not matter.
        batch_size: B, for schedules that read it; `rate.tell(batch_size=)` overrides it once, and
            `rate.backward` counts the samples itself. Where nobody says it, a schedule with the
            noise of one sample as a constant (`noise_std`) asks for it; `MeasuredRate` does
            without; others, which measure the noise of a whole batch, get 1.
        relative: How a schedule's rate becomes a group's. False: η_i = rate · base_i / base_1, the
            schedule's rate for the first group, and the others in proportion to the rates that
            they came with. True: η_i = rate · base_i, a factor on the rates that they came with;
            a schedule with `max_rate=None` gets 1, `MeasuredRate` `relative=True`, which lowers
            rates that are too high. None: True for schedules with no `max_rate`
            that measure products of gradients under an optimizer other than plain SGD, whose
            steps are not rate times gradient; else False. So `MeasuredRate()` measures the
            curvature under plain SGD, whatever `lr` is, and multiplies the rate of Adam by the
            measured factor, 0 to 1; `MeasuredRate(max_rate=lr)` is `lr` times it under any.
        metric: In which metric gradients are multiplied and squared. "plain": Σ a_i b_i.
            "moments": Σ a_i b_i / (√v̂_i + ε), with Adam's v̂ of the step before: the metric that
            such an optimizer steps in. Its first step has no moments, and takes the rate that the
            schedule starts from. None: "moments" for torch's Adam, AdamW, NAdam, RAdam, RMSprop
            and SparseAdam, else "plain".

    Returns:
        The `Rate`, an `LRScheduler`.

    Example:
        >>> import torch, driftrate as dr, driftrate.torch
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> rate = driftrate.torch.attach(optimizer, dr.InverseSqrtRate(0.1))
        >>> for _ in range(4):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(8, 2)).square().mean().backward()
        ...     optimizer.step()
        >>> rate.steps, optimizer.param_groups[0]["lr"]
        (4, 0.05)
    """
    _check_optimizer(optimizer)
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"attach: schedule must be a Schedule, got {schedule!r}")
    model = _check_model(ddp)
    known = ATTACHED.get(optimizer)
    if known is not None and known() is not None:
        raise ConfigError("attach: the optimizer has a rate already: call its detach() first")
    mode = _choose_mode(schedule, mode, model)
    schedule = schedule.reading(_readable(mode))
    if mode in ("parts", "accumulation") and ddp is not False and _world_size() > 1:
        raise ConfigError(
            f'attach: mode="{mode}" measures in each process apart, and the ranks would disagree:'
            " pass ddp=model, or ddp=False where the processes have nothing to do with each other"
        )
    if relative is None:
        products = {"cross", "spread", "trail"} & set(schedule.signals)
        relative = bool(products) and is_factor(schedule, _is_plain(optimizer))
    if relative:
        schedule = capped(schedule)
    owners = [owner for group in optimizer.param_groups for owner in group["params"]]
    device = next((p.device for p in owners if p.requires_grad), owners[0].device)
    wide = device.type == "cpu" or any(p.dtype == torch.float64 for p in owners)
    like = torch.zeros((), device=device, dtype=torch.float64 if wide else torch.float32)
    source = _make_source(mode, like, optimizer, model, schedule, _make_metric(optimizer, metric))
    rate = Rate(optimizer, schedule, source, like, relative=relative, batch_size=batch_size)
    ATTACHED[optimizer] = ref(rate)
    return rate


def _readable(mode: Mode | None) -> frozenset[str]:
    """Return what a mode gives; the sequence's `cross` is of two batches, not of parts of one."""
    found = frozenset[str]() if mode is None else _SOURCES[mode].fields
    return (found - {"cross", "spread"} if mode == "sequence" else found) | TOLD | _ALWAYS


def _is_plain(optimizer: Optimizer) -> bool:
    """Whether a step is the rate times the gradient."""
    return isinstance(optimizer, torch.optim.SGD) and not any(
        group["momentum"] for group in optimizer.param_groups
    )


def _check_model(
    ddp: DistributedDataParallel | Literal[False] | None,
) -> DistributedDataParallel | None:
    if ddp is None or ddp is False:
        return None
    if not isinstance(ddp, DistributedDataParallel):
        raise ConfigError(
            f"attach: ddp must be a DistributedDataParallel model, got {type(ddp).__name__}"
        )
    return ddp


def _check_optimizer(optimizer: Optimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"attach: not a torch optimizer: {type(optimizer).__name__}")
    name = type(optimizer).__name__
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise ConfigError(
            f"attach: {name} wraps an optimizer and has no step hooks: attach to the optimizer"
            " itself, before it is wrapped"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("attach: LBFGS reads its rate before it has a gradient: not supported")
    owners = [owner for group in optimizer.param_groups for owner in group["params"]]
    if not owners:
        raise ConfigError(f"attach: {name} has no parameters")
    if any("lr" not in group for group in optimizer.param_groups):
        raise ConfigError(f"attach: {name} has no `lr` in its parameter groups, nothing to set")
    for owner in owners:
        if _is_sharded(owner):
            raise ConfigError(
                f"attach: a parameter of {name} is sharded ({type(owner).__name__}): FSDP and"
                " DTensor gradients are not supported yet"
            )


def _is_sharded(owner: Tensor) -> bool:
    return any(
        cls.__name__ in ("DTensor", "FlatParameter") for cls in type(owner).__mro__
    ) or hasattr(owner, "_is_flat_param")


def _choose_mode(
    schedule: Schedule, mode: Mode | None, model: DistributedDataParallel | None
) -> Mode | None:
    if mode is not None and mode not in _SOURCES:
        raise ConfigError(f"attach: mode must be one of {sorted(_SOURCES)}, got {mode!r}")
    needs = set(schedule.signals) - TOLD - _ALWAYS
    if mode is None:
        if not needs:
            return None
        mode = "sequence" if model is None else "ranks"
    lacking = sorted(needs - _SOURCES[mode].fields - schedule.reading(_readable(mode)).optional)
    if lacking:
        able = [f'mode="{name}"' for name, cls in _SOURCES.items() if needs <= cls.fields]
        raise MissingSignal(
            f'{schedule.name} needs {lacking}, which mode="{mode}" cannot give: use'
            f" {' or '.join(able)}"
        )
    if mode == "ranks":
        if model is None:
            raise ConfigError('attach: mode="ranks" needs ddp=, the DistributedDataParallel model')
        if torch.distributed.get_world_size(model.process_group) < 2:
            raise ConfigError('attach: one rank has nobody to compare with: use mode="parts"')
    return mode


def _world_size() -> int:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if ready else 1


def _make_metric(optimizer: Optimizer, metric: str | None) -> Metric | None:
    if metric not in (None, "plain", "moments"):
        raise ConfigError(f'attach: metric must be "plain", "moments" or None, got {metric!r}')
    if metric == "moments" or (metric is None and is_adam_like(optimizer)):
        return Metric(optimizer)
    return None


def _make_source(
    mode: Mode | None,
    like: Tensor,
    optimizer: Optimizer,
    model: DistributedDataParallel | None,
    schedule: Schedule,
    metric: Metric | None,
) -> Source | None:
    groups = optimizer.param_groups
    owners = [owner for group in groups for owner in group["params"]]
    # Without capturable=False nothing says that the step stays out of CUDA graphs.
    captured = like.device.type != "cpu" and any(group.get("capturable", True) for group in groups)
    trail = None
    if "trail" in schedule.signals:
        trail = Momentum(like, optimizer) if keeps_trail(optimizer) else Trail(like)
    if mode == "sequence":
        pairs = {"cross", "spread"} & {*schedule.signals}
        memory = Memory(like, metric, captured) if pairs else None
        return Gradients(like, metric, trail, memory, "spread" in schedule.signals)
    if mode == "parts":
        return Parts(like, metric, trail)
    if mode == "accumulation":
        return Accumulated(like, metric, trail, owners)
    if model is None or mode is None:
        return None
    return Ranks(like, metric, trail, model, owners)
