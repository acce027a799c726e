"""Rates that need no constants, compared with the clairvoyant rate and the best constant one.

    python benchmarks/zero_knowledge.py [--logistic] [--seeds 8] [--jobs 1] [--out DIR]
    python benchmarks/zero_knowledge.py --rest | --jump | --real

The first runs every rule on a grid of 224 drawn streams. A cell's denominators are the mean regret
of the clairvoyant greedy rate and that of the best constant rate, 0 included. Cells in which the
smaller one is over half of rate 0's regret are counted apart: nothing can track their target.
The others ask whether a rule comes to rest and whether it reacts to a jump, or run the real streams
of the folder `streams` in $DRIFTRATE_DATA (default ../shared/data). Seeds are 1000 and above; rules
were tuned on lower ones, and on half of the real streams. Finished tasks are kept in DIR, so that
a stopped run can be resumed; give another DIR after a change of the code.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import track
from rich.table import Table

import driftrate as dr
from driftrate._html import write_whole
from driftrate.race.cell import Cell as RaceCell
from driftrate.race.cell import Reading, canonical
from driftrate.race.play import play
from driftrate.race.sources import resolve
from driftrate.schedules.measured.tuning import TUNING
from driftrate.simulation import GreedyRate, Record
from driftrate.streams import (
    LinearStream,
    LogisticStream,
    Runaway,
    Stream,
    bursty,
    random_walk,
    spiral,
    standstill,
)

Floats = npt.NDArray[np.float64]
Results = dict[str, Any]
SEED = 1000
GREEDY, CONSTANT = "greedy rate", "best constant rate"


# Running ------------------------------------------------------------------------------------------


def fill(path: Path, tasks: Mapping[str, Callable[[], Any]], jobs: int) -> Results:
    """Run the tasks that the file lacks, store each result at once, return those asked for."""
    found: Results = json.loads(path.read_text()) if path.exists() else {}
    left = [(key, task) for key, task in tasks.items() if key not in found]
    done = Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(_keyed)(key, task) for key, task in left
    )
    for key, result in track(done, description=path.stem, total=len(left)):
        found[key] = result
        write_whole(path, json.dumps(found))
    return {key: found[key] for key in tasks}


def _keyed(key: str, task: Callable[[], Any]) -> tuple[str, Any]:
    return key, task()


def rules(model: str) -> dict[str, Any]:
    """Return what competes, by name."""
    top = {"linear": 1.0, "logistic": 4.0}[model]
    return {
        "HedgedSGD()": dr.HedgedSGD(),
        "MeasuredRate(1/L)": dr.MeasuredRate(max_rate=top),
        "MeasuredRate(1/L), sequence": dr.MeasuredRate(max_rate=top, mode="sequence"),
        "MeasuredRate()": dr.MeasuredRate(),
    }


# The grid of drawn streams ------------------------------------------------------------------------

STEPS = 2000
CONSTANTS = [0.0, *(1.2**k for k in range(-44, 10))]
PATHS: dict[str, Callable[[int], Any]] = {
    "spiral1": lambda d: spiral(d, STEPS, hold=1),
    "spiral8": lambda d: spiral(d, STEPS, hold=8),
    "spiral100": lambda d: spiral(d, STEPS, hold=100),
    "standstill": lambda d: standstill(d, STEPS),
    "bursty": lambda d: bursty(d, STEPS, every=137),
    "walk": lambda d: random_walk(d, STEPS, size=0.03),
    "runaway": lambda d: Runaway(np.eye(d)[0], speed=0.02, steps=STEPS),
}


class Cell(NamedTuple):
    """One stream of the grid."""

    model: str
    dim: int
    batch_size: int
    noise: float
    path: str

    def __str__(self) -> str:
        return f"{self.path} d={self.dim} B={self.batch_size} σ={self.noise:g}"

    def stream(self) -> Stream:
        """Return the stream."""
        kind = LinearStream if self.model == "linear" else LogisticStream
        return kind(PATHS[self.path](self.dim), self.batch_size, self.noise)


def grid(model: str) -> list[Cell]:
    """Return all cells."""
    return [
        Cell(model, dim, size, noise, path)
        for dim in (2, 16, 128, 512)
        for size in (4, 16, 64, 256)
        for noise in (0.1, 1.0)
        for path in PATHS
    ]


def totals(stream: Stream, competing: list[Any], seeds: int) -> Floats:
    """Return the regret of every rule and seed, infinite where it diverged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        record = Record(every=stream.steps)
        runs = dr.simulate(stream, competing, seeds=seeds, seed=SEED, record=record)
    return np.array([np.where(np.isfinite(run.total), run.total, np.inf) for run in runs])


