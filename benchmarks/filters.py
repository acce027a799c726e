"""HedgedFilter against filters, constant rates and itself at rest: `docs/hedged_filter.md`.

    python benchmarks/filters.py [--held-out] [--jobs 2]      losses over the best of three grids
    python benchmarks/filters.py --members                    each member's own loss, and its share
    python benchmarks/filters.py --rest [--seeds 32]          regret at rest, decade over decade
    python benchmarks/filters.py --speed                      a step, at three widths
    python benchmarks/filters.py --long [--steps 10000000]    collinear, constant, late
    python benchmarks/filters.py --units                      ShiftRegressor after changes of units

The streams are Parquet files in the folder `streams` of $DRIFTRATE_DATA (default ../shared/data),
read as the race reads them, in batches of 16. Methods were tuned on the five of DEVELOPMENT; the
others are played with `--held-out` alone, and each such run is noted in benchmarks/filters_log.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import cast

import numpy as np
from joblib import Parallel, delayed
from networks import commit, note
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from driftrate.learners import hedged_filter_step as steps
from driftrate.learners.hedged_filter import HedgedFilter
from driftrate.learners.memories import MEMBERS
from driftrate.race import Cell, Reading, contestants, play, resolve
from driftrate.race.models import Model

DEVELOPMENT = ("elec2", "covertype60k", "bike_hourly", "keystroke", "airquality_co")
HELD_OUT = ("noaa_weather", "beijing_pm25", "metro_traffic", "usenet1", "powersupply")
# The figures of docs/hedged_filter.md are made with the plain scale.
READING = Reading(target="y", scale="plain")
MEMORIES = (1.0, 0.9999, 0.9995, 0.999, 0.997, 0.99, 0.97)
LOG = Path(__file__).with_name("filters_log.md")
WIDTHS, ROWS = (16, 64, 256), 16
Floats = NDArray[np.float64]
console = Console(width=120)


def cells(stream: str) -> dict[str, list[Cell]]:
    """Return what is played on a stream: the pool, HedgedSGD, filters and constant rates."""
    folder = Path(os.environ.get("DRIFTRATE_DATA", "../shared/data")) / "streams"
    path = str((folder / f"{stream}.parquet").resolve())
    reading = READING
    source = resolve(path, reading)
    common = {**vars(reading), "model": source.model}
    filters = [json.dumps({"forgetting": one}) for one in MEMORIES]
    grids = {
        "HedgedFilter": ["default"],
        "HedgedSGD": ["default"],
        "kalman forgetting": filters,
        "sgd": contestants()["sgd"].settings(source.model or ""),
    }
    return {
        method: [Cell(path, method, one, 0, source.fingerprint, **common) for one in settings]
        for method, settings in grids.items()
    }


def losses(streams: tuple[str, ...], jobs: int) -> None:
    """Print the pool's loss over the best of each grid, stream by stream."""
    plan = {stream: cells(stream) for stream in streams}
    flat = [cell for methods in plan.values() for many in methods.values() for cell in many]
    played = Parallel(n_jobs=jobs, return_as="generator")(delayed(play)(cell) for cell in flat)
    found = dict(zip(flat, track(played, "cells", len(flat), console=console), strict=True))
    table = Table("stream", "HedgedFilter", "filter 0.997", "best filter", "HedgedSGD", "best SGD")
    ratios = []
    for stream, methods in plan.items():
        best = {
            method: min(found[cell]["loss"] or np.inf for cell in many)
            for method, many in methods.items()
        }
        usual = found[methods["kalman forgetting"][MEMORIES.index(0.997)]]["loss"]
        ours = best["HedgedFilter"]
        rivals = [usual, best["kalman forgetting"], best["HedgedSGD"], best["sgd"]]
        ratios.append([ours / one for one in rivals])
        shown = [f"{one:.4f} ({ours / one:.3f})" for one in rivals]
        table.add_row(stream, f"{ours:.4f}", *shown)
    means, worst = np.exp(np.log(ratios).mean(axis=0)), np.max(ratios, axis=0)
    shown = [f"{mean:.3f}, worst {bad:.3f}" for mean, bad in zip(means, worst, strict=True)]
    table.add_row("geometric mean", "", *shown)
    console.print(table)


