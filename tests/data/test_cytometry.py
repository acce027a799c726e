"""The cells: every source, every way a file can be wrong, and the stream of the paper."""

from __future__ import annotations

import gzip
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from driftrate.data import cytometry
from driftrate.data.cytometry import (
    CLASSES,
    GENES,
    MEDIAN_SIZE,
    CellStream,
    Phase,
    load_cells,
    simulate_cells,
)
from driftrate.errors import ConfigError, DataError

h5py = pytest.importorskip("h5py")

HERE = Path(os.environ.get("DRIFTRATE_DATA", Path(__file__).parents[3] / "shared" / "data"))
CSV = HERE / "pancreas10.csv.gz"
needs_cells = pytest.mark.skipif(
    not CSV.is_file(), reason="no cells: set DRIFTRATE_DATA to a folder with pancreas10.csv.gz"
)
NAMES = ("Sox9", *GENES[::-1], "Xist")
RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(3.0, (40, len(NAMES))).astype(np.float32)
LABELS = np.array([*CLASSES, "Epsilon"] * 8)


@pytest.fixture(scope="module")
def simulated():
    return simulate_cells()


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch, tmp_path):
    monkeypatch.setenv("DRIFTRATE_DATA", str(tmp_path / "empty"))


def write_h5ad(path, layout="groups", sparse="csr", names=NAMES, labels="clusters", counts=COUNTS):
    """Write an .h5ad file as one of AnnData's versions does."""
    rows = np.array([name.encode() for name in names])
    kinds, codes = np.unique(LABELS, return_inverse=True)
    kinds = np.array([kind.encode() for kind in kinds])
    cells = np.array([b"c%d" % place for place in range(len(LABELS))])
    with h5py.File(path, "w") as file:
        if sparse == "dense":
            file["X"] = counts
        else:
            matrix = counts if sparse == "csr" else counts.T
            group = file.create_group("X")
            row, column = np.nonzero(matrix)
            group["data"], group["indices"] = matrix[row, column], column
            group["indptr"] = np.append(0, np.cumsum((matrix != 0).sum(axis=1)))
            key = "h5sparse_format" if layout == "compound" else "encoding-type"
            group.attrs[key] = sparse if layout == "compound" else f"{sparse}_matrix"
        if layout == "compound":
            file["var"] = np.array([(row,) for row in rows], dtype=[("index", "S16")])
            table = list(zip(cells, codes, strict=True))
            file["obs"] = np.array(table, dtype=[("index", "S16"), (labels, "i1")])
            file[f"uns/{labels}_categories"] = kinds
            return path
        for name, index in (("var", rows), ("obs", cells)):
            group = file.create_group(name)
            group.attrs["_index"] = "index"
            group["index"] = index
        if layout == "beside":
            file[f"obs/{labels}"], file[f"obs/__categories/{labels}"] = codes, kinds
        elif layout == "plain":
            file[f"obs/{labels}"] = kinds[codes]
        else:
            file[f"obs/{labels}/codes"], file[f"obs/{labels}/categories"] = codes, kinds
    return path


@pytest.mark.parametrize("sparse", ["csr", "csc", "dense"])
@pytest.mark.parametrize("layout", ["groups", "beside", "plain", "compound"])
def test_h5ad_of_every_layout(tmp_path, layout, sparse):
    cells = load_cells(write_h5ad(tmp_path / "a.h5ad", layout, sparse))
    kept = LABELS != "Epsilon"
    places = [NAMES.index(gene) for gene in GENES]
    counts = COUNTS[kept].astype(np.float64)
    expected = counts[:, places] * MEDIAN_SIZE / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(cells.expression, expected, rtol=1e-12)
    assert [CLASSES[label] for label in cells.label] == list(LABELS[kept])
    assert cells.imputed == 0
    assert cells.source == "32 cells of a.h5ad"


def write_csv(path, rows=None, header=None):
    header = header or ["cluster", "initial_size", *GENES]
    if rows is None:
        rows = [[name, "5000", *map(str, range(10))] for name in CLASSES]
        rows += [["Alpha", "6194", *("" if g == "Rps3" else "7" for g in GENES)]]
    path.write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")
    return path


def every(count, size="5000", classes=CLASSES):
    return [[name, size, *([count] * 10)] for name in classes]


def only_x_missing(path):
    with h5py.File(path, "w") as file:
        file.create_group("obs")


