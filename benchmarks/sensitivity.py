"""What every tuned number of `MeasuredRate` is worth: regret at half and at twice its value.

    python benchmarks/sensitivity.py [--only NAME] [--seeds 16] [--out DIR]

Of a share of one half or more the odds are halved and doubled. Variants run at once, as if they
were seeds, and see the same draws: what a change costs is a paired difference, and far more certain
than the regret itself. The streams are drawn, with a seed below 1000: tuning is what this is for. A
stream's cost is the mean regret over that of the record as it is, less 1, with its standard error;
a row has the mean over the streams, and the worst. Numbers for many or unknown coordinates and for
outliers are not felt on drawn streams. Finished streams are kept in DIR, so that a stopped run can
be resumed; give another DIR after a change of the code.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from zero_knowledge import Cell, Floats, Results, fill, show, standard_error

import driftrate as dr
from driftrate.schedules.base import Array, State, map_state
from driftrate.schedules.measured.tuning import TUNING, Tuning
from driftrate.simulation import Record
from driftrate.simulation.engine import Engine
from driftrate.streams import LinearStream, Stream, standstill
from driftrate.streams.backend import NumpyBackend

SEED = 0
MODES: dict[str, dict[str, Any]] = {
    "halves": {"max_rate": 1.0},
    "sequence": {"max_rate": 1.0, "mode": "sequence"},
    "told nothing": {},
}
# One value for all seeds: these decide the shape of the state, or are read by `math`.
PLAIN = ("drifts", "heavy_tail", "thin_tail")


# Streams ------------------------------------------------------------------------------------------


def jumping() -> Stream:
    """Return a rest of 500 steps, and 20 steps after a jump."""
    path = standstill(128, 520)
    path[500:, 1] += 1.0
    return LinearStream(path, 64, 1.0)


def cell(*setting: Any) -> tuple[Callable[[], Stream], int]:
    """Return a stream of the grid."""
    return Cell("linear", *setting).stream, 0


# How a stream is made, and after how many steps its regret counts.
STREAMS: dict[str, tuple[Callable[[], Stream], int]] = {
    "bursty d=2": cell(2, 4, 1.0, "bursty"),
    "standstill d=2": cell(2, 16, 1.0, "standstill"),
    "runaway d=2": cell(2, 256, 0.1, "runaway"),
    "spiral1 d=16": cell(16, 4, 0.1, "spiral1"),
    "spiral100 d=16": cell(16, 16, 1.0, "spiral100"),
    "bursty d=128": cell(128, 4, 0.1, "bursty"),
    "spiral8 d=128": cell(128, 64, 1.0, "spiral8"),
    "walk d=128": cell(128, 256, 1.0, "walk"),
    "jump d=128": (jumping, 500),
    "rest d=128": (partial(LinearStream, standstill(128, 3000), 64, 1.0), 300),
}


# Variants -----------------------------------------------------------------------------------------


def moved(value: float, factor: float) -> float:
    """Return a number times the factor; of a share of one half or more the odds."""
    if 0.5 <= value < 1.0:
        odds = factor * value / (1.0 - value)
        return odds / (1.0 + odds)
    return type(value)(factor * value)


def variants(only: str) -> dict[str, Tuning]:
    """Return the record, and those with one number changed."""
    out = {"": TUNING}
    for name in (field.name for field in fields(TUNING) if only in field.name):
        for sign, factor in (("/2", 0.5), ("x2", 2.0)):
            number: dict[str, Any] = {name: moved(getattr(TUNING, name), factor)}
            out[name + sign] = replace(TUNING, **number)
    return out


class Paired(NumpyBackend):
    """Draws for a few seeds, and gives every variant the same."""

    def __init__(self, seed: int, seeds: int) -> None:
        super().__init__(seed, "float64")
        self._seeds = seeds

    def _repeated(self, draw: Callable[..., Floats], *shape: int) -> Floats:
        few = draw(self._seeds, *shape[1:])
        return np.tile(few, (shape[0] // self._seeds, *[1] * (len(shape) - 1)))

    def fill_normal(self, out: Array) -> None:  # noqa: D102
        out[...] = self.scalar_normal(*out.shape)

    def scalar_normal(self, *shape: int) -> Array:  # noqa: D102
        return self._repeated(super().scalar_normal, *shape)

    def chisquare(self, freedom: float, *shape: int) -> Array:  # noqa: D102
        return self._repeated(partial(super().chisquare, freedom), *shape)


def abreast(tunings: Sequence[Tuning], seeds: int) -> type[dr.MeasuredRate]:
    """Return the schedule that follows one record after the other along the axis of seeds."""

    def along(values: Sequence[float]) -> Any:
        return values[0] if len(set(values)) == 1 else np.repeat(values, seeds)

    names = [field.name for field in fields(Tuning)]
    numbers = {name: along([getattr(one, name) for one in tunings]) for name in names}

    class Abreast(dr.MeasuredRate):
        tuning = Tuning(**numbers)

        def init(self, like: Array = None) -> State:
            each = [type("One", (dr.MeasuredRate,), {"tuning": one}) for one in tunings]
            starts = [one().init(like=like[:seeds]) for one in each]
            return map_state(lambda *leaves: np.concatenate(leaves, axis=-1), *starts)

    return Abreast


def regrets(stream: str, mode: str, tunings: Sequence[Tuning], seeds: int) -> list[list[float]]:
    """Return each variant's regret for every seed, infinite where it diverged."""
    make, start = STREAMS[stream]
    nature, rule = make(), abreast(tunings, seeds)(**MODES[mode])
    engine = Engine(
        nature,
        [rule],
        Paired(SEED, seeds),
        seeds=seeds * len(tunings),
        exact=True,
        parts=2,
        project=None,
        start=0.0,
        record=Record(every=start or nature.steps),
    )
    engine.run(nature.steps)
    sums: Floats = engine.ledger.column("regret")[:, 0]
    found = sums[-1] - (sums[0] if start else 0.0)
    found = np.where(np.isfinite(found), found, np.inf)
    return [*found.reshape(len(tunings), seeds).tolist()]


