"""The table of a race: rows, ranks over streams, and who won where by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from driftrate.race.cell import Cell, Result, Status
from driftrate.race.significance import LEVEL, Comparison, block_p_value, compare

if TYPE_CHECKING:
    from driftrate.race.contestants import Contestant

# Chosen before any race was run: the method of ours that the claim is about.
FLAGSHIP = "HedgedFilter"
# The method whose grid is over constant rates.
CONSTANT = "sgd"
Column = Literal["default", "best", "grid"]
Curve = Literal["loss", "error", "regret", "rate"]
_WORST_FIRST: tuple[Status, ...] = ("not played", "failed", "timeout", "diverged", "ok")


@dataclass(frozen=True)
class Row:
    """One method at one setting on one stream.

    `column` is `default`, `best` (the setting of the grid with the lowest loss, chosen in
    hindsight), or `grid` (any other point); a default that is best is in two rows. `setting` is
    `"default"`, or a point of the grid as JSON. `status` is `ok`, or the worst that happened with
    any seed, and `message` what happened. `loss`, `error` and `regret` are means over seeds of the
    prequential loss and error and of the dynamic regret, None unless every seed is ok (and for the
    regret where no oracle is known); `loss_error` is the standard error of `loss`, None with one
    seed. `by_row` is whether the method learns from the rows of a batch one after the other. `rank`
    is the place by loss among all methods of this column, ties shared, and `rank_first_order` that
    among first-order methods alone; None for `grid`, and for what was `not played`.
    """

    stream: str
    method: str
    family: str
    first_order: bool
    ours: bool
    by_row: bool
    column: Column
    setting: str
    status: Status
    message: str
    seeds: int
    loss: float | None
    loss_error: float | None
    error: float | None
    regret: float | None
    rank: float | None
    rank_first_order: float | None
    seconds_per_step: float
    steps: int


@dataclass(frozen=True)
class Placing:
    """A method's place over all streams.

    On `marked` of its `streams` it failed, diverged or ran out of time. `tied` is whether it does
    not differ significantly from the leader, None if untested; the time of a step is the median.
    """

    method: str
    family: str
    first_order: bool
    ours: bool
    by_row: bool
    mean_rank: float
    streams: int
    marked: int
    seconds_per_step: float
    tied: bool | None


class Lead(NamedTuple):
    """By which share of the loser's loss the winner's is lower on a stream.

    `p` is the p-value of the difference; None if the curves are too short for a test.
    """

    share: float
    p: float | None

    @property
    def significant(self) -> bool:
        """Whether the difference is significant."""
        return self.p is not None and self.p <= LEVEL


class Wins(NamedTuple):
    """How a method does against a reference: streams won, streams in common, ratio of losses."""

    won: int
    streams: int
    ratio: float


class Leaderboard:
    """The results of a race, whole or in part, as a table.

    Args:
        results: Finished cells, one at a default among them.
        contestants: What is known of each method.
        streams: The name of each stream by how it was given.

    `unplayed` has the rows of what could not be played through no fault of the method.
    """

    def __init__(
        self,
        results: Mapping[Cell, Result],
        contestants: Mapping[str, Contestant],
        streams: Mapping[str, str],
    ) -> None:
        self._contestants = contestants
        groups: dict[tuple[str, str, str], list[Result]] = {}
        for cell in sorted(results, key=lambda cell: cell.seed):
            group = (streams[cell.stream], cell.method, cell.setting)
            groups.setdefault(group, []).append(results[cell])
        fair = {key for key, found in groups.items() if _worst(found) != "not played"}
        # In a race that has only begun, a grid waits for its default.
        whole = [key for key in groups if key in fair and (*key[:2], "default") in fair]
        self._groups = {key: groups[key] for key in whole}
        present = {stream for stream, _, _ in self._groups}
        self.streams = [name for name in streams.values() if name in present]
        # What could not be played with every seed has no rank, and is in no other table.
        self.unplayed = [self._row(*key, groups[key]) for key in sorted(groups.keys() - fair)]

    @cached_property
    def rows(self) -> list[Row]:
        """All rows: by stream, column and rank."""
        rows: list[Row] = []
        for stream in self.streams:
            groups = [(*key, found) for key, found in self._groups.items() if key[0] == stream]
            found = [self._row(*group) for group in groups]
            grid = [row for row in found if row.column == "grid"]
            rows += _ranked([row for row in found if row.column == "default"])
            if grid:
                # Where nothing was better, the default is the best.
                order = sorted(found, key=lambda row: (_order(row), row.column != "default"))
                best = {row.method: row for row in reversed(order)}
                methods = dict.fromkeys(row.method for row in found)
                rows += _ranked([replace(best[name], column="best") for name in methods])
                left = [row for row in grid if row is not best[row.method]]
                rows += sorted(left, key=_order)
        return rows

    def _row(self, stream: str, method: str, setting: str, results: Sequence[Result]) -> Row:
        who = self._contestants[method]
        status = _worst(results)
        fine = status == "ok"
        losses = [one["loss"] for one in results]
        return Row(
            stream=stream,
            method=method,
            family=who.family,
            first_order=who.first_order,
            ours=who.ours,
            by_row=who.by_row,
            column="default" if setting == "default" else "grid",
            setting=setting,
            status=status,
            message=next((one["message"] for one in results if one["status"] == status), ""),
            seeds=len(results),
            loss=_mean(losses) if fine else None,
            loss_error=_standard_error(losses) if fine else None,
            error=_mean(one["error"] for one in results) if fine else None,
            regret=_mean(one["regret"] for one in results) if fine else None,
            rank=None,
            rank_first_order=None,
            seconds_per_step=float(np.mean([one["seconds_per_step"] for one in results])),
            steps=max(one["steps"] for one in results),
        )

    def of(self, stream: str, column: Column = "default") -> list[Row]:
        """Return the rows of a stream in one column, the winner first."""
        return [row for row in self.rows if row.stream == stream and row.column == column]

    @cached_property
    def has_grid(self) -> bool:
        """Whether any method ran at more than its default."""
        return any(row.column == "best" for row in self.rows)

    def curves(self, row: Row, kind: Curve) -> tuple[list[int], npt.NDArray[np.float64]]:
        """Return the steps and the curves of a row, one per seed; none if they differ in length."""
        results = self._groups[row.stream, row.method, row.setting]
        steps = results[0]["curve_steps"]
        curves = [one[f"{kind}_curve"] for one in results]  # type: ignore[literal-required]
        if not steps or any(len(curve) != len(steps) for curve in curves):
            return [], np.empty((0, 0))
        return steps, np.asarray(curves, float)

    def comparison(self, column: Column = "default", first_order: bool = False) -> Comparison:
        """Compare the methods that ran on every stream, or the first-order ones among them."""
        table = self._table(column, first_order)
        whole = {name: rows for name, rows in table.items() if len(rows) == len(self.streams)}
        if not whole:
            return Comparison("no method ran on every stream", "", frozenset())
        ranks = {name: _ranks(rows, first_order) for name, rows in whole.items()}
        return compare(ranks, {name: [_order(row) for row in rows] for name, rows in whole.items()})

    def _table(self, column: Column, first_order: bool) -> dict[str, list[Row]]:
        table: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.column == column and (row.first_order or not first_order):
                table.setdefault(row.method, []).append(row)
        return table

    def placings(
        self, column: Column = "default", first_order: bool = False, tested: bool = True
    ) -> list[Placing]:
        """Return the place of every method, or first-order one, over the streams; leader first."""
        tied = self.comparison(column, first_order).tied if tested else frozenset()
        placings = [
            Placing(
                method=name,
                family=rows[0].family,
                first_order=rows[0].first_order,
                ours=rows[0].ours,
                by_row=rows[0].by_row,
                mean_rank=float(np.mean(_ranks(rows, first_order))),
                streams=len(rows),
                marked=sum(row.status != "ok" for row in rows),
                seconds_per_step=float(np.median([row.seconds_per_step for row in rows])),
                tied=name in tied if tested and len(rows) == len(self.streams) else None,
            )
            for name, rows in self._table(column, first_order).items()
        ]
        return sorted(placings, key=lambda placing: (placing.mean_rank, placing.method))

    @property
    def has_by_row(self) -> bool:
        """Whether any method learns from the rows of a batch one after the other."""
        return any(row.by_row for row in self.rows)

    def lead(self, winner: Row, loser: Row) -> Lead:
        """Return how far a row is ahead of another of the same stream."""
        one, two = _order(winner), _order(loser)
        share = 1.0 - one / two if two > 0 else 0.0
        steps, first = self.curves(winner, "loss")
        others, second = self.curves(loser, "loss")
        fair = steps and steps == others and math.isfinite(two)
        p = block_p_value(steps, first.mean(axis=0), second.mean(axis=0)) if fair else None
        return Lead(share, p)

    def against_constant(self, method: str, column: Column = "default") -> Wins | None:
        """Compare a method with the best constant rate, chosen in hindsight for each stream."""
        reference = {row.stream: row for row in self._table("best", False).get(CONSTANT, ())}
        rows = self._table(column, False).get(method, ())
        there = [row for row in rows if row.stream in reference]
        if not there:
            return None
        pairs = [(_order(row), _order(reference[row.stream])) for row in there]
        ratios = [one / two for one, two in pairs if two > 0]
        ratio = math.exp(float(np.mean(np.log(ratios)))) if ratios and min(ratios) > 0 else math.nan
        return Wins(sum(one < two for one, two in pairs), len(pairs), ratio)


def _worst(results: Iterable[Result]) -> Status:
    return min((one["status"] for one in results), key=_WORST_FIRST.index)


def _order(row: Row) -> float:
    return math.inf if row.loss is None else row.loss


def _ranks(rows: Sequence[Row], first_order: bool) -> list[float]:
    ranks = [row.rank_first_order if first_order else row.rank for row in rows]
    return [rank for rank in ranks if rank is not None]  # only rows of a grid have none


def _ranked(rows: Sequence[Row]) -> list[Row]:
    alone = [row for row in rows if row.first_order]
    ranks = dict(zip(alone, _places(alone), strict=True))
    ranked = [
        replace(row, rank=rank, rank_first_order=ranks.get(row))
        for row, rank in zip(rows, _places(rows), strict=True)
    ]
    return sorted(ranked, key=lambda row: (row.rank, row.method))


def _places(rows: Sequence[Row]) -> list[float]:
    """Return the place of each row by its loss, the mean one where losses are the same."""
    losses = np.array([_order(row) for row in rows])
    ordered = np.sort(losses)
    before, until = (np.searchsorted(ordered, losses, side) for side in ("left", "right"))
    places: list[float] = ((before + until + 1) / 2).tolist()
    return places


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.mean(known)) if known else None


def _standard_error(values: Sequence[float | None]) -> float | None:
    if len(values) < 2:
        return None
    return float(np.std(np.asarray(values, float), ddof=1) / math.sqrt(len(values)))