def alone(stream: str) -> tuple[list[float], list[float]]:
    """Return the loss over the pool's that each member has alone, and its mean share."""
    cell = cells(stream)["HedgedFilter"][0]
    source = resolve(cell.stream, READING)
    model, pool = cast(Model, source.make_model()), HedgedFilter()
    count = {"regression": None, "binary": 2, "classes": model.outputs}[model.task]
    state = pool.init(model.features, count)
    alone = np.eye(len(state["noise"]))
    losses, shares = np.zeros(len(alone)), np.zeros(len(alone))
    mixed = 0.0
    for batch in islice(source.batches(0), source.steps):
        scores, x, y = steps.scores(state["weights"], batch.x), batch.x, batch.y
        now = pool.shares(state)
        if count is None:
            every = np.array([steps.mean(scores[..., 0], one, state["range"]) for one in alone])
            losses += 0.5 * ((every - y) ** 2).mean(axis=1)
            mixed += 0.5 * float(((pool.predict(state, x) - y) ** 2).mean())
        else:
            chances = steps.chances(scores, count)[:, np.arange(len(y)), y.astype(int)]
            losses -= np.log(np.maximum(chances, steps.LEAST)).mean(axis=1)
            mixed -= float(np.log(now @ chances).mean())
        shares += now
        state = pool.update(state, x, y)
    return list(losses / mixed), list(shares / source.steps)


def print_members(jobs: int) -> None:
    """Print each member's own loss over the pool's, and its mean share, on development streams."""
    found = Parallel(n_jobs=jobs)(delayed(alone)(stream) for stream in DEVELOPMENT)
    table = Table("memory, intercept's, prior", *DEVELOPMENT)
    rows = zip(MEMBERS.memory, MEMBERS.level, MEMBERS.prior, MEMBERS.tracks, strict=True)
    names = [
        f"{m:g}, {'the same' if np.isinf(a) else f'{a:g} rows'}, {v:g}{', tracks' if t else ''}"
        for m, a, v, t in rows
    ]
    names += [f"SGD, {octave:g} octaves below" for octave in MEMBERS.octaves]
    for k, name in enumerate(names):
        table.add_row(name, *(f"{loss[k]:.3f} ({share[k]:.2f})" for loss, share in found))
    console.print(table)


def regret_at_rest(seed: int, steps: int, dim: int) -> list[float]:
    """Return the regret of each decade: x ~ N(0, I), noise 1, weights of length 1 that stay."""
    rng, pool = np.random.default_rng(seed), HedgedFilter()
    target = rng.standard_normal(dim) / dim**0.5
    state, regret, decades = pool.init(dim), 0.0, []
    for step in range(1, steps + 1):
        x = rng.standard_normal((ROWS, dim))
        away = pool.shares(state) @ state["weights"][:, 0] - target
        regret += 0.5 * float(away @ away)
        state = pool.update(state, x, x @ target + rng.standard_normal(ROWS))
        if step in (10**k for k in range(2, 9)):
            decades.append(regret)
            regret = 0.0
    return decades


def rest(seeds: int, steps: int, jobs: int) -> None:
    """Print the regret of each decade over that of the one before."""
    played = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(regret_at_rest)(seed, steps, 16) for seed in range(1000, 1000 + seeds)
    )
    found = np.array(list(track(played, "seeds", seeds, console=console)))
    means = found.mean(axis=0)
    for k in range(1, found.shape[1]):
        ratio = means[k] / means[k - 1]
        # Of a ratio of means, by the delta method.
        error = (found[:, k] - ratio * found[:, k - 1]).std(ddof=1) / seeds**0.5 / means[k - 1]
        console.print(
            f"steps to 10^{k + 2}: {ratio:.3f} ± {error:.3f} of the decade before ({seeds} seeds)"
        )


