"""Networks under shift: the tables of `docs/networks.md`.

    python benchmarks/networks.py --streams development --methods adam,cocob --seeds 0-2 --jobs 2
    python benchmarks/networks.py --report [--markdown docs/networks.md]

Streams are names or kinds: `development`, `held-out` and `fifteen` (real and drawn), `short`,
`tabular`, `digits`, `flipping`, `rest`, `full_rest` (all digits, by download); `plasticity`,
`stationary`, `texts` and `texts_development`. A method is played on its grid; `adam@lr=0.003` is
one setting of it. The data are in $DRIFTRATE_DATA (default ../shared/data); streams that are
missing there are left out, with a message.

Every finished cell is a line of OUT/cells.jsonl, and only what is missing there is played; with
`--again` all of it, and the newest line of a cell counts. A report also reads the cells that travel
with the repository, in benchmarks/cells. Held-out streams, and seeds from 1000 on,
are played with `--held-out` alone, and each such run is noted in benchmarks/networks_log.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from networks_report import Line, report, tables

from driftrate._html import write_whole
from driftrate.errors import DriftrateError
from driftrate.race import canonical, contestants
from driftrate.race.contestants import Setup
from driftrate.race.networks import PROTOCOLS, Protocol, play, protocol
from driftrate.race.networks.digits import folder
from driftrate.race.networks.phases import BATCH
from driftrate.race.networks.suite import DEVELOPMENT, GROUPS, HELD_OUT, HELD_OUT_SEED
from driftrate.race.networks.tabular import tabular

LOG = Path(__file__).with_name("networks_log.md")
CELLS = Path(__file__).with_name("cells")
DRAWN = (*GROUPS["digits"], *GROUPS["flipping"])
KINDS: dict[str, tuple[str, ...]] = {
    **GROUPS,
    "development": (*DEVELOPMENT, *DRAWN),
    "held-out": (*HELD_OUT, *DRAWN),
    "fifteen": (*DEVELOPMENT, *HELD_OUT, *DRAWN),
    "rest": tuple(name for name in PROTOCOLS if name.startswith("rest_")),
    "full_rest": tuple(name for name in PROTOCOLS if name.startswith("full_rest_")),
}
ADAMS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
BASES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
# What is played of a method where no setting is named; others at their default.
GRIDS: dict[str, tuple[dict[str, Any], ...]] = {
    # Under shift in small batches momentum is a fault (arXiv 2601.12238): Adams without it too.
    "adam": (
        *({"lr": lr} for lr in ADAMS),
        *({"beta1": 0.0, "beta2": beta, "lr": lr} for beta in (0.99, 0.999) for lr in ADAMS),
    ),
    "adamw": tuple({"lr": lr} for lr in ADAMS),
    "sgd": tuple({"lr": lr} for lr in (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)),
    "adagrad": tuple({"lr": lr} for lr in (3e-3, 1e-2, 3e-2, 1e-1)),
    "schedule-free adamw": tuple({"lr": lr} for lr in (1e-3, 2.5e-3, 1e-2, 3e-2)),
    "upgd": tuple({"lr": lr} for lr in (1e-2, 3e-2, 1e-1, 3e-1)),
    "adam l2 start": tuple(
        {"lr": lr, "strength": strength}
        for lr in (3e-4, 1e-3, 3e-3)
        for strength in (1e-4, 1e-3, 1e-2)
    ),
    "adam continual backprop": tuple({"lr": lr} for lr in (3e-4, 1e-3, 3e-3)),
    "sgd continual backprop": tuple({"lr": lr} for lr in (1e-2, 3e-2, 1e-1, 3e-1)),
    "adamw warmed": tuple(
        {"beta2": beta, "lr": lr} for beta in (0.95, 0.999) for lr in (3e-4, 1e-3, 3e-3)
    ),
    "muon": tuple(
        {"lr": lr, "momentum": momentum}
        for momentum in (0.8, 0.95)
        for lr in (2.5e-3, 5e-3, 1e-2, 2e-2)
    ),
    "soap": tuple({"beta1": beta, "lr": lr} for beta in (0.8, 0.95) for lr in (1e-3, 3e-3, 1e-2)),
    "MeasuredRate on adam": tuple({"lr": lr} for lr in BASES),
    "MeasuredRate on sgd": tuple({"lr": lr} for lr in BASES),
}


class Job(NamedTuple):
    """One cell: a method at a setting on a stream with a seed."""

    stream: str
    method: str
    setting: str
    seed: int

    @property
    def held_out(self) -> bool:
        """Whether it is not for development."""
        return self.stream in (*HELD_OUT, "texts") or self.seed >= HELD_OUT_SEED


@lru_cache(maxsize=4)
def load(name: str, keep: Path) -> Protocol:
    """Return a stream by its name."""
    if name in PROTOCOLS:
        return protocol(name)
    return tabular(folder() / "streams" / f"{name}.parquet", keep)


def run(job: Job, keep: Path, device: str) -> dict[str, Any]:
    """Play one cell and return its line."""
    import torch

    torch.set_num_threads(1)
    line: dict[str, Any] = {**job._asdict(), "status": "failed", "loss": None, "message": ""}
    begin = perf_counter()
    try:
        stream = load(job.stream, keep)
        setup = Setup(stream.model, BATCH, stream.rows // BATCH, job.seed, device)
        learner: Any = contestants()[job.method].make(job.setting, setup)
        played = play(learner, stream.model.task, stream.draw(job.seed), device=device)
    except Exception as error:  # a rival may raise anything; the others go on
        return {**line, "message": f"{type(error).__name__}: {error}".splitlines()[0]}
    line |= {"status": played.status, "steps": len(played.loss)}
    line["seconds"] = round(perf_counter() - begin, 2)
    if played.status == "ok":
        line |= {"loss": played.mean(), "error": played.mean(of="error")}
        phases = {name: [played.mean(name), played.mean(name, "error")] for name in played.spans}
        line["phases"] = phases if len(phases) > 1 else {}
    return line


def wanted(options: argparse.Namespace) -> Iterator[Job]:
    """Yield the cells that are asked for, the first seed of all before the second of any."""
    known = {*PROTOCOLS, *DEVELOPMENT, *HELD_OUT}
    streams: dict[str, None] = {}
    for name in _split(options.streams):
        found = KINDS.get(name, (name,))
        if unknown := [one for one in found if one not in known]:
            sys.exit(f"unknown stream {unknown[0]!r}: choose from {', '.join([*KINDS, *known])}")
        streams |= dict.fromkeys(found)
    methods: dict[tuple[str, str], None] = {}
    for text in _split(options.methods):
        name, _, told = text.partition("@")
        entry = contestants().get(name)
        if entry is None or "mlp" not in entry.models:
            fit = [one for one, who in contestants().items() if "mlp" in who.models]
            sys.exit(f"unknown method {name!r}: choose from {', '.join(fit)}")
        if reason := entry.available():
            print(f"{name} is left out: {reason}", file=sys.stderr)
            continue
        points = [canonical(point) for point in GRIDS.get(name, ())] or ["default"]
        if told:
            pairs = (pair.partition("=") for pair in told.split("+"))
            points = [canonical({key: json.loads(value) for key, _, value in pairs})]
        methods |= {(name, point): None for point in points}
    for seed, stream, (method, setting) in product(_seeds(options.seeds), streams, methods):
        yield Job(stream, method, setting, seed)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _seeds(text: str) -> list[int]:
    found: list[int] = []
    for part in _split(text):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def present(jobs: Sequence[Job], keep: Path) -> list[Job]:
    """Return the cells whose stream is there, which is prepared once for all processes.

    Long streams come first, so that no process is left alone with one at the end.
    """
    rows = {}
    for name in dict.fromkeys(job.stream for job in jobs):
        try:
            rows[name] = load(name, keep).rows
        except DriftrateError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    there = [job for job in jobs if job.stream in rows]
    return sorted(there, key=lambda job: (job.seed, -rows[job.stream]))


def read(path: Path) -> dict[Job, Line]:
    """Return the newest line of every cell."""
    if not path.exists():
        return {}
    lines = (json.loads(text) for text in path.read_text(encoding="utf-8").splitlines() if text)
    return {Job(*(line[key] for key in Job._fields)): line for line in lines}


def commit() -> str:
    """Return the commit that is played, with a word if the tree has other changes."""

    def git(*words: str) -> str:
        call = ["git", "-C", str(LOG.parent), *words]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    try:
        found = git("rev-parse", "HEAD")
        changed = [
            line for line in git("status", "--porcelain").splitlines() if "_log.md" not in line
        ]
    except OSError:
        found, changed = "", []
    return f"{found or 'unknown'}{' with changes' * bool(changed)}"


def note(which: str, path: Path = LOG) -> None:
    """Append a line on a run on held-out data to a log."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    command = " ".join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    with path.open("a", encoding="utf-8") as log:
        log.write(f"| {when} | {which} | `{command}` |\n")


