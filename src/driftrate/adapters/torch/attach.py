"""The door: check everything, then hook a rate to an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from driftrate.adapters._observe import Base, Loop, Mode, check_batch_size, is_network, settle
from driftrate.adapters.torch.clipping import Clipping
from driftrate.adapters.torch.groups import Groups, Scheduler
from driftrate.adapters.torch.lead import Lead, reach_of
from driftrate.adapters.torch.metric import Metric, is_adam_like
from driftrate.adapters.torch.observers import Observer, Successive
from driftrate.adapters.torch.parts import Accumulated, Parts
from driftrate.adapters.torch.ranks import Ranks
from driftrate.adapters.torch.rate import ATTACHED, Rate
from driftrate.adapters.torch.sharded import Group, Shards, shards_of
from driftrate.adapters.torch.sharded_observers import Sharded, ShardedParts, ShardedSequence
from driftrate.adapters.torch.sharded_wrapped import (
    Flat,
    is_zero,
    refuse_wrapped,
    shares_of,
    unwrapped,
)
from driftrate.adapters.torch.trail import Memory, Momentum, Trail, keeps_trail
from driftrate.errors import ConfigError
from driftrate.schedules.base import Schedule
from driftrate.schedules.wrappers import Wrapper

if TYPE_CHECKING:
    from torch.distributed.fsdp import FullyShardedDataParallel

_MODES = {name: f'mode="{name}"' for name in ("sequence", "parts", "accumulation", "ranks")}


def attach(
    optimizer: Optimizer,
    schedule: Schedule,
    *,
    mode: Mode | None = None,
    ddp: DistributedDataParallel | Literal[False] | None = None,
    fsdp: FullyShardedDataParallel | None = None,
    batch_size: float | None = None,
    relative: bool | None = None,
    metric: Literal["plain", "moments"] | None = None,
    scheduler: Scheduler = "refuse",
) -> Rate:
    r"""Let a schedule set the rate of an optimizer, before each of its steps.

    It works through the optimizer's own step hooks: the loop does not change, no step is patched,
    and one that a loss scaler skips does not count. Copies and pickles of the optimizer have a copy
    of the rate. Where the signal comes from:

    - "sequence": each gradient against those before it: the trail h ← 0.9 h + g for a schedule that
      reads it (`MeasuredRate`), else the last one, cross = ⟨g_t, g_{t-1}⟩ and spread =
      ‖g_t - g_{t-1}‖²/2. Keeps one gradient; the trail is kept in every mode, and costs nothing
      where the optimizer keeps it: the first moment of Adam, AdamW, NAdam and RAdam with β₁ = 0.9,
      the buffer of SGD with momentum 0.9, both without weight decay in the gradient.
    - "parts": `rate.backward(closure, x, y)`, or `with rate.part():` around the one backward pass
      of each of two or more equal parts of a batch. Keeps no part's gradient.
    - "accumulation": every backward pass between two steps is a part (micro-batches of equal
      size). Two losses on the same samples are not parts: use another mode.
    - "ranks": the gradients of a DDP model's ranks before they are averaged. Where the loop
      accumulates under `no_sync()`, each rank's sum is a part.

    "parts" and "accumulation" refuse the second step if neither had two parts: the rate would never
    leave its start. The first step of a sequence takes the rate that the schedule starts from.

    All are measured on the gradients that the optimizer uses: clipping by norm multiplies signal
    and noise alike, clipping by value is felt in sequence mode only, and loss scaling is taken back
    out. A missing gradient counts as 0. A step whose gradients are not finite leaves the schedule's
    state, its rate and a trail of its own as they were. Where plain SGD gets every gradient clipped
    to the same norm (three equal norms in a row), a rate without `max_rate` starts afresh on the
    gradients before clipping, and is raised by as much as clipping shortens them; in distributed
    runs a warning says what to do instead, and on an accelerator, where all rates are tensors, it
    is not noticed.

    With parameters on the CPU the schedule runs on Python floats. On an accelerator it runs there
    without any host sync where all rates are tensors of that device (`lr=torch.tensor(...,
    device=)`, with fused or capturable optimizers), also inside a CUDA graph; where a rate is a
    Python float, one read a step fetches it. On CUDA the update is compiled at the first step that
    has a signal (half a minute for `MeasuredRate`, seconds once torch's cache has it); where torch
    cannot compile, a warning says so.

    Parameters that are shards (`fully_shard` and tensor-parallel `DTensor`s, from torch 2.6) are
    measured where they lie, and one small reduction a step adds up what all ranks have measured:
    modes "sequence" and "parts", see `docs/sharded.md`.

    Labels that arrive late: take the step when they arrive, on the gradient at the weights of that
    time. A gradient taken at old weights and applied late keeps the signal high for the delay after
    the weights have arrived: they swing past the target, and without a cap the rate can grow for
    ever (`examples/late_labels.py`). Batches that overlap are not independent: their common noise
    counts as signal.

    Args:
        optimizer: Any optimizer whose groups have an `lr` and whose step reads it after a closure.
        schedule: A `driftrate` schedule. What it reads and no mode can measure (`shift`, `loss`,
            `loss_shift`) is told by `rate.tell` before each step; `loss` is also taken from
            `step(closure)` and `rate.backward`, and is the mean over all ranks: a whole model among
            several ranks says whose, by `ddp`.
        mode: Where the signal comes from; by default "ranks" with `ddp`, else "sequence", and
            nothing for a schedule that reads no gradient.
        ddp: The `DistributedDataParallel` model; False says that other processes do not matter.
        fsdp: The `FullyShardedDataParallel` model, whose parameters do not say how they are
            sharded; those of `fully_shard` and `parallelize_module` do.
        batch_size: B, for schedules that read it; `rate.tell(batch_size=)` overrides it once, and
            `rate.backward` counts the samples of whole models itself. Where nobody says it, a
            schedule with the noise of one sample as a constant (`noise_std`) asks for it;
            `MeasuredRate` does without; others, which measure the noise of a whole batch, get 1.
        relative: How a schedule's rate becomes a group's. False: η_i = rate · base_i / base_1, the
            schedule's rate for the first group, and the others in proportion to the rates that
            they came with. True: η_i = rate · base_i, a factor on those rates; a schedule with
            `max_rate=None` gets 1, `MeasuredRate` `relative=True`, which lowers rates that are too
            high. None: True for schedules with no `max_rate` that measure products of gradients
            under an optimizer other than plain SGD, whose steps are not rate times gradient; else
            False.
        metric: In which metric gradients are multiplied and squared. "plain": Σ a_i b_i.
            "moments": Σ a_i b_i / (√v̂_i + ε), with Adam's v̂ of the step before: the metric that
            such an optimizer steps in; at its first step there is none, and nothing is measured.
            None: "moments" for torch's Adam, AdamW, NAdam, RAdam, RMSprop and SparseAdam, else
            "plain".
        scheduler: What to do where something else sets the groups' `lr` too, an `LRScheduler` or
            the loop. "refuse": the first step that sees it raises a `ConfigError`. "multiply":
            η_i is multiplied by lr_i / base_i, what the other has made of the rate that the group
            came with, and the group has the other's lr_i back after the step.

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
    owners = _check_optimizer(optimizer)
    refuse_wrapped(optimizer, owners, fsdp)
    inner = unwrapped(optimizer)
    check_batch_size(batch_size)
    model = None if ddp is None or ddp is False else ddp
    if model is not None and not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"attach: ddp must be a DistributedDataParallel model, got {type(ddp).__name__}"
        )
    default = "sequence" if model is None else "ranks"
    flat = None if fsdp is None else Flat(fsdp)
    shapes = [tuple(p.shape) for p in owners] if flat is None else flat.shapes
    base = Base(_is_plain(inner), None, is_network(shapes))
    loop = settle(
        schedule, base, modes=_MODES, mode=mode, default=default, relative=relative, weights=True
    )
    found = _make_metric(inner, metric)
    shards = _shards(flat or shards_of(owners, "attach"), loop.mode, model)
    alone = shards is None and (ddp is False or _world_size() == 1)
    if shards is None:
        _check_ranks(loop.mode, model, alone)
        if not (alone or model is not None or is_zero(optimizer)):
            _check_loss(loop.schedule)
    known = ATTACHED.get(optimizer)
    if known is not None and known() is not None:
        raise ConfigError("attach: the optimizer has a rate already: call its detach() first")
    device = next((p.device for p in owners if p.requires_grad), owners[0].device)
    wide = device.type == "cpu" or any(p.dtype == torch.float64 for p in owners)
    like = torch.zeros((), device=device, dtype=torch.float64 if wide else torch.float32)
    groups = Groups(optimizer, loop.relative, scheduler)
    lead = None
    if "lead" in loop.schedule.signals:
        # The derivative of the loss along the way: there is no choice of a metric in it.
        lead, found = Lead(like, reach_of(inner, groups)), None
    elif is_zero(optimizer) and found is not None and loop.mode is not None:
        shards = _shares(optimizer, loop.mode)
    observer = _make_observer(loop, like, optimizer, model, found, owners, lead, shards)
    if ddp is not False and _world_size() > _size(shards):
        observer.among = _among(optimizer, model)
    clipping = Clipping(like, alone) if base.plain and _measures_its_unit(loop) else None
    return Rate(optimizer, loop.schedule, observer, groups, clipping, like, batch_size=batch_size)


