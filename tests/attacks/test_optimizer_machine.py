"""Optimizers under whatever a program may do to them, in any order that hypothesis finds."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

torch = pytest.importorskip("torch")

import driftrate as dr  # noqa: E402
import driftrate.torch  # noqa: E402
from driftrate.errors import ConfigError, StateError  # noqa: E402

KINDS: dict[str, Callable[[], Any]] = {
    "matrix": lambda: torch.randn(5, 3) / 3,
    "vector": lambda: torch.zeros(4),
    "number": lambda: torch.tensor(0.5),
    "rows": lambda: torch.randn(7, 2),
    "transposed": lambda: torch.randn(3, 6).t(),
    "channels last": lambda: torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "double": lambda: torch.randn(3, 2, dtype=torch.float64),
    "short": lambda: torch.randn(4, 3).bfloat16(),
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "more rows": lambda weight: torch.cat([weight, weight[:2]]),
    "fewer rows": lambda weight: weight[:-1].clone(),
    "precision": lambda weight: weight.to(torch.float32 if weight.itemsize == 8 else torch.float64),
    "strides": lambda weight: weight.transpose(0, -1).contiguous().transpose(0, -1),
}
MOST = 6
which = st.integers(0, MOST - 1)


@dataclass
class Run:
    """What a program has, and copies as one."""

    parameters: list[Any]
    optimizer: Any
    rate: Any

    def saved(self) -> Any:
        """Return a checkpoint."""
        rate = None if self.rate is None else self.rate.state_dict()
        return [p.detach().clone() for p in self.parameters], self.optimizer.state_dict(), rate

    def load(self, checkpoint: Any) -> None:
        """Go back to a checkpoint; the weights come last, as the others may refuse."""
        weights, state, rate = checkpoint
        # Torch's optimizers would train on in the checkpoint's own tensors.
        self.optimizer.load_state_dict(copy.deepcopy(state))
        if self.rate is not None:
            self.rate.load_state_dict(rate)
        with torch.no_grad():
            for p, weight in zip(self.parameters, weights, strict=True):
                p.copy_(weight)


def bits(value: Any) -> Any:
    """Return a value in which tensors can be compared bit by bit."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().reshape(-1).view(torch.uint8) if value.numel() else value
        return str(value.dtype), tuple(value.shape), flat.numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [bits(one) for one in value]
    return repr(value)


