"""The one browser of all tests: Debian's Chromium, driven through Playwright."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for what stands beside the tests
ROOT = Path(__file__).parent.parent.parent
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
WIDTHS = (1280, 390)


def absent(reason):
    """Skip, or fail where `make check` has installed a browser: then there is no excuse."""
    say = pytest.fail if os.environ.get("DRIFTRATE_BROWSER") == "needed" else pytest.skip
    say(f"{reason}: the pages are not opened")


@pytest.fixture(scope="session")
def chromium():
    """A browser without a window."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        absent("no Playwright here")
    if not Path(CHROMIUM).exists():
        absent("no Chromium here")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Visit:
    """A page in a window of a width, with all that went wrong and all that was asked for."""

    def __init__(self, chromium, width):
        self.width, self.errors, self.requests = width, [], []
        self.context = chromium.new_context(viewport={"width": width, "height": 900})
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path):
        """Open a file and wait until it is loaded."""
        self.page.goto(path.as_uri(), wait_until="load")
        return self.page

    def overhang(self):
        """Return by how many pixels the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth") - self.width

    def keep(self, name, folder):
        """Write a picture of the whole page, where `DRIFTRATE_PICTURES` says, and return it."""
        kept = Path(os.environ.get("DRIFTRATE_PICTURES", folder)) / f"{name}-{self.width}.png"
        self.page.screenshot(path=str(kept), full_page=True)
        return kept


@pytest.fixture(params=WIDTHS)
def visit(chromium, request):
    """A visit with an empty profile, at each width."""
    found = Visit(chromium, request.param)
    yield found
    found.context.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build the site; a warning fails (with --quiet none would be counted)."""
    out = tmp_path_factory.mktemp("site")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="session")
def playground(tmp_path_factory):
    """The playground in a file."""
    from driftrate.playground import build

    path = tmp_path_factory.mktemp("playground") / "index.html"
    path.write_text(build(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def engine(chromium, playground):
    """A page whose world can be run with any settings and draws; nothing is played in it."""
    context = chromium.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{playground.as_uri()}#path=yours")
    yield page
    context.close()


@pytest.fixture
def page(visit, playground):
    """The playground, as it is met first; nothing fails, is asked for or hangs over."""
    page = visit.open(playground)
    page.wait_for_function("page.history.head > 50")
    yield page
    assert visit.errors == []
    assert visit.requests == [playground.as_uri()]
    assert visit.overhang() <= 0
