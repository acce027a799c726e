"""The command: a page, a table and a store, and one clear line when something is wrong."""

from __future__ import annotations

import errno
import html
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from driftrate.cli import app
from driftrate.errors import DataError
from driftrate.race import children, run
from driftrate.race.run import race
from driftrate.race.screen import _Lines, _Live, seconds_left
from driftrate.race.settings import Race

STREAMS = ["synthetic:walk,dim=3,steps=60", "synthetic:spiral,dim=4,steps=100"]
METHODS = ["HedgedSGD", "ader", "kalman forgetting"]
KILLS = int(os.environ.get("DRIFTRATE_KILLS", "1"))
SEEDS = KILLS + 1


def call(*arguments):
    return [sys.executable, "-m", "driftrate.cli", "race", *map(str, arguments)]


def command(*arguments):
    return subprocess.run(call(*arguments), capture_output=True, text=True, check=False)


def without_times(folder):
    rows = json.loads((folder / "leaderboard.json").read_text())
    return [{k: v for k, v in row.items() if k != "seconds_per_step"} for row in rows]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made")
    board = race(Race(STREAMS, methods=METHODS, seeds=SEEDS), out, show=False)
    return out, board


class TestOutput:
    def test_a_list_of_rows(self, made):
        out, board = made
        rows = json.loads((out / "leaderboard.json").read_text())
        assert len(rows) == len(board.rows)
        wanted = {"stream", "method", "setting", "loss", "error", "regret", "rank"}
        assert wanted | {"seconds_per_step", "status", "seeds", "loss_error"} <= set(rows[0])
        default = [row for row in rows if row["column"] == "default"]
        assert sorted((row["stream"], row["method"]) for row in default) == sorted(
            (stream, method) for stream in STREAMS for method in METHODS
        )
        assert all(row["regret"] is not None and row["seeds"] == SEEDS for row in default)

    def test_the_same_as_parquet(self, made):
        out, _ = made
        rows = json.loads((out / "leaderboard.json").read_text())
        assert {row.pop("reading")["task"] for row in rows} == {"regression"}
        assert pq.read_table(out / "leaderboard.parquet").to_pylist() == rows

    def test_the_page_needs_no_network(self, made):
        text = (made[0] / "index.html").read_text()
        assert not re.findall(r"""(?:src|href)=["'](?!data:|\#)""", text)
        assert "http" not in text
        for stream in STREAMS:
            assert f"<h2>{stream}</h2>" in text

    def test_nothing_is_played_twice(self, made, monkeypatch):
        out, board = made
        monkeypatch.setattr(children, "Child", lambda _: pytest.fail("played again"))
        again = race(Race(STREAMS, methods=METHODS, seeds=SEEDS), out, show=False)
        assert again.rows == board.rows

    def test_short_streams_at_defaults_come_first(self, made):
        from driftrate.race.contestants import contestants
        from driftrate.race.plan import make_plan

        cells = make_plan(Race(STREAMS[::-1], methods=METHODS, seeds=SEEDS), contestants()).cells
        defaults = [cell.setting == "default" for cell in cells]
        assert defaults == sorted(defaults, reverse=True)
        first = [cell.stream for cell in cells if cell.setting == "default"]
        assert first == sorted(first, key=STREAMS.index)


def test_dask_gives_the_same_table(made, tmp_path):
    race(Race(STREAMS, methods=METHODS, seeds=SEEDS, engine="dask"), tmp_path, show=False)
    assert without_times(tmp_path) == without_times(made[0])


def test_a_finite_explosion_is_a_marked_row(tmp_path):
    pytest.importorskip("torch", reason="its SGD explodes at the high end of the grid")
    settings = Race(["synthetic:standstill,dim=8,steps=15"], methods=["sgd", "ader"])
    race(settings, tmp_path, show=False)
    rows = without_times(tmp_path)
    exploded = [row for row in rows if row["status"] == "diverged"]
    assert '{"lr":3.16}' in [row["setting"] for row in exploded]
    for row in exploded:
        assert row["method"] == "sgd"
        assert row["loss"] is row["error"] is row["regret"] is None
        assert "over 1,000 times the" in row["message"]
    assert {row["status"] for row in rows if row["rank"] is not None} == {"ok"}


