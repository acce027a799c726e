"""Files as streams: what columns become, what is refused, and how much is held at once."""

import gzip
import os
import tracemalloc
from contextlib import contextmanager
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from driftrate.data import _columns, _pieces, tables
from driftrate.data._target import TargetScanner
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


WIDE = 2**53  # beyond it neighbours are one float


@pytest.mark.parametrize(
    "kind",
    ["csv", pa.int64(), pa.uint64(), pa.decimal128(20, 0), pa.decimal256(60, 3), pa.string()],
    ids=str,
)
@pytest.mark.parametrize("start", [WIDE, -WIDE - 4, 2**64 - 3], ids=["2^53", "-2^53", "2^64"])
def test_labels_beyond_the_floats_stay_apart(tmp_path, kind, start):
    if (kind == pa.int64() and start > 2**63) or (kind == pa.uint64() and start < 0):
        pytest.skip("it has no such numbers")
    labels = [start + i % 3 for i in range(30)]
    path = tmp_path / f"rows.{'csv' if kind == 'csv' else 'parquet'}"
    if kind == "csv":
        path.write_text("a,y\n" + "".join(f"{i}.5,{one}\n" for i, one in enumerate(labels)))
    else:
        kept = map(str, labels) if kind == pa.string() else map(Decimal, labels)
        kept = kept if pa.types.is_decimal(kind) or kind == pa.string() else labels
        parquet.write_table(pa.table({"a": np.arange(30.0), "y": pa.array(kept, kind)}), path)
    table = tables.open_table(path, "y")
    assert table.classes == tuple(str(start + i) for i in range(3))
    assert joined(table)[1].tolist() == [i % 3 for i in range(30)]


@given(
    st.lists(st.integers(-(2**70), 2**70), min_size=2, max_size=12, unique=True),
    st.sampled_from(["{}", " {}", "+{}", "{}.0", "{}e0", "${}", "{} %"]),
)
def test_labels_are_the_numbers_that_are_written(numbers, form):
    written = [form.format(abs(one)) for one in numbers] * 2
    scanner = TargetScanner("y", "classes")
    scanner.look(pa.array(written), 0)
    target, _ = scanner.target(commas=False)
    wanted = sorted({abs(one) for one in numbers})
    assert target.classes == tuple(map(str, wanted))
    codes = target.encode(pa.array([*written, None, "inf"]), 0)
    assert [wanted[int(code)] for code in codes[:-2]] == [abs(one) for one in numbers] * 2
    assert np.isnan(codes[-2:]).all()


