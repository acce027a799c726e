"""A command in a terminal of its own, whose keys a test may press."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time


class Terminal:
    """Runs a command with a pseudo-terminal for all of its input and output."""

    def __init__(self, call, **environment):
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            call, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # noqa: PLW1509
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", **environment},
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""

    def read(self, until, seconds=60.0):
        """Read until a text is shown, or to the end if None; return all that was shown."""
        end = time.monotonic() + seconds
        while until is None or until not in self.shown:
            left = end - time.monotonic()
            assert left > 0, self.shown[-2000:]
            if not select.select([self._ours], [], [], left)[0]:
                continue
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the other side is closed
                data = b""
            if not data:
                assert until is None, self.shown[-2000:]
                break
            self.shown += data.decode(errors="replace")
        return self.shown

    def press(self, keys):
        """Type something."""
        os.write(self._ours, keys.encode())

    def close(self):
        """Wait for the command and let go of the terminal; return its exit code."""
        code = self.process.wait(timeout=30)
        os.close(self._ours)
        return code
