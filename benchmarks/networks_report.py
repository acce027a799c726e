"""The tables of `benchmarks/networks.py`, from its stored lines.

Losses are averaged over seeds, then the best setting is taken. Errors are standard errors over
seeds, of paired logarithms: both methods saw the same rows and the same first weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from driftrate.race import contestants
from driftrate.race.networks.suite import DEVELOPMENT, GROUPS, HELD_OUT, HELD_OUT_SEED

Line = dict[str, Any]
Entry = tuple[str, str]  # a method and its setting
Values = dict[str, dict[Entry, dict[int, float]]]  # by stream, entry and seed

REFERENCE = "adam"
FIFTEEN = tuple(name for names in GROUPS.values() for name in names)
_REST = ("labels", "pixels", "gradual", "return", "noise")
# An optimizer alone is good at a rate with at most this many times its best rate's loss.
_GOOD = 1.5
ATTACHED = "MeasuredRate on"
_LONG = 1000  # steps
_PLASTIC_RIVALS = ("adam", "upgd", "adam l2 start")


class Ratio(NamedTuple):
    """A ratio of mean losses, and the logarithms of the ratios of single seeds."""

    value: float
    logs: dict[int, float]


def side(line: Line) -> str:
    """Return whether a line is of development or held out."""
    if line["stream"] in (*HELD_OUT, "texts"):
        return "held out"
    late = line["seed"] >= HELD_OUT_SEED and line["stream"] not in DEVELOPMENT
    return "held out" if late else "development"


def values(lines: Iterable[Line], read: Callable[[Line], float | None]) -> Values:
    """Return what is read of each line; infinite where a line has no result."""
    found: Values = {}
    for line in lines:
        value = read(line) if line["loss"] is not None else math.inf
        if value is not None:
            entries = found.setdefault(line["stream"], {})
            entries.setdefault((line["method"], line["setting"]), {})[line["seed"]] = value
    return found


def phase(name: str, place: int) -> Callable[[Line], float | None]:
    """Return a reader of a phase's loss (place 0) or error (place 1)."""

    def read(line: Line) -> float | None:
        pair = line.get("phases", {}).get(name)
        return None if pair is None else float(pair[place])

    return read


def common(entries: Sequence[dict[int, float]]) -> list[int]:
    """Return the seeds that all have."""
    return sorted(set.intersection(*(set(one) for one in entries))) if entries else []


def best(entries: Mapping[Entry, dict[int, float]], seeds: Sequence[int]) -> Entry:
    """Return the entry with the lowest mean over seeds."""
    return min(entries, key=lambda entry: _mean(entries[entry], seeds))


def _mean(of: dict[int, float], seeds: Sequence[int]) -> float:
    return float(np.mean([of[seed] for seed in seeds]))


def _of(entries: Mapping[Entry, dict[int, float]], row: str) -> dict[Entry, dict[int, float]]:
    """Return the entries of a row: one, or all of a method for its best in hindsight."""
    return {one: seeds for one, seeds in entries.items() if row in (label(one), hindsight(one[0]))}


def ratio(
    entries: Mapping[Entry, dict[int, float]], row: str, rivals: Mapping[Entry, dict[int, float]]
) -> Ratio | None:
    """Return a row's loss over that of the best of the rivals; None where there is none."""
    own = _of(entries, row)
    seeds = common([*own.values(), *rivals.values()])
    if not own or not rivals or not seeds:
        return None
    one, two = own[best(own, seeds)], rivals[best(rivals, seeds)]
    logs = {seed: math.log(one[seed] / two[seed]) for seed in seeds}
    return Ratio(_mean(one, seeds) / _mean(two, seeds), logs)


def label(entry: Entry) -> str:
    """Return an entry in words: `adam 0.003`."""
    method, setting = entry
    if setting == "default":
        return method
    told = json.loads(setting)
    if list(told) == ["lr"]:
        return f"{method} {told['lr']:g}"
    return f"{method} {' '.join(f'{key} {value}' for key, value in told.items())}"


