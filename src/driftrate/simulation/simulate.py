"""The simulator's one public function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt

from driftrate.errors import ConfigError, MissingDependency
from driftrate.learners.hedged_sgd import HedgedSGD
from driftrate.learners.projections import Projection
from driftrate.schedules._checks import count
from driftrate.simulation import blocks, fused
from driftrate.simulation.engine import PART_SIGNALS, Engine, Learner, Record, needs_of
from driftrate.simulation.fused import FusedEngine
from driftrate.simulation.pool import PoolEngine
from driftrate.simulation.run import COLUMNS, Run, Terms
from driftrate.streams.backend import Backend, make_backend
from driftrate.streams.base import Stream
from driftrate.streams.linear import LinearStream

_DEFAULT = Record()
# What a sample costs beside a random number: the link, and its normals.
_SAMPLE = 5.0
# A pool's points share bases and factors; so many numbers a coordinate and a sample.
_POOL = 32.0


class _Options(TypedDict, total=False):
    seed: int
    method: Literal["exact", "direct"]
    project: Projection | None
    start: npt.ArrayLike
    parts: int
    backend: Literal["numpy", "torch"]
    device: Any
    dtype: Literal["float32", "float64"]
    record: Record
    threads: int | None
    progress: bool


@overload
def simulate(
    stream: Stream, schedule: Learner, seeds: int = ..., **options: Unpack[_Options]
) -> Run: ...
@overload
def simulate(
    stream: Stream, schedule: Sequence[Learner], seeds: int = ..., **options: Unpack[_Options]
) -> list[Run]: ...


def simulate(
    stream: Stream,
    schedule: Learner | Sequence[Learner],
    seeds: int = 32,
    *,
    seed: int = 0,
    method: Literal["exact", "direct"] = "exact",
    project: Projection | None = None,
    start: npt.ArrayLike = 0.0,
    parts: int = 2,
    backend: Literal["numpy", "torch"] = "numpy",
    device: Any = None,
    dtype: Literal["float32", "float64"] = "float64",
    record: Record = _DEFAULT,
    threads: int | None = None,
    progress: bool = False,
) -> Run | list[Run]:
    """Run projected mini-batch SGD on a stream and return its dynamic regret.

        θ_{t+1} = Π(θ_t - η_t g_t),    regret_t = ℓ̄_t(θ_t) - ℓ̄_t(θ*_t),

    where expected losses are exact. `"exact"` draws g_t from its distribution without ever drawing
    the batch, in O(dim) per step for linear regression and O(dim + B_t) else; `"direct"` draws it.

    All seeds run at once, and so do all schedules of a list: these see the same batches, and each
    has the result that it would have alone (a pool runs alone, on batches of its own). A schedule
    gets the signals that it declares: the batch size, the true shift γ_{t-1}, the batch loss, the
    change of the expected loss by shift alone, the last step's length, ‖g_t‖², the trail, and the
    parts' cross and spread.

    Args:
        stream: The stream.
        schedule: A schedule, a `HedgedSGD`, a `Clairvoyant` rule, or a list of them. The regret of
            a pool is its mixture's, its rate the share-weighted mean.
        seeds: How many independent runs.
        seed: The generator's seed.
        method: `"exact"` or `"direct"`.
        project: A projection such as `learners.Ball(10.0)`, or None.
        start: θ_1: a number, a vector (dim,) or an array (seeds, dim).
        parts: Into how many parts of equal size a batch is cut for a schedule that reads `cross` or
            `spread`; it must divide every batch size.
        backend: `"numpy"` or `"torch"`.
        device: A torch device, for example `"cuda"`.
        dtype: `"float64"` or `"float32"`, the precision of weights and samples.
        record: What to keep: `Record(every=10)` thins, `Record(weights=True)` keeps trajectories,
            `Record(terms=True)` keeps what the bounds need.
        threads: How many threads share the seeds; None for all the cores that this process may use.
            The numbers are the same whatever it is. Torch has threads of its own.
        progress: Show a progress bar.

    Returns:
        A `Run`, or a list of them for a list. Ctrl-C returns the steps that are done.

    Example:
        >>> import driftrate as dr
        >>> path = dr.streams.spiral(dim=8, steps=200, hold=8)
        >>> stream = dr.streams.LinearStream(path, batch_size=64)
        >>> adaptive, fixed = dr.simulate(
        ...     stream, [dr.LinearRate(dim=8, noise_std=0.1), dr.ConstantRate(0.1)], seeds=16
        ... )
        >>> bool(adaptive.total.mean() < fixed.total.mean())
        True

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Section 2.
    """
    single = isinstance(schedule, Learner)
    rules: list[Learner] = [schedule] if single else list(schedule)  # type: ignore[list-item, arg-type]
    _check(stream, rules, seeds, method, project, parts, record)
    begin = _start(start, seeds, stream.dim)
    workers = _threads(threads, backend)
    runs: dict[int, Run] = {}
    for group in _passes(stream, rules):
        members = [rules[i] for i in group]
        numbers = _numbers(stream, members[0], method == "exact")
        cuts = blocks.cut(seeds, numbers) if backend == "numpy" else [slice(0, seeds)]
        sources: list[Any] = blocks.sources(seed, len(cuts)) if backend == "numpy" else [seed]
        engines = [
            _engine(
                stream,
                members,
                make_backend(backend, source, dtype, device),
                seed=seed,
                seeds=cut.stop - cut.start,
                exact=method == "exact",
                parts=parts,
                project=project,
                start=begin[cut] if begin.ndim == 2 else begin,
                record=record,
            )
            for cut, source in zip(cuts, sources, strict=True)
        ]
        with _reporting(stream.steps, members, progress) as report:
            finished = blocks.run(engines, stream.steps, workers, report)
        for lane, i in enumerate(group):
            runs[i] = _collect(engines, lane)
        if not finished:
            break
    done = [runs[i] for i in sorted(runs)]
    return done[0] if single else done


def _check(
    stream: Stream,
    rules: list[Learner],
    seeds: int,
    method: str,
    project: Projection | None,
    parts: int,
    record: Record,
) -> None:
    kinds: list[tuple[str, object, Any, str]] = [
        ("stream", stream, Stream, "a Stream such as LinearStream"),
        *(("schedule", rule, Learner, "a Schedule or a list of them") for rule in rules),
        ("project", project, Projection | None, "a Projection such as Ball(1.0)"),
        ("record", record, Record, "a Record such as Record(every=10)"),
    ]
    for name, value, kind, want in kinds:
        if not isinstance(value, kind):
            raise ConfigError(f"{name} must be {want}, got a {type(value).__name__}")
    if not rules:
        raise ConfigError("schedule must not be an empty list")
    count("seeds", seeds)
    if method not in ("exact", "direct"):
        raise ConfigError(f"method must be 'exact' or 'direct', got {method!r}")
    if any(needs_of(rule) & PART_SIGNALS for rule in rules):
        count("parts", parts, low=2)
        odd = np.flatnonzero(stream.batch_sizes % parts)
        if odd.size:
            got = f"{stream.batch_sizes[odd[0]]} at step {odd[0] + 1}"
            raise ConfigError(f"parts={parts} must divide every batch size, got {got}")


def _start(start: npt.ArrayLike, seeds: int, dim: int) -> npt.NDArray[np.float64]:
    array = np.asarray(start, dtype=np.float64)
    if array.shape not in ((), (dim,), (seeds, dim)):
        want = f"a number, a vector ({dim},) or an array ({seeds}, {dim})"
        raise ConfigError(f"start must be {want}, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ConfigError("start must be finite, got NaN or infinity")
    return array


def _threads(threads: int | None, backend: str) -> int:
    if threads is None:
        return blocks.cores()
    if backend != "numpy":
        want = "use torch.set_num_threads"
        raise ConfigError(f"threads={threads!r} is for backend='numpy', got {backend!r}; {want}")
    return count("threads", threads)


def _numbers(stream: Stream, rule: Learner, exact: bool) -> float:
    """Return what a step of one seed costs, in random numbers; lanes of a list do not count."""
    batch, size = float(stream.batch_sizes.mean()), float(stream.dim)
    if isinstance(rule, HedgedSGD):
        return _POOL * (size + batch) if exact else batch * size
    if not exact:
        return batch * size
    return size if isinstance(stream, LinearStream) else size + _SAMPLE * batch


def _passes(stream: Stream, rules: list[Learner]) -> list[list[int]]:
    """Return which rules can share a pass so that each has the result that it would have alone.

    Adaptive nature responds to one learner, cutting batches into parts changes the draws, and so
    does asking for gradients at many points.
    """
    if stream.nature.adaptive:
        return [[i] for i in range(len(rules))]
    alone = [[i] for i, rule in enumerate(rules) if isinstance(rule, HedgedSGD)]
    rest = [i for i in range(len(rules)) if [i] not in alone]
    cut = [i for i in rest if needs_of(rules[i]) & PART_SIGNALS]
    whole = [i for i in rest if i not in cut]
    return [group for group in (whole, cut) if group] + alone


def _engine(
    stream: Stream,
    members: list[Learner],
    place: Backend,
    *,
    seed: int,
    seeds: int,
    start: npt.NDArray[np.float64],
    record: Record,
    **options: Any,
) -> Engine | FusedEngine:
    shared: dict[str, Any] = {"seeds": seeds, "start": start, "record": record}
    if isinstance(members[0], HedgedSGD):
        return PoolEngine(stream, members[0], place, **shared, **options)
    known = {name: options[name] for name in ("exact", "project")}
    if fused.covers(stream, members, place, record=record, **known):
        try:
            return FusedEngine(stream, members, place, seed=seed, **shared)  # type: ignore[arg-type]
        except Exception as error:  # whatever a broken toolchain raises
            first = f"{error}".partition("\n")[0]
            message = f"simulate goes on without its kernel, which does not compile: {first}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
    return Engine(stream, members, place, **shared, **options)


@contextmanager
def _reporting(steps: int, rules: list[Learner], progress: bool) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many steps are done, and shows a bar if asked to."""
    if not progress:
        yield lambda done: None
        return
    try:
        from rich.progress import Progress
    except ImportError as error:
        raise MissingDependency("progress needs rich: pip install 'driftrate[paper]'") from error
    with Progress() as bar:
        task = bar.add_task(", ".join(rule.name for rule in rules), total=steps)
        yield lambda done: bar.update(task, completed=done)


