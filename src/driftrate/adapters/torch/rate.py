"""The rate of one optimizer: set before each step, from what the gradients reveal."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from driftrate.adapters._observe import (
    STATE_VERSION,
    Fields,
    Policy,
    Told,
    blend,
    check_version,
    policies,
    record,
)
from driftrate.adapters.torch.clipping import Clipping
from driftrate.adapters.torch.groups import Groups
from driftrate.adapters.torch.moments import forget
from driftrate.adapters.torch.notes import Notes
from driftrate.adapters.torch.observers import Observer
from driftrate.adapters.torch.parts import Accumulated, Parts
from driftrate.adapters.torch.program import Program
from driftrate.adapters.torch.sharded_state import is_of_checkpoint, pack, unpack
from driftrate.adapters.torch.sharded_wrapped import unwrapped
from driftrate.errors import ConfigError, StateError
from driftrate.schedules.base import Schedule, Signal, State, map_state

_SAVED = {
    "version", "mode", "schedule", "groups", "count", "moved", "seen", "observer", "clipping",
}  # fmt: skip
_HOOKS = (
    "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks",
    "_optimizer_load_state_dict_post_hooks",
)  # fmt: skip
ATTACHED: WeakKeyDictionary[Optimizer, ReferenceType[Rate]] = WeakKeyDictionary()


class Rate(LRScheduler):
    """The learning rate of an attached optimizer; `attach` makes it.

    It is an `LRScheduler` for frameworks that ask for one. Its `step()` does nothing, because the
    rate is set before each real step of the optimizer. After it, `get_last_lr()` and the groups'
    `lr` are what the step used; with `scheduler="multiply"` the groups have the other scheduler's.
    """

    # The constructor of LRScheduler patches `optimizer.step` and takes a step: it is not called.
    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Schedule,
        observer: Observer,
        groups: Groups,
        clipping: Clipping | None,
        like: Tensor,
        *,
        batch_size: float | None,
    ) -> None:
        self.optimizer = optimizer
        self.schedule = schedule
        self.base_lrs = groups.bases  # type: ignore[assignment]
        self.last_epoch = 0
        self._step_count = 1  # Accelerate counts on it
        needs = schedule.signals
        self._needs, self._must = needs, {*needs} - schedule.optional
        self._observer = observer
        self._groups = groups
        self._told = Told(schedule, batch_size)
        self._counts = batch_size is None  # whether `backward` says how many samples it had
        self._like = like
        # Where the optimizer reads its rates from the device, nothing is ever read back.
        self._on_device = like.device.type != "cpu" and all(
            isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu"
            for group in optimizer.param_groups
        )
        self._program = Program(schedule, like) if self._on_device else None
        self._state = schedule.init() if self._program is None else self._program.state
        self._notes = Notes(like, self._on_device)
        self._dry = False
        # What is never read back cannot be seen to be pinned.
        self._clipping = None if self._on_device else clipping
        self._hook()

    # What a user calls

    @property
    def mode(self) -> str | None:
        """Where the signal comes from; None for a schedule that measures nothing."""
        return self._observer.name

    @property
    def relative(self) -> bool:
        """Whether the schedule's rate is a factor on the rates that the groups came with."""
        return self._groups.relative

    @property
    def steps(self) -> int:
        """How many real steps the optimizer has taken; reads the device."""
        return int(self._notes.count)

    @property
    def record(self) -> dict[str, float]:
        """The last step in numbers, for TensorBoard, MLflow or W&B; reads the device.

        `rate`: the rate that the optimizer used in its first group. `factor`: that over the rate
        that the group came with, or, with `scheduler="multiply"`, over what the other scheduler had
        set. `signal`: the measured squared gradient (`cross`). `noise`: the measured noise of the
        gradient (`spread`), both in the metric of `attach`. `shift`: the shift that was told or
        estimated, however deep in wrappers. What is unknown is NaN.
        """
        used = self._groups.used[0] if self._groups.used else None
        found = record(self.schedule, self._state, self._notes.seen, used, self._groups.factor)
        return {name: float(value) for name, value in found.items()}

    def tell(self, **fields: Any) -> None:
        """Say what the next step cannot measure.

        Args:
            **fields: Any of `batch_size`, `shift`, `loss` and `loss_shift`: numbers, or scalar
                tensors. They are for the next step alone. All ranks tell the same, but for `loss`:
                each tells its own, and their mean counts.

        Example:
            >>> import torch, driftrate as dr, driftrate.torch
            >>> weights = torch.nn.Parameter(torch.ones(2))
            >>> optimizer = torch.optim.SGD([weights], lr=0.1)
            >>> schedule = dr.LinearRate(dim=2, noise_std=1.0)
            >>> rate = driftrate.torch.attach(optimizer, schedule, batch_size=16)
            >>> weights.square().sum().backward()
            >>> rate.tell(shift=0.5)
            >>> optimizer.step()
            >>> rate.record["shift"]
            0.5
        """
        if (
            self._program is None
        ):  # it may be noted unread, while the loop writes on into its tensor
            fields = {n: v.clone() if isinstance(v, Tensor) else v for n, v in fields.items()}
        self._told.tell(**fields)

    @contextmanager
    def part(self) -> Iterator[None]:
        """Mark the backward pass inside as one of the parts of the next step's batch.

        Parts are of equal size and independent: two halves of a batch, or micro-batches.

        Example:
            >>> import torch, driftrate as dr, driftrate.torch
            >>> w = torch.nn.Parameter(torch.zeros(2))
            >>> optimizer = torch.optim.SGD([w], lr=0.1)
            >>> shift = dr.estimate.DebiasedShift()
            >>> schedule = dr.Estimated(dr.LinearRate(dim=2, noise_std=1.0), shift)
            >>> rate = driftrate.torch.attach(optimizer, schedule, mode="parts", batch_size=2)
            >>> for target in torch.tensor([[3.0, 1.0], [1.0, 1.0]]):
            ...     with rate.part():
            ...         (-(w @ target) / 2).backward()
            >>> optimizer.step()
            >>> rate.record["signal"], rate.record["noise"]
            (4.0, 1.0)
        """
        if not isinstance(self._observer, Parts) or isinstance(self._observer, Accumulated):
            raise ConfigError(
                f'Rate.part and Rate.backward need attach(..., mode="parts"), this is {self.mode!r}'
            )
        with self._observer.part(self._owners()):
            yield

    def backward(
        self,
        closure: Callable[..., Tensor],
        *batch: Tensor,
        parts: int = 2,
        scaler: torch.amp.GradScaler | None = None,
    ) -> Tensor:
        """Run forward and backward on parts of a batch, and measure as it goes.

        The gradients add up to those of the whole batch: each part's mean loss is weighed by its
        share of the samples. Where parameters are shards, each rank gives its own rows, and tells
        how many all ranks have (`batch_size`): the shards do not say who has the same.

        Args:
            closure: Takes a slice of each tensor of the batch, returns the mean loss over it.
            *batch: Tensors with the samples on their first axis.
            parts: How many parts; a batch with fewer samples is split one by one.
            scaler: A loss scaler, whose `scale` is applied before each backward pass.

        Returns:
            The mean loss over the whole batch, or over this rank's rows, detached.

        Example:
            >>> import torch, driftrate as dr, driftrate.torch
            >>> model = torch.nn.Linear(3, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> shift = dr.estimate.DebiasedShift()
            >>> schedule = dr.Estimated(dr.LinearRate(dim=4, noise_std=1.0), shift)
            >>> rate = driftrate.torch.attach(optimizer, schedule, mode="parts", batch_size=8)
            >>> def loss(x, y):
            ...     return torch.nn.functional.mse_loss(model(x), y)
            >>> value = rate.backward(loss, torch.ones(8, 3), torch.ones(8, 1))
            >>> optimizer.step()
            >>> rate.steps
            1
        """
        if parts < 2:
            raise ConfigError(f"Rate.backward: parts must be 2 or more, got {parts}")
        if not batch:
            raise ConfigError("Rate.backward: give the tensors of the batch after the closure")
        size, spread = len(batch[0]), self._observer.shards is not None
        if spread and not size:
            raise ConfigError("Rate.backward: this rank has no rows: give each rank one at least")
        mean = torch.zeros((), device=self._like.device)
        # All ranks take all parts: a forward pass over shards waits for the other ranks.
        for index in range(parts if spread else min(parts, size)):
            # Sizes differ by one at most where the parts do not divide the batch.
            start, end = index * size // parts, (index + 1) * size // parts
            if size < parts:
                start, end = index, index + 1
            share = max(min(end, size) - start, 0) / size
            if share == 0.0:
                start, end = 0, 1  # a row that was seen, and counts for nothing
            with self.part():
                loss = closure(*(tensor[start:end] for tensor in batch)) * share
                (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
            mean = mean + loss.detach()
        if "loss" in self.schedule.signals:
            self.tell(loss=mean)
        if self._counts and not spread:
            self._told.fields.setdefault("batch_size", float(size))
        return mean

    def notify_shift(
        self, policy: Policy = "reset", *, moments: Policy | None = None, decay: float = 0.5
    ) -> None:
        """Say that the data have shifted, and what to do with what was learned before.

        Args:
            policy: For the schedule's state. "keep": nothing; "reset": it starts afresh; "decay":
                each number goes the share 1 - `decay` of its way back to where it started.
            moments: For the optimizer's moments, by default as `policy`. "keep": nothing;
                "reset": they and their step counts become 0; "decay": they are multiplied by
                `decay`.
            decay: What is left of the past, in [0, 1].

        Example:
            >>> import torch, driftrate as dr, driftrate.torch
            >>> weights = torch.nn.Parameter(torch.ones(2))
            >>> optimizer = torch.optim.SGD([weights], lr=0.1)
            >>> rate = driftrate.torch.attach(optimizer, dr.InverseTimeRate(0.1))
            >>> for _ in range(5):
            ...     optimizer.zero_grad()
            ...     weights.square().sum().backward()
            ...     optimizer.step()
            >>> round(rate.record["rate"], 6)
            0.02
            >>> rate.notify_shift("reset", moments="keep")
            >>> optimizer.step()
            >>> round(rate.record["rate"], 6)
            0.1
        """
        share, left = policies(policy, moments, decay)
        with torch.no_grad():
            forget(unwrapped(self.optimizer), left)
            start = self.schedule.init(like=self._state[self.schedule.output])
            self._assign(blend(self._state, start, share))

    def detach(self) -> None:
        """Take all hooks back. The optimizer keeps its last rate and can be attached again."""
        if not self._handles:
            return  # another rate may be attached by now
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._observer.remove()
        if self._clipping is not None:
            self._clipping.remove()
        vars(self.optimizer).pop("__getstate__", None)
        ATTACHED.pop(self.optimizer, None)

    # The face of a scheduler

    def step(self, epoch: int | None = None) -> None:
        """Do nothing: the rate was set before the step it was for."""

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the rates that the last step used, one a group; copies, where they are tensors."""
        return self._groups.last

    def get_lr(self) -> list[float | Tensor]:
        """Return what `get_last_lr` returns."""
        return self.get_last_lr()

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs, beside the optimizer's own state.

        Numbers, strings and tensors alone: `torch.load(..., weights_only=True)` takes it. It holds
        a gradient where the rate keeps one: the last of a sequence, or a trail of its own. Of
        parameters that are shards it has few entries and always the same, so that
        `torch.distributed.checkpoint` can load into it: of `DTensor`s on any number of ranks, of
        `FullyShardedDataParallel`, where each rank has entries of its own, on the same.
        """
        state = {
            "version": STATE_VERSION,
            "mode": self.mode,
            "schedule": self.schedule.dump(self._state),
            "groups": self._groups.save(),
            **self._notes.save(),
            "observer": self._observer.save(self._owners()),
            "clipping": {} if self._clipping is None else self._clipping.save(),
        }
        return pack(state, self._observer, self._owners())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; the optimizer's own state is loaded apart from it.

        Args:
            state_dict: What `state_dict` returned, of a rate with the same schedule and mode.
        """
        if not isinstance(state_dict, dict) or "version" not in state_dict:
            raise StateError(f"not a saved rate: {str(state_dict)[:60]!r}")
        check_version(state_dict["version"], "rate")
        state_dict = unpack(state_dict, self._observer)
        lacking = _SAVED - state_dict.keys()
        if lacking:
            raise StateError(f"the saved rate lacks {sorted(lacking)}")
        if state_dict["mode"] != self.mode:
            raise StateError(
                f"the saved rate is of mode {state_dict['mode']!r}, this one of {self.mode!r}:"
                " attach with the same mode="
            )
        saved, groups = len(state_dict["groups"]["bases"]), len(self.optimizer.param_groups)
        if saved != groups:
            raise StateError(f"the saved rate has {saved} parameter groups, the optimizer {groups}")
        # Python numbers hold any saved float exactly; tensors take them over in place.
        like = self._like if self._on_device else 0.0
        state = self.schedule.load(state_dict["schedule"], like=like)
        owners = self._owners()
        self._observer.check(state_dict["observer"], owners)
        self._observer.load(state_dict["observer"], owners)
        if self._clipping is not None and state_dict["clipping"]:
            self._clipping.load(state_dict["clipping"], owners)
        self._groups.load(state_dict["groups"])
        self._assign(state)
        self._notes.load(state_dict)

    # Copies, of the rate or of its optimizer: torch copies no hooks

    def _hook(self) -> None:
        """Listen to the optimizer, which may be a copy that torch has not filled yet."""
        optimizer, mine = self.optimizer, vars(self.optimizer)
        for name in _HOOKS:
            mine.setdefault(name, OrderedDict())
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            # A checkpoint's rates are not another hand's.
            optimizer.register_load_state_dict_post_hook(lambda _: self._groups.trust()),
        ]
        mine["__getstate__"] = self._carried
        ATTACHED[optimizer] = ref(self)

    def _carried(self) -> dict[str, Any]:
        """Return the optimizer's state with this rate in it, for `copy` and `pickle`."""
        state: dict[str, Any] = type(self.optimizer).__getstate__(self.optimizer)  # type: ignore[no-untyped-call, unused-ignore]
        return {**state, "__getstate__": self._carried}

    def __getstate__(self) -> dict[str, Any]:
        if self._observer.shared:
            raise ConfigError(
                "a rate that several processes share cannot be copied or pickled, nor its"
                " optimizer: save rate.state_dict(), or detach() it before the copy"
            )
        return {**vars(self), "_handles": [], "attached": bool(self._handles)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        attached = state.pop("attached")
        vars(self).update(state)
        if self._program is not None:
            self._state = self._program.state
        self._groups.trust()
        if attached:
            self._hook()

    # The hooks

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        given = kwargs.get("closure", args[1] if len(args) > 1 else None)
        self._dry = given is None and self._groups.stopped and is_of_checkpoint()
        if self._dry:
            return None
        if given is None:
            self._advance()
            return None
        once: list[bool] = []

        def closure() -> Any:
            loss = given()
            if not once:
                once.append(True)
                if isinstance(loss, Tensor) and "loss" in self.schedule.signals:
                    self._told.fields.setdefault("loss", loss.detach())
                self._advance()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure}
        return (args[0], closure, *args[2:]), kwargs

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._dry:
            return
        self._groups.give_back()
        self._observer.stepped()
        if self._clipping is not None:
            self._clipping.clear()
        if "step_length" in self._needs:
            self._notes.arrive(self._observer, getattr(optimizer, "found_inf", None))

    @torch.no_grad()
    def _advance(self) -> None:
        shards, owners, gradients = self._observer.shards, [], []
        for group in self.optimizer.param_groups:
            for owner in group["params"]:
                gradient = owner.grad
                if gradient is not None:
                    owners.append(owner)
                    gradients.append(gradient if shards is None else shards.gradient(owner))
        if not owners and shards is None:
            return  # nothing will be updated; of shards other ranks may have gradients
        # Whatever may refuse the step does so before anything is measured or forgotten.
        self._refuse_capture(owners)
        self._groups.check()
        self._observer.require(owners)
        told = self._observer.agree(self._told.take())
        skipped = getattr(self.optimizer, "found_inf", None)
        clip = {} if self._clipping is None else self._clipping.scale(owners, gradients)
        fields: Fields = {"step_length": self._notes.moved}
        if not self._observer.idle:
            fields |= self._observer.read(owners, self._unscaled(gradients, clip.get("share")))
        shown = fields | told
        given = {name: shown[name] for name in self._needs if name in shown}
        signal = given if self._must <= given.keys() else None
        if self._program is None:
            if self._clipping is not None and "grad_sq" in fields:
                clip["square"] = fields["grad_sq"]
            unit = self._update_host(signal, skipped, clip, owners)
            self._groups.set(self._state[self.schedule.output] * unit)
        else:
            took = None if skipped is None else skipped.to(self._like) == 0.0
            self._notes.count.add_(1 if took is None else took)
            if signal is not None:
                self._program.update(Signal(**signal), took)
            self._groups.set(self._state[self.schedule.output])
        self._notes.see(shown)
        if "step_length" in self._needs:
            self._notes.leave(self._observer, owners)

    def _unscaled(self, gradients: list[Tensor], share: Tensor | None) -> list[Tensor]:
        """Return the gradients without the factors of a loss scaler and of clipping."""
        scale = getattr(self.optimizer, "grad_scale", None)
        if share is not None:
            scale = share if scale is None else share * scale.to(share)
        if scale is None:
            return gradients
        # Small ones would vanish in float16.
        kinds = [torch.promote_types(g.dtype, torch.bfloat16) for g in gradients]
        pairs = zip(gradients, kinds, strict=True)
        return [g.to(kind) / scale.to(g.device, kind) for g, kind in pairs]

    def _update_host(
        self,
        signal: Fields | None,
        skipped: Tensor | None,
        clip: Fields,
        owners: Sequence[Tensor],
    ) -> float:
        """Update the state, and return what the rate is multiplied by where clipping is undone."""
        fields, others = self._read({} if signal is None else signal, clip, skipped)
        if others.get("skipped"):
            return 1.0
        self._notes.count += 1
        # A step with a NaN or infinite gradient says nothing: the state and the rate stay.
        if signal is not None and all(map(math.isfinite, fields.values())):
            self._state = self.schedule.update(self._state, Signal(**fields))[1]
        square = others.get("square", math.nan)
        if self._clipping is not None and self._clipping.begins(square, owners):
            # Gradients of constant length have said that no step helps, and the rate rose.
            self._assign(self.schedule.init())
            self._observer.forget()
        return 1.0 / others.get("share", 1.0)

    def _read(
        self, fields: Fields, clip: Fields, skipped: Tensor | None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return numbers for all tensors, by the one read of the step."""
        others = clip if skipped is None else {**clip, "skipped": skipped}
        scalars = [
            value.detach().to(self._like).reshape(())
            for value in (*fields.values(), *others.values())
            if isinstance(value, Tensor)
        ]
        if not scalars:
            return fields, others
        numbers = iter(torch.stack(scalars).tolist())
        found = (
            {name: next(numbers) if isinstance(v, Tensor) else v for name, v in one.items()}
            for one in (fields, others)
        )
        return next(found), next(found)

    def _assign(self, state: State) -> None:
        if self._on_device:
            # In place: a CUDA graph replays on these tensors.
            map_state(lambda into, leaf: into.copy_(leaf), self._state, state)
        else:
            self._state = state

    def _owners(self) -> list[Tensor]:
        return [owner for group in self.optimizer.param_groups for owner in group["params"]]

    def _refuse_capture(self, owners: Sequence[Tensor]) -> None:
        if self._like.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            return
        if not self._on_device:
            raise ConfigError(
                "a CUDA graph cannot change a rate that is a Python float: give the optimizer"
                " lr=torch.tensor(..., device='cuda') and capturable=True before attach"
            )
        remembered = [one.remembered for one in self._observer.kept]
        ready = self._program is None or self._program.ready
        if not ready or any(p not in buffers for buffers in remembered for p in owners):
            raise ConfigError(
                "what is remembered must exist, and the update be compiled, before a CUDA graph is"
                " captured: take two steps before the capture"
            )