def hindsight(method: str) -> str:
    """Return what the best setting of a method is called."""
    return f"best {method} in hindsight"


def rows_of(found: Values) -> list[str]:
    """Return the names of all rows: each entry, and the best of each method that has several."""
    entries = list(dict.fromkeys(entry for stream in found.values() for entry in stream))
    methods = [method for method, _ in entries]
    grids = [hindsight(name) for name in dict.fromkeys(methods) if methods.count(name) > 1]
    return [*map(label, entries), *grids]


def shown(logs: Sequence[dict[int, float]], value: float) -> str:
    """Return a ratio with its standard error over the seeds that all have."""
    seeds = common(logs)
    if len(seeds) < 2 or not math.isfinite(value):
        return f"{value:.3f}"
    means = [float(np.mean([one[seed] for one in logs])) for seed in seeds]
    error = value * float(np.std(means, ddof=1)) / math.sqrt(len(seeds))
    return f"{value:.3f} ± {error:.3f}"


def geometric(ratios: Sequence[Ratio]) -> str:
    """Return the geometric mean of ratios, with its error."""
    if not ratios:
        return "–"
    logs = [math.log(one.value) for one in ratios]
    return shown([one.logs for one in ratios], math.exp(float(np.mean(logs))))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, its columns in line."""
    cells = [list(heads), *map(list, rows)]
    wide = [max(len(row[place]) for row in cells) for place in range(len(heads))]
    cells.insert(1, ["-" * width for width in wide])
    lines = (zip(row, wide, strict=True) for row in cells)
    return "\n".join(f"| {' | '.join(c.ljust(w) for c, w in line)} |" for line in lines)


def fifteen(lines: Sequence[Line]) -> tuple[str, str]:
    """Return the means over the streams, and every stream: losses over the best Adam's."""
    found = values(lines, lambda line: float(line["loss"]))
    streams = [name for name in FIFTEEN if name in found]
    means, each = [], []
    for row in rows_of(found):
        ratios = {}
        for name in streams:
            adams = _of(found[name], hindsight(REFERENCE))
            if (one := ratio(found[name], row, adams)) is not None:
                ratios[name] = one
        if not ratios:
            continue
        top = max(ratios, key=lambda name: ratios[name].value)
        groups = [geometric([ratios[n] for n in g if n in ratios]) for g in GROUPS.values()]
        count = f"{len(ratios)} of {len(streams)}"
        seeds = min(len(one.logs) for one in ratios.values())
        worst = f"{ratios[top].value:.3f} {top}"
        mean = float(np.mean([math.log(one.value) for one in ratios.values()]))
        cells = [row, geometric(list(ratios.values())), worst, *groups, count, str(seeds)]
        means.append((len(ratios) < len(streams), mean, cells))
        by_stream = [geometric([ratios[n]]) if n in ratios else "–" for n in streams]
        each.append((len(ratios) < len(streams), mean, [row, *by_stream]))
    heads = ["over the best Adam", "mean", "worst", *GROUPS, "streams", "seeds"]
    ordered = [cells for *_, cells in sorted(means, key=lambda one: one[:2])]
    every = [cells for *_, cells in sorted(each, key=lambda one: one[:2])]
    return table(heads, ordered), table(["over the best Adam", *streams], every)


def grid_ends(lines: Sequence[Line]) -> list[str]:
    """Return a warning for every grid whose end wins: on a stream, or on a figure of its table."""
    told = []
    for figure, read in _SCORED.items():
        scored = (line for line in lines if line["loss"] is not None)
        own = {line["stream"] for line in scored if read(line) is not None}
        found = values((line for line in lines if line["stream"] in own), read)
        for method in dict.fromkeys(line["method"] for line in lines):
            ends: dict[str, list[str]] = {}
            for stream, entries in found.items():
                for end in _ends({one: s for one, s in entries.items() if one[0] == method}):
                    ends.setdefault(end, []).append(stream)
            for end, streams in ends.items():
                where = f"{figure} of " * bool(figure) + ", ".join(streams)
                told.append(f"{method}: the end of its grid, {end}, wins on {where}")
    return told