def regret(cell: Cell, name: str, seeds: int) -> Results:
    """Return one rule's regret on a cell."""
    rule = GreedyRate() if name == GREEDY else rules(cell.model)[name]
    return {"totals": totals(cell.stream(), [rule], seeds)[0].tolist()}


def best_constant(cell: Cell, seeds: int) -> Results:
    """Return the regret of the constant rate with the lowest mean, the rate, and rate 0's mean."""
    stream = cell.stream()
    found: dict[int, Floats] = {}

    def run(places: Iterable[int]) -> None:
        new = [place for place in places if place in range(len(CONSTANTS)) and place not in found]
        if new:
            rates = [dr.ConstantRate(CONSTANTS[place]) for place in new]
            found.update(zip(new, totals(stream, rates, seeds), strict=True))

    if stream.nature.adaptive:
        # Nature responds to each rate, so each needs a run: search from the best of every sixth.
        run(range(0, len(CONSTANTS), 6))
        best = -1
        while best != (lowest := min(found, key=lambda place: float(found[place].mean()))):
            best = lowest
            run(range(best - 2, best + 3))
    else:
        run(range(len(CONSTANTS)))
        best = min(found, key=lambda place: float(found[place].mean()))
    return {
        "totals": found[best].tolist(),
        "rate": CONSTANTS[best],
        "zero": float(found[0].mean()),
    }


class Ratio(NamedTuple):
    """A rule's mean regret on a cell divided by a denominator, and its relative error."""

    value: float
    error: float
    cell: str
    apart: bool


def ratios(found: Results, cells: list[Cell], name: str, over: str) -> list[Ratio]:
    """Return a rule's ratios to the best constant rate, or to the smaller denominator."""
    out = []
    for cell in cells:
        mean = {
            rule: float(np.mean(found[f"{cell}|{rule}"]["totals"]))
            for rule in (GREEDY, CONSTANT, name)
        }
        least = min(mean[GREEDY], mean[CONSTANT])
        each = np.array(found[f"{cell}|{name}"]["totals"])
        error = standard_error(each) / each.mean()
        apart = least > 0.5 * found[f"{cell}|{CONSTANT}"]["zero"]
        base = mean[CONSTANT] if over == CONSTANT else least
        out.append(Ratio(mean[name] / base, error, str(cell), apart))
    return out


def standard_error(values: Floats) -> float:
    """Return the standard error of the mean."""
    return float(values.std(ddof=1) / len(values) ** 0.5)


def geometric(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(list(values)))))


def summary(found: Results, cells: list[Cell], name: str, over: str) -> list[str]:
    """Return a row of the table: the cells that can be tracked, then the others."""
    all_of_it = ratios(found, cells, name, over)
    near = [ratio for ratio in all_of_it if not ratio.apart]
    apart = [ratio.value for ratio in all_of_it if ratio.apart]
    mean, worst = geometric(ratio.value for ratio in near), max(near)
    error = mean * float(np.linalg.norm([ratio.error for ratio in near])) / len(near)
    return [
        name,
        f"{mean:.3f} ± {error:.3f}",
        f"{worst.value:.2f}",
        worst.cell,
        str(len(near)),
        f"{geometric(apart):.3f}" if apart else "",
        f"{max(apart):.2f}" if apart else "",
        str(len(apart)),
    ]


def run_grid(model: str, options: argparse.Namespace) -> None:
    """Run the grid, and write its tables and picture."""
    cells = [cell for cell in grid(model) if options.cells in str(cell)][:: options.every]
    names = [name for name in rules(model) if options.only in name]
    tasks: dict[str, Callable[[], Any]] = {}
    for cell in cells:
        tasks[f"{cell}|{CONSTANT}"] = partial(best_constant, cell, options.seeds)
        for name in (GREEDY, *names):
            tasks[f"{cell}|{name}"] = partial(regret, cell, name, options.seeds)
    found = fill(options.out / f"{model}-{options.seeds}.json", tasks, options.jobs)
    tables = []
    for over in (CONSTANT, f"smaller of {GREEDY} and {CONSTANT}"):
        rows = [summary(found, cells, name, over) for name in (GREEDY, CONSTANT, *names)]
        columns = "rule", "mean", "worst", "in", "cells", "apart: mean", "worst", "cells"
        tables.append((f"{model}: regret over the {over}", columns, rows))
    show(options.out / f"{model}.md", tables)
    plot(found, cells, [CONSTANT, *names], options.out / f"{model}.png")