def work(jobs: Sequence[Job], options: argparse.Namespace, which: str) -> None:
    """Play cells in processes and append each to the store when it is done."""
    # More threads would fight over the same cores; read when a process loads its packages, of which
    # none lies in the working folder.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONSAFEPATH")
    os.environ |= dict.fromkeys(names, "1")
    keep, begin = options.out / "streams", perf_counter()
    context = multiprocessing.get_context("spawn")
    with (
        (options.out / "cells.jsonl").open("a", encoding="utf-8") as store,
        ProcessPoolExecutor(options.jobs, mp_context=context) as pool,
    ):
        running = [pool.submit(run, job, keep, options.device) for job in jobs]
        for count, done in enumerate(as_completed(running), 1):
            line = {**done.result(), "commit": which}
            store.write(json.dumps(line) + "\n")
            store.flush()
            shown = line["status"] if line["loss"] is None else f"{line['loss']:.4f}"
            told = f"{line['stream']} {line['method']} {line['setting']} seed {line['seed']}"
            clock = f"{perf_counter() - begin:.0f} s"
            print(f"{count}/{len(jobs)} {clock} {told}: {shown} {line['message']}", flush=True)


def put(path: Path, found: Mapping[str, str]) -> None:
    """Write tables between their marks on a page; a table without marks there is left out."""
    page = path.read_text(encoding="utf-8")
    for name, text in found.items():
        mark = f"<!-- {name} -->"
        parts = page.split(mark)
        if len(parts) == 3:
            page = f"{parts[0]}{mark}\n\n{text}\n\n{mark}{parts[2]}"
    write_whole(path, page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", default="", help="names or kinds, with commas between")
    parser.add_argument("--methods", default="", help="with commas between; adam@lr=0.003")
    parser.add_argument("--seeds", default="0", help="such as 0-2 or 0,5")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--again", action="store_true", help="play what is stored, too")
    parser.add_argument("--held-out", action="store_true", help="may play what is held out")
    parser.add_argument("--commit", help="the commit that is played, where git cannot tell")
    parser.add_argument("--out", type=Path, default=Path("out/networks"))
    parser.add_argument("--report", action="store_true", help="report all that is stored")
    parser.add_argument("--markdown", type=Path, help="write the tables into this page")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    stored = read(options.out / "cells.jsonl")
    jobs = list(wanted(options))
    if any(job.held_out for job in jobs) and not options.held_out:
        named = next(job for job in jobs if job.held_out)
        sys.exit(
            f"{named.stream} with seed {named.seed} is held out: say --held-out, once, at last"
        )
    todo = jobs if options.again else [job for job in jobs if job not in stored]
    todo = present(todo, options.out / "streams")
    which = options.commit or commit()
    if any(job.held_out for job in todo):
        note(which)
    if todo:
        work(todo, options, which)
        stored = read(options.out / "cells.jsonl")
    # What was asked for is reported beside the reference that it is measured by.
    asked = {(job.method, job.setting) for job in jobs}
    if options.report:
        for name in ("fifteen", "texts"):
            stored = read(CELLS / f"{name}.jsonl") | stored
    reference = {("adam", canonical(point)) for point in GRIDS["adam"]}
    names = {job.stream for job in jobs}
    lines = [
        line
        for job, line in stored.items()
        if options.report
        or ((job.method, job.setting) in asked | reference and job.stream in names)
    ]
    print(report(lines))
    if options.markdown is not None:
        put(options.markdown, tables(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