def _whole(line: Line) -> float | None:
    """Return the loss of a stream whose phases are no figures of their own."""
    return None if "after" in line.get("phases", {}) else float(line["loss"])


_SCORED = {"": _whole, **{name: phase(name, 0) for name in ("rest", "held out", "after")}}


def _ends(entries: Mapping[Entry, dict[int, float]]) -> list[str]:
    """Return the numbers of one method's best setting that are the ends of their grids."""
    seeds = common(list(entries.values()))
    settings = {one: json.loads(one[1]) if one[1] != "default" else {} for one in entries}
    if not seeds:
        return []
    winner, found = settings[best(entries, seeds)], []
    for name, value in winner.items():
        known = {one[name] for one in settings.values() if isinstance(one.get(name), int | float)}
        if len(known) > 1 and value in (min(known), max(known)):
            found.append(f"{name} {value:g}")
    return found


def compared(
    lines: Sequence[Line],
    columns: Mapping[str, tuple[str, Callable[[Line], float | None]]],
    rivals: Callable[[Entry], bool],
) -> str:
    """Return a table of figures, each with its ratio to the best of the rivals.

    Args:
        lines: The stored lines.
        columns: The stream of each column, and what is read of its lines.
        rivals: Whether an entry is one of those that the others are compared with.
    """
    found = {head: values(lines, read).get(name, {}) for head, (name, read) in columns.items()}
    cells = []
    for row in rows_of(found):
        if row.startswith("best "):
            continue  # one setting must do for all columns
        line, first = [row], math.inf
        for entries in found.values():
            own = _of(entries, row)
            others = {one: seeds for one, seeds in entries.items() if rivals(one)}
            # A setting that was looked at with fewer seeds is shown, but is no reference.
            most = max(map(len, others.values()), default=0)
            others = {one: seeds for one, seeds in others.items() if len(seeds) == most}
            over = ratio(entries, row, others)
            if not own:
                line.append("–")
                continue
            (seeds,) = own.values()
            value = _mean(seeds, list(seeds))
            first = min(first, value) if len(line) == 1 else first
            line.append(f"{value:.4f}" + ("" if over is None else f" ({geometric([over])})"))
        cells.append((first, line))
    return table(["", *found], [line for _, line in sorted(cells, key=lambda one: one[0])])


def _rival(entry: Entry) -> bool:
    return not contestants()[entry[0]].ours


def rest(lines: Sequence[Line], full: str = "") -> str:
    """Return the table of a long rest and what comes after it; losses."""
    columns = {
        "at rest": (f"{full}rest_labels", phase("rest", 0)),
        "held out": (f"{full}rest_labels", phase("held out", 0)),
        **{f"after: {name}": (f"{full}rest_{name}", phase("after", 0)) for name in _REST},
    }
    return compared(lines, columns, _rival)


def plasticity(lines: Sequence[Line]) -> str:
    """Return the table of 200 tasks; errors in blocks of 20."""
    blocks = dict.fromkeys(
        name for line in lines if line["stream"] == "plasticity" for name in line.get("phases", {})
    )
    columns = {name: ("plasticity", phase(name, 1)) for name in blocks}
    return compared(lines, columns, lambda entry: entry[0] in _PLASTIC_RIVALS)


def stationary(lines: Sequence[Line]) -> str:
    """Return the table of 30 passes; the error on what was not seen."""
    columns = {"error, held out": ("stationary", phase("held out", 1))}
    columns["loss, held out"] = ("stationary", phase("held out", 0))
    return compared(lines, columns, lambda entry: entry[0] == REFERENCE)


