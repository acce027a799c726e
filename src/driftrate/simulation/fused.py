"""Whole blocks of steps in one launch, for the runs that a kernel of Triton covers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from driftrate.learners.projections import Projection
from driftrate.schedules.base import Array, Schedule, Signal, registry
from driftrate.simulation.engine import Learner, Record
from driftrate.simulation.ledger import Ledger
from driftrate.streams.backend import Backend
from driftrate.streams.base import Stream
from driftrate.streams.linear import LinearStream
from driftrate.streams.logistic import LogisticStream
from driftrate.streams.target import Standing, Target

_KNOWN = frozenset({"batch_size", "shift", "dim"})  # what a fixed path tells of every step ahead
_STEPS = 512  # of one launch at most
_NUMBERS = 1 << 22  # numbers of rows and of nodes held at a time, where the weights are fewer
_NODES = 64  # numbers an expected loss takes on its way
_LARGEST = 1 << 21  # coordinates that 32-bit places in a launch's rows can reach
_PAIRS = 512  # samples' pairs at a time
# Two programs of eight warps share a processor of an H200, and one computes while the other waits.
REGISTERS = 128


@lru_cache
def _kernel() -> Any:
    """Return the kernel's module, or None where there is no Triton."""
    return import_module("driftrate.simulation.fused_kernel") if find_spec("triton") else None


def runs_on(device: Any) -> bool:
    """Whether kernels run on a torch device: on CUDA, and in Triton's interpreter anywhere."""
    if _kernel() is None:
        return False
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True
    return device.type == "cuda" and import_module("torch").version.hip is None


def covers(
    stream: Stream,
    rules: Sequence[Learner],
    backend: Backend,
    *,
    exact: bool,
    project: Projection | None,
    record: Record,
) -> bool:
    """Whether the kernel knows this run: all of it, because the rules of a list share batches."""
    return (
        exact
        and project is None
        and not (record.weights or record.terms)
        and not backend.host
        and backend.dtype != backend.real
        and runs_on(backend.device)
        and all(_foreseen(rule) for rule in rules)
        and type(stream) in (LinearStream, LogisticStream)
        and stream.dim <= _LARGEST
        and stream.table is not None
        and stream.target(0, backend).covariance.isotropic
    )


def _foreseen(rule: object) -> bool:
    """Whether a rule is tested on Python floats and reads nothing that depends on the batches."""
    if not isinstance(rule, Schedule) or not _KNOWN.issuperset(rule.signals):
        return False
    inner = getattr(rule, "schedule", None)
    return type(rule) in registry().values() and (inner is None or _foreseen(inner))