def through_a_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Training(RuleBasedStateMachine):
    """A program that trains a few tensors towards targets that move."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run = self.start([[KINDS["matrix"](), KINDS["vector"]()]])
        self.scale = 1.0
        self.count = 0
        self.checkpoint: Any = None

    def make(self, groups: list[dict[str, Any]]) -> tuple[Any, Any]:
        """Return an optimizer, and its rate if it has one."""
        raise NotImplementedError

    def start(self, groups: list[list[Any]]) -> Run:
        """Begin with new parameters."""
        groups = [[torch.nn.Parameter(one.detach().clone()) for one in group] for group in groups]
        optimizer, rate = self.make([{"params": group} for group in groups])
        return Run([p for group in groups for p in group], optimizer, rate)

    def again(self) -> Run:
        """Return the same program as if it had just been started."""
        run = self.start([group["params"] for group in self.run.optimizer.param_groups])
        for old, new in zip(self.run.parameters, run.parameters, strict=True):
            new.requires_grad_(old.requires_grad)
        return run

    def pick(self, index: int) -> Any:
        return self.run.parameters[index % len(self.run.parameters)]

    def give_gradients(self, run: Run, times: float = 1.0) -> None:
        """Set the gradients of a square loss with noise, the same for all who ask."""
        generator = torch.Generator().manual_seed(self.count)
        target = math.sin(self.count / 30)
        for p in run.parameters:
            noise = torch.randn(p.shape, generator=generator)
            if p.requires_grad:
                p.grad = (times * self.scale * (p.detach() - target + noise)).to(p.dtype)

    def loss(self, run: Run) -> Any:
        self.give_gradients(run)
        return torch.tensor(1.0)

    def step(self, *runs: Run, closure: bool = False) -> None:
        """Take a step; frozen tensors stay."""
        still = bits([p for p in self.run.parameters if not p.requires_grad])
        for run in runs or (self.run,):
            self.give_gradients(run)
            run.optimizer.step(*[partial(self.loss, run)] * closure)
        self.count += 1
        assert bits([p for p in self.run.parameters if not p.requires_grad]) == still

    def steps_agree(self, other: Run) -> None:
        """Let another run be the same as this one, now and after some steps."""
        assert bits(other.saved()) == bits(self.run.saved())
        for _ in range(3):
            self.step(self.run, other)
        assert bits(other.saved()) == bits(self.run.saved())

    @rule(count=st.integers(1, 5), closure=st.booleans())
    def train(self, count: int, closure: bool) -> None:
        for _ in range(count):
            self.step(closure=closure)

    @rule(scale=st.sampled_from([1.0, 1e-6, 1e-3, 1e3, 1e6]))
    def rescale(self, scale: float) -> None:
        self.scale = scale

    @rule()
    def step_on_zeros(self) -> None:
        """They move no tensor, but for the momentum of the optimizer that a rate is attached to."""
        before = bits(self.run.parameters)
        self.give_gradients(self.run, times=0.0)
        self.run.optimizer.step()
        assert self.run.rate is not None or bits(self.run.parameters) == before

    @rule()
    def step_on_nothing(self) -> None:
        """No tensor has a gradient: none moves."""
        before = bits(self.run.parameters)
        self.run.optimizer.zero_grad()
        self.run.optimizer.step()
        assert bits(self.run.parameters) == before

    @rule(index=which, freeze=st.booleans())
    def freeze(self, index: int, freeze: bool) -> None:
        p = self.pick(index)
        p.requires_grad_(not freeze)
        p.grad = None

    @precondition(lambda self: len(self.run.parameters) < MOST)
    @rule(kind=st.sampled_from(sorted(KINDS)))
    def add_group(self, kind: str) -> None:
        p = torch.nn.Parameter(KINDS[kind]())
        self.run.optimizer.add_param_group({"params": [p]})
        self.run.parameters.append(p)

    @rule()
    def save(self) -> None:
        self.checkpoint = through_a_file(self.run.saved())

    @rule()
    def resume(self) -> None:
        """A new process goes on as this one would have."""
        other = self.again()
        other.load(through_a_file(self.run.saved()))
        self.steps_agree(other)
        self.run = other

    @precondition(lambda self: self.checkpoint is not None)
    @rule()
    def go_back(self) -> None:
        """A checkpoint of other tensors is refused."""
        weights, state, _ = self.checkpoint
        now = self.run.parameters
        if len(weights) == len(now):
            other = [i for i, p in enumerate(now) if p.shape != weights[i].shape]
            if not other:
                self.run.load(self.checkpoint)
                same = all(p.dtype == weight.dtype for p, weight in zip(now, weights, strict=True))
                assert not same or bits(self.run.saved()) == bits(self.checkpoint)
                return
            assume(any("trail" in state["state"].get(i, {}) for i in other))
        self.refused(lambda: self.run.load(self.checkpoint))

    @rule(by=st.sampled_from(["copy", "pickle"]))
    def duplicate(self, by: str) -> None:
        """A copy of everything goes on as the original."""
        copied = copy.deepcopy(self.run) if by == "copy" else pickle.loads(pickle.dumps(self.run))
        self.steps_agree(copied)
        self.run = copied

    @rule(policy=st.sampled_from(["keep", "reset"]))
    def shift(self, policy: str) -> None:
        (self.run.rate or self.run.optimizer).notify_shift(policy)

    @rule(what=st.sampled_from(["integers", "twice", "policy", "empty state"]))
    def misuse(self, what: str) -> None:
        run = self.run
        whole = torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
        calls: dict[str, Callable[[], Any]] = {
            "integers": lambda: run.optimizer.add_param_group({"params": [whole]}),
            "twice": lambda: run.optimizer.add_param_group({"params": run.parameters[:1]}),
            "policy": lambda: (run.rate or run.optimizer).notify_shift("forget"),
            "empty state": lambda: run.load(([], {"state": {}, "param_groups": []}, {})),
        }
        assume(what != "integers" or run.rate is None)  # Adam takes them
        self.refused(calls[what])

    def refused(self, call: Callable[[], Any]) -> None:
        """A refusal changes nothing."""
        before = bits(self.run.saved())
        with pytest.raises((ConfigError, StateError, ValueError)):
            call()
        assert bits(self.run.saved()) == before

    @invariant()
    def weights_are_finite(self) -> None:
        assert all(bool(p.isfinite().all()) for p in self.run.parameters)

    @invariant()
    def the_record_is_readable(self) -> None:
        record = (self.run.rate or self.run.optimizer).record
        values = torch.cat([torch.as_tensor(value).reshape(-1) for value in record.values()])
        assert not values.isinf().any()


class WithPursuit(Training):
    def make(self, groups: list[dict[str, Any]]) -> tuple[Any, Any]:
        return driftrate.torch.Pursuit(groups, sample_every=3), None

    @rule(
        index=which, bad=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]), whole=st.booleans()
    )
    def spoil(self, index: int, bad: float, whole: bool) -> None:
        """What is not finite or far too large counts as 0, and does not move."""
        p = self.pick(index)
        self.give_gradients(self.run)
        assume(p.grad is not None)
        spoilt = torch.ones_like(p, dtype=torch.bool)
        if p.dim() and not whole:
            spoilt[..., 1:] = False
        p.grad[spoilt] = bad
        before = p.detach().clone()
        self.run.optimizer.step()
        assert bits(p[spoilt]) == bits(before[spoilt])

    @rule(index=which, how=st.sampled_from(sorted(CHANGES)))
    def change(self, index: int, how: str) -> None:
        """A tensor that no longer fits its state is refused, until it is said to be another."""
        p, run = self.pick(index), self.run
        assume(p.dim() > 0 and 1 < len(p) < 12)
        known = "trail" in run.optimizer.state.get(p, {})
        p.data = CHANGES[how](p.data)
        p.grad = None
        before = bits(run.saved())
        self.give_gradients(run)
        try:
            run.optimizer.step()
        except StateError:
            assert bits(run.saved()) == before
        else:
            assert "rows" not in how or not (known and p.requires_grad)
        run.optimizer.resize(p)


class WithAttach(Training):
    def make(self, groups: list[dict[str, Any]]) -> tuple[Any, Any]:
        optimizer = torch.optim.Adam(groups, lr=1e-3)
        return optimizer, driftrate.torch.attach(optimizer, dr.MeasuredRate())

    @rule(index=which, bad=st.sampled_from([math.nan, math.inf, -math.inf]))
    def spoil(self, index: int, bad: float) -> None:
        """The rate learns nothing from it; Adam itself is ruined, and goes back."""
        weights, state, rate = copy.deepcopy(self.run.saved())
        self.give_gradients(self.run)
        assume(self.pick(index).grad is not None)
        self.pick(index).grad.fill_(bad)
        self.run.optimizer.step()
        assert bits(self.run.saved()[2]["schedule"]) == bits(rate["schedule"])
        self.run.load((weights, state, self.run.saved()[2]))


MACHINES = [WithPursuit, WithAttach]


def look(machine: type[Training], examples: int) -> None:
    told = settings(
        max_examples=examples,
        stateful_step_count=30,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=told)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_few_programs(machine: type[Training]) -> None:
    look(machine, 5)


@pytest.mark.attack
@pytest.mark.parametrize("machine", MACHINES)
def test_many_programs(machine: type[Training]) -> None:
    look(machine, 1000)


def test_a_group_is_added_and_saved() -> None:
    machine = WithAttach()
    added = torch.nn.Parameter(torch.zeros(3))
    machine.run.optimizer.add_param_group({"params": [added]})
    machine.run.parameters.append(added)
    machine.resume()


def test_a_rate_goes_back_to_its_start() -> None:
    run = WithAttach().again()
    before = copy.deepcopy(run.saved())
    WithAttach().step(run)
    run.load(before)
    assert bits(run.saved()) == bits(before)