def texts(lines: Sequence[Line]) -> str:
    """Return the table of the transformer; bits a byte."""

    def bits(read: Callable[[Line], float | None]) -> Callable[[Line], float | None]:
        def scaled(line: Line) -> float | None:
            value = read(line)
            return None if value is None else value / math.log(2.0)

        return scaled

    columns = {}
    for name in {"texts", "texts_development"} & {line["stream"] for line in lines}:
        columns[f"{name}: all"] = (name, bits(lambda line: float(line["loss"])))
        columns[f"{name}: second half"] = (name, bits(phase("second half", 0)))
    return compared(lines, columns, _rival)


def attached(lines: Sequence[Line]) -> str:
    """Return the table of optimizers with a rate attached, over the same ones alone.

    Where the optimizer alone has at most 1.5 times the loss of its best rate, and everywhere; the
    bound is one-sided, of Student's t over seeds. Streams on which it diverges alone are counted.
    """
    found, rows = values(lines, lambda line: float(line["loss"])), []
    for method in ("sgd", "adam"):
        settings = {
            setting for stream in found.values() for name, setting in stream if name == method
        }
        every: list[_Pairs] = []
        for setting in sorted(settings, key=lambda text: json.loads(text).get("lr", 0.0)):
            pairs = _pairs(found, (method, setting))
            if pairs.everywhere or pairs.lost:
                rows.append(_attached_row(label((method, setting)), pairs))
                every.append(pairs)
        if len(every) > 1:
            together = _Pairs(
                {key: one for pairs in every for key, one in pairs.good.items()},
                {key: one for pairs in every for key, one in pairs.everywhere.items()},
                sum(pairs.lost for pairs in every),
            )
            rows.append(_attached_row(f"{method}, all of these", together))
    heads = ["attached over alone", "where good alone", "upper 95 %", "worst", "everywhere"]
    return table([*heads, "good alone", "diverged alone"], rows)


class _Pairs(NamedTuple):
    """Ratios of attached to alone, by what each is of."""

    good: dict[str, Ratio]
    everywhere: dict[str, Ratio]
    lost: int


def _pairs(found: Values, alone: Entry) -> _Pairs:
    beside = (f"{ATTACHED} {alone[0]}", alone[1])
    pairs = _Pairs({}, {}, 0)
    for name in FIFTEEN:
        entries = found.get(name, {})
        if alone not in entries or beside not in entries:
            continue
        if not all(map(math.isfinite, entries[alone].values())):
            pairs = pairs._replace(lost=pairs.lost + 1)
            continue
        one = ratio(entries, label(beside), {alone: entries[alone]})
        own = ratio(entries, label(alone), _of(entries, hindsight(alone[0])))
        if one is not None and own is not None:
            key = f"{name} {label(alone)}"
            pairs.everywhere[key] = one
            if own.value <= _GOOD:
                pairs.good[key] = one
    return pairs


def _attached_row(name: str, pairs: _Pairs) -> list[str]:
    good, all_ = pairs.good, pairs.everywhere
    top = max(good, key=lambda key: good[key].value, default="")
    # A row of one rate need not say it again.
    worst = f"{good[top].value:.3f} {top.removesuffix(f' {name}')}" if top else "–"
    means = [geometric(list(good.values())), _bound(list(good.values())), worst]
    count = f"{len(good)} of {len(all_)}"
    return [name, *means, geometric(list(all_.values())), count, str(pairs.lost)]


