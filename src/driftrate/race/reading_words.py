"""What was read, in lines for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from driftrate.race.intake import ColumnRead, Intake

WARNING = "  warning: "
_PLURAL = {"number": "numbers", "category": "categories", "time": "times"}


_MANY = 3  # streams, beyond which each has one line and its warnings


def at_start(found: Sequence[Intake]) -> list[str]:
    """Return what was read of all streams of a race, in as many lines as one reads."""
    every = [line for one in found for line in lines(one)]
    return [one for one in every if len(found) <= _MANY or one[0] != " " or WARNING in one]


def lines(one: Intake, whole: bool = False) -> list[str]:
    """Return what was read of a stream, one line a thing.

    Args:
        one: What was read.
        whole: Name every column, not only how many there are of each kind.
    """
    unplayed = ", ".join(f"{count:,} {reason}" for reason, count in one.unplayed.items())
    rows = f"{one.rows:,} rows read, {one.played:,} played"
    found = [f"{one.stream}: {rows}{f' ({unplayed})' if unplayed else ''}"]
    found.append(f"  target   {target_words(one)}")
    found.append(f"  model    {one.model}; loss: {one.loss}")
    found.append(f"  scale    {scale_words(one)}")
    found.append(f"  order    {one.order}")
    if one.columns:
        found.append(f"  columns  {columns_words(one)}")
    if whole:
        width = max((len(column.name) for column in one.columns), default=0)
        for column in one.columns:
            said = column_words(column, one.looked)
            found.append(f"           {column.name:{width}}  {column.kind:8}  {said}".rstrip())
    found += [f"  left out {name!r}: {reason}" for name, reason in one.left_out.items()]
    return found + [f"{WARNING}{warning}" for warning in one.warnings]


def target_words(one: Intake) -> str:
    """Return what is predicted, and why so."""
    what = {"regression": "a number", "binary": "two classes", "classes": "classes"}[one.task]
    if one.target is None:
        return what
    names = ", ".join(one.classes)
    shown = f" ({names}{', ...' * (len(one.classes) == 12)})" if names else ""
    return f"{one.target!r}: {what}{shown}, as it holds {one.why}"


def scale_words(one: Intake) -> str:
    """Return how a stream is scaled, and how many targets are far out."""
    if not one.looked or one.task != "regression":
        return one.scale
    far = f"{one.far:,} of {one.looked:,} targets are beyond ±5, the largest {one.farthest:.3g}"
    return f"{one.scale}; {far}"


def columns_words(one: Intake) -> str:
    """Return how many columns there are of each kind."""
    counts = Counter(column.kind for column in one.columns)
    kinds = [f"{n} {_PLURAL[kind] if n > 1 else kind}" for kind, n in counts.items()]
    return f"{', '.join(kinds)}: {one.features:,} features with the constant one"


def column_words(column: ColumnRead, looked: int) -> str:
    """Return what is said of a column."""
    found = [column.note] if column.note else []
    found += [f"{column.missing:,} missing"] * (column.missing > 0)
    found += [f"{column.infinite:,} infinite"] * (column.infinite > 0)
    if column.clipped:
        found.append(f"clipped in {column.clipped:,} of {looked:,} rows")
    return "; ".join(found)