def plot(found: Results, cells: list[Cell], names: list[str], path: Path) -> None:
    """Draw every rule's sorted ratios to the smaller denominator."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.5, 3.6), layout="constrained")
    for name in names:
        values = sorted(r.value for r in ratios(found, cells, name, "") if not r.apart)
        axis.plot(np.linspace(0, 1, len(values)), values, label=name)
    axis.set(yscale="log", xlabel="share of the streams", ylabel="regret over the smaller")
    axis.legend(fontsize=7)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


# Rest and jumps -----------------------------------------------------------------------------------

RESTING = ((2, 64, 1.0), (16, 16, 1.0), (128, 64, 1.0))
DEAF = ", deaf"


class Deaf(dr.MeasuredRate):
    """The same rule, which never expects a jump: false alarms cost it nothing."""

    tuning = replace(TUNING, jump_chance=0.0)


def rest(dim: int, size: int, noise: float, name: str, seeds: int) -> list[list[float]]:
    """Return each seed's regret after 10³, 10⁴ and 10⁵ steps of standstill."""
    stream = LinearStream(standstill(dim, 100_000), size, noise)
    rule = GreedyRate() if name == GREEDY else rules("linear")[name.removesuffix(DEAF)]
    if name.endswith(DEAF):
        rule = Deaf(**{field.name: getattr(rule, field.name) for field in fields(rule)})
    run = dr.simulate(stream, rule, seeds=seeds, seed=SEED, record=Record(every=1000))
    places = np.searchsorted(run.step, (1000, 10_000, 100_000))
    return cast(list[list[float]], run.regret[:, places].T.tolist())


def run_rest(options: argparse.Namespace) -> None:
    """Show whether a decade costs more than the one before, and the cost of false alarms."""
    names = [name for name in rules("linear") if options.only in name]
    every = [(name, *setting) for name in (GREEDY, *names) for setting in RESTING]
    every += [(name + DEAF, *RESTING[-1]) for name in names if "Measured" in name]
    tasks = {
        f"d={d} B={b} σ={s:g}|{name}": partial(rest, d, b, s, name, options.seeds)
        for name, d, b, s in every
        if options.cells in f"d={d} B={b} σ={s:g}"
    }
    found = fill(options.out / f"rest-{options.seeds}.json", tasks, options.jobs)
    rows = []
    for key, after in found.items():
        setting, name = key.split("|")
        first, second, third = np.array(after)
        early, late = second - first, third - second
        ratio = float(late.mean() / early.mean())
        error = standard_error(late - ratio * early) / early.mean()
        means = [f"{x.mean():.4g} ± {standard_error(x):.2g}" for x in (third, early, late)]
        rows.append([name, setting, *means, f"{ratio:.3f} ± {error:.3f}"])
    columns = "rule", "stream", "in all", "10³ to 10⁴", "10⁴ to 10⁵", "ratio"
    show(options.out / "rest.md", [("standstill: regret of two decades", columns, rows)])


def jump(name: str, seeds: int) -> list[float]:
    """Return each seed's highest rate within 5 steps of a jump, divided by the greedy rate."""
    dim, size, noise, calm, within = 128, 64, 1.0, 500, 5
    path = np.repeat(np.eye(dim)[:1], calm + within, axis=0)
    path[calm:, 1] = 1.0
    stream = LinearStream(path, size, noise)
    run = dr.simulate(stream, rules("linear")[name], seeds=seeds, seed=SEED)
    square = run.distance[:, calm:] ** 2
    greedy = square / (square * (1.0 + (dim + 1) / size) + dim * noise**2 / size)
    return [float(share) for share in (run.rates[:, calm:] / greedy).max(axis=1)]


def run_jump(options: argparse.Namespace) -> None:
    """Count the seeds, of 200, whose rate soon exceeds half of the greedy rate."""
    names = [name for name in rules("linear") if options.only in name]
    tasks = {name: partial(jump, name, 200) for name in names}
    found = fill(options.out / "jump.json", tasks, options.jobs)
    rows = [
        [name, f"{np.mean(np.array(shares) > 0.5):.1%}", f"{np.median(shares):.2f}"]
        for name, shares in found.items()
    ]
    columns = "rule", "seeds", "median of the highest"
    title = "within 5 steps of a jump: rate over half of the greedy rate"
    show(options.out / "jump.md", [(title, columns, rows)])


# Real streams -------------------------------------------------------------------------------------

