"""The command that makes the page: whole, resumable, honest about failure."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from shutil import copytree

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from driftrate.cli import app
from driftrate.errors import ConfigError, DataError
from driftrate.paper import reproduce as room
from driftrate.paper.base import Context, Piece
from driftrate.paper.store import PieceStore


def command(*arguments):
    call = [sys.executable, "-m", "driftrate.cli", "reproduce", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made")
    judgements = room.reproduce(["figure2", "figure3"], out, Context(seeds=4), jobs=1, show=False)
    return out, judgements


def test_writes_page_pictures_verdicts_and_runs(made):
    out, judgements = made
    names = {"index.html", "verdicts.json", "figure2.svg", "figure2.png", "figure3.svg"}
    assert names <= {path.name for path in out.iterdir()}
    rows = json.loads((out / "verdicts.json").read_text())
    assert [row["name"] for row in rows] == [judgement.claim.name for judgement in judgements]
    assert {row["verdict"] for row in rows} == {"holds"}
    assert len(list((out / "runs").rglob("*.parquet"))) == 3


def test_page_needs_no_network(made):
    text = (made[0] / "index.html").read_text()
    assert text.count("data:image/svg+xml;base64,") == 2
    assert not re.findall(r"""(?:src|href)=["'](?!data:|\#)""", text)


def test_nothing_is_computed_twice(made, monkeypatch):
    out, judgements = made
    monkeypatch.setattr(PieceStore, "compute", lambda *_: pytest.fail("computed again"))
    again = room.reproduce(["figure2", "figure3"], out, Context(seeds=4), jobs=1, show=False)
    assert [j.row() for j in again] == [j.row() for j in judgements]


def again(out, show=False):
    return room.reproduce(["figure3"], out, Context(seeds=4), jobs=1, show=show)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    out = tmp_path_factory.mktemp("once")
    again(out)
    return out


@pytest.fixture
def third(once, tmp_path):
    return Path(copytree(once, tmp_path, dirs_exist_ok=True))


def picture(out):
    """Return the picture that the page shows."""
    page = (out / "index.html").read_text()
    return b64decode(re.search(r"data:image/svg\+xml;base64,([^\"]+)", page)[1])


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_kill_while_a_picture_is_written_leaves_the_old_one(third, monkeypatch, kind):
    before = {path.name: path.read_bytes() for path in third.glob("figure3.*")}

    def killed(self, place, **options):
        place.write_bytes(b"<svg>")
        if options["format"] == kind:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", killed)
        with pytest.raises(KeyboardInterrupt):
            again(third)
    assert (third / f"figure3.{kind}").read_bytes() == before[f"figure3.{kind}"]
    assert not list(third.glob("*.part"))


def test_half_a_picture_is_drawn_again(third):
    before, shown = (third / "figure3.png").read_bytes(), picture(third)
    for path in (*third.glob("figure3.*"), *third.glob("runs/*/*.svg")):
        path.write_bytes(path.read_bytes()[:5000])
    again(third)
    assert (third / "figure3.png").read_bytes() == before
    assert (third / "figure3.svg").read_bytes() == picture(third) == shown


def test_a_damaged_piece_is_said_and_computed_again(third, capsys):
    (file,) = third.glob("runs/figure3/*.parquet")
    verdicts, whole = (third / "verdicts.json").read_text(), file.read_bytes()
    file.write_bytes(whole[:-100])
    again(third, show=True)
    said = f"{file.name[:-21]} was damaged, and is computed again"
    assert said in " ".join(capsys.readouterr().out.split())
    assert (third / "verdicts.json").read_text() == verdicts
    again(third, show=True)
    assert "damaged" not in capsys.readouterr().out


@pytest.mark.parametrize("file", ["runs/figure3/*.parquet", "figure3.png", "index.html"])
def test_a_full_disk_is_one_line_and_loses_nothing(third, tmp_path_factory, file):
    """A file that may not be so large fails as one on a full disk does."""
    (largest,) = third.glob(file)
    out = tmp_path_factory.mktemp("new") if "runs" in file else third
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    arguments = ["reproduce", "figure3", "--seeds", "4", "--jobs", "1", "--out", str(out)]
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest.stat().st_size - 1, usual[1]))
    try:
        done = CliRunner().invoke(app, arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"driftrate: cannot write to {out}: File too large; run again")
    assert done.stderr.count("\n") == 1
    assert not list(out.rglob("*.part"))
    for path, content in before.items():
        assert path.read_bytes() == content
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert picture(out)


def test_pieces_run_in_other_processes(tmp_path):
    store = PieceStore(tmp_path, ["figure2"])
    pieces = room.load("figure2").pieces(Context())
    assert len(list(room._compute(store, "figure2", pieces, jobs=2))) == len(pieces)
    assert all(store.has("figure2", piece) for piece in pieces)
    assert "PYTHONSAFEPATH" not in os.environ


def test_other_processes_import_nothing_that_lies_beside_the_data(foreign, tmp_path):
    script = tmp_path / "command.py"
    script.write_text("from driftrate.__main__ import main; main()")
    # matplotlib reads this one of the working folder.
    Path("matplotlibrc").write_text("text.usetex: True\nbackend: module://evil\n")
    call = [sys.executable, script, "reproduce", "figure2", "--seeds", "4", "--jobs", "2"]
    done = subprocess.run([*call, "--out", "out"], capture_output=True, text=True, check=False)
    assert foreign() == []
    assert done.returncode == 0, done.stderr


class TestBadInput:
    def test_unknown_figure(self, tmp_path):
        done = command("figure9", "--out", tmp_path / "out")
        assert done.returncode != 0
        assert "unknown figure 'figure9'" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()
        with pytest.raises(ConfigError, match="choose from figure1"):
            room.load("figure9")

    def test_unwritable_folder(self, tmp_path):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(DataError, match="cannot write to"):
            room.reproduce(["figure3"], tmp_path / "file", Context(), jobs=1, show=False)
        done = command("figure3", "--out", tmp_path / "file")
        assert done.returncode != 0
        assert done.stderr.count("\n") == 1

    def test_wrong_cells(self, tmp_path):
        (tmp_path / "cells.h5ad").write_text("not HDF5")
        done = command("figure6", "--data", tmp_path / "cells.h5ad", "--out", tmp_path / "out")
        assert done.returncode != 0
        assert "cells.h5ad" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()

    def test_an_experiment_that_fails_is_an_error(self, tmp_path, monkeypatch):
        module = room.load("figure3")
        monkeypatch.setattr(module, "pieces", lambda _: [Piece("a", "", lambda: 1 / 0)])
        with pytest.raises(ZeroDivisionError):
            room.reproduce(["figure3"], tmp_path, Context(), jobs=1, show=False)
