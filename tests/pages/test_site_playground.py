"""The playground within the site: a frame that belongs to its page, and ways there and back."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.browser
TOGGLE = "label.md-header__button[for^=__palette]:visible"
DARK = """() => {
  const light = colour => colour.match(/\\d+/g).reduce((sum, part) => sum + Number(part), 0);
  const behind = getComputedStyle(document.body).backgroundColor;
  return { body: light(behind) < 150, lines: light(page.colours.ink) > 600 };
}"""
ROOM = "innerHeight - document.querySelector('footer').getBoundingClientRect().bottom"
DAY = {False: "light", True: "dark"}
HIDDEN = "document.documentElement.scrollHeight - window.innerHeight"


def framed(page):
    """Return the frame of the playground, once it plays."""
    page.locator("iframe.play").scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('iframe.play').style.height")
    frame = page.locator("iframe.play").element_handle().content_frame()
    frame.wait_for_function("page.history.head > 0")
    return frame


def test_the_frame_has_the_scheme_of_the_site(site, visit):
    page = visit.open(site / "play.html")
    frame = framed(page)
    seen = []
    for _ in range(3):
        dark = page.evaluate("document.body.dataset.mdColorScheme") == "slate"
        frame.wait_for_function(f"document.documentElement.dataset.scheme === '{DAY[dark]}'")
        assert frame.evaluate(DARK) == {"body": dark, "lines": dark}
        seen.append(dark)
        page.locator(TOGGLE).click()
    assert seen == [False, True, False]
    assert visit.errors == []


@pytest.mark.parametrize("name", ["play", "index"])
def test_the_frame_is_as_high_as_what_is_in_it(name, site, visit):
    page = visit.open(site / f"{name}.html")
    # On a phone the home page has a way to the page instead.
    least = 960 if name == "index" else 0
    widths = [width for width in (visit.width, 1000, 1600, visit.width) if width >= least]
    page.set_viewport_size({"width": widths[0], "height": 700})
    frame = framed(page)
    for width in widths:
        page.set_viewport_size({"width": width, "height": 700})
        page.wait_for_timeout(100)
        assert frame.evaluate(HIDDEN) == 0, width
        assert 0 <= frame.evaluate(ROOM) < 40, width
    assert frame.locator("h1").is_hidden()
    assert visit.errors == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture
def served(site):
    """The address of the site on a server: there the frame is of the same origin as its page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_frame_waits_until_it_is_seen(served, visit):
    page = visit.page
    page.set_viewport_size({"width": visit.width, "height": 240})
    page.goto(f"{served}/play.html")
    page.wait_for_function("document.querySelector('iframe.play').style.height")
    frame = page.locator("iframe.play").element_handle().content_frame()
    frame.wait_for_function("page.history.head > 100")
    assert frame.evaluate("[page.step, page.playing]") == [0, True]
    frame.locator("#picture").scroll_into_view_if_needed()
    frame.wait_for_function("page.step > 10")


def test_the_frame_leads_to_the_page_and_the_page_home(site, visit):
    page = visit.open(site / "play.html")
    frame = framed(page)
    assert frame.locator(".brand").is_hidden()
    frame.locator("#noise").press("ArrowRight")
    frame.wait_for_function("location.hash === '#noise=1.6'")
    frame.locator("#whole").click()
    page.wait_for_url("**/playground/index.html#noise=1.6")
    assert page.locator("#whole").is_hidden()
    page.locator(".brand a").click()
    page.wait_for_url((site / "index.html").as_uri())


def test_the_home_page_has_a_playground_or_a_way_to_it(site, visit):
    page = visit.open(site / "index.html")
    link = page.locator("a", has_text="Open the playground")
    assert page.locator("iframe.play").is_visible() is (visit.width > 1000)
    assert link.is_visible() is (visit.width < 600)
    if visit.width < 600:
        link.click()
        page.wait_for_function("page.history.head > 50")
        assert urlsplit(page.url).path.endswith("/playground/index.html")
