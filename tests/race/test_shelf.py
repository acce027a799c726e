"""Older races of a folder: nothing is lost, and the newest is where it always was."""

from __future__ import annotations

import json
import re
import time
from urllib.parse import unquote

import pytest

from driftrate.race import shelf
from driftrate.race.run import race
from driftrate.race.settings import Race

STREAM = "synthetic:walk,dim=2,steps=30"


def raced(out, **options):
    how = {"methods": ["HedgedSGD"], "grid": False, "jobs": 1, **options}
    settings = Race([STREAM], **how)
    race(settings, out, show=False)
    return shelf.name_of(settings)


def methods(folder):
    return {row["method"] for row in json.loads((folder / "leaderboard.json").read_text())}


def links(page):
    return re.findall(r'href="(?!data:)([^"#]+)"', page.read_text())


def test_three_races_in_one_folder(tmp_path):
    first = raced(tmp_path)
    assert not (tmp_path / "races").exists()
    assert links(tmp_path / "index.html") == []
    second = raced(tmp_path, methods=["ader"])
    third = raced(tmp_path, methods=["nlms"], delay=16)
    assert methods(tmp_path) == {"nlms"}
    shelves = {one: tmp_path / "races" / one for one in (first, second)}
    assert set((tmp_path / "races").iterdir()) == set(shelves.values())
    assert methods(shelves[first]) == {"HedgedSGD"}
    assert methods(shelves[second]) == {"ader"}
    wanted = {f"races/{one}/index.html" for one in shelves}
    assert set(links(tmp_path / "index.html")) == wanted
    for folder in shelves.values():
        assert links(folder / "index.html") == ["../../index.html"]
        assert (folder / "leaderboard.parquet").exists()
    assert "delay 16" in shelf.title_of(Race([STREAM], delay=16))

    # The first is run again: it is the newest, and the others lie on the shelf.
    assert raced(tmp_path) == first
    assert methods(tmp_path) == {"HedgedSGD"}
    names = {folder.name for folder in (tmp_path / "races").iterdir()}
    assert names == {second, third}
    assert len(links(tmp_path / "index.html")) == 2


def test_the_same_race_stays_where_it_is(tmp_path):
    raced(tmp_path)
    raced(tmp_path, jobs=2, limit=10.0)
    assert not (tmp_path / "races").exists()


@pytest.mark.parametrize("when", ["before the page", "in the shelf"])
def test_a_race_that_is_killed_loses_no_other(tmp_path, monkeypatch, when):
    first = raced(tmp_path)
    page = (tmp_path / "index.html").read_text()
    with monkeypatch.context() as patch:
        if when == "in the shelf":
            patch.setattr(shelf.Path, "replace", lambda *_: (_ for _ in ()).throw(MemoryError))
        else:
            target = "driftrate.race.run.render_race"
            patch.setattr(target, lambda *_, **__: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            raced(tmp_path, methods=["ader"])
    assert (tmp_path / "index.html").read_text() == page
    raced(tmp_path, methods=["ader"])
    assert methods(tmp_path) == {"ader"}
    assert methods(tmp_path / "races" / first) == {"HedgedSGD"}


def test_a_page_of_before_is_kept(tmp_path):
    (tmp_path / "index.html").write_text("<h1>The race: of an older version</h1>")
    raced(tmp_path)
    ((old,),) = [list((tmp_path / "races").iterdir())]
    assert old.name.startswith("unnamed-")
    assert "of an older version" in (old / "index.html").read_text()
    assert "an older race" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    "name",
    ["../../../out", "..", "/", "{}/outside", "a/b", "", "nul\0", "x" * 300, "a&quot;-0a1b2c3d"],
)
def test_a_page_says_no_place_to_write_to(name, tmp_path):
    """An edited page is kept as one that does not say which race it is of."""
    out = tmp_path / "inner" / "deep" / "folder"
    out.mkdir(parents=True)
    page = f'<h1 data-race="{name.format(tmp_path)}" data-title="edited">'
    (out / "index.html").write_text(page)
    (found,) = shelf.put_aside(out, Race([STREAM]))
    assert found.name.startswith("unnamed-")
    assert (out / "races" / found.name / "index.html").read_text() == page
    files = (path for path in tmp_path.rglob("*") if path.is_file())
    assert {path.relative_to(out).parts[0] for path in files} == {"index.html", "races"}
    assert [path.name for path in (out / "races").iterdir()] == [found.name]


def test_a_page_in_another_encoding_is_kept(tmp_path):
    (tmp_path / "index.html").write_bytes(b"<h1>caf\xe9</h1>")
    (found,) = shelf.put_aside(tmp_path, Race([STREAM]))
    assert "caf\ufffd" in (tmp_path / "races" / found.name / "index.html").read_text()


def test_a_race_lies_where_its_folder_says(tmp_path):
    """Not where its page does; and a folder may have any name."""
    first = raced(tmp_path)
    raced(tmp_path, methods=["ader"])
    (tmp_path / "races" / first).rename(tmp_path / "races" / '100% "mine"')
    raced(tmp_path, methods=["nlms"])
    there = {unquote(one) for one in links(tmp_path / "index.html")}
    assert 'races/100% "mine"/index.html' in there
    assert len(there) == 2
    assert all((tmp_path / one).exists() for one in there)


def test_an_older_race_keeps_its_time(tmp_path):
    first = raced(tmp_path)
    written = (tmp_path / "index.html").stat().st_mtime
    time.sleep(0.05)
    raced(tmp_path, methods=["ader"])
    kept = tmp_path / "races" / first / "index.html"
    assert kept.stat().st_mtime == pytest.approx(written, abs=1e-3)
