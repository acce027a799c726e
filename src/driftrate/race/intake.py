"""What was read of a stream: rows, target, columns and scales, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from driftrate.data.tables import Table
from driftrate.errors import DataError
from driftrate.race.cell import Reading
from driftrate.race.models import Floats
from driftrate.race.sources import CLIP, Scales, Source, cut

if TYPE_CHECKING:
    from driftrate.data._columns import Column

# Where this part of the played rows is clipped, the column does not fit its scale.
_MUCH_CLIPPED = 0.05
# And where this part of the targets is beyond ±5, the target does not.
_MUCH_FAR = 0.1
# A standardised target whose square has no room for a sum.
_LARGEST = 1e150
_LOOKED_AT = 256 * 2**20  # bytes of a stream that are scaled to say what is clipped
_KINDS = {"marked": "written as $1,234.50 or 12 %", "decimal-comma": "written as 1.234,50"}


@dataclass(frozen=True)
class ColumnRead:
    """A column of features as it was read.

    Args:
        name: Its name.
        kind: number, category or time.
        note: How it is written, or how many levels it has.
        missing: Values that are missing.
        infinite: Values that are infinite, and count as missing.
        clipped: Values among the rows looked at whose standardised value was clipped.
    """

    name: str
    kind: str
    note: str
    missing: int
    infinite: int
    clipped: int


@dataclass(frozen=True, kw_only=True)
class Intake:
    """A stream as it was read; every value is a JSON value.

    Args:
        stream: What a table calls it.
        spec: How it was given.
        rows: The rows read.
        played: The rows that are predicted and learned from.
        unplayed: How many rows are not, by reason.
        target: The target column of a file.
        task: regression, binary or classes.
        classes: The names of the first classes.
        why: Why the target is of classes or numbers.
        model: The model.
        loss: Its loss and the unit of it.
        scale: How features, and the target of a regression, are scaled.
        order: The order of the rows.
        features: How many numbers a row becomes.
        columns: The columns of a file.
        left_out: The columns that are no features, with the reason.
        looked: How many of the played rows were scaled to count what is clipped.
        far: Of these, rows whose standardised target is beyond ±5.
        farthest: The largest standardised target of these.
        warnings: What may have been read wrongly, and what to say then.
    """

    stream: str
    spec: str
    rows: int
    played: int
    unplayed: Mapping[str, int]
    target: str | None = None
    task: str
    classes: Sequence[str] = ()
    why: str = ""
    model: str
    loss: str
    scale: str
    order: str
    features: int
    columns: Sequence[ColumnRead] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    looked: int = 0
    far: int = 0
    farthest: float = 0.0
    warnings: Sequence[str] = ()


def intake(spec: str, source: Source, reading: Reading) -> Intake:
    """Return what was read of a stream.

    A table is scaled once more, as the race scales it, to count what is clipped; of a large one,
    the first rows.

    Args:
        spec: How the stream was given.
        source: The stream.
        reading: How it was asked to be read.

    Raises:
        DataError: A target is so far out that its squared loss has no number.

    Example:
        >>> from driftrate.race import resolve
        >>> reading = Reading(batch=8)
        >>> found = intake("synthetic:walk", resolve("synthetic:walk", reading), reading)
        >>> found.task, found.played, found.warnings
        ('regression', 16000, ())
    """
    played = source.steps * source.batch
    left = {"start the scales": source.unplayed * source.batch}
    left["do not fill a last batch"] = source.rows - played - left["start the scales"]
    of_stream: dict[str, Any] = {
        "stream": source.name,
        "spec": spec,
        "task": source.task,
        "model": source.model,
        "features": source.n_features,
        "played": played,
    }
    if source.table is None:
        scaled = spec == "cytometry"
        return Intake(
            **of_stream,
            rows=source.rows,
            unplayed=_some(left),
            loss=_loss(source, reading.scale if scaled else None),
            scale=_scale(source, reading.scale) if scaled else "as drawn: nothing is scaled",
            order="as drawn",
        )
    return _of_table(of_stream, source, source.table, reading, left)


def _of_table(
    of_stream: dict[str, Any],
    source: Source,
    table: Table,
    reading: Reading,
    left: dict[str, int],
) -> Intake:
    seen, classes = table.seen, table.classes or ()
    left = {
        "have no target": seen.missing,
        "have an infinite target": seen.infinite,
        "are beyond the first rows asked for": table.rows - source.rows,
        **left,
    }
    look = _Look(source, table, reading.scale)
    warnings = [*seen.warnings, *look.warnings()]
    if seen.infinite:
        said = "infinite target, and are left out"
        warnings.insert(0, f"{seen.infinite:,} rows have an {said}")
    order = "as in the file"
    if table.time is not None:
        sorted_by = f"sorted by {table.time!r}: row {seen.fault:,} was earlier than the one before"
        order = f"as in the file, which is in order of {table.time!r}"
        order = order if table.ordered else sorted_by
    return Intake(
        **of_stream,
        rows=seen.rows,
        unplayed=_some(left),
        target=table.target.name,
        classes=classes[:12],
        why=table.target.why,
        loss=_loss(source, reading.scale),
        scale=_scale(source, reading.scale),
        order=order,
        columns=[
            ColumnRead(one.name, one.kind, _note(one), one.gaps, one.infinite, clipped)
            for one, clipped in zip(table.columns, look.clipped, strict=True)
        ],
        left_out=dict(seen.left_out),
        looked=look.rows,
        far=look.far,
        farthest=look.farthest,
        warnings=warnings,
    )


class _Look:
    """Scales a table as the race does, and counts what is clipped or far out."""

    def __init__(self, source: Source, table: Table, scale: str) -> None:
        self._source, self._table, self._plain = source, table, scale == "plain"
        most = max(_LOOKED_AT // (8 * source.n_features * source.batch), 2)
        scales = Scales(table.width, scale)
        ends = np.cumsum([0, *(one.width for one in table.columns)])
        by_value = np.zeros(table.width, dtype=int)
        self.rows = self.far = 0
        self.farthest = self._value = self._total = 0.0
        self._rises = self._falls = 0
        last = np.nan
        pieces = islice(cut(table.chunks(), source.batch), min(source.steps + 1, most))
        for place, (x, y) in enumerate(pieces):
            steps = np.diff(y, prepend=last)
            self._rises += int((steps > 0).sum())
            self._falls += int((steps < 0).sum())
            last = y[-1]
            if place:
                features, label = scales(x, y, source.task)
                by_value += (np.abs(features) >= CLIP).sum(axis=0)
                self.rows += len(y)
                if source.task == "regression":
                    self._take(np.abs(label), y)
            scales.update(x, y)
        # A category and what is missing are no amounts.
        self.clipped = [
            0 if one.kind == "category" else int(by_value[start])
            for one, start in zip(table.columns, ends[:-1], strict=True)
        ]

    def _take(self, z: Floats, y: Floats) -> None:
        place = int(z.argmax())
        if not z[place] < _LARGEST:
            raise DataError(
                f"{self._table.name}: target {self._where(float(y[place]))} is {z[place]:.1e}"
                " deviations from the rows before: its squared loss is no number; mend or blank it"
            )
        self.far += int((z >= CLIP).sum())
        self._total += float((z**2).sum())
        if z[place] > self.farthest:
            self.farthest, self._value = float(z[place]), float(y[place])

    def _where(self, value: float) -> str:
        target = self._table.target
        rows = {target.high: target.high_row, target.low: target.low_row}
        row = rows.get(value)
        return f"{target.name!r} {f'in row {row:,} ' if row else ''}({value:g})"

    def warnings(self) -> list[str]:
        """Return what does not fit its scale."""
        found = []
        name, levels = self._table.target.name, len(self._table.classes or ())
        changes = self._rises + self._falls
        if min(self._rises, self._falls) == 0 or changes < levels + levels // 2:
            found.append(
                f"the rows come in the order of target {name!r}: in another order, as --time gives,"
                " a race says more"
            )
        for one, count in zip(self._table.columns, self.clipped, strict=True):
            if one.infinite:
                found.append(f"column {one.name!r} is infinite {one.infinite:,} times: missing")
            if count > _MUCH_CLIPPED * self.rows:
                part = f"{100 * count / self.rows:.0f} %"
                found.append(
                    f"column {one.name!r} is clipped at ±{CLIP:g} in {part} of the rows: it moves"
                    " faster than its scale; give its logarithm or its changes"
                )
        if self._plain and self.far:
            found.append(
                f"{self.far:,} targets ({100 * self.far / self.rows:.2g} %) are clipped at"
                f" ±{CLIP:g} and score less than they are: --scale robust clips none"
            )
        elif self.far > _MUCH_FAR * self.rows:
            found.append(
                f"target {name!r} is beyond ±{CLIP:g} deviations in"
                f" {100 * self.far / self.rows:.0f} % of the rows: it moves faster than its scale;"
                " predict its logarithm or its changes"
            )
        elif self.farthest**2 > 0.5 * self._total and self.farthest > CLIP:
            part = f"{100 * self.farthest**2 / self._total:.1f} %"
            found.append(
                f"target {self._where(self._value)} is {self.farthest:.3g} deviations from the rows"
                f" before, and alone makes {part} of what is to be predicted: mend or blank it if"
                " it is not true"
            )
        return found


def _some(counts: dict[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in counts.items() if count}


def _loss(source: Source, scale: str | None) -> str:
    if source.task == "binary":
        return "logistic, in nats (0.693 for a coin)"
    if source.task == "classes":
        return f"cross-entropy, in nats ({np.log(source.classes):.3f} for guessing)"
    if scale is None:
        return "half the squared error, in the target's own unit"
    unit = "of all rows before" if scale == "plain" else "of the latest rows"
    return f"half the squared error, in the target's deviations {unit}"


def _scale(source: Source, scale: str) -> str:
    target = source.task == "regression"
    if scale == "plain":
        what = "features and target" if target else "features"
        return f"plain: {what} by the mean and deviation of all rows before, clipped at ±{CLIP:g}"
    also = ", and the target, which is never clipped" if target else ""
    by = f"features by a running centre and deviation that forget, clipped at ±{CLIP:g}"
    return f"robust: {by}{also}"


def _note(column: Column) -> str:
    if column.kind != "category":
        return _KINDS.get(column.style, "")
    more = ": the first 32, and one for all others" if column.other else ""
    return f"{column.counted}{more}"