BLANKS = ["" if gene == "Rps3" else "1" for gene in GENES]
BROKEN = {
    "missing file": ("a.h5ad", lambda path: None),
    "not HDF5": ("a.h5ad", lambda path: path.write_text("not HDF5\nat all")),
    "cut short": ("a.h5ad", lambda path: os.truncate(write_h5ad(path), 1500)),
    "no gene": ("a.h5ad", lambda path: write_h5ad(path, names=("A", *GENES[:-1], "Rsp3", "B"))),
    "no clusters": ("a.h5ad", lambda path: write_h5ad(path, labels="louvain")),
    "no old clusters": ("a.h5ad", lambda path: write_h5ad(path, "compound", labels="louvain")),
    "no X": ("a.h5ad", only_x_missing),
    "not counts": ("a.h5ad", lambda path: write_h5ad(path, counts=np.log1p(COUNTS))),
    "wrong shape": ("a.h5ad", lambda path: write_h5ad(path, sparse="dense", counts=COUNTS[1:])),
    "wrong rows": ("a.h5ad", lambda path: write_h5ad(path, counts=COUNTS[1:])),
    "no Delta": ("a.csv", lambda path: write_csv(path, every("1", classes=CLASSES[:2]))),
    "no column": ("a.csv", lambda path: write_csv(path, header=["cluster", "size", *GENES])),
    "words": ("a.csv", lambda path: write_csv(path, every("many"))),
    "blank": ("a.csv", lambda path: write_csv(path, every(""))),
    "negative": ("a.csv", lambda path: write_csv(path, every("-1"))),
    "empty cell": ("a.csv", lambda path: write_csv(path, every("0", size="0"))),
    "unmeasured": ("a.csv", lambda path: write_csv(path, [[c, "1", *BLANKS] for c in CLASSES])),
    "not gzip": ("a.csv.gz", lambda path: path.write_text("cluster")),
    "short row": ("a.csv", lambda path: write_csv(path, [["Alpha", "5000"]])),
}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing file", "no cells at"),
        ("not HDF5", "cannot be read as .h5ad"),
        ("cut short", "cannot be read as .h5ad"),
        ("no gene", "has no gene Hspa8"),
        ("no clusters", "has no column 'clusters'"),
        ("no old clusters", "has no column 'clusters'"),
        ("no X", "it has no 'X'"),
        ("not counts", "no raw counts"),
        ("wrong shape", "obs and var say"),
        ("wrong rows", "obs and var say"),
        ("no Delta", "has no Delta cells"),
        ("no column", "has no column initial_size"),
        ("words", "cannot be read as CSV"),
        ("blank", "cannot be read as CSV"),
        ("negative", "negative"),
        ("empty cell", "without counts"),
        ("unmeasured", "no Alpha cell with Rps3"),
        ("not gzip", "cannot be read as CSV"),
        ("short row", "cannot be read as CSV"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, kind, says):
    name, write = BROKEN[kind]
    path = tmp_path / name
    write(path)
    with pytest.raises(DataError, match=says) as caught:
        load_cells(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


def test_a_blank_is_drawn_from_its_class(tmp_path):
    rows = [[name, "6194", *map(str, range(10))] for name in CLASSES]
    rows += [["Beta", "6194", *("" if g == "Rps3" else "7" for g in GENES)]]
    cells = load_cells(write_csv(tmp_path / "cells.csv", rows))
    assert cells.expression[-1, GENES.index("Rps3")] == 7.0  # what the only other beta cell has
    assert cells.imputed == 1
    assert "Rps3 imputed for 1" in cells.source


def test_a_folder_and_the_environment_are_searched(tmp_path, monkeypatch):
    with gzip.open(tmp_path / "pancreas10.csv.gz", "wt") as file:
        file.write(write_csv(tmp_path / "any.csv").read_text())
    assert load_cells(tmp_path).source.startswith("5 cells of pancreas10.csv.gz")
    monkeypatch.setenv("DRIFTRATE_DATA", str(tmp_path))
    assert load_cells(download=False).source.startswith("5 cells of pancreas10.csv.gz")


@pytest.fixture
def server(tmp_path):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}/file.h5ad"
        httpd.shutdown()
        thread.join()


def test_download_is_verified_kept_and_mended(tmp_path, server, monkeypatch):
    pytest.importorskip("pooch")
    folder, url = server
    good = write_h5ad(folder / "file.h5ad")
    monkeypatch.setattr(cytometry, "URL", url)
    monkeypatch.setattr(cytometry, "BLOB", cytometry._blob(good))
    cache = tmp_path / "cache"
    first = load_cells(cache=cache)
    assert first.source == "32 cells of endocrinogenesis_day15.h5ad"
    kept = cache / "endocrinogenesis_day15.h5ad"
    kept.write_bytes(b"damaged")
    assert load_cells(cache=cache).fingerprint == first.fingerprint
    good.unlink()
    assert load_cells(cache=cache).fingerprint == first.fingerprint


