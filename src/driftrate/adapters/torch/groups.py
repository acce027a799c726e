"""The rates of an optimizer's groups: what they came with, who else sets them, what was used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from driftrate.errors import ConfigError

Lr = float | Tensor
Scheduler = Literal["refuse", "multiply"]


class _Left(NamedTuple):
    """A group's rate as it was left; a tensor's version says, without a read, that it still is."""

    lr: Lr
    version: int

    @classmethod
    def of(cls, lr: Lr) -> _Left:
        return cls(lr, lr._version if isinstance(lr, Tensor) else 0)

    def is_still(self, lr: Lr) -> bool:
        if isinstance(lr, Tensor) or isinstance(self.lr, Tensor):
            return lr is self.lr and self.version == _Left.of(lr).version
        return lr == self.lr


class Groups:
    r"""Sets the rates of all groups from one, for the length of a step or until the next.

    A group's rate is η_i = own_i · s_i, with own_i = rate · base_i where the rate is a factor, else
    rate · base_i / base_1; base_i is the rate that the group came with, and s_i what another
    scheduler has made of it, lr_i / base_i ("multiply"), or 1 ("refuse": whoever else writes an
    `lr` is refused). With "multiply" the groups have the scheduler's rates back after each step, so
    that those which multiply what they find go on rightly.
    """

    def __init__(self, optimizer: Optimizer, relative: bool, scheduler: Scheduler) -> None:
        if scheduler not in ("refuse", "multiply"):
            raise ConfigError(
                f'attach: scheduler must be "refuse" or "multiply", got {scheduler!r}'
            )
        self.relative = relative
        self.multiplies = scheduler == "multiply"
        self.bases: list[float] = []
        self.used: list[Lr] = []  # by the last step, and what the groups had before it
        self.came: list[Lr] = []
        self._optimizer = optimizer
        self._left = [_Left.of(group["lr"]) for group in optimizer.param_groups]
        self._away = False  # the groups have our rates, and the scheduler's are in `came`
        self._meet()
        if self.multiplies and 0.0 in self.bases:
            raise ConfigError(
                'attach: scheduler="multiply" compares lr with what a group came with, and that is'
                " 0: make the optimizer with lr > 0"
            )

    @property
    def last(self) -> list[Lr]:
        """The rates that the last step used; of a group without one, its `lr`."""
        rest = self._optimizer.param_groups[len(self.used) :]
        rates = [*self.used, *(group["lr"] for group in rest)]
        return [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]

    @property
    def unit(self) -> float:
        """The largest rate of a group where that of the schedule is 1."""
        first = next((base for base in self.bases if base > 0.0), 1.0)
        return max(self.bases) / (1.0 if self.relative else first)

    @property
    def factor(self) -> float:
        """The first group's rate in the last step over the one that it would have had."""
        if not self.used:
            return math.nan
        own = float(self.came[0]) if self.multiplies else self.bases[0]
        return float(self.used[0]) / own if own > 0.0 else math.nan

    @property
    def stopped(self) -> bool:
        """Whether another hand has set every rate to 0; no device is asked."""
        rates = [group["lr"] for group in self._optimizer.param_groups]
        pairs = zip(self._left, rates, strict=False)
        ours = any(left.is_still(rate) for left, rate in pairs)
        return not ours and all(_is_zero(rate) for rate in rates)

    def check(self) -> None:
        """Raise `ConfigError` where another hand sets the rates and was not asked for."""
        if self.multiplies:
            return
        use = 'attach(..., scheduler="multiply") to have both, or leave it out'
        if hasattr(self._optimizer.step, "_wrapped_by_lr_sched"):
            raise ConfigError(f"the optimizer has another learning-rate scheduler: {use}")
        pairs = zip(self._optimizer.param_groups, self._left, strict=False)
        for place, (group, left) in enumerate(pairs):
            if not left.is_still(group["lr"]):
                raise ConfigError(
                    f'something else has set param_groups[{place}]["lr"] to'
                    f" {float(group['lr']):g}, which this rate sets: {use}"
                )

    def set(self, rate: Lr) -> None:
        """Write the rates of a step into the groups."""
        self.give_back()
        self._meet()
        groups = self._optimizer.param_groups
        first = next((base for base in self.bases if base > 0.0), None)
        unit = 1.0 if self.relative else first
        if self.multiplies:
            _put(self.came, [group["lr"] for group in groups])
        for place, (group, base) in enumerate(zip(groups, self.bases, strict=True)):
            value = rate if unit is None else rate * (base / unit)
            if self.multiplies:
                value = value * (self.came[place] / base)
            _write(group, value)
        self._away = self.multiplies
        _put(self.used, [group["lr"] for group in groups])
        self._left = [_Left.of(group["lr"]) for group in groups]

    def give_back(self) -> None:
        """Write the scheduler's rates back, where a step has taken their place."""
        if self._away:
            for group, lr in zip(self._optimizer.param_groups, self.came, strict=False):
                _write(group, lr)
            self._away = False

    def trust(self) -> None:
        """Take the groups' rates for what was left there: a checkpoint was loaded."""
        self._left = []

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        self._meet()  # a group that was added since the last step is saved, too
        return {"bases": [*self.bases], "used": _copied(self.used), "came": _copied(self.came)}

    def load(self, saved: dict[str, Any]) -> None:
        """Take over what `save` returned."""
        self.bases[:] = saved["bases"]
        for into, rates in ((self.used, saved["used"]), (self.came, saved["came"])):
            groups = self._optimizer.param_groups
            _put(into, [_as(group["lr"], one) for group, one in zip(groups, rates, strict=False)])
        self.trust()

    def _meet(self) -> None:
        """Note what new groups come with."""
        for group in self._optimizer.param_groups[len(self.bases) :]:
            # A scheduler that is there already keeps under `initial_lr` what it found.
            came = group.get("initial_lr", group["lr"]) if self.multiplies else group["lr"]
            self.bases.append(float(came))


def _is_zero(lr: Lr) -> bool:
    """Whether a rate is 0 on the host, where torch and a loop put a 0."""
    return (not isinstance(lr, Tensor) or lr.device.type == "cpu") and float(lr) == 0.0


def _write(group: dict[str, Any], value: Lr) -> None:
    """Set a rate, in place where it is a tensor: a captured graph reads it there."""
    if not isinstance(group["lr"], Tensor):
        group["lr"] = float(value)
    elif isinstance(value, Tensor):
        group["lr"].copy_(value)
    else:
        group["lr"].fill_(value)


def _put(into: list[Lr], rates: Sequence[Lr]) -> None:
    """Copy rates, in place where they are tensors, for the same reason; no other stays."""
    del into[len(rates) :]
    pairs: list[tuple[Tensor, Tensor]] = []
    for place, rate in enumerate(rates):
        old = into[place] if place < len(into) else None
        if isinstance(rate, Tensor) and isinstance(old, Tensor):
            pairs.append((old, rate))
        else:
            into[place : place + 1] = _copied([rate])
    if pairs:
        torch._foreach_copy_([old for old, _ in pairs], [new for _, new in pairs])


def _as(lr: Lr, rate: Lr) -> Lr:
    """Return a rate in the form of a group's own: a number, or a tensor where that one is."""
    if isinstance(lr, Tensor):
        return torch.as_tensor(rate, dtype=lr.dtype, device=lr.device)
    return float(rate)


def _copied(rates: Sequence[Lr]) -> list[Lr]:
    return [rate.detach().clone() if isinstance(rate, Tensor) else rate for rate in rates]