class FusedEngine:
    """One pass over a stream, see `Engine`, in launches of many steps.

    A rule that reads only what a fixed path tells ahead has the same rates for all seeds, and they
    are known before the run. So the kernel is told rates, whichever schedule they are from. Per
    step and seed it gives back δᵀδ and δᵀθ°, on which all else that is recorded depends.
    """

    def __init__(
        self,
        stream: Stream,
        rules: Sequence[Schedule],
        backend: Backend,
        *,
        seed: int,
        seeds: int,
        start: Array,
        record: Record,
    ) -> None:
        self.stream, self.rules, self.backend = stream, rules, backend
        lanes = len(rules)
        self.error = backend.zeros(lanes, seeds, stream.dim)
        self.error += backend.asarray(start)
        self.diverged_at = backend.zeros(lanes, seeds, scalar=True)
        self.culprit = backend.zeros(lanes, seeds, scalar=True)
        self.ledger = Ledger(
            stream.steps,
            record.every,
            lambda shape: backend.zeros(*shape, scalar=True),
            (lanes, seeds),
        )
        self.done = 0
        # As many rows of the path as there are seeds take no more memory than the weights, nor do
        # as many numbers a seed as it has coordinates.
        rows = max(seeds, _NUMBERS // stream.dim)
        numbers = max(stream.dim, _NUMBERS // (lanes * seeds))
        self.turn = _aligned(min(_STEPS, rows, numbers))
        self.last: SimpleNamespace | None = None
        self._columns = np.array(stream.table)
        self._moved = self._columns[:, 4] != 0.0
        self._moved[0] = False  # the start is relative to the first target
        self._told = self._upload(rules)
        self._first = stream.target(0, backend)
        self._keys = backend.xp.asarray(
            np.array([seed % 2**63]), dtype=backend.xp.int64, device=backend.device
        )
        self._alive = self.diverged_at == 0
        self._before = backend.zeros(1, lanes, seeds, scalar=True)  # the last step's rates
        self._logistic = isinstance(stream, LogisticStream)
        self._waiting: Any = None
        self._side: Any = None  # a stream of the device, for copies
        if backend.device.type == "cuda":
            self._side = import_module("torch").cuda.Stream(backend.device)
        self._compile()

    def run(self, until: int, stop: Sequence[int] = ()) -> None:
        """Go on to a step in one launch, which nothing stops."""
        span = slice(self.done, until)
        target = self._target(span)
        excess, alignment = self._launch(span, target)
        self._record(span, target, excess, alignment)
        self.done = until
        self._wait()

    def _upload(self, rules: Sequence[Schedule]) -> SimpleNamespace:
        """Return on the device, an axis of steps first, what is known of all of them.

        At once: a device finishes all that it was given before it takes numbers from the host.
        """
        backend, stream = self.backend, self.stream
        signal, scale = self._columns[:, 0], self._columns[:, 1]
        sigma = np.full(stream.steps, stream.noise_std)
        total = np.sqrt(signal + sigma**2)
        plan = [stream.batch_sizes, sigma, np.sqrt(signal), total, scale]
        arrays = {
            "columns": self._columns,
            "rates": np.stack([self._foresee(rule) for rule in rules], axis=-1),
            "plan": np.stack(plan, axis=-1),
            "numbers": np.arange(1.0, stream.steps + 1.0),
        }
        told = {name: backend.asarray(values, scalar=True) for name, values in arrays.items()}
        moved = backend.xp.asarray(self._moved, dtype=backend.xp.int32, device=backend.device)
        return SimpleNamespace(moved=moved, **told)

    def _foresee(self, rule: Schedule) -> npt.NDArray[np.float64]:
        """Return the rates of all steps."""
        dim, state, rates = float(self.stream.dim), rule.init(), np.empty(self.stream.steps)
        sizes, shifts = self.stream.batch_sizes.tolist(), self._columns[:, 4].tolist()
        for step, (size, shift) in enumerate(zip(sizes, shifts, strict=True)):
            signal = Signal(batch_size=float(size), shift=shift, dim=dim)
            rates[step], state = rule.update(state, signal)
        return rates

    def _target(self, span: slice) -> Target:
        """Return nature at many steps: its numbers have the axes (steps, lanes, seeds)."""
        signal, scale, slope, floor, shift = (
            column[:, None, None] for column in self._told.columns[span].T
        )
        first, rows = self._first, self._rows(span)
        oracles = rows
        if self._logistic:
            oracles = self.backend.small(self._told.columns[span, 1][: len(rows)]) * rows
        return Target(
            step=span.start,
            batch_size=0,
            source=first.source,
            covariance=first.covariance,
            position=None,
            parameter=rows,
            whitened=rows,
            oracle=oracles,
            scale=scale,
            signal=signal,
            total=signal + self.stream.noise_std**2,
            slope=slope,
            floor=floor,
            move=None,
            shift=shift,
        )

    def _rows(self, span: slice) -> Array:
        """Return θ° at the steps, or one row where it rests."""
        path: Any = self.stream.nature
        end = span.stop if self._moved[span].any() else span.start + 1
        values = path.path[span.start : end]
        if self._side is None:
            return self.backend.asarray(values)
        # Beside the launch before, which a copy in its own stream would wait for.
        torch, device = import_module("torch"), self.backend.device
        with torch.cuda.stream(self._side):
            rows = self.backend.asarray(values)
        stream = torch.cuda.current_stream(device)
        stream.wait_stream(self._side)
        rows.record_stream(stream)
        return rows

    def _launch(self, span: slice, target: Target) -> tuple[Array, Array]:
        """Take the steps; return δᵀδ and δᵀθ° before each, of shape (steps, lanes, seeds)."""
        backend, told = self.backend, self._told
        xp, (lanes, seeds, dim) = backend.xp, self.error.shape
        steps, oracles = span.stop - span.start, target.oracle
        if self.last is None:
            self.error -= oracles[0]
            before = oracles[0]
        else:
            before = self.last.oracle
        moves = xp.concat([oracles[:1] - before, oracles[1:] - oracles[:-1]], axis=0)
        # The rest of a run holds the last row, not all of them.
        self.last = SimpleNamespace(oracle=oracles[-1] + 0.0)
        normal = backend.scalar_normal(steps, seeds)
        sizes = self.stream.batch_sizes[span]
        chi = normal if self._logistic else self._chisquares(sizes, seeds)
        excess = backend.zeros(steps, lanes, seeds, scalar=True)
        alignment = backend.zeros(steps, lanes, seeds, scalar=True) if self._logistic else excess
        self._call(
            (seeds, lanes),
            moves,
            target.parameter,
            told.moved[span],
            told.rates[span],
            told.plan[span],
            chi,
            normal,
            excess,
            alignment,
            first=span.start,
            steps=steps,
            stride=dim if len(moves) > 1 else 0,
        )
        return excess, alignment

    def _call(self, grid: tuple[int, int], *arrays: Array, **numbers: int) -> None:
        """Launch the kernel; see `fused_kernel.resident` for its arguments."""
        kernel, dim = _kernel(), self.stream.dim
        width = quarter(dim, kernel.LARGEST)
        pairs = -(-int(self.stream.batch_sizes.max()) // 2) if self._logistic else 1
        step = kernel.resident if dim <= kernel.LARGEST else kernel.swept
        device: Any = nullcontext()
        if self._side is not None:
            device = import_module("torch").cuda.device(self.backend.device)
        with device:
            step[grid](
                self.error,
                *arrays,
                self._keys,
                **numbers,
                dim=dim,
                LOGISTIC=self._logistic,
                SOFT=getattr(self.stream, "soft", True),
                SAMPLES=min(_power(pairs, 16), _PAIRS),
                QUARTER=width,
                num_warps=warps(width),
                maxnreg=REGISTERS,
                enable_fp_fusion=True,
            )

    def _compile(self) -> None:
        """Launch no steps: whatever Triton misses here, a compiler of C for one, it says now."""
        xp, backend = self.backend.xp, self.backend
        blank = backend.zeros(1, scalar=True)
        flags = xp.zeros((1,), dtype=xp.int32, device=backend.device)
        numbers = (blank,) * 6
        self._call((1, 1), self.error, self.error, flags, *numbers, first=0, steps=0, stride=0)

    def _chisquares(self, sizes: npt.NDArray[np.int64], seeds: int) -> Array:
        backend = self.backend
        if (sizes == sizes[0]).all():
            return backend.chisquare(float(sizes[0]), len(sizes), seeds)
        return backend.xp.stack([backend.chisquare(float(size), seeds) for size in sizes])

    def _record(self, span: slice, target: Target, excess: Array, alignment: Array) -> None:
        """Write the steps into the ledger, as `Engine` does one by one."""
        xp = self.backend.xp
        regret, gradient_sq = self._expected(target, excess, alignment)
        rates = xp.zeros_like(excess)
        rates += self._told.rates[span][..., None]
        good = xp.isfinite(regret + rates)
        fallen = xp.cumulative_sum(xp.astype(~good, xp.int32), axis=0) > 0
        alive = self._alive & ~fallen
        was = xp.concat([self._alive[None], alive[:-1]], axis=0)
        fresh = was & ~alive  # true at one step at most
        steps = self._told.numbers[span, None, None]
        self.diverged_at += xp.sum(xp.where(fresh, steps, 0.0), axis=0)
        # The culprit is a rate that is not finite, else the rate of the step before.
        earlier = xp.concat([self._before, rates[:-1]], axis=0)
        culprit = xp.where(xp.isfinite(rates), earlier, rates)
        self.culprit += xp.sum(xp.where(fresh, culprit, 0.0), axis=0)
        self._alive, self._before = alive[-1], rates[-1:]
        regret, gradient_sq = (xp.where(alive, v, np.inf) for v in (regret, gradient_sq))
        values = {
            "step_regret": regret,
            "rates": xp.where(alive, rates, 0.0),
            "distance": xp.sqrt(excess),
            "shift": target.shift,
        }
        self.ledger.extend(values, {"regret": regret, "gradient_regret": gradient_sq})

    def _expected(self, target: Target, excess: Array, alignment: Array) -> tuple[Array, Array]:
        """Return regret and ‖∇ℓ̄‖², in pieces where they take much memory on their way."""
        xp = self.backend.xp
        count = len(excess)
        if self._logistic:
            lanes, seeds, dim = self.error.shape
            count = max(1, max(seeds * dim, _NUMBERS) // (_NODES * lanes * seeds))
        pieces = []
        for start in range(0, len(excess), count):
            part = slice(start, start + count)
            some = {
                name: getattr(target, name)[part]
                for name in ("scale", "signal", "total", "slope", "floor")
            }
            standing = Standing(self.stream, _at(target, some), self.backend, self.error)
            # Numbers that a standing works out from δ, and that the kernel has worked out.
            vars(standing).update(excess_sq=excess[part], alignment=alignment[part])
            pieces.append((standing.regret, standing.gradient_sq))
        regret, gradient_sq = zip(*pieces, strict=True)
        return xp.concat(regret, axis=0), xp.concat(gradient_sq, axis=0)

    def _wait(self) -> None:
        """Keep one launch ahead of the device and no more, so that Ctrl-C is heard."""
        if self._side is None:
            return
        torch = import_module("torch")
        if self._waiting is not None:
            self._waiting.synchronize()
        self._waiting = torch.cuda.Event()
        self._waiting.record(torch.cuda.current_stream(self.backend.device))


def _at(target: Target, some: dict[str, Array]) -> Target:
    """Return a target with some of its numbers replaced."""
    return Target(
        **{name: some.get(name, getattr(target, name)) for name in Target.__dataclass_fields__}
    )


def _aligned(steps: int) -> int:
    """Return a multiple of 16: a slice that begins elsewhere would have a kernel of its own."""
    return max(16, steps // 16 * 16)


def _power(count: int, low: int) -> int:
    """Return the least power of two that is not below either."""
    return max(low, 1 << (count - 1).bit_length())


def quarter(dim: int, largest: int) -> int:
    """Return a quarter of the coordinates that a program takes at a time, a power of two."""
    return _power(-(-(dim if dim <= largest else largest // 2) // 4), 4)


def warps(width: int) -> int:
    """Return the warps of a program: eight coordinates of a quarter for every thread."""
    return min(16, max(1, width // 256))
