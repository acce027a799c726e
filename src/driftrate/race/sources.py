"""Where the batches of a race come from: files, public datasets, drawn streams."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from driftrate.data import tables
from driftrate.errors import ConfigError, DataError
from driftrate.estimate.robust import RobustScale
from driftrate.estimate.standard import Standardiser
from driftrate.race.cell import OF_FILES, Reading
from driftrate.race.late import Waiting
from driftrate.race.models import MODELS, NATURAL, Floats, Labels, Model, Task, make_model
from driftrate.race.networks.network import Network, Transformer, widths
from driftrate.race.networks.phases import Phase, Protocol

# Batches of small streams are cached, so that the contestants of a race share preprocessing.
_CACHE_BYTES = 256 * 2**20
# The largest standardised feature, and with the plain scale also target.
CLIP = 5.0
# What a specification that is no file begins with.
NOT_FILES = ("river", "openml", "synthetic", "cytometry", "networks", "texts")
_cache: OrderedDict[tuple[object, ...], tuple[list[Batch], int]] = OrderedDict()


class Batch(NamedTuple):
    """What every contestant is shown at one step.

    Args:
        x: Features (rows, n_features), the bias column last.
        y: Targets: reals, 0.0 and 1.0 of two classes, or whole class numbers of more.
        oracle: The scores of the best weights, where they are known.
        expected: The expected targets given x, where they are known.
    """

    x: Floats
    y: Labels
    oracle: Floats | None = None
    expected: Floats | None = None


@dataclass(frozen=True)
class Source:
    """A stream, resolved: what it holds and how to get its batches.

    The first batch of a table only starts the running scales and is not played. Rows
    that do not fill a last batch are left out.

    Args:
        name: What a table calls it.
        task: What is predicted: `regression`, `binary` or `classes`.
        model: The model's name, chosen by the task where none was asked for.
        fingerprint: A hash of the content.
        n_features: The number of columns of a batch, the bias column among them.
        classes: The number of classes, 0 for a regression.
        rows: How many rows there are.
        batch: The number of rows in a batch.
        seeded: Whether batches are drawn, a different stream for each seed.
        draw: A function of the seed that yields the batches.
        key: What identifies the content in the cache, besides the fields above.
        unplayed: How many first batches only start the running scales.
        biased: Whether the last column is of ones.
        hidden: The widths of a network's hidden layers, with commas between.
        protocol: The protocol of a network that the stream is, if it is one.
        table: The table that the stream is, if it is one.
    """

    name: str
    task: Task
    model: str
    fingerprint: str
    n_features: int
    classes: int
    rows: int
    batch: int
    seeded: bool
    draw: Callable[[int], Iterator[Batch]] = field(repr=False)
    key: tuple[object, ...] = field(repr=False)
    unplayed: int = 1
    biased: bool = True
    hidden: str | None = None
    protocol: Protocol | None = None
    table: tables.Table | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.make_model()  # refuses one that does not fit

    @property
    def steps(self) -> int:
        """How many batches are played."""
        return self.rows // self.batch - self.unplayed

    def make_model(self) -> Model | Network | Transformer:
        """Return the model."""
        if self.protocol is not None:
            model = self.protocol.model
            if isinstance(model, Network) and self.hidden is not None:
                return replace(model, hidden=widths(self.hidden))
            return model
        features = self.n_features - (self.model == "mlp" and self.biased)
        return make_model(self.model, self.task, features, self.classes, self.hidden)

    @property
    def device(self) -> str:
        """Where the model is trained: a transformer on CUDA, where there is any."""
        if not isinstance(self.make_model(), Transformer):
            return "cpu"
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    def phases(self, seed: int = 0) -> Iterator[Phase]:
        """Yield what a network is shown: a protocol's phases, or all batches as one."""
        if self.protocol is not None:
            yield from self.protocol.draw(seed)
            return
        kept = list(self.batches(seed))
        x, y, oracle, expected = (
            None if column[0] is None else np.concatenate(column)
            for column in zip(*kept, strict=True)
        )
        assert x is not None
        assert y is not None
        # A network has biases of its own.
        x = (x[:, :-1] if self.biased else x).astype(np.float32)
        y = y if self.task == "classes" else y.astype(np.float32)
        yield Phase("stream", x, y, oracle=oracle, expected=expected)

    def batches(self, seed: int = 0) -> Iterator[Batch]:
        """Yield the batches, from memory where they were kept."""
        key = (*self.key, self.task, self.batch, self.fingerprint, seed if self.seeded else 0)
        if key in _cache:
            _cache.move_to_end(key)
            yield from _cache[key][0]
            return
        size = 8 * self.rows * (self.n_features + 3)  # x, y, oracle and expected
        drawn = islice(self.draw(seed), self.steps)
        if size > _CACHE_BYTES:
            yield from drawn
            return
        kept = []
        for batch in drawn:
            kept.append(batch)
            yield batch
        _cache[key] = (kept, size)
        while sum(entry[1] for entry in _cache.values()) > _CACHE_BYTES:
            _cache.popitem(last=False)