class TestNotPlayed:
    """A file that is gone in the middle ranks nobody, and costs what is played nothing."""

    METHODS = "HedgedSGD,kalman forgetting"

    def command(self, *arguments):
        arguments = ["race", *arguments, "--methods", self.METHODS, "--defaults-only"]
        return CliRunner().invoke(app, [str(one) for one in arguments])

    def test_the_verdict_says_so_and_the_same_command_repairs_it(self, tmp_path, monkeypatch):
        file, away, out = tmp_path / "mine.csv", tmp_path / "away.csv", tmp_path / "out"
        rng = np.random.default_rng(0)
        rows = "".join(f"{a},{a + b}\n" for a, b in rng.standard_normal((200, 2)))
        file.write_text(f"a,y\n{rows}")
        arguments = (STREAMS[0], file, "--target", "y", "--no-drift", "--out", out)
        intakes = run.intakes

        def meddled(*given):
            read = intakes(*given)
            file.rename(away)
            return read

        with monkeypatch.context() as patch:
            patch.setattr(run, "intakes", meddled)
            done = self.command(*arguments)
        said = "Not played on mine, and without a rank there: HedgedSGD, kalman forgetting"
        told = " ".join(done.stdout.split())
        assert done.exit_code == 1, done.stderr
        assert f"{said} (DataError: no file at" in told
        assert "the same command plays what is missing" in told
        assert "HedgedSGD" in told.partition("Not played")[0]  # the verdict on what was played
        unplayed = [row for row in without_times(out) if row["status"] == "not played"]
        assert {(row["stream"], row["rank"], row["loss"]) for row in unplayed} == {
            ("mine", None, None)
        }
        assert len(unplayed) == 2
        page = (out / "index.html").read_text()
        assert "Not finished: 2 of 4 cells. Not played on mine" in page
        away.rename(file)
        whole = self.command(*arguments)
        assert whole.exit_code == 0, whole.stderr
        assert "Not played" not in whole.stdout
        rows = without_times(out)
        assert {row["status"] for row in rows} == {"ok"}
        assert len(rows) == 4

    def test_nothing_was_played(self, tmp_path, monkeypatch):
        file = tmp_path / "mine.csv"
        file.write_text("a,y\n" + "".join(f"{row},{row / 3}\n" for row in range(100)))
        intakes = run.intakes

        def meddled(*given):
            read = intakes(*given)
            file.unlink()
            return read

        monkeypatch.setattr(run, "intakes", meddled)
        done = self.command(file, "--target", "y", "--out", tmp_path / "out")
        assert done.exit_code == 1
        assert "Not played on mine" in done.stdout


def test_a_killed_command_goes_on(made, tmp_path):
    """DRIFTRATE_KILLS=20 for a thorough look."""
    arguments = [*STREAMS, "--methods", ",".join(METHODS), "--seeds", SEEDS, "--out", tmp_path]
    rng = random.Random(1)
    killed = 0
    for _ in range(KILLS):
        with subprocess.Popen(call(*arguments), stdout=subprocess.DEVNULL) as process:
            begin = time.monotonic()
            while not (tmp_path / "race.sqlite").exists() and time.monotonic() - begin < 60:
                time.sleep(0.01)
            try:
                process.wait(timeout=rng.random() * 3.0)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
    assert killed > KILLS / 2
    # Two at once, as two terminals might.
    with subprocess.Popen(call(*arguments), stdout=subprocess.DEVNULL) as other:
        done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert other.returncode == 0
    assert not list(tmp_path.glob("*.part"))
    assert without_times(tmp_path) == without_times(made[0])
    assert "HedgedSGD" in done.stdout
    assert str(tmp_path / "index.html") in done.stdout.replace("\n", "")


