"""The tables of benchmarks/networks.py, from lines whose ratios are known; and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def report():
    place = spec_from_file_location("networks_report", FOLDER / "networks_report.py")
    module = module_from_spec(place)
    place.loader.exec_module(module)
    return module


def line(stream, method, loss, seed=0, lr=None, **more):
    setting = "default" if lr is None else f'{{"lr":{lr}}}'
    status = "ok" if loss is not None else "diverged"
    told = {"status": status, "loss": loss, "message": "", "commit": "ab12", "phases": {}}
    return {"stream": stream, "method": method, "setting": setting, "seed": seed, **told, **more}


ADAM = [
    *(line("elec2", "adam", loss, seed, 0.001) for seed, loss in enumerate((0.5, 1.5))),
    *(line("elec2", "adam", loss, seed, 0.01) for seed, loss in enumerate((1.4, 0.4))),
    *(line("labels_2500", "adam", 2.0, seed, lr) for seed in (0, 1) for lr in (0.001, 0.01)),
]


def cells(table, row):
    found = next(one for one in table.splitlines() if one.startswith(f"| {row} "))
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def test_seeds_are_averaged_before_the_best_rate_is_taken(report):
    """The best of each seed would be 0.45; the rate that is best on average has 0.9."""
    ours = [
        line(stream, "cocob", 0.72, seed) for stream in ("elec2", "labels_2500") for seed in (0, 1)
    ]
    means, each = report.fifteen([*ADAM, *ours])
    assert cells(each, "cocob") == ["0.800 ± 0.501", "0.360 ± 0.000"]
    mean, worst, short, tabular, digits, flipping, streams, seeds = cells(means, "cocob")
    # The square root of 0.8 times 0.36; paired over seeds, half the error of the logarithm.
    logs = np.log([0.72 / 1.4, 0.72 / 0.4]) / 2
    wanted = 0.8**0.5 * 0.6
    assert mean == f"{wanted:.3f} ± {wanted * logs.std(ddof=1) / 2**0.5:.3f}"
    assert worst == "0.800 elec2"
    assert (short, tabular, digits, flipping) == ("–", "0.800 ± 0.501", "0.360 ± 0.000", "–")
    assert (streams, seeds) == ("2 of 2", "2")
    assert cells(means, "best adam in hindsight")[0] == "1.000 ± 0.000"


def test_a_method_that_diverges_has_no_mean(report):
    means, _ = report.fifteen([*ADAM, line("elec2", "sgd", None, 0), line("elec2", "sgd", 1.0, 1)])
    assert cells(means, "sgd")[0] == "inf"


def test_the_end_of_a_grid_is_told(report):
    told = report.grid_ends(ADAM)
    assert told == ["adam: the end of its grid, lr 0.01, wins on elec2",
                    "adam: the end of its grid, lr 0.001, wins on labels_2500"]  # fmt: skip
    middle = [*ADAM, *(line("elec2", "adam", 9.0, seed, 0.1) for seed in (0, 1))]
    assert report.grid_ends([one for one in middle if one["stream"] == "elec2"]) == []


def test_the_end_of_a_grid_is_told_of_every_number_and_figure(report):
    def played(lr, strength, after):
        setting = f'{{"lr":{lr},"strength":{strength}}}'
        phases = {"rest": [0.2 + lr, 0.1], "after": [after, 0.2]}
        return line("rest_labels", "adam l2 start", 1.0, setting=setting, phases=phases)

    grid = [played(lr, s, 0.9) for lr in (0.001, 0.003, 0.01) for s in (0.001, 0.01)]
    lost = line("rest_labels", "adam l2 start", None, setting='{"lr":0.1,"strength":0.01}')
    told = report.grid_ends([*grid, played(0.003, 0.1, 0.5), lost])
    assert [one.removeprefix("adam l2 start: the end of its grid, ") for one in told] == [
        "lr 0.001, wins on rest of rest_labels",
        "strength 0.001, wins on rest of rest_labels",
        "strength 0.1, wins on after of rest_labels",
    ]


def test_development_and_held_out_are_apart(report):
    late = [line("labels_2500", "adam", 1.0, 1000, 0.001), line("usenet1", "adam", 1.0, 0, 0.001)]
    early = line("elec2", "adam", 1.0, 1000, 0.001)
    assert [report.side(one) for one in late] == ["held out"] * 2
    assert report.side(early) == "development"
    found = report.tables([*ADAM, *late])
    assert set(found) == {
        "development-means", "development-streams", "held-out-means", "held-out-streams"
    }  # fmt: skip
    assert "usenet1" in found["held-out-streams"]
    assert "usenet1" not in found["development-streams"]


def test_rest_and_after_are_over_the_best_rival(report):
    phases = {"rest": [0.2, 0.1], "held out": [0.3, 0.1], "after": [0.8, 0.2]}
    ours = {"rest": [0.3, 0.1], "held out": [0.3, 0.1], "after": [0.4, 0.2]}
    table = report.rest([
        line("rest_labels", "adam", 1.0, lr=0.001, phases=phases),
        line("rest_labels", "Pursuit", 1.0, phases=ours),
    ])  # fmt: skip
    assert cells(table, "Pursuit")[:3] == ["0.3000 (1.500)", "0.3000 (1.000)", "0.4000 (0.500)"]
    assert cells(table, "adam 0.001")[2:4] == ["0.8000 (1.000)", "–"]


def test_attached_is_measured_where_the_optimizer_alone_is_good(report):
    def pair(stream, lr, alone, beside):
        name = "MeasuredRate on adam"
        both = [line(stream, "adam", alone * (1 + s), s, lr) for s in (0, 1)]
        return [*both, *(line(stream, name, beside * (1 + s), s, lr) for s in (0, 1))]

    table = report.attached([
        *pair("elec2", 0.001, 1.0, 1.1), *pair("elec2", 0.01, 1.6, 0.8),
        *pair("flipping", 0.001, 1.4, 1.4), *pair("flipping", 0.01, 1.0, 1.0),
    ])  # fmt: skip
    both = "1.049 ± 0.000"
    assert cells(table, "adam 0.001") == [both, "1.049", "1.100 elec2", both, "2 of 2", "0"]
    small = cells(table, "adam 0.01")
    assert small[0] == "1.000 ± 0.000"
    assert small[2:] == ["1.000 flipping", "0.707 ± 0.000", "1 of 2", "0"]
    every = cells(table, "adam, all of these")
    assert every[2:] == ["1.100 elec2 adam 0.001", f"{0.55**0.25:.3f} ± 0.000", "3 of 4", "0"]


def test_what_diverges_alone_is_counted_and_what_diverges_attached_is_shown(report):
    name = "MeasuredRate on sgd"
    table = report.attached([
        line("elec2", "sgd", None, lr=0.3), line("elec2", name, 1.0, lr=0.3),
        line("flipping", "sgd", 1.0, lr=0.3), line("flipping", name, None, lr=0.3),
        line("elec2", "sgd", 1.0, lr=0.1),
    ])  # fmt: skip
    assert cells(table, "sgd 0.3") == ["inf", "–", "inf flipping", "inf", "1 of 1", "1"]


def test_sgd_is_over_its_best_constant_rate(report):
    name, long, short = "MeasuredRate on sgd", {"steps": 3000}, {"steps": 99}
    table = report.constant([
        line("elec2", "sgd", 1.0, lr=0.1, **long), line("elec2", "sgd", None, lr=0.3, steps=7),
        line("elec2", name, 1.21, lr=0.1, **long),
        line("flipping", "sgd", 2.0, lr=0.1, **long), line("flipping", "sgd", 1.0, lr=0.3, **long),
        line("flipping", name, 1.0, lr=0.1, **long),
        line("keystroke", "sgd", 1.0, lr=0.1, **short), line("keystroke", name, 1.3, **short),
        line("keystroke", name, 1.2, lr=0.1, **short),
    ])  # fmt: skip
    found = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    own = [row[1:] for row in found if row[0] == f"{name} 0.1"]
    assert own == [
        ["all of 1,000 steps", "1.100", "", ""],
        ["short", "1.200", "", ""],
        ["keystroke", "1.200", "0.1", "99"],
        ["elec2", "1.210", "0.1", "3,000"],
        ["flipping", "1.000", "0.3", "3,000"],
    ]


def run(*arguments, folder):
    call = [sys.executable, str(FOLDER / "networks.py"), *arguments, "--out", str(folder)]
    paths = [str(FOLDER.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "DRIFTRATE_DATA": str(folder),
    }
    return subprocess.run(call, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--streams", "usenet1"], "usenet1 with seed 0 is held out: say --held-out"),
        (["--streams", "flipping", "--seeds", "999-1000"], "flipping with seed 1000 is held out"),
        (["--streams", "flips"], "unknown stream 'flips'"),
    ],
)
def test_what_is_held_out_must_be_asked_for(arguments, says, tmp_path):
    log = (FOLDER / "networks_log.md").read_text()
    done = run(*arguments, "--methods", "sgd@lr=0.1", folder=tmp_path)
    assert done.returncode == 1
    assert says in done.stderr
    assert (FOLDER / "networks_log.md").read_text() == log


def test_cells_are_stored_and_not_played_twice(tmp_path, foreign):
    told = ["--streams", "elec2,flipping", "--methods", "sgd@lr=0.01", "--jobs", "1"]
    first = run(*told, folder=tmp_path)
    assert "elec2 is left out: " in first.stderr
    assert "1/1" in first.stdout, first.stdout + first.stderr
    assert foreign() == []
    again = run(*told, folder=tmp_path)
    assert "1/1" not in again.stdout
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 1