def study(stream: str, mode: str, named: dict[str, Tuning], seeds: int) -> Results:
    """Return the regrets of all variants on one stream, by name."""
    alone = [[name] for name in named if name[:-2] in PLAIN]
    out: Results = {}
    for group in [[name for name in named if [name] not in alone], *alone]:
        found = regrets(stream, mode, [named[name] for name in group], seeds)
        out |= dict(zip(group, found, strict=True))
    return out


# The table ----------------------------------------------------------------------------------------


def cost(found: Results, name: str) -> tuple[float, float]:
    """Return what a variant costs on one stream, and its standard error."""
    usual, other = np.array(found[""]), np.array(found[name])
    ratio = float(other.mean() / usual.mean())
    return ratio - 1.0, standard_error(other - ratio * usual) / float(usual.mean())


def row(found: Results, name: str) -> list[str]:
    """Return a variant's mean costs by mode, and its worst stream."""
    out = [name]
    for mode in MODES:
        costs = [cost(each, name) for key, each in found.items() if key.endswith(f"|{mode}")]
        mean = float(np.mean([value for value, _ in costs]))
        error = float(np.linalg.norm([error for _, error in costs])) / len(costs)
        out.append(f"{mean:+.1%} ± {error:.1%}")
    worst = max(found, key=lambda key: cost(found[key], name)[0])
    value, error = cost(found[worst], name)
    return [*out, f"{value:+.1%} ± {error:.1%}", worst.replace("|", ", ")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="numbers whose name contains this")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/sensitivity"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    named = variants(options.only)
    tasks = {
        f"{stream}|{mode}": partial(study, stream, mode, named, options.seeds)
        for stream in STREAMS
        for mode in MODES
    }
    found = fill(options.out / f"{options.only}{options.seeds}.json", tasks, options.jobs)
    rows = [row(found, name) for name in named if name]
    columns = "number", *MODES, "worst", "in"
    show(options.out / "sensitivity.md", [("regret over that of the record", columns, rows)])


if __name__ == "__main__":
    main()