def constant(lines: Sequence[Line]) -> str:
    """Return the table of a rate attached to SGD, over SGD at its best constant rate in hindsight.

    What has 1,000 steps and what has fewer are apart: the first steps are a large part of the rest.
    """
    found = values(lines, lambda line: float(line["loss"]))
    rivals = hindsight("sgd")
    steps: dict[str, int] = {}
    for line in lines:
        steps[line["stream"]] = max(steps.get(line["stream"], 0), line.get("steps") or 0)
    rows = []
    for name in FIFTEEN:
        entries = found.get(name, {})
        own = [entry for entry in entries if entry[0] == f"{ATTACHED} sgd"]
        for entry in own:
            one = ratio(entries, label(entry), _of(entries, rivals))
            if one is not None:
                rates = _of(entries, rivals)
                seeds = common([*rates.values(), entries[entry]])
                rows.append((entry, name, one, label(best(rates, seeds)), steps[name]))
    cells = []
    for entry in dict.fromkeys(row[0] for row in rows):
        mine = [row for row in rows if row[0] == entry]
        for head, kind in (
            ("all of 1,000 steps", [row for row in mine if row[4] >= _LONG]),
            ("short", [row for row in mine if row[1] in GROUPS["short"]]),
        ):
            cells.append([label(entry), head, geometric([row[2] for row in kind]), "", ""])
        cells += [
            [label(entry), name, geometric([one]), rate.removeprefix("sgd "), f"{count:,}"]
            for _, name, one, rate, count in mine
        ]
    return table(["", "stream", "over the best sgd", "its rate", "steps"], cells)


def _bound(ratios: Sequence[Ratio]) -> str:
    from scipy.stats import t

    seeds = common([one.logs for one in ratios])
    if len(seeds) < 2:
        return "–"
    middle = float(np.mean([math.log(one.value) for one in ratios]))
    if not math.isfinite(middle):
        return "inf"
    means = [float(np.mean([one.logs[seed] for one in ratios])) for seed in seeds]
    error = float(np.std(means, ddof=1)) / math.sqrt(len(seeds))
    return f"{math.exp(middle + float(t.ppf(0.95, len(seeds) - 1)) * error):.3f}"


_OTHERS: dict[str, Callable[[Sequence[Line]], str]] = {
    "rest": rest,
    "full_rest": partial(rest, full="full_"),
    "plasticity": plasticity,
    "stationary": stationary,
    "texts": texts,
}


def tables(lines: Sequence[Line]) -> dict[str, str]:
    """Return every table that the lines have something for, by the name of its mark."""
    found = {}
    for which in ("development", "held out"):
        mine = [line for line in lines if side(line) == which]
        mark = which.replace(" ", "-")
        if any(line["stream"] in FIFTEEN for line in mine):
            found[f"{mark}-means"], found[f"{mark}-streams"] = fifteen(mine)
        if any(line["method"].startswith(ATTACHED) for line in mine):
            found[f"{mark}-attached"] = attached(mine)
            found[f"{mark}-constant"] = constant(mine)
        for name, make in _OTHERS.items():
            if any(line["stream"].startswith(name) for line in mine):
                found[f"{mark}-{name}"] = make(mine)
    # What is asked of an attached rate is asked of all streams, and of the same seeds on each.
    late = [line for line in lines if line["seed"] >= HELD_OUT_SEED and line["stream"] in FIFTEEN]
    if any(line["method"].startswith(ATTACHED) for line in late):
        found["fifteen-attached"], found["fifteen-constant"] = attached(late), constant(late)
    return found


def report(lines: Sequence[Line]) -> str:
    """Return all tables and warnings as text."""
    parts = [f"## {name}\n\n{text}" for name, text in tables(lines).items()]
    warnings = [
        f"warning ({which}): {text}; extend it"
        for which in ("development", "held out")
        for text in grid_ends([line for line in lines if side(line) == which])
    ]
    lost = [line for line in lines if line["loss"] is None]
    warnings += [
        f"no result: {label((one['method'], one['setting']))} on {one['stream']}, seed"
        f" {one['seed']}: {one['status']} {one['message']}"
        for one in lost
    ]
    commits = sorted({str(line["commit"]) for line in lines})
    warnings += [f"played at {len(commits)} commits: {', '.join(commits)}"] * (len(commits) > 1)
    return "\n\n".join([*parts, "\n".join(warnings)])
