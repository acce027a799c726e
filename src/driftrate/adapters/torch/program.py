"""A schedule's update on a device, as one program of a few kernels instead of a thousand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from array_api_compat import array_namespace
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from driftrate.schedules.base import Schedule, Signal, State, map_state, select

Leaves = tuple[Tensor, list[Tensor]]  # a state's reals in one tensor, and its counters
# The leaves, the signal's values and whether the step is taken (None: it is) to the next leaves.
Update = Callable[[Leaves, list[Tensor], Tensor | None], Leaves]


class Program:
    """A schedule with its state on a device: updated in place, never read back.

    The state's reals lie in one tensor, so that a compiled update writes one tensor and not sixty.
    On CUDA the update is compiled when it is first called, once for each schedule and set of
    fields; where torch cannot compile (no Triton, no C compiler), it runs as it is written.

    Args:
        schedule: The rule.
        like: A scalar tensor whose dtype and device the state takes.
    """

    def __init__(self, schedule: Schedule, like: Tensor) -> None:
        self.schedule = schedule
        self.like = like
        self.ready = False  # a CUDA graph can capture an update that was taken before
        self._compiles = like.device.type == "cuda"
        self._leaves = _packed(schedule, schedule.init(like=like))
        self.state = _unpacked(schedule, self._leaves)
        self._values: dict[str, Tensor] = {}  # the signal, in place: a graph replays on it
        self._numbers: dict[str, float] = {}
        self._took = torch.zeros_like(like, dtype=torch.bool)
        self._graphs: dict[Any, torch.cuda.CUDAGraph | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"schedule": self.schedule, "like": self.like, "leaves": self._leaves}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        Program.__init__(self, saved["schedule"], saved["like"])
        reals, counters = saved["leaves"]
        torch._foreach_copy_([self._leaves[0], *self._leaves[1]], [reals, *counters])

    def update(self, signal: Signal, took: Tensor | None = None) -> None:
        """Take one step, or none where `took` is false."""
        names = tuple(n for n in self.schedule.signals if getattr(signal, n) is not None)
        self._take(names, signal)
        if took is not None:
            self._took.copy_(took)
        key = (names, took is not None)
        if not self.like.is_cuda or torch.cuda.is_current_stream_capturing():
            self._run(*key)
        elif key not in self._graphs:
            self._run(*key)
            self._graphs[key] = None
        else:
            # To launch the kernels one by one takes the host longer than the device to run them.
            graph = self._graphs[key] or self._captured(*key)
            self._graphs[key] = graph
            graph.replay()
        self.ready = True

    def _take(self, names: tuple[str, ...], signal: Signal) -> None:
        """Put the signal where the update reads it."""
        xp = array_namespace(self.like)
        into, what = [], []
        for name in names:
            value = getattr(signal, name)
            number = not isinstance(value, Tensor)
            if number and self._numbers.get(name) == value:
                continue
            if name not in self._values:
                self._values[name] = torch.zeros_like(self.like)
            into.append(self._values[name])
            what.append(self.schedule._as_array(xp, name, signal, self.like))
            self._numbers.pop(name, None)
            if number:
                self._numbers[name] = value
        if into:
            torch._foreach_copy_(into, what)

    def _run(self, names: tuple[str, ...], gated: bool) -> None:
        took = self._took if gated else None
        reals, counters = self._next(names, [self._values[name] for name in names], took)
        torch._foreach_copy_([self._leaves[0], *self._leaves[1]], [reals, *counters])

    def _captured(self, names: tuple[str, ...], gated: bool) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.like.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.like.device))
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            self._run(names, gated)
            graph.capture_end()
        torch.cuda.current_stream(self.like.device).wait_stream(stream)
        return graph

    def _next(self, names: tuple[str, ...], values: list[Tensor], took: Tensor | None) -> Leaves:
        if self._compiles:
            where = (self.like.dtype, self.like.device)
            compiled = _compiled(self.schedule, names, took is not None, *where)
            try:
                return compiled(self._leaves, values, took)
            except Exception as error:
                if self.ready or not _is_of_compiler(error):
                    raise
                self._compiles = False
                reason = str(error).strip().partition("\n")[0]
                warnings.warn(
                    f"{self.schedule.name} runs uncompiled, in many small kernels: {reason}",
                    stacklevel=2,
                )
        return written(self.schedule, names)(self._leaves, values, took)


def written(schedule: Schedule, names: tuple[str, ...]) -> Update:
    """Return the update of a schedule that is given these fields, as it is written."""

    def update(leaves: Leaves, values: list[Tensor], took: Tensor | None) -> Leaves:
        state = _unpacked(schedule, leaves)
        _, new = schedule.update(state, Signal(**dict(zip(names, values, strict=True))))
        return _packed(schedule, new if took is None else select(torch, took, new, state))

    return update


def traced(
    schedule: Schedule, names: tuple[str, ...], gated: bool, dtype: torch.dtype, device: Any
) -> Any:
    """Return the update as a graph of torch's own operations, with no Python in it."""
    like = torch.ones((), dtype=dtype, device=device)
    leaves = _packed(schedule, schedule.init(like=like))
    # A tensor each: the tracer knows its inputs by identity.
    values = [like.clone() for _ in names]
    return make_fx(written(schedule, names))(leaves, values, like > 0.0 if gated else None)


@lru_cache(maxsize=32)
def _compiled(*key: Any) -> Update:
    # A graph of its own: torch counts compilations by code, and `written` would exhaust its limit.
    update: Update = torch.compile(traced(*key), fullgraph=True, dynamic=False)
    return update


def _is_of_compiler(error: Exception) -> bool:
    from torch._dynamo.exc import TorchDynamoException  # late: it takes as long as torch itself

    return isinstance(error, TorchDynamoException)


def _packed(schedule: Schedule, state: State) -> Leaves:
    """Return the leaves of a state, in the order of its start."""
    reals: list[Tensor] = []
    counters: list[Tensor] = []

    def sort(start: Any, leaf: Tensor) -> None:
        if isinstance(start, int):
            counters.append(leaf)
        else:
            reals.append(leaf.reshape(-1))

    map_state(sort, schedule._start(), state)
    return torch.cat(reals), counters


def _unpacked(schedule: Schedule, leaves: Leaves) -> State:
    """Return the state as views of its leaves."""
    start = schedule._start()
    sizes: list[int] = []
    map_state(lambda leaf: None if isinstance(leaf, int) else sizes.append(_size(leaf)), start)
    reals, counters = iter(torch.split(leaves[0], sizes)), iter(leaves[1])

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, int):
            return next(counters)
        return next(reals).view(getattr(leaf, "shape", ()))

    return map_state(fill, start)


def _size(leaf: Any) -> int:
    """Return how many reals a leaf of a start holds: a number, or a NumPy vector."""
    return int(getattr(leaf, "size", 1))
