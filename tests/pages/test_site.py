"""The site: built strictly, every public name in it, every page whole, alone and without errors."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent.parent
# One of each kind at both widths, in the dark too; all others once.
KINDS = {"index", "choose", "play", "gallery", "lost", "paper", "networks", "pursuit_bound"}
KINDS |= {"reference/driftrate", "guide_torch"}


class Page(HTMLParser):
    """What a page links to, loads, and can be linked at."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors, self.tags = [], [], set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.add(tag)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in {"canonical", "next", "prev"}:
            self.loads.append(found["href"])
        elif found.get("src"):
            self.loads.append(found["src"])


def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


@pytest.mark.slow
class TestBuilt:
    def test_every_public_name_is_in_the_reference(self, site):
        anchors = set()
        for path in (site / "reference").glob("*.html"):
            anchors |= Page(path.read_text(encoding="utf-8")).anchors
        names = (ROOT / "tests" / "public_names.txt").read_text().split()
        assert [name for name in names if name not in anchors] == []

    def test_every_link_and_anchor_leads_somewhere(self, site):
        whole = pages(site)
        lost = []
        for path, page in whole.items():
            if path.name == "404.html":
                continue
            for link in page.links:
                parts = urlsplit(link)
                if parts.scheme or link.startswith("/"):
                    continue
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                if target.is_dir():
                    target /= "index.html"
                known = whole[target].anchors if target in whole else set()
                fragment = unquote(parts.fragment)
                top = fragment in {"", "__top"}
                if not target.exists() or not (top or fragment in known):
                    lost.append((path.name, link))
        assert lost == []

    def test_nothing_is_loaded_from_elsewhere(self, site):
        loaded = [one for page in pages(site).values() for one in page.loads]
        assert len(loaded) > 100
        assert [one for one in loaded if re.match(r"(https?:)?//", one)] == []
        for path in site.rglob("*.css"):
            assert not re.findall(r"url\(['\"]?(?:https?:)?//", path.read_text(encoding="utf-8"))

    def test_formulas_are_mathematics(self, site):
        wanted = {"reference/driftrate": 10, "reference/driftrate.theory": 18, "pursuit_bound": 10}
        for name, least in wanted.items():
            text = (site / f"{name}.html").read_text(encoding="utf-8")
            assert text.count("<math") >= least
            # In the source of a function they stand as they were written.
            assert ".. math::" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)

    def test_no_inner_product_is_taken_for_a_tag(self, site):
        tags = set().union(*(page.tags for page in pages(site).values()))
        assert {"math", "msub", "table"} <= tags
        short = {tag for tag in tags if len(tag) == 1}
        assert short <= set("abipgsu")
        assert [tag for tag in tags if not re.fullmatch(r"[a-z][a-z0-9-]*", tag)] == []

    def test_every_page_of_docs_is_in_the_navigation(self):
        text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
        named = re.findall(r"([\w./]+\.md)$", text, re.MULTILINE)
        there = {path.name for path in (ROOT / "docs").glob("*.md")}
        assert sorted(there - set(named)) == []


def alone(visit, path):
    """Open a page; what it asks for lies beside it, nothing fails, nothing hangs over."""
    page = visit.open(path)
    asked = [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))]
    assert asked == []
    assert visit.errors == []
    assert visit.overhang() <= 0
    images = "[...document.images].filter(i => i.loading != 'lazy')"
    assert page.evaluate(f"{images}.every(i => i.complete && i.naturalWidth > 0)")
    return page


@pytest.mark.browser
class TestInABrowser:
    def test_every_page_is_whole_and_alone(self, site, visit, tmp_path):
        for path in sorted(site.rglob("*.html")):
            name = str(path.relative_to(site).with_suffix(""))
            if name != "404" and not name.startswith("playground/"):
                alone(visit, path)
                if name in KINDS:
                    visit.keep(f"site-{name.replace('/', '-')}", tmp_path)

    def test_the_fonts_are_those_of_the_site(self, site, visit):
        page = alone(visit, site / "pursuit_bound.html")
        page.evaluate("document.fonts.ready")
        loaded = "[...document.fonts].filter(f => f.status == 'loaded').map(f => f.family)"
        assert {name.strip('"') for name in page.evaluate(loaded)} >= {"Site", "Site Math"}

    def test_a_formula_is_drawn_as_one(self, site, visit):
        page = alone(visit, site / "pursuit_bound.html")
        box = page.locator("math msqrt").first.bounding_box()
        assert box["width"] > box["height"] > 10
        letter = page.locator("math msub > :first-child").first.bounding_box()
        index = page.locator("math msub > :nth-child(2)").first.bounding_box()
        assert index["x"] >= letter["x"] + letter["width"] - 2
        assert index["y"] + index["height"] > letter["y"] + letter["height"]

    def test_the_search_finds_a_name(self, site, visit):
        page = visit.open(site / "index.html")
        if visit.width < 1000:
            page.locator("label[for=__search].md-header__button").click()
        page.locator(".md-search__input").click()
        page.keyboard.type("HedgedFilter")
        page.locator(".md-search-result__link").first.wait_for(timeout=20_000)
        assert visit.errors == []

    def test_tabs_show_one_loop_at_a_time(self, site, visit):
        page = alone(visit, site / "index.html")
        shown = page.locator(".tabbed-content .tabbed-block:visible")
        assert shown.count() == 1
        page.locator(".tabbed-labels label", has_text="River").click()
        assert "ShiftRegressor" in shown.inner_text()

    def test_the_tree_fits_and_leads_somewhere(self, site, visit):
        page = alone(visit, site / "choose.html")
        leaves = page.locator(".tree a.take")
        assert leaves.count() >= 6
        for leaf in leaves.all():
            box = leaf.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= visit.width
        if visit.width > 1000:  # one screen
            tree = page.locator(".tree").bounding_box()
            assert tree["y"] + tree["height"] <= 900
        leaves.first.click()
        page.wait_for_url("**/guide_torch.html#*")