def test_labels_of_decimals_stay_apart_and_spellings_together(write):
    written = ["0.5", "0.50", "5e-1", "0.5000000000000000000001", ".5", " 0.5"]
    path = write("a,y\n" + "".join(f"{i},{one}\n" for i, one in enumerate(written)))
    table = tables.open_table(path, "y", kind="classes")
    assert table.classes == ("0.5", "0.5000000000000000000001")
    assert joined(table)[1].tolist() == [0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("numbers", [pa.int64(), pa.string(), "csv"], ids=str)
def test_whole_numbers_that_become_one_are_told(tmp_path, write, numbers, monkeypatch):
    monkeypatch.setattr(_pieces, "PIECE_ROWS", 4)
    monkeypatch.setattr(_pieces, "PIECE_BYTES", 128)
    columns = {
        "id": [2**60 + i for i in range(40)],
        "by_piece": [2**60 + i // 4 for i in range(40)],
        "apart": [2**60 + 1 + 1024 * (i * 7 % 40) for i in range(40)],
        "small": [i * 7 % 40 for i in range(40)],
        "y": [i % 2 for i in range(40)],
    }
    if numbers == "csv":
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path = write("\n".join([",".join(columns), *lines]))
    else:
        kept = {n: list(map(str, c)) if numbers == pa.string() else c for n, c in columns.items()}
        path = tmp_path / "rows.parquet"
        parquet.write_table(pa.table(kept), path)
    table = tables.open_table(path, "y")
    assert dict(table.seen.left_out) == {"id": "index: whole numbers that rise from row to row"}
    (said,) = table.seen.warnings
    assert said.startswith("column 'by_piece' holds whole numbers beyond 2^53")
    assert "--kind by_piece=category" in said
    told = tables.open_table(path, "y", kinds={"by_piece": "category"})
    assert not told.seen.warnings
    assert told.columns[0].count == 10


def test_text_that_is_no_utf8_is_told_by_byte(tmp_path):
    line = "a,caf\u00e9,y\n".encode("latin-1")
    for name, content, place in [
        ("head.csv", line + b"1,2,3\n", "line 1 has the byte 0xe9 at 6"),
        ("body.csv", b"a,c,y\n1,2,3\n1,\xfc,3\n", "line 3 has the byte 0xfc at 3"),
        ("packed.csv.gz", gzip.compress(line), "line 1 has the byte 0xe9 at 6"),
    ]:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{name} is no UTF-8 text: save it as UTF-8") as caught:
            tables.open_table(path, "y")
        assert place in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["name", "value"])
def test_a_parquet_that_is_no_utf8_is_one_line(tmp_path, where):
    path = tmp_path / "rows.parquet"
    name = "c" if where == "value" else "cafX"
    text = pa.array(["cafX", "b"] * 20)
    parquet.write_table(pa.table({name: text, "y": [0.5, 1.5] * 20}), path, compression="none")
    path.write_bytes(path.read_bytes().replace(b"cafX", b"caf\xe9"))
    with pytest.raises(DataError, match=r"rows.parquet is no UTF-8 text") as caught:
        tables.open_table(path, "y")
    assert "\n" not in str(caught.value)


@contextmanager
def watched():
    """Yield a pool that says the most bytes that Arrow held at once."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(usual)


def bomb(path, rows=20_000, letters=2**20):
    """Write a file of a kilobyte, one text of which is a megabyte in each of its rows."""
    places = pa.array(np.zeros(rows, np.int32))
    text = pa.DictionaryArray.from_arrays(places, ["x" * letters])
    columns = {"a": np.arange(rows) % 7, "c": text, "y": np.arange(rows) % 2}
    parquet.write_table(pa.table(columns), path, compression="zstd")


def test_a_small_file_of_much_text_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    bomb(path)
    assert path.stat().st_size < 2**16
    with watched() as pool:
        with pytest.raises(DataError, match=r"column 'c' holds .* MB of text .*--drop c") as caught:
            tables.open_table(path, "y")
        table = tables.open_table(path, "y", drop=["c"])
        assert len(joined(table)[1]) == 20_000
    assert "\n" not in str(caught.value)
    assert pool.max_memory() < 2**25


def test_long_texts_come_in_small_pieces(tmp_path):
    path = tmp_path / "rows.parquet"
    rng = np.random.default_rng(0)
    text = [chr(97 + i % 26) * 2**17 for i in range(400)]
    columns = {"c": text, "y": rng.normal(size=400)}
    small = {"use_dictionary": False, "write_batch_size": 8}  # pages of a megabyte
    parquet.write_table(pa.table(columns), path, compression="zstd", **small)
    with watched() as pool:
        table = tables.open_table(path, "y")
        assert sum(len(y) for _, y in table.chunks()) == 400
    assert table.columns[0].count == 26
    assert pool.max_memory() < 2**25


@pytest.mark.parametrize(("levels", "off"), [(1_001, 0), (100_000, 0), (300_000, 0.01)])
def test_all_levels_are_counted(levels, off):
    scanner = _columns.Scanner("key")
    for start in range(0, levels, 40_000):
        some = range(start, min(start + 40_000, levels))
        for _ in range(2 if levels < 2_000 else 1):
            scanner.look(pa.array([f"user-{i}" for i in some]), start)
    column, warnings = scanner.column(commas=False)
    assert column.count == pytest.approx(levels, rel=off, abs=0)
    assert len(column.levels) == _columns.MOST_LEVELS
    (said,) = warnings if levels > 2_000 else ("",)
    assert (levels < 2_000) or "--drop key if it names the rows" in said
    assert (f"{'about ' if off else ''}{column.count:,} levels" in said) == (levels > 2_000)


@pytest.mark.parametrize(
    ("value", "said"), [("NAN", "missing"), ("nan", "missing"), ("inf", "infinite")]
)
def test_a_time_that_is_no_number_is_told_by_row(write, tmp_path, value, said):
    path = write(f"t,a,y\n1,1,1.5\n{value},2,2.5\n0,3,3.5\n")
    with pytest.raises(DataError, match=f"time column 't' is {said} in row 2"):
        tables.open_table(path, "y", time="t")
    columns = {"t": [1.0, float(value), 0.0], "a": [1, 2, 3], "y": [1.5, 2.5, 3.5]}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=f"time column 't' is {said} in row 2"):
        tables.open_table(tmp_path / "t.parquet", "y", time="t")


@pytest.mark.parametrize("kind", ["csv", pa.int64(), pa.timestamp("ns")], ids=str)
def test_times_beyond_the_floats_keep_their_order(write, tmp_path, kind):
    order = [3, 1, 2, 0]
    times, y = [2**60 + i for i in order], [i + 0.5 for i in order]
    path = write("t,a,y\n" + "".join(f"{t},1,{one}\n" for t, one in zip(times, y, strict=True)))
    if kind != "csv":
        path = tmp_path / "rows.parquet"
        parquet.write_table(pa.table({"t": pa.array(times, kind), "a": [1] * 4, "y": y}), path)
    table = tables.open_table(path, "y", time="t")
    assert table.seen.fault == 2
    assert joined(table)[1].tolist() == [0.5, 1.5, 2.5, 3.5]


def test_an_edit_that_keeps_size_and_time_is_seen(write):
    path = write("a,y\n1,0.5\n2,1.5\n")
    stat = path.stat()
    before = tables.fingerprint(path)
    assert joined(tables.open_table(path, "y"))[1].tolist() == [0.5, 1.5]
    assert tables.open_table(path, "y").target.high == 1.5
    path.write_text("a,y\n1,0.5\n2,9.5\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert tables.fingerprint(path) != before
    assert tables.open_table(path, "y").target.high == 9.5


def test_a_file_at_rest_is_looked_through_once(write, monkeypatch):
    path = write("a,y\n1,0.5\n2,1.5\n")
    monkeypatch.setattr(tables, "_AT_REST", 0.0)
    assert tables.open_table(path, "y") is tables.open_table(path, "y")
