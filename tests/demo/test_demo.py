"""The demo: what it shows is so, in every terminal, within ten seconds."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from functools import lru_cache

import numpy as np
import pytest

from driftrate.demo.__main__ import SECONDS
from driftrate.demo.chart import ASCII, BLOCKS, area, columns
from driftrate.demo.chase import DRIFTS, JUMPS, STEPS, chase
from driftrate.demo.picture import Looks, draw

CALL = [sys.executable, "-m", "driftrate.demo"]
ESCAPE = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


@lru_cache
def moments(seed):
    return list(chase(seed))


def environment(**variables):
    unset = ("COLUMNS", "LINES", "NO_COLOR", "PYTHONIOENCODING")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return {**kept, "TERM": "xterm-256color", **variables}


class Screen:
    """The demo in a terminal of a given size."""

    def __init__(self, *arguments, width=80, height=24, **variables):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.process = subprocess.Popen(
            [*CALL, *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
            env=environment(**variables), start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""

    def read(self, until=None, seconds=60.0):
        end = time.monotonic() + seconds
        while until is None or until not in self.shown:
            assert time.monotonic() < end, self.shown[-2000:]
            if not select.select([self._ours], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the other side is closed
                data = b""
            if not data:
                break
            self.shown += data.decode(errors="replace")
        return self.shown

    def close(self):
        self.read()
        os.close(self._ours)
        return self.process.wait(timeout=30)


def plain(*arguments, **variables):
    done = subprocess.run(
        [*CALL, *arguments], capture_output=True, env=environment(**variables), check=False
    )
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_goes_up_at_a_jump_and_comes_down(seed):
    rates = np.array([one.rate for one in moments(seed)])
    for jump in JUMPS:
        before, up = rates[jump - 10 : jump].max(), rates[jump : jump + 10].max()
        assert up > 3 * before
        assert rates[jump + 100 : jump + 120].max() < up / 3
    # In a drift it stays up: its least is above its greatest at rest.
    assert rates[DRIFTS + 30 :].min() > 2 * rates[DRIFTS - 30 : DRIFTS].max()


def test_it_beats_the_constants_over_seeds():
    """What the last words say by the numbers of one seed holds of the mean of eight."""
    last = [moments(seed)[-1] for seed in range(8)]
    ours, best = np.array([(one.regret, min(one.constants)) for one in last]).T
    gain = best - ours
    assert gain.mean() > 4 * gain.std(ddof=1) / np.sqrt(len(gain))


def test_an_area_is_as_high_as_its_value():
    (row,) = area([0.0, 0.25, 0.5, 1.0, 9.0, -1.0], 6, 1, 1.0, BLOCKS)
    assert row == " ▂▄██ "
    rows = area([0.5, 0.75], 3, 4, 1.0, BLOCKS)
    assert rows == ["   ", " █ ", "██ ", "██ "]


def test_columns_are_means():
    assert columns([1.0, 2.0, 3.0, 4.0, 8.0], 3, 9) == [2.0, 6.0]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (120, 50), (80, 17), (60, 30)])
@pytest.mark.parametrize("steps", [1, DRIFTS - 1, STEPS])
def test_a_picture_fits_its_terminal(width, height, steps):
    lines = draw(moments(0)[:steps], Looks(width, height, BLOCKS, colour=True))
    assert len(lines) < height
    assert max(len(ESCAPE.sub("", line)) for line in lines) < width


@pytest.mark.parametrize("width", [1, 6, 7, 23])
def test_a_terminal_that_is_too_narrow_is_taken_for_one_that_is_not(width):
    for steps in (1, STEPS):
        lines = draw(moments(0)[:steps], Looks(width, 24, BLOCKS, colour=False))
        assert lines == draw(moments(0)[:steps], Looks(24, 24, BLOCKS, colour=False))


def test_within_ten_seconds_in_a_terminal():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    screen = Screen()
    assert screen.close() == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # What it waits for and what it computes: a busy machine would make the clock itself say more.
    computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert SECONDS + computed < 10
    live, _, last = screen.shown.partition("\x1b[?1049l")
    frames = live.split("\x1b[H")[1:]
    assert len(frames) > 100
    assert all(frame.count("\n") < 24 for frame in frames)
    # The picture grows: what is drawn of the rate begins with nothing and never shrinks.
    drawn = [len(re.findall("[▁▂▃▄▅▆▇█]", frame)) for frame in frames]
    assert drawn[0] < drawn[len(drawn) // 2] < drawn[-1]
    assert "JUMPED" in live
    assert "\x1b[?1049h\x1b[?25l" in live
    assert live.endswith("\x1b[?25h")
    assert "regret" in last
    assert "\x1b[38;5;208m" in last


def test_a_file_gets_the_last_picture_alone():
    code, out, error = plain()
    assert (code, error) == (0, "")
    assert b"\x1b" not in out
    assert out == plain("--fast")[1]
    assert out != plain("--seed", "1")[1]
    text = out.decode()
    assert "█" in text
    assert text.count("▲ jump") == len(JUMPS)


def test_where_blocks_cannot_be_written():
    code, out, error = plain("--fast", PYTHONIOENCODING="ascii")
    assert (code, error) == (0, "")
    assert set("#^~") <= set(out.decode("ascii"))
    assert plain("--fast", PYTHONIOENCODING="cp1252")[0] == 0


def test_without_colour():
    screen = Screen("--fast", NO_COLOR="1")
    assert screen.close() == 0
    assert "\x1b[38" not in screen.shown
    assert "\x1b[1m" not in screen.shown


def test_a_terminal_without_a_cursor():
    screen = Screen(TERM="dumb")
    assert screen.close() == 0
    assert "\x1b" not in screen.shown


def test_ctrl_c_gives_the_terminal_back():
    screen = Screen()
    screen.read(until="JUMPED")
    os.kill(screen.process.pid, signal.SIGINT)
    assert screen.close() == 130
    _, _, after = screen.shown.partition("\x1b[?25h\x1b[?1049l")
    assert "learning rate" in after
    assert "Traceback" not in screen.shown


def test_a_seed_must_be_a_count():
    code, _, error = plain("--seed", "-1")
    assert code == 2
    assert "--seed must be 0 or more, got -1" in error


def test_ascii_levels_are_ordered():
    assert area([0.0, 1.0, 2.0, 3.0], 4, 1, 3.0, ASCII) == [ASCII.levels]
