"""The store of pieces: what is kept, and which edit of the code computes what anew."""

from __future__ import annotations

import pyarrow as pa
import pytest

from driftrate.paper.base import Piece, table
from driftrate.paper.reproduce import FIGURES, _compute
from driftrate.paper.store import PieceStore

PIECE = Piece("a", "", table)


@pytest.fixture
def anew(edit, tmp_path):
    """Return a function that edits a file, and says which figures are computed anew."""

    def paths():
        store = PieceStore(tmp_path, FIGURES)
        return {figure: store.path(figure, PIECE) for figure in FIGURES}

    before = paths()

    def anew(file, change):
        edit(file, change)
        after = paths()
        return {figure for figure in FIGURES if after[figure] != before[figure]}

    return anew


@pytest.mark.parametrize(
    "change",
    [
        lambda text: f"# A comment.\n{text}",
        lambda text: text.replace('"""', '"""Said better. ', 1),
        lambda text: text.replace("\n\n\n", "\n\n\n\n"),
    ],
    ids=["comment", "docstring", "layout"],
)
@pytest.mark.parametrize("file", ["schedules/linear.py", "paper/figure1.py", "paper/base.py"])
def test_words_and_layout_compute_nothing_anew(anew, file, change):
    assert anew(file, change) == set()


def add(text):
    """Return code with one more constant."""
    return text + "\n_NEW = 1\n"


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        ("paper/base.py", FIGURES),
        ("paper/figure1.py", ["figure1"]),
        ("paper/figure6/networks.py", ["figure6"]),
        ("adapters/_observe/choice.py", ["figure6"]),
        ("data/cytometry.py", ["figure6"]),
        ("simulation/exact.py", ["figure1", "figure4", "figure5", "statements"]),
        ("paper/claims.py", []),
        ("paper/page.py", []),
        ("adapters/keras/__init__.py", []),
        ("race/models.py", []),
    ],
)
def test_code_computes_anew_what_runs_it(anew, file, whose):
    assert anew(file, add) == set(whose)


def test_a_comment_in_a_schedule_runs_nothing_again_and_a_constant_does(edit, tmp_path):
    def done():
        return PieceStore(tmp_path, ["figure3"]).has("figure3", piece)

    piece = Piece("a", "", lambda: table(x=[1.0]))
    PieceStore(tmp_path, ["figure3"]).compute("figure3", piece)
    assert done()
    edit("schedules/linear.py", lambda text: f"# A comment.\n{text}")
    assert done()
    edit("schedules/linear.py", lambda text: text.replace("(self.dim + 1.0)", "(self.dim + 2.0)"))
    assert not done()


def test_another_torch_runs_figure6_again(newer, tmp_path):
    before = PieceStore(tmp_path, FIGURES)
    newer("torch")
    after = PieceStore(tmp_path, FIGURES)
    found = {name for name in FIGURES if before.path(name, PIECE) != after.path(name, PIECE)}
    assert found == {"figure6"}


def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    """The second piece fails; the first is kept, and no half file is left."""
    calls = []

    def fine():
        calls.append("fine")
        return table(x=[1.0])

    def broken():
        raise KeyboardInterrupt

    store = PieceStore(tmp_path, ["figure"])
    pieces = [Piece("fine", "", fine), Piece("broken", "", broken)]
    with pytest.raises(KeyboardInterrupt):
        list(_compute(store, "figure", pieces, jobs=1))
    assert [p.name[:4] for p in (tmp_path / "figure").iterdir()] == ["fine"]
    todo = [piece for piece in pieces if not store.has("figure", piece)]
    assert [piece.name for piece in todo] == ["broken"]
    assert store.read("figure", pieces[0]) == pa.table({"x": [1.0]})


def test_other_seeds_are_other_pieces(tmp_path):
    store = PieceStore(tmp_path, ["figure"])
    paths = {store.path("figure", Piece("a", key, table)) for key in ("4 seeds", "8 seeds")}
    assert len(paths) == 2


def test_changed_results_replace_old_ones(tmp_path):
    store = PieceStore(tmp_path, ["figure"])
    for key in ("old", "new"):
        store.compute("figure", Piece("a", key, lambda: table(x=[1.0])))
    assert len(list((tmp_path / "figure").iterdir())) == 1


def test_a_damaged_piece_is_computed_again(tmp_path):
    store = PieceStore(tmp_path, ["figure"])
    piece = Piece("a", "", lambda: table(x=[1.0, 2.0]))
    store.compute("figure", piece)
    (file,) = (tmp_path / "figure").iterdir()
    whole = file.read_bytes()
    cuts = [whole[:size] for size in (0, 4, len(whole) // 2, len(whole) - 1)]
    cuts += [
        whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :]
        for place in range(0, len(whole), 41)
    ]
    for count, damaged in enumerate(cuts, 1):
        file.write_bytes(damaged)
        assert not store.has("figure", piece)
        assert store.damaged == count * [store.path("figure", piece).name]
        store.compute("figure", piece)
        assert store.read("figure", piece) == pa.table({"x": [1.0, 2.0]})
