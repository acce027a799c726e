"""Ten real streams and ten drawn ones, every contestant, and the tables of `docs/benchmark.md`.

    python benchmarks/race.py [--out out/race] [--jobs 2] [--defaults-only] [--write PAGE]
                              [--methods "sgd,HedgedSGD"] [--only real|drawn]
                              [--batch 16] [--rows 4000] [--scale plain]

With `--batch 1` every method is played with batches of 1, so that none wins by taking 16 steps
where others take one; `--rows` plays the first rows of each stream alone. Such a race has a folder
of its own, and `--write`, in a race with batches of 16, puts its mean ranks into a column.
Streams are on the plain scale, with which the tables are made; `--scale robust` is the default of
`driftrate race`, and has a folder of its own too.
The real streams are Parquet files in the folder `streams` of $DRIFTRATE_DATA (default
../shared/data); missing ones are left out, with a message. A stopped race resumes where it was.
Exit code 1 if a target that was set beforehand is missed; a race of only some methods, of other
batches, of some rows or on another scale is not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from time import perf_counter

from rich.console import Console

from driftrate._html import write_whole
from driftrate.race.cell import SCALES
from driftrate.race.leaderboard import CONSTANT, FLAGSHIP, Leaderboard
from driftrate.race.markdown import Singles, markdown
from driftrate.race.run import race
from driftrate.race.settings import Race

REAL = (
    "elec2", "noaa_weather", "covertype60k", "beijing_pm25", "bike_hourly",
    "metro_traffic", "usenet1", "keystroke", "airquality_co", "powersupply",
)  # fmt: skip
DRAWN = (
    "synthetic:standstill,dim=16,steps=1000",
    "synthetic:standstill,dim=16,steps=1000,loss=logistic",
    "synthetic:spiral,dim=2,steps=1000,hold=8",
    "synthetic:spiral,dim=128,steps=1000,hold=8",
    "synthetic:bursty,dim=16,steps=1000",
    "synthetic:bursty,dim=16,steps=1000,loss=logistic,size=3",
    "synthetic:walk,dim=16,steps=1000",
    "synthetic:walk,dim=16,steps=1000,loss=logistic",
    "synthetic:smooth,dim=16,steps=1000",
    "synthetic:smooth,dim=64,steps=1000,noise=1.0",
)
SEEDS = 3  # of drawn streams; a file has one order
FIRST_ORDER = "HedgedSGD"
STATIONARY, DECAYS = "metro_traffic", ("sgd 1/t", "sgd 1/sqrt(t)")
WANTED_WINS, WANTED_RATIO = 6, 1.05


def judge(board: Leaderboard) -> dict[str, bool]:
    """Return whether each target that was set beforehand for the real streams is met."""
    found: dict[str, bool] = {}
    for name, first_order in ((FLAGSHIP, False), (FIRST_ORDER, True)):
        placings = board.placings(first_order=first_order)
        leaders = [one.method for one in placings if one.mean_rank == placings[0].mean_rank]
        kind = "first-order methods" if first_order else "all methods"
        text = f"{name} has the best mean rank of {kind} at one setting: {', '.join(leaders)}"
        found[f"{text} ({placings[0].mean_rank:.2f})"] = name in leaders
    wins = board.against_constant(FLAGSHIP)
    if wins is not None:
        text = f"{FLAGSHIP} beats the best constant rate on {wins.won} of {wins.streams}"
        found[text] = wins.won >= WANTED_WINS
    if STATIONARY in board.streams:
        best = {row.method: row for row in board.of(STATIONARY, "best")}
        rivals = [best[name].loss for name in DECAYS if name in best]
        losses = [loss for loss in rivals if loss is not None]
        ours = next(row.loss for row in board.of(STATIONARY) if row.method == FLAGSHIP)
        if losses and ours is not None:
            ratio = ours / min(losses)
            constant = best[CONSTANT].loss
            text = f"{FLAGSHIP} on {STATIONARY}: {ratio:.3f} times the best decaying rate's loss"
            if constant is not None:
                text += f" (best constant rate: {constant / min(losses):.3f})"
            found[text] = ratio <= WANTED_RATIO
    return found


def put(path: Path, name: str, text: str) -> None:
    """Write a table between its two marks on a page."""
    mark = f"<!-- {name} -->"
    page = path.read_text(encoding="utf-8")
    parts = page.split(mark)
    if len(parts) != 3:
        sys.exit(f"{path} needs {mark} twice, has it {len(parts) - 1} times")
    write_whole(path, f"{parts[0]}{mark}\n{text}{mark}{parts[2]}")


def singles(folder: Path) -> Singles | None:
    """Return what a race with batches of 1 said; None where there was none."""
    table = folder / "leaderboard.json"
    if not table.exists():
        return None
    rows = [row for row in json.loads(table.read_text("utf-8")) if row["column"] == "default"]
    # Methods that compare the rows of a batch cannot play at all, and have no rank.
    ranks: dict[str, list[float]] = {row["method"]: [] for row in rows if row["status"] == "ok"}
    for row in rows:
        if row["method"] in ranks:
            ranks[row["method"]].append(row["rank"])
    return Singles(
        ranks={method: sum(found) / len(found) for method, found in ranks.items()},
        rows=max(row["steps"] for row in rows),
        streams=len({row["stream"] for row in rows}),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/race"))
    parser.add_argument("--jobs", type=int, default=Race.jobs)
    parser.add_argument("--defaults-only", action="store_true")
    parser.add_argument("--methods", default="", help="with commas between; all if none")
    parser.add_argument("--only", choices=("real", "drawn"))
    parser.add_argument("--batch", type=int, default=Race.batch)
    parser.add_argument("--rows", type=int, help="the first of each stream; all if none")
    parser.add_argument("--scale", choices=SCALES, default="plain")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    usual = (options.batch, options.rows, options.scale) == (Race.batch, None, "plain")
    if options.write is not None and not usual:
        parser.error("the tables are of whole streams in batches of 16 on the plain scale")
    console = Console()
    data = Path(os.environ.get("DRIFTRATE_DATA", "../shared/data")) / "streams"
    there = [data / f"{name}.parquet" for name in REAL if (data / f"{name}.parquet").exists()]
    methods = [name.strip() for name in options.methods.split(",") if name.strip()]
    common = {
        "grid": not options.defaults_only,
        "drift": False,
        "jobs": options.jobs,
        "methods": methods,
        "batch": options.batch,
        "scale": options.scale,
        "rows": options.rows,
    }
    races = {"drawn": Race(DRAWN, seeds=SEEDS, **common)}
    if len(there) < len(REAL):
        console.print(f"{len(REAL) - len(there)} of {len(REAL)} real streams are not in {data}")
    if there:
        races = {"real": Race([str(path) for path in there], target="y", **common)} | races
    met: dict[str, bool] = {}
    for name, settings in races.items():
        if options.only not in (None, name):
            continue
        begin = perf_counter()
        batch = f"-{options.batch}" * (options.batch != Race.batch)
        out = options.out / f"{name}{batch}{'-robust' * (options.scale == 'robust')}"
        board = race(settings, out)
        console.print(f"{name}: {perf_counter() - begin:.0f} s, {out}/index.html")
        if options.write is not None:
            table = markdown(board, singles(options.out / f"{name}-1"))
            put(options.write, name, f"\n{table}\n")
        if name == "real" and usual and not methods:
            met = judge(board)
    for text, good in met.items():
        console.print(f"{'met' if good else 'MISSED'}: {text}", highlight=False)
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
