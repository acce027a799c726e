"""The site: built strictly, every public name in it, every page whole, alone and without errors."""

from __future__ import annotations

import re
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "docs/_site"))  # what makes the pages is no package

import gallery  # noqa: E402
import reference  # noqa: E402

# One of each kind at both widths, in the dark too; all others once.
KINDS = {"index", "choose", "play", "gallery", "lost", "paper", "networks", "pursuit_bound"}
KINDS |= {"reference/driftrate", "guide_torch"}


def read_setting(name):
    """Return a setting of mkdocs.yml that is one word."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.search(rf"^{name}: (\S+)$", text, re.MULTILINE)[1]


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

    def test_every_name_is_told_as_what_it_is(self, site):
        bare, modules = [], []
        for path in (site / "reference").glob("driftrate*.html"):
            text = path.read_text(encoding="utf-8")
            for part in re.split(r'<div class="doc doc-object doc-', text)[1:]:
                heading = re.search(r'<h\d id="(driftrate\.[\w.]+)"', part)
                if heading:
                    words = re.sub(r"<(pre|details)\b.*?</\1>", "", part, flags=re.DOTALL)
                    modules += [heading[1]] * part.startswith("module")
                    bare += [heading[1]] * ("<p>" not in words)
        assert (bare, modules) == ([], [])

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

    def test_a_reader_sees_no_file_names_labels_or_dollars(self, site):
        """Links are named by titles, statements by numbers, and all mathematics is set."""
        raw = re.compile(r">\w+\.md</a>|(?:eq|thm|lem|rmk):\w+|\$\\?\w+\$|\\(?:leftarrow|sqrt)")
        for path in [*site.glob("*.html"), *site.glob("reference/*.html")]:
            text = path.read_text(encoding="utf-8").partition("<article")[2]
            text = re.sub(r"<(pre|script)\b.*?</\1>", "", text, flags=re.DOTALL)
            assert (path.name, raw.findall(text)) == (path.name, [])

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

    def test_an_address_that_leads_nowhere_shows_the_way(self, site):
        page = Page((site / "404.html").read_text(encoding="utf-8"))
        base = urlsplit(read_setting("site_url")).path
        ours = [link for link in page.links if not urlsplit(link).scheme and link[0] != "#"]
        assert base + "choose.html" in ours
        for link in [*ours, *page.loads]:
            assert link.startswith(base)
            assert (site / unquote(urlsplit(link).path).removeprefix(base)).exists()


class TestSources:
    def test_the_site_is_where_the_package_says(self):
        urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        urls = urls["project"]["urls"]
        assert read_setting("site_url") == urls["Documentation"]
        assert read_setting("repo_url") == urls["Source"]

    @pytest.mark.parametrize(
        ("room", "name", "wanted"),
        [
            ("driftrate", "simulate", "driftrate.simulation.simulate.simulate"),
            ("driftrate.race", "contestants", "driftrate.race.contestants.contestants"),
            ("driftrate.race", "Cell", "driftrate.race.Cell"),
            ("driftrate.torch", "attach", "driftrate.torch.attach"),
        ],
    )
    def test_a_function_is_not_taken_for_the_module_that_holds_it(self, room, name, wanted):
        rooms = reference.names(ROOT / "tests" / "public_names.txt")
        assert f"::: {wanted}" in reference.written(rooms, room, name)

    def test_the_command_of_an_example_is_not_part_of_its_description(self):
        text = gallery.page(ROOT / "examples", ROOT / "docs" / "images")
        told = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)  # all but the sources
        assert "python examples/" in text
        assert "examples/follow_in_fit.py" in told
        assert re.findall(r"^.*python .*$", told, re.MULTILINE) == []

    def test_names_that_are_no_functions_are_described(self):
        for module, name in (("estimate/detectors", "DETECTORS"), ("race/cell", "CURVE_POINTS")):
            text = (ROOT / "src/driftrate" / f"{module}.py").read_text(encoding="utf-8")
            assert re.search(rf'^{name} = .*\n"""', text, re.MULTILINE)

    @pytest.mark.parametrize("page", ["index.md", "paper.md", "statements.md"])
    def test_the_paper_is_a_link(self, page):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert "https://proceedings.mlr.press/v202/fahrbach23a.html" in text
        assert "https://arxiv.org/abs/2303.15634" in text

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

    def test_code_is_read_without_scrolling_where_there_is_room(self, site, visit):
        hidden = "[...document.querySelectorAll('pre code')].filter(c => c.clientWidth"
        hidden += " && c.scrollWidth > c.clientWidth + 1).map(c => c.innerText.slice(0, 60))"
        for path in sorted(site.glob("*.html")) if visit.width > 1000 else []:
            assert (path.name, visit.open(path).evaluate(hidden)) == (path.name, [])

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