def _measures_its_unit(loop: Loop) -> bool:
    """Whether nobody has told the size of a rate, so that it follows from the gradients alone."""
    inner = loop.schedule
    while isinstance(inner, Wrapper):
        inner = inner.schedule
    return not loop.relative and getattr(inner, "max_rate", 0.0) is None and loop.mode is not None


def _is_plain(optimizer: Optimizer) -> bool:
    """Whether a step is the rate times the gradient."""
    return isinstance(optimizer, torch.optim.SGD) and not any(
        group["momentum"] for group in optimizer.param_groups
    )


def _check_optimizer(optimizer: Optimizer) -> list[Tensor]:
    """Refuse an optimizer whose rate cannot be set or measured, and return its parameters."""
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
    return owners


def _check_ranks(mode: Mode | None, model: DistributedDataParallel | None, alone: bool) -> None:
    """Refuse what the ranks of a distributed run would measure differently, or not at all."""
    if mode == "ranks":
        if model is None:
            raise ConfigError('attach: mode="ranks" needs ddp=, the DistributedDataParallel model')
        if torch.distributed.get_world_size(model.process_group) < 2:
            raise ConfigError('attach: one rank has nobody to compare with: use mode="parts"')
    elif mode in ("parts", "accumulation") and not alone:
        raise ConfigError(
            f'attach: mode="{mode}" measures in each process apart, and the ranks would disagree:'
            ' use mode="ranks" with ddp=model, also to accumulate under no_sync(), or ddp=False'
            " where the processes have nothing to do with each other"
        )


