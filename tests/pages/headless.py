"""Chromium without a window, told what to do through its debugging pipe: no driver is installed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from itertools import count

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 60
# An event that tells of something wrong, or of a request.
WATCHED = {"Runtime.exceptionThrown", "Log.entryAdded", "Network.requestWillBeSent"}


class Browser:
    """A browser with an empty profile and one page."""

    def __init__(self, profile):
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        flags = (
            "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", "--disable-quic",
            "--remote-debugging-pipe", f"--user-data-dir={profile}",
        )  # fmt: skip
        # The pipe's ends are 3 and 4 by convention: the shell puts them there.
        call = ["bash", "-c", f'exec "$@" 3<&{there} 4>&{back}', "bash", CHROMIUM, *flags]
        self._process = subprocess.Popen(
            call, pass_fds=(there, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(there)
        os.close(back)
        self._numbers, self._rest, self._session = count(1), b"", None
        self.events = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, address, width):
        """Open a page as wide as asked and wait until it is loaded."""
        self.events.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        self._ask("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        # Two frames later everything that scripts draw at the start is drawn.
        frames = "new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))"
        self.evaluate(f"{frames}.then(() => 0)")

    def evaluate(self, expression):
        """Return what a JavaScript expression gives."""
        done = self._ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        return done["result"].get("value")

    def picture(self):
        """Return the whole page as a PNG."""
        done = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(done["data"])

    def told(self):
        """Return the errors and requests of the page, in order."""
        return [event for event in self.events if event["method"] in WATCHED]

    def close(self):
        """End the browser."""
        self._send("Browser.close", session=False)
        os.close(self._write)
        try:
            self._process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def _send(self, method, session=True, **arguments):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": arguments}
        if session and self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return number

    def _ask(self, method, **arguments):
        number = self._send(method, **arguments)
        while (message := self._next()).get("id") != number:
            self.events.append(message)
        assert "error" not in message, (method, message)
        return message["result"]

    def _next(self):
        while b"\0" not in self._rest:
            some = os.read(self._read, 1 << 16)
            assert some, "the browser ended"
            self._rest += some
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
