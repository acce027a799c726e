"""Races under whatever may happen to them and to their folder, in any order hypothesis finds."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from typer.testing import CliRunner

from driftrate.cli import app

ROWS = [f"{a:.4f},{a + b:.4f}" for a, b in np.random.default_rng(0).standard_normal((90, 2))]
# The same file as it is, with more rows, with another value, cut off within a row, and without any.
FILES = [ROWS[:80], ROWS, ["5.0000,1.0000", *ROWS[1:80]], [*ROWS[:80], "0.1"], []]
OPTIONS = [(), ("--seeds", "2"), ("--batch", "8")]
ALWAYS = ("--target", "y", "--methods", "HedgedSGD,ader", "--defaults-only", "--no-drift")
TABLES = ("index.html", "leaderboard.json", "leaderboard.parquet", "reading.json")
share = st.floats(0.0, 1.0)


def arguments(folder: Path, options: tuple[str, ...]) -> list[str]:
    return ["race", str(folder / "mine.csv"), "--out", str(folder / "out"), *ALWAYS, *options]


def write(folder: Path, file: int) -> None:
    (folder / "mine.csv").write_text("\n".join(["a,y", *FILES[file], ""]))


# What differs between two races of the same: older races, the advice, which reads the clock, times,
# and the name of a race, which depends on the folder.
_OTHER = re.compile(
    r"<!--races-->.*?<!--/races-->"
    r'|<p class="take">.*?</p>'
    r"|[\d.,]+\s(?:ns|µs|ms|s)\b"
    r'|(?<=data-race="mine-)[0-9a-f]{8}',
    re.DOTALL,
)


def outcome(folder: Path) -> tuple[Any, str]:
    """Return the table and the page of a folder, without what may differ."""
    rows = json.loads((folder / "out" / "leaderboard.json").read_text())
    for row in rows:
        del row["seconds_per_step"]
    return rows, _OTHER.sub("", (folder / "out" / "index.html").read_text())


@cache
def undisturbed(file: int, options: tuple[str, ...]) -> tuple[Any, str] | None:
    """Return the outcome of a race in a folder of its own; None where the file is refused."""
    with TemporaryDirectory() as name:
        write(Path(name), file)
        done = CliRunner().invoke(app, arguments(Path(name), options))
        assert done.exit_code in (0, 2), done.output
        return None if done.exit_code else outcome(Path(name))


class Racing(RuleBasedStateMachine):
    """One folder, one file, and commands that race it.

    What a stopped race has left depends on the clock, on which hypothesis must not: rules without
    anything to do do nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = TemporaryDirectory()
        self.folder = Path(self.place.name)
        self.out = self.folder / "out"
        self.store = self.out / "race.sqlite"
        self.file = 0
        self.options: tuple[str, ...] = ()
        self.whole: dict[str, str] = {}
        write(self.folder, self.file)

    def teardown(self) -> None:
        self.place.cleanup()

    def stored(self) -> dict[str, str]:
        """Return the results in the store, but for those that were damaged."""
        if not self.store.exists():
            return {}
        with closing(sqlite3.connect(self.store)) as base:
            assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            tables = base.execute(
                "SELECT name FROM sqlite_master WHERE name = 'results'"
            ).fetchall()
            rows = base.execute("SELECT key, result FROM results") if tables else ()
            return {key: text for key, text in rows if text.endswith("}")}

    @rule()
    def race(self) -> None:
        """A race that nobody disturbs ends with the table and the page that it always has."""
        done = CliRunner().invoke(app, arguments(self.folder, self.options))
        self.whole = self.kept()
        expected = undisturbed(self.file, self.options)
        assert done.exit_code == (2 if expected is None else 0), done.output
        assert expected is None or outcome(self.folder) == expected

    def kept(self) -> dict[str, str]:
        """Return what is stored now; all that was whole before is still there."""
        now = self.stored()
        assert self.whole.items() <= now.items()
        return now

    @rule(how=st.sampled_from([signal.SIGKILL, signal.SIGINT]), seconds=st.floats(0.5, 3.0))
    def stop(self, how: signal.Signals, seconds: float) -> None:
        """A race that is stopped loses the cells that it is at, and no other."""
        call = [sys.executable, "-m", "driftrate.cli", *arguments(self.folder, self.options)]
        with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(how)
            process.communicate(timeout=60)
        assert process.returncode in (0, 2, -how, 128 + how)
        self.whole = self.kept()

    @rule(share=share)
    def truncate_the_store(self, share: float) -> None:
        """A store that is damaged is left as it is, and said to be; the race needs another."""
        if not self.store.exists():
            return
        data = self.store.read_bytes()
        damaged = data[: int(share * len(data))]
        self.store.write_bytes(damaged)
        done = CliRunner().invoke(app, arguments(self.folder, self.options))
        assert done.exit_code in (0, 2)
        if done.exit_code:
            assert done.stderr.count("\n") == 1
            assert self.store.read_bytes() == damaged
            self.store.unlink()
        self.whole = {}
        self.race()

    @rule(share=share)
    def damage_a_result(self, share: float) -> None:
        """A cell whose result is no longer one is played again, alone."""
        if not self.whole:
            return
        key = sorted(self.whole)[int(share * (len(self.whole) - 1))]
        text = self.whole.pop(key)
        with closing(sqlite3.connect(self.store)) as base, base:
            base.execute("UPDATE results SET result = ? WHERE key = ?", (text[:-9], key))

    @rule(name=st.sampled_from(TABLES), share=share)
    def tear(self, name: str, share: float) -> None:
        """A table that is torn is written anew."""
        if (self.out / name).exists():
            data = (self.out / name).read_bytes()
            (self.out / name).write_bytes(data[: int(share * len(data))])

    @rule(place=st.sampled_from(["../../elsewhere", "/tmp/driftrate-elsewhere", ".", "", "a/b"]))
    def edit_the_page(self, place: str) -> None:
        """What a page says that its race is called is no place to write to."""
        page = self.out / "index.html"
        if page.exists():
            text = page.read_text(errors="replace")
            page.write_text(re.sub('data-race="[^"]*"', f'data-race="{place}"', text))

    @rule(file=st.sampled_from(range(len(FILES))))
    def edit_the_file(self, file: int) -> None:
        self.file = file
        write(self.folder, file)

    @rule(options=st.sampled_from(OPTIONS))
    def change_options(self, options: tuple[str, ...]) -> None:
        self.options = options

    @invariant()
    def nothing_lies_elsewhere(self) -> None:
        assert {one.name for one in self.folder.iterdir()} <= {"mine.csv", "out"}
        shelf = {one.parent.parent.name for one in self.out.rglob("*/index.html")}
        assert shelf <= {"races"}
        assert not Path("/tmp/driftrate-elsewhere").exists()


def test_a_few_accidents() -> None:
    machine = Racing()
    machine.stop(signal.SIGKILL, 1.5)
    machine.race()
    machine.damage_a_result(0.0)
    machine.edit_the_page("../../elsewhere")
    machine.change_options(("--batch", "8"))
    machine.race()
    machine.nothing_lies_elsewhere()
    machine.teardown()


@pytest.mark.attack
def test_many_accidents() -> None:
    told = settings(
        max_examples=100, stateful_step_count=8, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Racing, settings=told)