def _median(step: Callable[[], None], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = perf_counter()
        step()
        times.append(perf_counter() - begin)
    return float(np.median(times))


def speed() -> None:
    """Print what a step of 16 rows costs, forecast and update, and over one filter of the race."""
    from driftrate.race.contestants import Setup
    from driftrate.race.contestants.filters import ForgettingFilter

    rng = np.random.default_rng(0)
    for width in WIDTHS:
        x = np.hstack([rng.standard_normal((ROWS, width)), np.ones((ROWS, 1))])
        y = x @ rng.standard_normal(width + 1) + rng.standard_normal(ROWS)
        pool, filter_ = (
            HedgedFilter(),
            ForgettingFilter(Setup(Model("regression", width + 1, 1), ROWS, 1, 0)),
        )
        state = pool.init(width + 1)
        for _ in range(20):
            state = pool.update(state, x + 0.1 * rng.standard_normal(x.shape), y)

        def ours(state=state, x=x, y=y, pool=pool) -> None:  # type: ignore[no-untyped-def]
            pool.predict(state, x)
            pool.update(state, x, y)

        def one(x=x, y=y, filter_=filter_) -> None:  # type: ignore[no-untyped-def]
            filter_.step(x, y)

        repeats = 20_000 // width
        mine, theirs = _median(ours, repeats), _median(one, repeats)
        console.print(
            f"d = {width}: {1e3 * mine:.3f} ms, {mine / theirs:.1f} times one filter of the race"
        )


def long(steps: int) -> None:
    """Play for ever: collinear, constant and rare features, rows in float32, classes seen late."""
    for classes in (None, 3):
        rng, pool = np.random.default_rng(0), HedgedFilter()
        state = pool.init(6, classes)
        target = rng.standard_normal((6, classes or 1))
        late, total = steps // 2, 0.0
        for step in track(range(steps), f"classes {classes}", console=console):
            x = rng.standard_normal((ROWS, 6)).astype(np.float32)
            x[:, 1], x[:, 2] = x[:, 0], 1.0
            x[:, 3] *= step % 1000 == 0
            scores = x @ target
            if classes is None:
                y = scores[:, 0] + rng.standard_normal(ROWS)
                total += 0.5 * float(((pool.predict(state, x) - y) ** 2).mean())
            else:
                noisy = scores + rng.gumbel(size=scores.shape)
                y = noisy[:, : 2 if step < late else 3].argmax(axis=1)
                total -= float(np.log(pool.predict(state, x)[np.arange(ROWS), y]).mean())
            state = pool.update(state, x, y)
            if (step + 1) % max(steps // 10, 1) == 0:
                own = np.linalg.cond(state["info"].reshape(-1, *state["info"].shape[-2:])).max()
                console.print(
                    f"  step {step + 1:,}: mean loss {total / (step + 1):.4f}, cond {own:.2g}"
                )
        assert all(np.isfinite(one).all() for one in state.values())


def units(seeds: int = 3) -> None:
    """Print errors from 1,000 to 2,000 rows after a change: four features, noise 0.1."""
    from driftrate.sklearn import ShiftRegressor

    changes: dict[str, Callable[[Floats, Floats, int], object]] = {
        "none": lambda x, y, at: None,
        "features / 1000": lambda x, y, at: np.divide(x[at:], 1e3, out=x[at:]),
        "features * 1000": lambda x, y, at: np.multiply(x[at:], 1e3, out=x[at:]),
        "features + 10,000": lambda x, y, at: np.add(x[at:], 1e4, out=x[at:]),
        "one feature + 10,000": lambda x, y, at: np.add(x[at:, 1], 1e4, out=x[at:, 1]),
        "target + 10,000": lambda x, y, at: np.add(y[at:], 1e4, out=y[at:]),
        "ten targets of 10⁹": lambda x, y, at: y[at + 11 : at + 21].fill(1e9),
        "first target of 10⁹": lambda x, y, at: y[:1].fill(1e9),
    }
    for name, change in changes.items():
        shown = []
        for batch in (1, 16, 256):
            squares = []
            for seed in range(seeds):
                rng, at = np.random.default_rng(seed), 6000
                x = rng.standard_normal((at + 2000, 4))
                y = x @ rng.standard_normal(4) + 3.0 + 0.1 * rng.standard_normal(len(x))
                change(x, y, at)
                model = ShiftRegressor(batch_size=batch)
                late = (
                    slice(1000, 2000) if name.startswith("first") else slice(at + 1000, at + 2000)
                )
                for start in range(0, late.stop, batch):
                    part = slice(start, start + batch)
                    if start >= late.start:
                        squares.append((model.predict(x[part]) - y[part]) ** 2)
                    model.partial_fit(x[part], y[part])
            shown.append(f"{np.sqrt(np.concatenate(squares).mean()):.3g}")
        console.print(f"{name}: {', '.join(shown)} in batches of 1, 16, 256")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("held-out", "members", "rest", "speed", "long", "units"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    os.environ["PYTHONSAFEPATH"] = "1"  # the processes that joblib starts import nothing from here
    if options.members:
        print_members(options.jobs)
    elif options.rest:
        rest(options.seeds, options.steps or 100_000, options.jobs)
    elif options.speed:
        speed()
    elif options.units:
        units()
    elif options.long:
        long(options.steps or 10_000_000)
    else:
        if options.held_out:
            note(commit(), LOG)
        losses(HELD_OUT if options.held_out else DEVELOPMENT, options.jobs)


if __name__ == "__main__":
    main()
