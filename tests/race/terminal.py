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
        # The first terminal that the leader of a session opens is the session's own: its keys send
        # signals. A shell opens it, for Python code between fork and exec would run hooks of JAX.
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" <>"$0" >&0 2>&0', os.ttyname(theirs), *call],
            stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", **environment},
        )  # fmt: skip
        self.shown, self._theirs = "", theirs

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
            self._let_go()
        return self.shown

    def press(self, keys):
        """Type something."""
        os.write(self._ours, keys.encode())

    def close(self):
        """Wait for the command and let go of the terminal; return its exit code."""
        code = self.process.wait(timeout=30)
        os.close(self._ours)
        self._let_go()
        return code

    def _let_go(self):
        """Close our copy of the other side, which kept it open until the command had its own."""
        if self._theirs is not None:
            os.close(self._theirs)
            self._theirs = None
