"""The command that makes the page: whole, resumable, honest about failure."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

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


def test_pieces_run_in_other_processes(tmp_path):
    store = PieceStore(tmp_path, ["figure2"])
    pieces = room.load("figure2").pieces(Context())
    assert len(list(room._compute(store, "figure2", pieces, jobs=2))) == len(pieces)
    assert all(store.has("figure2", piece) for piece in pieces)


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
