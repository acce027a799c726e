"""A process of its own for cells: one that hangs or crashes takes nothing else with it.

Run as `python -m driftrate.race.child MODULE:FUNCTION`, it plays the cells that it is sent, a line
of JSON each, and answers each with a line. It ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from queue import SimpleQueue
from signal import Signals
from tempfile import TemporaryFile
from time import monotonic
from typing import cast

from driftrate.errors import ConfigError, DataError
from driftrate.race.cell import Cell, Result, one_line, without_result
from driftrate.race.endings import ending, killed

# A cell that is in one step this long after its limit is killed.
GRACE_SECONDS = 5.0
# What lies in the working folder is data: a `numpy.py` there is not the package.
_SAFE_PATH = {"PYTHONSAFEPATH": "1"}
# More threads would fight over the same cores, and make the timings lie.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


class Child:
    """A process that plays cells, one at a time, by a function given as `MODULE:FUNCTION`."""

    def __init__(self, play: str) -> None:
        self.play_name = play
        self._complaints = TemporaryFile()  # noqa: SIM115  (closed with the process)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "driftrate.race.child", play],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env={**os.environ, **_ONE_THREAD, **_SAFE_PATH},
                # Ctrl-C is for the race, which then ends its children.
                start_new_session=True,
            )
        except OSError as error:  # no memory, or too many processes
            self._complaints.close()
            said = f"cannot start a process for cells: {error.strerror}; run again to go on"
            raise DataError(said) from error
        # Imports are not on any cell's clock.
        if not self._answer():
            raise ConfigError(f"cannot start a process for cells: {self._end()}")

    def play(self, cell: Cell, limit: float | None, folder: str) -> Result:
        """Play a cell within a limit of seconds; paths are relative to the folder.

        A step that does not return is killed, and the process with it: its status is `timeout`. It
        is `failed` where the process ended by itself, `not played` where others ended it.
        """
        self._complaints.seek(0)
        self._complaints.truncate()
        overrun = threading.Event()

        def kill() -> None:
            overrun.set()
            self._process.kill()

        watch = threading.Timer((limit or 0.0) + GRACE_SECONDS, kill)
        watch.daemon = True
        if limit is not None:
            watch.start()
        request = {"cell": asdict(cell), "limit": limit, "folder": folder}
        answer = self._answer(json.dumps(request).encode() + b"\n")
        if limit is not None:
            watch.cancel()
            watch.join()
        if answer and not overrun.is_set():
            return cast(Result, json.loads(answer))
        ended = self._end()
        if overrun.is_set():
            return without_result("timeout", f"over {limit:g} s, the last of them in one step")
        return without_result(killed(self._process.returncode), ended)

    @property
    def alive(self) -> bool:
        """Whether another cell can be sent."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def close(self) -> None:
        """End the process and let go of its pipes."""
        self.kill()
        self._end()

    def _answer(self, request: bytes = b"") -> bytes:
        """Send a line and return the one that comes back; empty if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(request)
            self._process.stdin.flush()
            return self._process.stdout.readline()
        return b""

    def _end(self) -> str:
        """Return how the process ended, with the last line of its stderr."""
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        self._complaints.close()
        how = f"killed by {Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"its process ended ({how})" + (f": {lines[-1]}" if lines else "")


def _serve(play_name: str) -> None:
    module, _, function = play_name.partition(":")
    # Whatever a package prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    play = getattr(import_module(module), function)
    requests: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            requests.put(line)
        os._exit(0)  # the parent is gone: nobody will read the result

    threading.Thread(target=listen, daemon=True).start()
    print("ready", file=answers, flush=True)
    while True:
        request = json.loads(requests.get())
        with suppress(OSError):
            os.chdir(request["folder"])
        limit = request["limit"]
        deadline = None if limit is None else monotonic() + limit
        try:
            result = play(Cell(**request["cell"]), deadline)
        except (Exception, SystemExit) as error:
            result = without_result(ending(error), one_line(error))
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