TUNED_ON = ("elec2", "bike_hourly", "keystroke", "airquality_co", "covertype60k")
OTHERS = ("usenet1", "powersupply", "noaa_weather", "beijing_pm25", "metro_traffic")
RATES = [float(f"{1.25**k:.4g}") for k in range(-42, 7)]
ENTRANTS: dict[str, tuple[str, list[str]]] = {
    CONSTANT: ("sgd", [canonical({"lr": rate}) for rate in RATES]),
    "HedgedSGD()": ("HedgedSGD", ["default"]),
    "MeasuredRate()": ("MeasuredRate", ["default"]),
    "Adam, best of three": ("adam", [canonical({"lr": rate}) for rate in (0.1, 0.01, 0.001)]),
    "D-Adaptation": ("d-adapt sgd", ["default"]),
    "Prodigy": ("prodigy", ["default"]),
    "DoG": ("dog", ["default"]),
    "COCOB": ("cocob", ["default"]),
    "schedule-free SGD": ("schedule-free sgd", ["default"]),
    "schedule-free AdamW": ("schedule-free adamw", ["default"]),
    "TRAC": ("trac", ["default"]),
}


def prequential(path: Path, method: str, setting: str) -> Results:
    """Return the mean loss of one contestant on one stream, infinite where it did not finish."""
    reading = Reading(target="y", scale="plain")
    source = resolve(str(path), reading)
    played = (method, setting, SEED, source.fingerprint)
    cell = RaceCell(str(path), *played, **{**vars(reading), "model": source.model})
    result = play(cell)
    loss = np.inf if result["loss"] is None else result["loss"]
    return {"loss": loss, "message": result["message"]}


def run_real(options: argparse.Namespace) -> None:
    """Race on the real streams that are found."""
    folder = Path(os.environ.get("DRIFTRATE_DATA", "../shared/data")) / "streams"
    streams = [name for name in (*TUNED_ON, *OTHERS) if (folder / f"{name}.parquet").exists()]
    if not streams:
        raise SystemExit(f"no real streams in {folder}: set DRIFTRATE_DATA")
    tasks = {
        f"{stream}|{method}|{setting}": partial(
            prequential, folder / f"{stream}.parquet", method, setting
        )
        for stream in streams
        for method, settings in ENTRANTS.values()
        for setting in settings
    }
    found = fill(options.out / "real.json", tasks, options.jobs)
    losses = {
        name: {
            stream: min(found[f"{stream}|{method}|{setting}"]["loss"] for setting in settings)
            for stream in streams
        }
        for name, (method, settings) in ENTRANTS.items()
    }
    over = {
        name: {stream: loss / losses[CONSTANT][stream] for stream, loss in each.items()}
        for name, each in losses.items()
    }
    groups = {"tuned on": TUNED_ON, "others": OTHERS, "all": (*TUNED_ON, *OTHERS)}
    means = [
        [name, *(spread(each, group) for group in groups.values())] for name, each in over.items()
    ]
    single = [[name, *(f"{each[s]:.3f}" for s in streams)] for name, each in over.items()]
    title = f"real streams: prequential loss over the {CONSTANT}'s"
    tables = [
        (f"{title}, geometric mean (worst)", ("method", *groups), means),
        (title, ("method", *streams), single),
    ]
    show(options.out / "real.md", tables)


def spread(ratio: dict[str, float], streams: Iterable[str]) -> str:
    """Return the geometric mean and the worst over the streams that were run."""
    values = [ratio[stream] for stream in streams if stream in ratio]
    return f"{geometric(values):.3f} ({max(values):.3f})" if values else ""


# Tables -------------------------------------------------------------------------------------------


def show(path: Path, tables: Sequence[tuple[str, Iterable[str], list[list[str]]]]) -> None:
    """Print tables, and write them as Markdown."""
    console, text = Console(), []
    for title, columns, rows in tables:
        table = Table(*columns, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        rule = ["---"] * len(table.columns)
        lines = [f"| {' | '.join(row)} |" for row in (list(columns), rule, *rows)]
        text.append("\n".join([f"**{title}**", "", *lines, ""]))
    write_whole(path, "\n".join(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    study = parser.add_mutually_exclusive_group()
    study.add_argument("--logistic", action="store_true", help="the grid of logistic streams")
    study.add_argument("--rest", action="store_true", help="10⁵ steps of standstill")
    study.add_argument("--jump", action="store_true", help="one jump after 500 steps of rest")
    study.add_argument("--real", action="store_true", help="the real streams")
    parser.add_argument("--cells", default="", help='streams whose name contains this: "d=2 B=4"')
    parser.add_argument("--every", type=int, default=1, help="run each n-th cell of a grid")
    parser.add_argument("--only", default="", help="rules whose name contains this")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/zero_knowledge"))
    options = parser.parse_args()
    os.environ["PYTHONSAFEPATH"] = "1"  # the processes that joblib starts import nothing from here
    options.out.mkdir(parents=True, exist_ok=True)
    if options.rest:
        run_rest(options)
    elif options.jump:
        run_jump(options)
    elif options.real:
        run_real(options)
    else:
        run_grid("logistic" if options.logistic else "linear", options)


if __name__ == "__main__":
    main()
