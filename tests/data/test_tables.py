"""Files as streams: what columns become, what is refused, and how much is held at once."""

import gzip
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from driftrate.data import _columns, _pieces, tables
from driftrate.errors import ConfigError, DataError


@pytest.fixture
def write(tmp_path):
    def make(text, name="rows.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


def joined(table):
    parts = list(table.chunks())
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def test_numbers_categories_and_what_is_missing(write):
    path = write("a,c,y\n1,red,0.5\n,blue,1.5\n3,,2.5\n4,red,\n5,blue,3.5\n")
    table = tables.open_table(path, "y")
    x, y = joined(table)
    # a, a is missing, red, blue, c is missing; the row without a target is gone
    nan = np.nan
    expected = [[1, 0, 1, 0, 0], [nan, 1, 0, 1, 0], [3, 0, 0, 0, 1], [5, 0, 0, 1, 0]]
    np.testing.assert_array_equal(x, expected)
    assert y.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert table.classes is None
    assert table.rows == 4


def test_a_compressed_file(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"a,y\n1,2.5\n2,3.5\n"))
    x, y = joined(tables.open_table(path, "y"))
    assert (x.tolist(), y.tolist()) == ([[1.0], [2.0]], [2.5, 3.5])


def test_levels_beyond_the_cap_share_a_column(write, monkeypatch):
    monkeypatch.setattr(_columns, "MOST_LEVELS", 2)
    path = write("c,y\n" + "".join(f"{c},{i}.5\n" for i, c in enumerate("bacadb")))
    x, _ = joined(tables.open_table(path, "y"))
    assert x.argmax(axis=1).tolist() == [0, 1, 2, 1, 2, 0]  # b, a, everything else
    assert (x.sum(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        (["0", "1", "0"], None, ("0", "1")),
        (["10", "9", "2"], None, ("2", "9", "10")),
        (["no", "yes", "no"], None, ("no", "yes")),
        (["0.0", "1.0", "0.5"], None, None),
        (["0", "1", "0"], "numbers", None),
        ([str(i) for i in range(31)], None, None),
        ([str(i) for i in range(31)], "classes", tuple(str(i) for i in range(31))),
    ],
)
def test_a_target_is_classes_or_numbers(write, values, kind, classes):
    path = write("x,y\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values)))
    assert tables.open_table(path, "y", kind=kind).classes == classes


def test_parquet_types(tmp_path):
    day = pa.array([0, 1, 2, 3], pa.timestamp("s"))
    table = pa.table(
        {
            "flag": [True, False, None, True],
            "when": day,
            "level": pa.array(["u", "v", "u", None]).dictionary_encode(),
            "y": [True, False, False, True],
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    opened = tables.open_table(tmp_path / "t.parquet", "y")
    x, y = joined(opened)
    assert opened.classes == ("false", "true")
    assert y.tolist() == [1, 0, 0, 1]
    np.testing.assert_array_equal(x[:, 0], [1, 0, np.nan, 1])
    assert x[:, 1].tolist() == [0, 0, 1, 0]
    assert (np.diff(x[:, 2]) > 0).all()
    assert x[:, 3:].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_a_target_of_reals_may_be_classes_and_have_gaps(tmp_path):
    table = pa.table({"a": [1.0, 2.0, 3.0, 4.0], "y": [0.0, np.nan, 1.0, None]})
    parquet.write_table(table, tmp_path / "t.parquet")
    opened = tables.open_table(tmp_path / "t.parquet", "y", kind="classes")
    assert len(opened.classes) == opened.rows == 2
    assert joined(opened)[1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "options", "error", "says"),
    [
        ("a,y\n1,2.5\n2,3\n", {"target": "z"}, ConfigError, "no target column 'z'; it has a, y"),
        ("a,y\n1,2.5\n2,3\n", {"target": None}, ConfigError, "columns are a, y"),
        ("a,y\n1,2.5\n2,3\n", {"time": "when"}, ConfigError, "no time column 'when'"),
        ("a,y\n1,2.5\n2,3\n", {"time": "y"}, ConfigError, "must differ"),
        ("a,y\n1,1\n2,1\n", {}, DataError, "one value alone, '1'"),
        ("a,y\n1,2.5\n2,2.5\n", {}, DataError, "one value alone"),
        ("a,y\n1,u\n2,v\n", {"kind": "numbers"}, DataError, "holds text: a regression"),
        ("", {}, DataError, "rows.csv is empty"),
        ("a,y\n", {}, DataError, "no rows"),
        ("a,y\n1,\n2,\n", {}, DataError, "no rows with a target"),
        ("y\n1\n2\n", {}, DataError, "no column besides"),
        ("a,a,y\n1,2,3\n", {}, DataError, "more than one column 'a'"),
        ("a,y\n1,2,3\n4,5\n", {}, DataError, "cannot be read"),
        ("a,t,y\n1,noon,2\n2,one,3.5\n", {"time": "t"}, DataError, "ISO timestamps"),
        ("a,t,y\n1,1,2\n2,,3.5\n", {"time": "t"}, DataError, "missing in row 2"),
    ],
)
def test_bad_input_is_one_clear_line(write, text, options, error, says):
    with pytest.raises(error, match=says) as caught:
        joined(tables.open_table(write(text), **{"target": "y", **options}))
    assert "\n" not in str(caught.value)


def test_text_among_numbers_is_told_by_row(write, monkeypatch):
    monkeypatch.setattr(_pieces, "PIECE_BYTES", 256)  # many pieces: rows are counted across them
    rows = [f"{i}.5,{i}" for i in range(400)]
    rows[300], rows[301] = "oops,300", "1e,301"
    path = write("a,y\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError, match=r"column 'a' .* rows 301, 302 \(the first is 'oops'\)"):
        tables.open_table(path, "y")


def test_unknown_and_absent_files(write, tmp_path):
    with pytest.raises(DataError, match=r"rows.xlsx is of no known format: .*\.parquet"):
        tables.open_table(write("a", "rows.xlsx"), "y")
    with pytest.raises(DataError, match="no file at"):
        tables.open_table(tmp_path / "none.csv", "y")
    with pytest.raises(DataError, match="cannot be read"):
        tables.open_table(write("not a parquet file", "rows.parquet"), "y")


@pytest.mark.parametrize("stamp", ["{:d}", "2024-01-{:02d}", "2024-01-{:02d} 10:30:00"])
def test_rows_come_in_order_of_time(write, stamp):
    days = [3, 1, 2, 10, 9]
    text = "t,a,y\n" + "".join(f"{stamp.format(d)},{d},{d}.5\n" for d in days)
    table = tables.open_table(write(text), "y", time="t")
    x, y = joined(table)
    assert x.tolist() == [[1], [2], [3], [9], [10]]  # the time itself is no feature
    assert y.tolist() == [1.5, 2.5, 3.5, 9.5, 10.5]


def test_a_large_file_out_of_order_is_refused(write, monkeypatch):
    monkeypatch.setattr(tables, "SORT_BYTES", 100)
    with pytest.raises(DataError, match=r"not in order of 't' \(row 2\).*sort the file first"):
        tables.open_table(write("t,a,y\n2,1,1.5\n1,1,2.5\n"), "y", time="t")
    ordered = tables.open_table(write("t,a,y\n1,1,1.5\n2,1,2.5\n", "o.csv"), "y", time="t")
    assert joined(ordered)[1].tolist() == [1.5, 2.5]


def test_pieces_do_not_show(write, monkeypatch):
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{'xyz'[i % 3]},{a + i:.2f}" for i, a in enumerate(rng.normal(size=500))]
    whole = joined(tables.open_table(write("a,c,y\n" + "\n".join(lines)), "y"))
    monkeypatch.setattr(_pieces, "PIECE_BYTES", 512)
    path = write("a,c,y\n" + "\n".join(lines), "again.csv")
    table = tables.open_table(path, "y")
    assert len(list(table.chunks())) > 10
    for one, other in zip(whole, joined(table), strict=True):
        np.testing.assert_array_equal(one, other)


def test_memory_does_not_grow_with_the_file(write, monkeypatch):
    monkeypatch.setattr(_pieces, "PIECE_BYTES", 2**13)
    line = "0.123456,red,7.5\n1.654321,blue,8.5\n" * 500
    peaks = []
    for copies in (40, 320):
        path = write("a,c,y\n" + line * copies, f"{copies}.csv")
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        table = tables.open_table(path, "y")
        arrow = 0
        for _ in table.chunks():
            arrow = max(arrow, pa.total_allocated_bytes() - before)
        peaks.append((tracemalloc.get_traced_memory()[1], arrow))
        tracemalloc.stop()
    (small, _), (large, arrow) = peaks
    assert large < 1.5 * small  # eight times the file, the same memory
    # Arrow reads ahead, by some thirty pieces at most, and as many are being parsed: how many there
    # are at a time depends on its threads.
    assert max(large, arrow) < len(line) * 320 / 4


@pytest.mark.parametrize(
    ("written", "values"),
    [
        (["$1,234.50", "-$2", "($3.25)"], [1234.5, -2.0, -3.25]),
        (["12 %", "1,200%", "-0.5 %"], [12.0, 1200.0, -0.5]),
        (["1.234,50 €", "-2,5", "1 000,25"], [1234.5, -2.5, 1000.25]),
        (["2024-01-02", "2024-01-01T12:00", ""], [1704153600.0, 1704110400.0, np.nan]),
        (["2024-01-01T12:00Z", "2024-01-01 12:00:00+02:00", ""], [1704110400, 1704103200, np.nan]),
        (["inf", "-Infinity", "1e3"], [np.nan, np.nan, 1000.0]),
    ],
)
def test_numbers_and_times_however_written(write, written, values):
    rows = "".join(f'"{one}",{i}.5\n' for i, one in enumerate(written))
    x, _ = joined(tables.open_table(write(f"a,y\n{rows}"), "y"))
    np.testing.assert_array_equal(x[:, 0], values)