def test_a_stop_from_the_keyboard_says_how_to_go_on(tmp_path):
    arguments = ["synthetic:walk,steps=20000", "--methods", "HedgedSGD", "--out", tmp_path]
    process = subprocess.Popen(
        call(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    with process:
        begin = time.monotonic()
        while not (tmp_path / "race.sqlite").exists() and time.monotonic() - begin < 60:
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert said == "driftrate: stopped; the same command goes on from here\n"
    assert process.returncode == 130


def test_a_race_that_no_method_comes_through_fails_and_says_why(tmp_path):
    arguments = ["race", *STREAMS, "--methods", "HedgedSGD,ader", "--limit", "0", "--no-drift"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert done.exit_code == 1, done.stderr
    why = "4 of 4 ran out of time (HedgedSGD: out of time after 0 of 60 steps)"
    assert f"\nNo method came through: {why}.\n" in done.stdout
    assert "0 of 100 steps" in (tmp_path / "index.html").read_text()


EVIL = "\x1b[31m\x9b2J\x1b]0;x\x07\r\u202e"


class TestControlCodes:
    """Names and values of a file reach the terminal as text."""

    @pytest.fixture(params=[*"xyz", "\udcff"])
    def path(self, request, tmp_path):
        # A name of a file may hold any byte but two; those that are no text read as surrogates.
        where = request.param
        path = tmp_path / f"{EVIL if where == 'x' else where}.csv"
        name, label = (f'"{EVIL}"' if where == one else one for one in "yz")
        rows = np.random.default_rng(0).normal(size=(100, 2))
        lines = [f"{a:.4f},{b:.4f},{label if a > 0 else 'b'}" for a, b in rows]
        path.write_text("\n".join([f"a,{name},target", *lines]) + "\n")
        return path

    @pytest.mark.parametrize(
        "options",
        [
            ["--target", "target", "--check"],
            ["--target", "target", "--methods", "HedgedSGD", "--limit", "0", "--no-drift"],
            ["--target", f"target{EVIL}"],
            ["--target", "target", "--kind", f'"{EVIL}"=number'],
        ],
        ids=["read", "raced", "no such target", "no such column"],
    )
    def test_are_shown_and_not_obeyed(self, path, options, tmp_path):
        out = ["--out", str(tmp_path / f"out{EVIL}")]
        done = CliRunner().invoke(app, ["race", str(path), *options, *out])
        assert not isinstance(done.exception, Exception)
        assert "".join(char for char in done.output if char != "\n").isprintable()

    def test_of_others_that_are_said_meanwhile(self, capsys):
        console = Console(force_terminal=True)
        for face in (_Live(console, 1), _Lines(console, 1)):
            face.say(f"sent {EVIL} to the worker")
            face.end()
        shown = capsys.readouterr().out
        assert shown.count(r"\x1b[31m\x9b2J\x1b]0;x\x07\r\u202e to the worker") == 2
        assert "\x1b[31m" not in shown


def test_a_page_shows_names_of_a_file_and_messages_of_a_store_as_text(tmp_path):
    tag = "<img src=x onerror=1>"
    rows = np.random.default_rng(0).normal(size=(100, 2))
    lines = [f"{a:.4f},{b:.4f},{tag if a > 0 else 'b'}" for a, b in rows]
    path = tmp_path / f"{tag}.csv"
    path.write_text("\n".join([f"a,{tag},{tag}y", *lines]) + "\n")
    out = tmp_path / "out"
    settings = Race([str(path)], target=f"{tag}y", methods=["ader"], limit=0.0, drift=False)
    race(settings, out, show=False)
    with sqlite3.connect(out / "race.sqlite") as base:
        said = f"json_set(result, '$.message', '{tag}', '$.status', 'diverged')"
        said = f"json_remove({said}, '$.check')"
        base.execute(f"UPDATE results SET status = 'diverged', result = {said}")
    base.close()
    board = race(settings, out, show=False)
    assert {row.message for row in board.rows} == {tag}
    page = (out / "index.html").read_text()
    assert tag not in page
    assert page.count(html.escape(tag)) > 4


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["nowhere.csv", "--target", "y"], "nowhere.csv"),
            (["synthetic:spiral", "--methods", "adm"], "did you mean adam"),
            (["synthetic:spiral", "--methods", "hedgedrat"], "did you mean Hedged or HedgedSGD or"),
            (["synthetic:spiral", "--engine", "loco"], "choose from local, dask"),
            (["synthetic:spiral", "--target", "y"], "sep are for files"),
            (["synthetic:moon"], "moon"),
        ],
    )
    def test_one_line(self, tmp_path, arguments, said):
        done = CliRunner().invoke(app, ["race", *arguments, "--out", str(tmp_path / "out")])
        assert done.exit_code == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()

    def test_a_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("in the way")
        arguments = ["race", "synthetic:spiral,steps=20", "--out", str(tmp_path / "file")]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert "cannot write to" in done.stderr
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize("what", ["text", "parquet"])
    @pytest.mark.parametrize(
        ("code", "said"),
        [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")],
    )
    def test_a_disk_that_is_full_or_read_only_at_the_end(
        self, tmp_path, monkeypatch, what, code, said
    ):
        """The table was shown, the cells are kept, and the same command writes the page."""

        def refuse(*_, **__):
            raise OSError(code, os.strerror(code))

        arguments = ["race", STREAMS[0], "--methods", METHODS[0], "--out", str(tmp_path / "out")]
        with monkeypatch.context() as patch:
            if what == "text":
                patch.setattr(run, "write_whole", refuse)
            else:
                patch.setattr(pq, "write_table", refuse)
            done = CliRunner().invoke(app, arguments)
        again = "run again to go on: no cell is played twice"
        assert done.exit_code == 2
        assert done.stderr == f"driftrate: cannot write to {tmp_path / 'out'}: {said}; {again}\n"
        assert METHODS[0] in done.stdout
        assert not list((tmp_path / "out").glob("*.part"))
        monkeypatch.setattr(children, "Child", lambda _: pytest.fail("played again"))
        assert CliRunner().invoke(app, arguments).exit_code == 0
        assert (tmp_path / "out" / "index.html").exists()

    def test_a_damaged_row_is_said_and_mended(self, tmp_path):
        arguments = ["race", STREAMS[0], "--methods", METHODS[0], "--defaults-only", "--no-drift"]
        arguments += ["--out", str(tmp_path)]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        base = sqlite3.connect(tmp_path / "race.sqlite")
        with base:
            base.execute("UPDATE results SET result = substr(result, 1, 40)")
        base.close()
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.stderr
        assert "1 row was damaged, and played again" in done.stdout
        assert "row was damaged" not in CliRunner().invoke(app, arguments).stdout

    def test_a_page_that_cannot_be_written(self, tmp_path):
        (tmp_path / "index.html").mkdir()
        (tmp_path / "index.html" / "file").touch()
        settings = Race(STREAMS[:1], methods=METHODS[:1], grid=False)
        with pytest.raises(DataError, match=r"cannot write to .*; run again to go on"):
            race(settings, tmp_path, show=False)


def test_time_left_follows_each_methods_pace():
    from race_child import toy_cells

    from driftrate.race.cell import without_result

    fast, slow = (toy_cells([name], ["left", "right"], seeds=1) for name in ("fast", "slow"))
    rows = {"left": 100, "right": 1000}
    taken = {
        cell: {**without_result("ok", ""), "steps": 10, "seconds_per_step": seconds}
        for cell, seconds in ((fast[0], 0.1), (slow[0], 1.0))
    }
    assert seconds_left([fast[1], slow[1]], rows, taken) == pytest.approx(10 + 100)
    assert seconds_left(toy_cells(["new"], ["left"], seeds=1), rows, taken) == pytest.approx(5.5)
