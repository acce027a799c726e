"""The pages of races and of a reproduction, opened in Chromium as a reader would."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser
WALK = "synthetic:walk,dim=2,steps=100,noise=0.5,size=0.1"
STREAMS = [WALK, "synthetic:standstill,dim=2,steps=100"]
METHODS = ["HedgedFilter", "HedgedSGD", "adam", "nlms"]


def raced(out, streams, **options):
    from driftrate.race.run import Race, race

    settings = Race(streams, methods=METHODS, grid=False, jobs=1, **options)
    return race(settings, out, show=False)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    out = tmp_path_factory.mktemp("one")
    board = raced(out, [WALK])
    losses = [f"{row.loss:#.4g}" for row in board.of(WALK)]
    return out / "index.html", [WALK, *METHODS, *losses]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    raced(out, STREAMS)
    return out / "index.html", [*STREAMS, *METHODS]


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    from driftrate.paper.base import Context
    from driftrate.paper.reproduce import reproduce

    out = tmp_path_factory.mktemp("reproduced")
    judgements = reproduce(["figure2", "figure3"], out, Context(seeds=4), jobs=1, show=False)
    return out / "index.html", [judgement.claim.text for judgement in judgements]


@pytest.mark.parametrize("made", ["one", "two", "reproduced"])
def test_a_page_is_whole_and_alone(made, visit, request, tmp_path):
    path, wanted = request.getfixturevalue(made)
    page = visit.open(path)
    assert visit.keep(made, tmp_path).stat().st_size > 20_000
    assert [url for url in visit.requests if not url.startswith("data:")] == [path.as_uri()]
    assert visit.errors == []
    text = " ".join(page.evaluate("document.body.innerText").split())
    assert [words for words in wanted if " ".join(words.split()) not in text] == []
    assert page.locator("table tr").count() >= 3
    images = "[...document.images].every(i => i.complete && i.naturalWidth > 0)"
    assert page.evaluate(images)
    assert visit.overhang() <= 0


class TestNow:
    def test_the_recommendation_is_above_the_table_and_in_the_first_window(self, one, visit):
        page = visit.open(one[0])
        take = page.locator("p.take")
        assert take.count() == 1
        assert take.inner_text().startswith(("Take ", "A tie: take "))
        box = take.bounding_box()
        assert box["y"] + box["height"] < 900
        assert box["y"] < page.locator("table").first.bounding_box()["y"]
        assert "It drifts: in 4 drawn orders" in page.locator(".now").inner_text()

    def test_the_lines_of_a_loop_open_one_at_a_time_and_are_copied(self, one, visit):
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = visit.open(one[0])
        loops = page.locator("details.loop")
        assert loops.locator("pre:visible").count() == 0
        for place in range(loops.count()):
            loops.nth(place).locator("summary").click()
            assert page.locator("details.loop pre:visible").count() == 1
        shown = page.locator("details.loop pre:visible")
        assert "for x, y in" in shown.inner_text()
        page.locator("details.loop button:visible").click()
        assert page.locator("details.loop button:visible").inner_text() == "copied"
        copied = page.evaluate("getSelection().toString()")
        assert copied.split() == shown.inner_text().split()
        assert visit.overhang() <= 0

    def test_losses_ranks_and_costs_are_read_without_scrolling(self, one, visit):
        page = visit.open(one[0])
        heads = [" ".join(text.split()) for text in page.locator("th:visible").all_inner_texts()]
        assert {"method", "loss", "over the least", "a step"} <= set(heads)
        scroll = page.locator("div.scroll").first
        hidden = "one => one.scrollWidth - one.clientWidth"
        # Of a drawn stream there is the regret as well, which a telephone may have to scroll to.
        assert scroll.evaluate(hidden) <= (0 if visit.width > 600 else 80)
        cost = page.locator("th", has_text="a step").bounding_box()
        assert cost["x"] + cost["width"] <= visit.width
        for cell in page.locator("td.who").all():
            assert cell.bounding_box()["height"] < 60

    def test_the_dots_are_of_what_is_not_told_apart(self, one, visit):
        page = visit.open(one[0])
        rows = page.locator("tbody tr")
        dots = [bool(row.locator("abbr").count()) for row in rows.all()]
        assert dots[0]
        assert not all(dots)


class TestMany:
    def test_a_stream_is_reached_from_the_table_of_ranks(self, two, visit):
        page = visit.open(two[0])
        assert page.locator("p.take").count() == len(STREAMS)
        page.locator("table.heat a").last.click()
        top = page.locator("section.stream").last.bounding_box()["y"]
        assert -1 < top < 900

    def test_a_method_under_the_pointer_stands_out_in_every_panel(self, two, visit):
        page = visit.open(two[0])
        section = page.locator("section.stream").first
        section.locator("button[data-m].k").first.hover()
        assert section.locator("g.hot").count() >= 2


def test_older_races_are_a_click_away_and_back(visit, tmp_path):
    """Two races in one folder: the newest has the page, the other a link."""
    raced(tmp_path, [WALK], drift=False)
    raced(tmp_path, [WALK], drift=False, delay=32)
    page = visit.open(tmp_path / "index.html")
    assert "labels 32 rows late" in page.locator("p.lead").inner_text()
    page.locator(".races summary").click()
    page.locator(".races a").click()
    page.wait_for_url("**/races/*/index.html")
    assert "late" not in page.locator("p.lead").inner_text()
    assert visit.overhang() <= 0
    page.locator(".races a").click()
    page.wait_for_url((tmp_path / "index.html").as_uri())
    assert visit.errors == []


def test_an_error_and_a_request_would_be_seen(visit, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<script>undefinedName()</script><img src='http://127.0.0.1:9/x.png'>")
    visit.open(path)
    assert any("undefinedName" in error for error in visit.errors)
    assert "http://127.0.0.1:9/x.png" in visit.requests