def resolve(spec: str, reading: Reading) -> Source:
    """Return the stream of a specification.

    Args:
        spec: A `.csv` or `.parquet` file; `river:NAME` for a dataset of River; `openml:NAME` for
            one of OpenML; `synthetic:KIND,key=value,...`; `networks:NAME` for a protocol of
            `driftrate.race.networks`; `texts:FOLDER` for a transformer on texts; or `cytometry`.
        reading: How to read it; the model may be `auto`, which is None.

    Raises:
        ConfigError: Where the specification is wrong.
        DataError: Where the data are.
        MissingDependency: Where a package is needed to read them.

    Example:
        >>> source = resolve("synthetic:spiral,dim=4,steps=50", Reading(batch=8))
        >>> source.task, source.model, source.n_features, source.steps
        ('regression', 'linear', 4, 50)
    """
    found = replace(_resolve(spec, reading), hidden=reading.hidden)
    if reading.rows is None:
        return found
    if found.protocol is not None:
        raise ConfigError(f"{spec}: a protocol is played whole; leave rows out")
    if reading.rows < 2 * reading.batch:
        needs = f"a race needs two batches, here {2 * reading.batch:,}"
        raise ConfigError(f"rows is {reading.rows:,}: {needs}")
    return replace(found, rows=min(found.rows, reading.rows), key=(*found.key, reading.rows))


def _resolve(spec: str, reading: Reading) -> Source:
    batch = reading.batch
    wanted = None if reading.model == "auto" else reading.model
    if wanted is not None and wanted not in MODELS:
        raise ConfigError(f"model must be one of {', '.join(MODELS)} or auto, got {wanted!r}")
    kind, _, rest = spec.partition(":")
    if kind in NOT_FILES and any(getattr(reading, one) for one in OF_FILES):
        said = f"{', '.join(OF_FILES[:-1])} and {OF_FILES[-1]} are for files; leave them out"
        raise ConfigError(f"{spec}: {said}")
    if kind == "synthetic":
        from driftrate.race._synthetic import synthetic

        return synthetic(spec, rest, wanted, batch)
    if kind in ("networks", "texts"):
        return _protocol(spec, kind, rest, wanted, batch)
    if spec == "cytometry":
        return _cytometry(wanted, batch, reading.scale)
    # What the model makes of the target; None where the target itself decides.
    made: Any = {"linear": "numbers", "logistic": "classes", "softmax": "classes"}.get(wanted or "")
    if kind in ("river", "openml"):
        from driftrate.race import _public

        load = _public.river if kind == "river" else _public.openml
        table, fingerprint = load(rest, made)
        return _of_table(spec, table, fingerprint, replace(reading, model=wanted), (spec,))
    if spec.encode(errors="ignore").decode() != spec:
        raise DataError(f"{spec}: the path is not UTF-8, which Arrow wants; rename it")
    path = Path(spec)
    made = {"regression": "numbers", "classes": "classes"}.get(reading.task or "", made)
    given = (reading.dropped, reading.kinds, reading.sep)
    table = tables.open_table(path, reading.target, reading.time, made, *given)
    key = (str(path.absolute()), *(getattr(reading, one) for one in OF_FILES))
    name, mark = path.name.split(".")[0], tables.fingerprint(path)
    return _of_table(name, table, mark, replace(reading, model=wanted), key)


def _of_table(
    name: str, table: tables.Table, fingerprint: str, reading: Reading, key: tuple[object, ...]
) -> Source:
    batch, model = reading.batch, reading.model
    classes = len(table.classes) if table.classes is not None else 0
    task: Task = "binary" if classes == 2 and model != "softmax" else "classes"
    task = task if classes else "regression"
    if table.rows < 2 * batch:
        needs = f"a race needs two batches, here {2 * batch:,}"
        raise DataError(f"{table.name} has {table.rows:,} rows: {needs}")
    return Source(
        name=name,
        task=task,
        model=model or NATURAL[task],
        fingerprint=fingerprint,
        n_features=table.width + 1,
        classes=classes,
        rows=table.rows,
        batch=batch,
        seeded=False,
        draw=lambda seed: standardised(
            cut(table.chunks(), batch), task, reading.scale, Waiting[Floats](reading.delay, batch)
        ),
        key=(*key, reading.scale, reading.delay),
        table=table,
    )


