"""An optimizer for networks under shift, with nothing to tune."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from driftrate.adapters import _pursuit as law
from driftrate.adapters._observe import check_version
from driftrate.adapters.torch import pursuit_state
from driftrate.adapters.torch.pursuit_move import chosen, move
from driftrate.adapters.torch.pursuit_record import Sample
from driftrate.adapters.torch.sharded import Shards, local, shards_of
from driftrate.adapters.torch.sharded_wrapped import is_flattened
from driftrate.errors import ConfigError, StateError

# A tensor that is about to move: the parameter, its state, its way, and what lies here of the
# parameter, of its gradient and of its state.
Moving = tuple[Tensor, dict[str, Tensor], ModuleType, Tensor, Tensor, dict[str, Tensor]]


class Moved(NamedTuple):
    """Tensors of one group and device that have moved, and what their laws are to follow.

    Args:
        taken: The tensors.
        laws: Their laws, as they are kept.
        now: The same laws, packed, of before the step.
        signals: ⟨g, h⟩ and ⟨g, u⟩, a row a tensor.
        xp: The namespace of `now`.
    """

    taken: Sequence[Tensor]
    laws: list[Tensor]
    now: law.Law
    signals: Tensor
    xp: Any

    def follow(self, signals: Any) -> None:
        """Let the laws follow."""
        told = (signals.numpy() if signals.is_cpu else signals).T
        after = law.follow(self.xp, self.now, *told)
        new = torch.as_tensor(after.stacked(self.xp))
        torch._foreach_copy_(self.laws, list(new.unbind(0)))


class Pursuit(torch.optim.Optimizer):
    """Steps that follow a moving target, with a rate a tensor that finds itself.

    A fast point takes the steps of an AdaGrad that forgets, without momentum,

        v ← k v + g²,    Δ = -lr · 0.3 · s · c · g/√v,

    measured by the size s of the tensor's first weights and by a rate c that follows the derivative
    of the loss by its own logarithm over the last 300 steps: log c moves against ⟨g, h⟩, h the
    trail of the tensor's own steps. The weights lie between the fast point and its slow average, a
    share of the way back that follows its own derivative: none while the target moves. Steps are
    added to the weights, so that weights that are loaded, decayed or drawn anew in between stay as
    they are.

    Args:
        params: What is trained: an iterable of parameters or of groups.
        lr: A multiplier of all steps; 1 is meant to be right.
        weight_decay: What a matrix loses of itself while it could move by its own size: a step
            takes `weight_decay` · lr · ρ of it, ρ = 0.03 min(c, 1) the relative length of a
            step. Vectors do not decay, nor does what has no gradient.
        sample_every: Where `step` is given a closure, every so many steps it is called once more
            to measure the rate of learning, see `record`; None for never.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = Pursuit(model.parameters())
        >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(300):
        ...     loss = (model(x)[:, 0] - x @ torch.tensor([1.0, -2.0])).square().mean()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        >>> bool(loss < 1e-2)
        True

    Reference:
        Duchi, Hazan and Singer (2011), "Adaptive subgradient methods"; Sutton (1992), "Adapting
        bias by gradient descent"; Wu, Ren, Liao and Grosse (2018), "Understanding short-horizon
        bias in stochastic meta-optimization".
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        weight_decay: float = law.WEIGHT_DECAY,
        sample_every: int | None = None,
    ) -> None:
        if sample_every is not None and sample_every < 1:
            raise ConfigError(f"sample_every must be None or at least 1, got {sample_every!r}")
        self._every = sample_every
        self._calls = 0
        self._shards: Shards | None = None
        self._met = False  # whether it knows how its parameters are spread
        self._learning = torch.tensor(float("nan"))
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters; their rates start at 1, those of the others go on."""
        super().add_param_group(param_group)
        *before, group = self.param_groups
        try:
            _check(group, sum(len(one["params"]) for one in before))
        except ConfigError:
            self.param_groups.pop()
            raise
        self._met = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Evaluates the model anew and returns the loss.

        Returns:
            What the closure returned, None without one.
        """
        loss, sample = None, None
        self._meet()
        if closure is not None:
            if self._every is not None and self._calls % self._every == 0:
                sample = Sample(self._all(), self._shards)
            with torch.enable_grad():
                loss = closure()
            if sample is not None:
                sample.keep()
        moving = self._plan()
        self._start()
        moved = [self._move(*some) for some in moving]
        if self._shards is None:
            for one in moved:
                one.follow(one.signals)
        else:
            self._agree(self._shards, moved)
        self._calls += 1
        if closure is not None and sample is not None:
            self._learning = sample.look(closure)
        return loss

    def _agree(self, shards: Shards, moved: list[Moved]) -> None:
        """Let the laws follow what all ranks have measured, in one reduction.

        A gradient that is missing in this process, and not in all, is 0 here.
        """
        every = self._all()
        table = shards.rows(every, [(one.taken, one.signals) for one in moved])
        told = dict(zip(every, table[:, :2].unbind(0), strict=True))
        if any(p.grad is None and p.requires_grad for p in every):  # the only case that is read
            seen = dict(zip(every, table[:, 2].tolist(), strict=True))
            for index, (group, p) in enumerate(self._members()):
                if p.grad is None and seen[p]:
                    still = self._moving(index, p, torch.zeros_like(local(p)))
                    moved.append(self._move(group, [still]))
        for one in moved:
            one.follow(torch.stack([told[p] for p in one.taken]).to(one.signals.device))

    def _plan(self) -> list[tuple[dict[str, Any], list[Moving]]]:
        """Return what is to move, together what is of one group and device.

        Raises:
            StateError: Something does not fit; nothing has changed then.
        """
        moving, index = [], 0
        for group in self.param_groups:
            places: dict[torch.device, list[Moving]] = {}
            for p in group["params"]:
                grad = p.grad
                if self._shards is not None:  # whole, and where another rank may have a gradient
                    pursuit_state.check(index, p, grad, self.state.get(p, {}))
                if grad is not None:
                    places.setdefault(p.device, []).append(self._moving(index, p, grad))
                index += 1
            moving += [(group, some) for some in places.values()]
        return moving

    def _moving(self, index: int, p: Tensor, grad: Tensor) -> Moving:
        kept = self.state.get(p, {})
        if len(kept) < 2:  # no more than a law
            kept = {**kept, **pursuit_state.started(p)}
        here, state = p, kept
        if self._shards is not None:
            here, state = local(p), {name: local(one) for name, one in kept.items()}
            grad = self._shards.gradient(p) if grad is p.grad else grad
        way, grad = chosen(index, here, grad, state)
        return p, kept, way, here, grad, state

    def _move(self, group: dict[str, Any], moving: Sequence[Moving]) -> Moved:
        """Move tensors of one group and device; their laws are still to follow."""
        taken, kept, ways, params, grads, states = map(list, zip(*moving, strict=True))
        laws = []
        for p, known in zip(taken, kept, strict=True):
            state = self.state[p]
            if len(state) < 2:
                state |= known
            laws.append(state["law"])
        packed: Any = torch.stack(laws)
        lr, xp = group["lr"], cast("Any", torch)
        if packed.is_cpu:  # a few numbers: numpy takes a third of the time
            packed, lr, xp = packed.numpy(), np.asarray(lr, dtype=np.float32), np
        now = law.Law(*packed.T)
        decay = float(group["weight_decay"])
        # The ways read single precision, and a number of NumPy's would make it double.
        factors = torch.as_tensor(law.factors(xp, now, lr, decay), dtype=torch.float32)
        signals = move(ways, params, grads, states, factors, decay > 0)
        return Moved(taken, laws, now, signals, xp)

    @property
    def record(self) -> dict[str, Tensor]:
        """What a logger wants: tensors that are not read back.

        `rate` and `memory` have one entry a parameter group, the geometric means of c and of the
        memories in steps of its tensors, `share` the mean of how far the weights lie back on the
        way to their average; NaN before the first step. `learning` is the rate of learning ρ of the
        last step that was sampled, see `Sample`.
        """
        means = []
        for group in self.param_groups:
            laws = [self.state[p]["law"] for p in group["params"] if "law" in self.state.get(p, {})]
            first = laws[0].device if laws else "cpu"
            every = [one.to(first, non_blocking=True) for one in laws]
            empty = torch.full((law.NUMBERS,), float("nan"))
            means.append(torch.stack(every).mean(0) if every else empty)
        middle = law.Law(*torch.stack([one.to(means[0].device) for one in means]).T)
        return {**law.shown(torch, middle), "learning": self._learning.clone()}

    @torch.no_grad()
    def notify_shift(self, policy: str = "reset") -> None:
        """Say that the data have shifted.

        Args:
            policy: "reset" lets rates below 1 start from 1, follow as fast as at the start, and
                forget the trail and the average of before; "keep" does nothing.
        """
        if not law.forgets(policy):
            return
        for p in self._all():
            state = self.state.get(p, {})
            if "law" in state:
                state["law"].copy_(law.renewed(torch, law.Law(*state["law"])).stacked(torch))
            if "trail" in state:
                state["trail"].zero_()
                state["lead"].zero_()

    @torch.no_grad()
    def resize(self, param: Tensor) -> None:
        """Fit the state of a parameter to what it is now: grown, cut, moved or cast.

        What is new starts as new, with zero v, h and u; the rate and all else stays.

        Args:
            param: One that is trained here, which was given other memory through `.data`.

        Example:
            >>> table = torch.nn.Embedding(3, 2)
            >>> optimizer = Pursuit(table.parameters())
            >>> table(torch.tensor([0])).sum().backward()
            >>> optimizer.step()
            >>> table.weight.data = torch.cat([table.weight.data, torch.zeros(1, 2)])
            >>> optimizer.zero_grad()
            >>> optimizer.resize(table.weight)
            >>> table(torch.tensor([3])).sum().backward()
            >>> optimizer.step()
        """
        places = [index for index, p in enumerate(self._all()) if p is param]
        if not places:
            raise StateError("resize was given a tensor that is not a parameter of this optimizer")
        state = self.state.get(param, {})
        if state:
            self.state[param] = pursuit_state.resized(places[0], param, state)
        self._met = False

    def state_dict(self) -> dict[str, Any]:
        """Return all that is to be saved, with the version of its form."""
        return {**super().state_dict(), "version": law.VERSION}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, in the precision in which it was saved.

        Args:
            state_dict: What `state_dict` returned.
        """
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
            raise StateError("the state is not of an optimizer: load what state_dict() returned")
        check_version(state_dict.get("version", 1), "state", law.VERSION)
        for number, group in enumerate(state_dict["param_groups"]):
            pursuit_state.check_rates(number, group)
        owners = self._all()
        numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
        saved = [state_dict["state"].get(i) for i in numbers]
        if len(saved) == len(owners):  # else torch says what differs
            for index, (p, one) in enumerate(zip(owners, saved, strict=True)):
                if one is not None:
                    pursuit_state.check_saved(index, p, one)
        super().load_state_dict(state_dict)
        # Torch casts a state to its parameter's dtype; ours is wider.
        for p, one in zip(owners, saved, strict=True):
            if one is not None:
                self.state[p] = pursuit_state.restored(p, one)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied and pickled: torch takes only what it knows of."""
        own = {name: getattr(self, name) for name in ("_every", "_calls", "_learning")}
        # How parameters are spread each process finds out at its next step.
        own |= {"_shards": None, "_met": False}
        return {**super().__getstate__(), **own}  # type: ignore[no-untyped-call, unused-ignore]

    def _members(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        return ((group, p) for group in self.param_groups for p in group["params"])

    def _all(self) -> list[Tensor]:
        return [p for _, p in self._members()]

    def _meet(self) -> None:
        """Find out how the parameters are spread over processes, once."""
        if not self._met:
            self._shards, self._met = shards_of(self._all(), "Pursuit"), True

    def _start(self) -> None:
        """Give a law to all parameters, once there is one without: scales look at all of them."""
        every = self._all()
        if all("law" in self.state[p] for p in every):
            return
        sizes = [_rms(p) for p in every] if self._shards is None else self._shards.rms(every)
        scales = [
            float(self.state[p]["law"][3])
            if "law" in self.state[p] and p.dim() > 1
            else law.scale(np, p.shape, size)
            for p, size in zip(every, sizes, strict=True)
        ]
        settled = law.settle(np, scales, [p.numel() for p in every])
        for p, scale in zip(every, settled, strict=True):
            if "law" not in self.state[p]:
                first = law.Law.start(float(scale)).stacked(np)
                self.state[p]["law"] = torch.tensor(first, dtype=torch.float32, device=p.device)


def _check(group: dict[str, Any], first: int) -> None:
    """Raise `ConfigError` for a group that cannot be trained; `first` is its first index."""
    lr, decay = group["lr"], group["weight_decay"]
    if isinstance(lr, Tensor):
        if lr.dim():
            raise ConfigError(f"lr must be a number, got a tensor of shape {tuple(lr.shape)}")
    elif not 0.0 <= lr < float("inf"):
        raise ConfigError(f"lr must be finite and not negative, got {lr!r}")
    if not 0.0 <= decay < float("inf"):
        raise ConfigError(f"weight_decay must be finite and not negative, got {decay!r}")
    for index, p in enumerate(group["params"], start=first):
        if is_flattened(p):
            raise ConfigError(
                f"parameter {index} is sharded by FullyShardedDataParallel, which hides its shape"
                " from the optimizer: Pursuit trains models of fully_shard (torch 2.6)"
            )
        if p.dtype not in pursuit_state.TRAINED:
            kind = str(p.dtype).removeprefix("torch.")
            raise ConfigError(
                f"parameter {index} of shape {tuple(p.shape)} is {kind}:"
                " Pursuit trains real floats of 16, 32 or 64 bits, leave it out"
            )


def _rms(p: Tensor) -> float:
    """Return the root mean square, which is read once, before the first step."""
    return float(p.detach().float().square().mean().sqrt()) if p.numel() else 0.0
