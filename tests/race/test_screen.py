"""What a race shows while it runs: in a terminal, in a file, and when it is stopped."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
from race_child import toy_cells
from terminal import Terminal

from driftrate.race import screen as room
from driftrate.race.cell import without_result
from driftrate.race.leaderboard import Leaderboard

RACE = [sys.executable, "-m", "driftrate", "race"]
LONG = ["synthetic:walk,steps=20000", "--methods", "HedgedSGD,ader"]
STOPPED = "driftrate: stopped; the same command goes on from here"
# What is loaded when a table is drawn, said by the race itself.
WATCHED = """
import sys
from driftrate.race import screen
class Lines(screen._Lines):
    pause = 0.1
    def draw(self, board, left):
        table = screen.table(board) if len(board.streams) > 2 else None
        if table is not None:
            print("LOADED", sorted({"scipy", "torch", "pandas"} & set(sys.modules)), flush=True)
screen._Lines = Lines
from driftrate.cli import app
app()
"""


def plain(shown):
    """Return what was shown without colours and moves of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def test_the_first_table_is_there_before_scipy_and_torch(tmp_path):
    """Three streams are done, whose tests would want scipy, and one is not."""
    streams = [f"synthetic:{kind},dim=3,steps=60" for kind in ("walk", "spiral", "standstill")]
    options = ["--methods", "HedgedSGD,ader,kalman forgetting", "--defaults-only"]
    call = [sys.executable, "-c", WATCHED, "race", *streams, LONG[0], *options]
    call += ["--out", str(tmp_path)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as one:
        found = next((line for line in one.stdout if line.startswith("LOADED")), None)
        one.terminate()
    assert found == "LOADED []\n"


def test_a_file_has_a_line_every_few_seconds(tmp_path):
    call = [*RACE, *LONG, "--no-drift", "--out", str(tmp_path)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        # What was read comes first.
        clocked = (line for line in one.stdout if " cells in " in line)
        lines = [next(clocked) for _ in range(2)]
        one.send_signal(signal.SIGTERM)
        _, said = one.communicate(timeout=60)
    for line in lines:
        assert re.fullmatch(r"\d of 8 cells in 0 min \d+ s.*\n", line), line
    first, second = (int(re.search(r"(\d+) s", line)[1]) for line in lines)
    assert 3 <= second - first <= 8
    assert (said, one.returncode) == (f"{STOPPED}\n", 130)


@pytest.mark.parametrize("how", ["^C", "SIGTERM"])
def test_a_terminal_moves_from_the_start_and_a_stop_has_its_own_line(tmp_path, how):
    terminal = Terminal([*RACE, *LONG, "--out", str(tmp_path)])
    terminal.read("0/")
    terminal.read("0:00:01")  # the clock of the bar, before any method is done
    if how == "^C":
        terminal.press("\x03")
    else:
        terminal.process.terminate()
    shown = plain(terminal.read(None))
    assert terminal.close() == 130
    assert shown.endswith(f"\r\n{STOPPED}\r\n")


def test_a_stop_before_anything_is_shown_has_its_own_line(tmp_path):
    """The terminal shows ^C, and the cursor stays behind it."""
    early = "import sys; from driftrate.race import run\n"
    early += "def race(*_): print('^C', end='', flush=True); raise KeyboardInterrupt\n"
    early += "run.race = race\nfrom driftrate.cli import app; app()"
    terminal = Terminal([sys.executable, "-c", early, "race", *LONG, "--out", str(tmp_path)])
    assert plain(terminal.read(None)) == f"^C\r\n{STOPPED}\r\n"
    assert terminal.close() == 130


def test_an_error_has_its_own_line(tmp_path):
    (tmp_path / "index.html" / "in the way").mkdir(parents=True)
    options = ["--methods", "HedgedSGD", "--defaults-only", "--out", str(tmp_path)]
    terminal = Terminal([*RACE, "synthetic:walk,dim=3,steps=60", *options])
    shown = plain(terminal.read(None))
    assert terminal.close() == 2
    *_, last, end = shown.split("\r\n")
    assert end == ""
    assert last.startswith(f"driftrate: cannot write to {tmp_path}: Is a directory; run again")


def test_a_slow_table_does_not_stand_still(monkeypatch):
    """A first table that took long stood for thirty times as long."""
    now, looks, drawn = [0.0], [0], []

    class Face:
        moves, pause = True, 2.0

        def count(self, done):
            pass

        def draw(self, board, left):
            drawn.append(now[0])
            now[0] += 1.5  # what it takes

    cells = toy_cells(["ok"], seeds=20)
    screen = room.Screen(
        cells, {"left": 1, "right": 1}, 1, True, lambda done: Leaderboard({}, {}, {})
    )
    screen._face = Face()

    def wait(seconds):
        now[0] += seconds
        if looks[0] == len(cells):
            return True
        screen.advance(cells[looks[0]], without_result("ok", ""))
        looks[0] += 1
        return False

    monkeypatch.setattr(room, "monotonic", lambda: now[0])
    monkeypatch.setattr(screen._ended, "wait", wait)
    monkeypatch.setattr(room, "_SECONDS_BETWEEN_LOOKS", 3.0)
    screen._watch()
    assert drawn[0] <= 3.0
    assert len(drawn) > 3
    assert max(b - a for a, b in pairwise(drawn)) <= 1.5 + 10.0 + 3.0


def test_the_time_left_goes_by_how_many_cells_are_played_at_once():
    cells = toy_cells(["ok"], ["left"], seeds=11)
    shown = room.Screen(cells, {"left": 10}, 2, False, lambda done: Leaderboard({}, {}, {}))
    done = {cells[0]: without_result("ok", "") | {"steps": 10, "seconds_per_step": 6.0}}
    assert shown._left(done) == "about 5 min 0 s left"
    shown.at_once(10)
    assert shown._left(done) == "about 1 min 0 s left"