def cut(chunks: Iterator[tuple[Floats, Floats]], batch: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield pieces of exactly `batch` rows; what is left at the end is dropped."""
    left: tuple[Floats, Floats] | None = None
    for x, y in chunks:
        if left is not None:
            x, y = np.concatenate([left[0], x]), np.concatenate([left[1], y])  # noqa: PLW2901
        whole = len(y) - len(y) % batch
        for start in range(0, whole, batch):
            yield x[start : start + batch], y[start : start + batch]
        left = x[whole:], y[whole:]


class Scales:
    """The running scales of features and of a regression's target.

    Args:
        width: The number of columns of features.
        scale: `robust`: `RobustScale`, features clipped at ±5 and targets not at all; `plain`: the
            mean and deviation of all rows before, features and targets clipped at ±5.
    """

    def __init__(self, width: int, scale: str) -> None:
        self.features: RobustScale | Standardiser
        self.targets: RobustScale | Standardiser
        if scale == "plain":
            self.features, self.targets = Standardiser(width, CLIP), Standardiser(1, CLIP)
        else:
            self.features, self.targets = RobustScale(width, clip=CLIP), RobustScale(1)

    def __call__(self, x: Floats, y: Floats, task: Task) -> tuple[Floats, Labels]:
        """Return features and targets by the rows before, targets of classes as they are."""
        if task == "regression":
            return self.features(x), self.targets(y[:, None])[:, 0]
        return self.features(x), y.astype(np.int64) if task == "classes" else y

    def update(self, x: Floats, y: Floats | None) -> None:
        """Take in rows, and targets, which may be those of other rows."""
        self.features.update(x)
        if y is not None:
            self.targets.update(y[:, None])


def standardised(
    batches: Iterator[tuple[Floats, Floats]],
    task: Task,
    scale: str,
    waiting: Waiting[Floats] | None = None,
) -> Iterator[Batch]:
    """Yield batches on the running scales of all rows before each, with a column of ones.

    The first batch has no rows before it: it only starts the scales. Those of targets know no label
    that has not arrived.
    """
    late = Waiting[Floats](0, 1) if waiting is None else waiting
    scales: Scales | None = None
    for x, y in batches:
        if scales is None:
            scales = Scales(x.shape[1], scale)
            scales.update(x, y)
            continue
        features, label = scales(x, y, task)
        yield Batch(np.concatenate([features, np.ones((len(x), 1))], axis=1), label)
        scales.update(x, late.push(y))


def _protocol(spec: str, kind: str, name: str, model: str | None, batch: int) -> Source:
    from driftrate.race.networks.suite import protocol
    from driftrate.race.networks.texts import texts

    found = protocol(name) if kind == "networks" else texts(Path(name))
    if model not in (None, "mlp"):
        raise ConfigError(f"{spec}: protocols are for networks: leave model out, got {model!r}")
    network = found.model
    return Source(
        name=name,
        task=network.task,
        model="mlp",
        fingerprint=found.fingerprint,
        n_features=network.features if isinstance(network, Network) else network.context,
        classes=network.outputs if network.task == "classes" else 0,
        rows=found.rows,
        batch=batch,
        seeded=True,
        draw=lambda seed: iter(()),
        key=(spec,),
        unplayed=0,
        protocol=found,
    )


def _cytometry(model: str | None, batch: int, scale: str) -> Source:
    from driftrate.data.cytometry import CellStream, load_cells

    cells = load_cells(download=False)
    stream = CellStream(cells, batch_size=batch)

    def draw(seed: int) -> Iterator[Batch]:
        drawn = stream.batches([seed])
        pairs = ((x[0].astype(np.float64), y[0].astype(np.float64)) for x, y in drawn)
        return standardised(pairs, "classes", scale)

    return Source(
        name="cytometry",
        task="classes",
        model=model or NATURAL["classes"],
        fingerprint=cells.fingerprint,
        n_features=cells.expression.shape[1] + 1,
        classes=len(stream.order),
        rows=stream.steps * batch,
        batch=batch,
        seeded=True,
        draw=draw,
        key=("cytometry", scale),
    )