def _collect(engines: list[Engine | FusedEngine], lane: int) -> Run:
    """Copy one lane of all blocks to the host."""
    one = engines[0]
    stream, rule, ledger, xp = one.stream, one.rules[lane], one.ledger, one.backend.xp
    host = one.backend.to_numpy

    def join(values: Callable[[Any], Any]) -> npt.NDArray[Any]:
        """Return what every block has, along the seeds."""
        pieces = [host(values(engine)) for engine in engines]
        if len(pieces) == 1:
            return np.ascontiguousarray(pieces[0])
        shape = (sum(len(piece) for piece in pieces), *pieces[0].shape[1:])
        # In C order, which alone `concatenate` would take from the pieces.
        return np.concatenate(pieces, out=np.empty(shape, dtype=pieces[0].dtype))

    def column(name: str) -> npt.NDArray[Any]:
        return join(lambda engine: xp.moveaxis(engine.ledger.column(name)[:, lane], 1, 0))

    diverged = join(lambda engine: engine.diverged_at[lane]).astype(np.int64)
    if diverged.any():
        first = int(np.argmin(np.where(diverged > 0, diverged, stream.steps + 1)))
        culprit = join(lambda engine: engine.culprit[lane])[first]
        warnings.warn(
            f"{rule!r}: {np.count_nonzero(diverged)} of {len(diverged)} seeds diverged, the first"
            f" at step {diverged[first]} with rate {float(culprit):.6g}",
            RuntimeWarning,
            stacklevel=3,
        )
    kept = np.asarray(ledger.kept, dtype=np.int64)

    def distance(engine: Engine | FusedEngine) -> Any:
        error = engine.error[lane]
        return xp.sqrt(xp.astype(xp.vecdot(error, error), engine.backend.real))

    def weights(engine: Engine | FusedEngine) -> Any:
        target = engine.last
        return engine.error[lane] if target is None else (engine.error + target.oracle)[lane]

    terms = None
    if "loss" in ledger.names:
        terms = Terms(**{field.name: column(field.name) for field in fields(Terms)})
    return Run(
        name=rule.name,
        step=kept,
        batch_size=stream.batch_sizes[kept - 1],
        diverged_at=diverged,
        final_distance=join(distance),
        final_weights=join(weights),
        weights=column("weights") if "weights" in ledger.names else None,
        terms=terms,
        **{name: column(name) for name in COLUMNS},
    )