def test_wrong_or_no_download_falls_on_and_says_so(tmp_path, server, monkeypatch):
    pytest.importorskip("pooch")
    folder, url = server
    write_h5ad(folder / "file.h5ad")
    cache = tmp_path / "cache"
    for address in (url, url.replace("file", "none"), "http://127.0.0.1:1/file.h5ad"):
        monkeypatch.setattr(cytometry, "URL", address)
        cells = load_cells(cache=cache)
        assert cells.simulated
        assert "none could be downloaded" in cells.note
        assert list(cache.iterdir()) == []  # nothing wrong or half-written is kept


def test_blob_is_what_git_calls_it(tmp_path):
    path = tmp_path / "hello"
    path.write_bytes(b"hello\n")
    assert cytometry._blob(path) == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_simulated_cells_have_the_fitted_marginals(simulated):
    assert np.bincount(simulated.label).tolist() == [481, 591, 70, 916]
    ductal = simulated.expression[simulated.label == CLASSES.index("Ductal")]
    # Gnas and Malat1 of ductal cells; mean and spread of the public file.
    np.testing.assert_allclose(ductal[:, [4, 2]].mean(axis=0), [7.0, 20.5], rtol=0.05)
    np.testing.assert_allclose(ductal[:, [4, 2]].var(axis=0), [6.9, 138.5], rtol=0.2)
    # Meg3 and Malat1 are correlated within the class.
    assert stats.spearmanr(ductal[:, 1], ductal[:, 2]).statistic == pytest.approx(0.38, abs=0.08)
    assert simulate_cells().fingerprint == simulated.fingerprint


@needs_cells
def test_the_real_cells():
    cells = load_cells(CSV)
    assert np.bincount(cells.label).tolist() == [481, 591, 70, 916]
    assert cells.imputed == 1021
    assert not cells.simulated
    alpha = cells.expression[cells.label == 0]
    assert alpha[:, GENES.index("Gcg")].mean() == pytest.approx(143.53, abs=0.01)


@needs_cells
def test_simulated_cells_teach_a_classifier_of_real_ones(simulated):
    linear_model = pytest.importorskip("sklearn.linear_model")
    cells = load_cells(CSV)
    model = linear_model.LogisticRegression(max_iter=2000)
    model.fit(np.log1p(simulated.expression), simulated.label)
    assert model.score(np.log1p(cells.expression), cells.label) > 0.84


def test_stream_follows_the_phases(simulated):
    stream = CellStream(simulated)
    labels = np.array([label for _, label in stream.batches([0, 1])])
    assert labels.shape == (600, 2, 64)
    for (begin, end), phase in zip(
        [(0, 100), (100, 200), (200, 400), (400, 600)], stream.phases, strict=True
    ):
        shares = np.bincount(labels[begin:end].ravel(), minlength=4) / labels[begin:end].size
        np.testing.assert_allclose(shares, phase.shares, atol=0.015)
        assert (shares[np.array(phase.shares) == 0] == 0).all()


def test_order_says_whom_the_shares_mean(simulated):
    x, label = next(CellStream(simulated, order=("Ductal", *CLASSES[:3])).batches([3]))
    assert (label == CLASSES.index("Delta")).all()
    assert x.dtype == np.float32


def test_expressions_are_jittered_cells(simulated):
    one = (Phase((0.0, 1.0, 0.0, 0.0), 2),)
    x, label = next(CellStream(simulated, phases=one).batches([0]))
    still, same = next(CellStream(simulated, phases=one, jitter=0.0).batches([0]))
    ratio = x[still > 0] / still[still > 0]
    assert (label == same).all()
    assert ratio.min() >= 0.9 - 1e-6
    assert ratio.max() <= 1.1 + 1e-6
    assert stats.kstest((ratio - 0.9) / 0.2, "uniform").pvalue > 1e-3
    assert (x[still == 0] == 0).all()


def test_a_seed_has_its_stream_in_any_company(simulated):
    alone = [x[0] for x, _ in CellStream(simulated).batches([7])]
    beside = [x[1] for x, _ in CellStream(simulated).batches([5, 7])]
    np.testing.assert_array_equal(alone, beside)


@pytest.mark.parametrize(
    "wrong",
    [
        {"order": ("Alpha", "Beta", "Delta", "Delta")},
        {"phases": (Phase((0.5, 0.0, 0.0, 0.0), 10),)},
        {"phases": (Phase((1.0, 0.0, 0.0, 0.0), 0),)},
        {"batch_size": 0},
        {"jitter": 1.0},
    ],
)
def test_a_wrong_stream_is_refused(simulated, wrong):
    with pytest.raises(ConfigError):
        CellStream(simulated, **wrong)