def _check_loss(schedule: Schedule) -> None:
    """Refuse a loss where nobody says which ranks' mean it is."""
    if "loss" in schedule.signals:
        raise ConfigError(
            f"attach: {schedule.name} reads the loss, on which the ranks would disagree: use"
            " ddp=model, for their mean, or ddp=False where each has its own or is told the same"
        )


def _shards(
    shards: Shards | None, mode: Mode | None, model: DistributedDataParallel | None
) -> Shards | None:
    """Refuse what shards do not show."""
    if shards is None:
        return None
    if model is not None or mode == "ranks":
        raise ConfigError(
            "attach: sharded gradients are added up over the ranks before anyone sees them, and"
            ' mode="ranks" needs them apart: leave ddp= out, for mode="sequence"'
        )
    if mode == "accumulation":
        raise ConfigError(
            'attach: mode="accumulation" listens to backward passes, which shards do not show: use'
            ' mode="parts", and run each of them in `with rate.part():`'
        )
    if mode == "parts" and shards.uneven:
        raise ConfigError(
            'attach: mode="parts" is not there for FullyShardedDataParallel: use fully_shard, or'
            ' mode="sequence"'
        )
    return shards


def _shares(optimizer: Optimizer, mode: Mode) -> Shards:
    """Return how ZeRO spreads the moments of a metric."""
    if mode != "sequence":
        raise ConfigError(
            f'attach: mode="{mode}" measures in the metric of moments, which lie in several'
            ' processes here: use mode="sequence" or metric="plain"'
        )
    return shares_of(optimizer)


def _among(optimizer: Optimizer, model: DistributedDataParallel | None) -> Group:
    """Return the ranks that make the gradients together."""
    if model is not None:
        return model.process_group
    return optimizer.process_group if is_zero(optimizer) else torch.distributed.group.WORLD  # type: ignore[attr-defined]


def _size(shards: Shards | None) -> int:
    """Return how many ranks hold the parameters, each a part."""
    return 1 if shards is None else torch.distributed.get_world_size(shards.group)


def _world_size() -> int:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if ready else 1


def _make_metric(optimizer: Optimizer, metric: str | None) -> Metric | None:
    if metric not in (None, "plain", "moments"):
        raise ConfigError(f'attach: metric must be "plain", "moments" or None, got {metric!r}')
    if metric == "moments" or (metric is None and is_adam_like(optimizer)):
        return Metric(optimizer)
    return None


def _make_observer(
    loop: Loop,
    like: Tensor,
    optimizer: Optimizer,
    model: DistributedDataParallel | None,
    metric: Metric | None,
    owners: list[Tensor],
    lead: Lead | None,
    shards: Shards | None,
) -> Observer:
    reads, trail, memory = loop.schedule.signals, None, None
    if "trail" in reads:
        # Of ZeRO's own buffers each process has a share, which is enough where sums are of shares.
        source = optimizer if shards is None else unwrapped(optimizer)
        trail = Momentum(like, source) if keeps_trail(source) else Trail(like)
    if loop.mode == "sequence" and not {"cross", "spread"}.isdisjoint(reads):
        memory = Memory(like)
    common = (like, reads, metric, trail, memory, lead)
    if shards is not None:
        kinds = {"parts": ShardedParts, "sequence": ShardedSequence}
        return kinds.get(str(loop.mode), Sharded)(*common, shards=shards)
    if loop.mode == "ranks" and model is not None:
        return Ranks(*common, model=model, owners=owners)
    if loop.mode == "accumulation":
        return Accumulated(*common, owners=owners)
    if loop.mode == "parts":
        return Parts(*common)
    return Successive(*common) if loop.mode == "sequence" else Observer(*common)
