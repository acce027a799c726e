"""The pages of a race and of a reproduction, opened in Chromium as a reader would."""

from __future__ import annotations

import json
import os

import pytest
from headless import CHROMIUM, Browser

pytestmark = pytest.mark.browser
STREAM = "synthetic:walk,dim=2,steps=50"
METHODS = ["HedgedSGD", "ader"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        # `make check` says so where it has installed a browser: then there is no excuse.
        say = pytest.fail if os.environ.get("DRIFTRATE_BROWSER") == "needed" else pytest.skip
        say("no Chromium here: the pages are not opened")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    from driftrate.race.run import Race, race

    out = tmp_path_factory.mktemp("raced")
    race(Race([STREAM], methods=METHODS, grid=False, jobs=1), out, show=False)
    return out / "index.html", [STREAM, *METHODS]


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    from driftrate.paper.base import Context
    from driftrate.paper.reproduce import reproduce

    out = tmp_path_factory.mktemp("reproduced")
    judgements = reproduce(["figure2", "figure3"], out, Context(seeds=4), jobs=1, show=False)
    return out / "index.html", [judgement.claim.text for judgement in judgements]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("made", ["raced", "reproduced"])
def test_a_page_is_whole_and_alone(made, width, browser, request, tmp_path):
    page, wanted = request.getfixturevalue(made)
    browser.open(page.as_uri(), width)
    folder = os.environ.get("DRIFTRATE_PICTURES")  # for whoever wants to look
    picture = (tmp_path if folder is None else type(page)(folder)) / f"{made}-{width}.png"
    picture.write_bytes(browser.picture())
    assert picture.stat().st_size > 20_000

    told = browser.told()
    requests = [e["params"]["request"]["url"] for e in told if e["method"].startswith("Network")]
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
    errors = [event["params"] for event in told if not event["method"].startswith("Network")]
    assert not errors

    text = browser.evaluate("document.body.innerText")
    assert all(" ".join(words.split()) in " ".join(text.split()) for words in wanted)
    assert browser.evaluate("document.querySelectorAll('table tr').length") >= len(wanted)
    images = "[...document.images].every(i => i.complete && i.naturalWidth > 0)"
    assert browser.evaluate(images)
    wide = browser.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, f"the page is {wide} pixels wide in a window of {width}"


def test_an_error_and_a_request_would_be_seen(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<script>undefinedName()</script><img src='http://127.0.0.1:9/x.png'>")
    browser.open(page.as_uri(), 1280)
    told = json.dumps(browser.told())
    assert "undefinedName" in told
    assert "http://127.0.0.1:9/x.png" in told
