"""Awkward files, each with what `driftrate race FILE --check` says of it.

    python tests/race/awkward.py FOLDER

writes them all into a folder, to be tried by hand.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

ROWS = 400
RNG = np.random.default_rng(7)
A = RNG.normal(size=ROWS).round(3)
B = RNG.normal(size=ROWS).round(3)
Y = (2 * A - B + 0.3 * RNG.normal(size=ROWS)).round(3)
SIGN = (Y > 0).astype(int)
FIVE = np.clip(np.round(Y), -2, 2).astype(int) + 3
SECONDS = np.datetime64("2024-01-01T00:00:00") + np.arange(ROWS) * np.timedelta64(3600, "s")


@dataclass(frozen=True)
class Awkward:
    """A file, the options, and what is said: on a reading, or in the one line of an error."""

    name: str
    content: Callable[[Path], object] | bytes | str
    said: Sequence[str] = ()
    error: str = ""
    unsaid: Sequence[str] = ("warning",)
    options: Sequence[str] = ("--target", "y")

    def write(self, folder: Path) -> Path:
        """Write the file, and return where it is."""
        path = folder / self.name
        if isinstance(self.content, str):
            path.write_text(self.content, encoding="utf-8")
        elif isinstance(self.content, bytes):
            path.write_bytes(self.content)
        else:
            self.content(path)
        return path


def table(sep=",", quote=False, **columns):
    """Return columns as the text of a CSV."""
    mark = '"' if quote else ""
    lines = [sep.join(columns)]
    lines += [
        sep.join(f"{mark}{value}{mark}" for value in row)
        for row in zip(*columns.values(), strict=True)
    ]
    return "\n".join(lines) + "\n"


def arrow(**columns):
    """Return a function that writes columns as Parquet."""
    return lambda path: parquet.write_table(pa.table(columns), path)


def put(values, **places):
    """Return values as a list, with some replaced: put(A, _3=1e9)."""
    found = list(values)
    for place, value in places.items():
        found[int(place[1:])] = value
    return found


def german(value):
    """Return a number as 1.234,50."""
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


MONEY = [f"${1000 + 100 * y:.2f}" for y in Y]
LARGE = [f"{12345.6 + 1000 * a:,.1f}" for a in A]
SHIFTED = np.where(np.arange(ROWS) < ROWS // 2, Y, Y + 200)
GROWN = np.exp(0.05 * np.arange(ROWS)) * (1 + 0.1 * A)
TARGET = ("--target", "y")

FILES = [
    # What is well.
    Awkward("plain.csv", table(a=A, b=B, y=Y), ["a number, as it holds numbers of 389 levels"]),
    Awkward("labels.csv", table(a=A, y=SIGN), ["two classes (0, 1), as it holds whole numbers"]),
    Awkward("words.csv", table(a=A, y=np.where(SIGN, "yes", "no")), ["two classes (no, yes)"]),
    # How numbers are written.
    Awkward("money.csv", table(a=A, y=MONEY), ["'y': a number", "linear"]),
    Awkward(
        "debts.csv", table(a=[f"(${-a:.2f})" if a < 0 else f"${a:.2f}" for a in A], y=Y),
        ["a  number    written as $1,234.50"],
    ),
    Awkward(
        "thousands.csv", table(quote=True, a=A, b=LARGE, y=Y),
        ["2 numbers", "b  number    written as $1,234.50"],
    ),
    Awkward(
        "thousands_alone.csv", table(sep=";", a=A, y=[f"{1000 + i % 97:,}" for i in range(ROWS)]),
        error="'y' may hold thousands or decimals (1,234): say --kind y=number or --kind",
    ),
    Awkward(
        "thousands_told.csv", table(sep=";", a=A, y=[f"{1000 + i % 97:,}" for i in range(ROWS)]),
        ["'y': a number"], options=(*TARGET, "--kind", "y=number"),
    ),
    Awkward(
        "decimals_told.csv", table(sep=";", a=[f"1,{100 + i}" for i in range(ROWS)], y=Y),
        ["a  number    written as 1.234,50"], options=(*TARGET, "--kind", "a=decimal-comma"),
    ),
    Awkward(
        "german.csv", table(sep=";", a=map(german, 1e4 * A), y=[f"{german(y)} €" for y in Y]),
        ["a  number    written as 1.234,50", "'y': a number"],
    ),
    Awkward(
        "german_dots.csv",
        table(sep=";", a=[f"{1 + i % 9}.234" for i in range(ROWS)], b=map(german, B), y=Y),
        error="column 'a' may hold thousands or decimals (1.234): say --kind a=number or",
    ),
    Awkward("per_cent.csv", table(a=[f"{a:.1f} %" for a in A], y=Y), ["written as $1,234.50"]),
    Awkward(
        "two_currencies.csv", table(a=A, y=[f"{'$€'[i % 2]}{i}.5" for i in range(ROWS)]),
        error="column 'y' has values with different signs ('$' and '€'): make them one",
    ),
    Awkward(
        "words_in_numbers.csv", table(a=put(A, _300="bad"), y=Y),
        error="column 'a' holds text where numbers are expected, in row 301 (the first is 'bad')",
    ),
    # What the target is.
    Awkward("real_labels.csv", table(a=A, y=[f"{s}.0" for s in SIGN]), ["two classes (0, 1)"]),
    Awkward(
        "real_labels.parquet", arrow(a=A, y=put(SIGN.astype(float), _5=None)),
        ["two classes (0, 1)", "1 have no target"],
    ),
    Awkward("mixed_labels.csv", table(a=A, y=put(SIGN, _0="0.0", _1=" 1")), ["classes (0, 1)"]),
    Awkward(
        "wide_labels.csv", table(a=A, y=[2**53 + i % 3 for i in range(ROWS)]),
        ["classes (9007199254740992, 9007199254740993, 9007199254740994)"],
    ),
    Awkward(
        "wide_names.csv", table(a=A, user=[2**60 + i % 50 for i in range(ROWS)], y=Y),
        ["column 'user' holds whole numbers beyond 2^53, and some of them are rounded to the same"],
        unsaid=(),
    ),
    Awkward(
        "ratings.csv", table(a=A, y=FIVE.astype(float)),
        error="'y' holds 5 whole numbers written as reals, classes or amounts: say --task classes",
    ),
    Awkward(
        "ratings_told.csv", table(a=A, y=FIVE.astype(float)),
        ["'y': a number", "asked for so"], options=(*TARGET, "--task", "regression"),
    ),
    Awkward(
        "counts.csv", table(a=A, y=[i % 21 for i in range(ROWS)]),
        ["warning: target 'y' is read as 21 classes: if it holds amounts, say --task regression"],
        unsaid=(),
    ),
    Awkward(
        "many_labels.csv", table(a=A, y=[i * 7 % 60 for i in range(ROWS)]),
        ["'y': a number", "target 'y' is read as numbers", "from 0 to 59", "--task classes"],
        unsaid=(),
    ),
    Awkward(
        "a_class_a_row.csv", table(a=A, y=[f"about {y}" for y in Y]),
        error="in 400 rows: mend it if it should hold numbers, or say --task classes",
    ),
    Awkward(
        "times_to_predict.csv", table(a=A, y=SECONDS),
        error="target 'y' holds times: predict a number or a class",
    ),
    Awkward(
        "constant_target.csv", table(a=A, y=[3] * ROWS),
        error="target 'y' has one value alone, '3': there is nothing to predict",
    ),
    # Columns that are no features.
    Awkward(
        "pandas.csv", table(**{"": range(ROWS)}, a=A, y=Y),
        ["1 number:", "left out '': index: the name that pandas gives a row's number"],
    ),
    Awkward(
        "pandas_twice.csv", table(**{"Unnamed: 0": RNG.permutation(ROWS)}, a=A, y=Y),
        ["left out 'Unnamed: 0': index"],
    ),
    Awkward(
        "pandas.parquet", arrow(a=A, y=Y, __index_level_0__=np.arange(ROWS) + 7),
        ["left out '__index_level_0__': index"],
    ),
    Awkward("ids.csv", table(ID=3 * np.arange(ROWS), a=A, y=Y), ["left out 'ID': index: whole"]),
    Awkward(
        "ids_kept.csv", table(ID=3 * np.arange(ROWS), a=A, y=Y), ["2 numbers"],
        options=(*TARGET, "--kind", "ID=number"),
    ),
    Awkward(
        "counter.csv", table(k=range(ROWS), a=A, y=Y),
        ["warning: column 'k' counts the rows: --time k if it is the time, --drop k"], unsaid=(),
    ),
    Awkward("empty_column.csv", table(a=A, b=[""] * ROWS, y=Y), ["left out 'b': empty"]),
    Awkward(
        "constant_column.csv", table(a=A, b=[5] * ROWS, y=Y),
        ["warning: column 'b' never changes"], unsaid=(),
    ),
    Awkward(
        "names_of_rows.csv", table(a=A, key=[f"k{i}" for i in range(ROWS)], y=Y),
        ["column 'key' is read as a category of 400 levels ('k0'): --drop key"], unsaid=(),
    ),
    Awkward(
        "codes.csv", table(zip=[10115 + i % 7 for i in range(ROWS)], a=A, y=Y),
        ["1 category, 1 number", "zip  category  7 levels"],
        options=(*TARGET, "--kind", "zip=category"),
    ),
    Awkward(
        "leak.csv", table(a=A, leak=Y, y=Y), ["left out 'leak': left out, as asked for"],
        options=(*TARGET, "--drop", "leak"),
    ),
    Awkward(
        "nested.parquet", arrow(a=A, b=[[1, 2]] * ROWS, y=Y),
        error="column 'b' is of type list<element: int64>: leave it out (--drop b), or turn it",
    ),
    # Times.
    Awkward("times.csv", table(when=SECONDS, a=A, y=Y), ["1 time, 1 number", "when  time"]),
    Awkward("times.parquet", arrow(when=SECONDS, a=A, y=Y), ["1 time, 1 number", "when  time"]),
    Awkward(
        "zones.csv", table(when=[f"{t}+02:00" for t in SECONDS], a=A, y=Y),
        ["in order of 'when'", "1 number"], options=(*TARGET, "--time", "when"),
    ),
    Awkward(
        "some_zones.csv", table(when=put([f"{t}Z" for t in SECONDS], _9=SECONDS[9]), a=A, y=Y),
        error="column 'when' has times with a zone and times without: make them alike",
    ),
    Awkward(
        "not_in_order.csv", table(when=SECONDS[::-1], a=A, y=Y),
        ["warning: the rows are not in order of 'when': --time when sorts them"], unsaid=(),
    ),
    Awkward(
        "sorted.csv", table(when=SECONDS[::-1], a=A, y=Y),
        ["sorted by 'when': row 2 was earlier"], options=(*TARGET, "--time", "when"),
    ),
    Awkward(
        "days_first.csv", table(day=[f"{1 + i % 28:02}/03/2024" for i in range(ROWS)], a=A, y=Y),
        ["column 'day' is read as a category, and looks like dates ('01/03/2024')", "--drop day"],
        unsaid=(),
    ),
    # What is far out, infinite or missing.
    Awkward("far_feature.csv", table(a=put(A, _200=1e9), y=Y), ["clipped in 1 of 384 rows"]),
    Awkward(
        "far_target.csv", table(a=A, y=put(Y, _200=1e9)),
        ["1 of 384 targets are beyond ±5", "target 'y' in row 201 (1e+09)", "alone makes 100.0 %"],
        unsaid=(),
    ),
    Awkward(
        "farther_target.csv", table(a=A, y=put(Y, _200=1e200)),
        error="target 'y' in row 201 (1e+200) is ",
    ),
    Awkward("large_target.csv", table(a=A, y=1e200 * Y), ["'y': a number"]),
    Awkward("shifted.csv", table(a=A, y=SHIFTED), ["targets are beyond ±5", "never clipped"]),
    Awkward(
        "shifted_plain.csv", table(a=A, y=SHIFTED),
        ["clipped at ±5 and score less than they are: --scale robust"],
        unsaid=(), options=(*TARGET, "--scale", "plain"),
    ),
    Awkward(
        "growing_plain.csv", table(a=A, y=GROWN), ["are clipped at ±5 and score less"],
        unsaid=(), options=(*TARGET, "--scale", "plain"),
    ),
    Awkward(
        "growing.csv", table(a=A, y=GROWN),
        ["never clipped", "it moves faster than its scale; predict its logarithm or its changes"],
        unsaid=(),
    ),
    Awkward(
        "in_order_of_classes.csv", table(a=A, y=np.sort(FIVE)),
        ["warning: the rows come in the order of target 'y'"], unsaid=(),
    ),
    Awkward(
        "missing_targets.csv", table(a=A, y=put(Y, _5="", _6="NA", _7="<NA>")),
        ["3 have no target, 16 start the scales, 13 do not fill a last batch"],
    ),
    Awkward(
        "infinite_targets.csv", table(a=A, y=put(Y, _5="inf", _6="-Infinity")),
        ["2 have an infinite target", "warning: 2 rows have an infinite target"], unsaid=(),
    ),
    Awkward(
        "infinite_feature.csv", table(a=put(A, _5="inf"), y=Y),
        ["1 infinite", "warning: column 'a' is infinite 1 times"], unsaid=(),
    ),
    # How the file is written.
    Awkward("semicolons.csv", table(sep=";", a=A, b=B, y=Y), ["2 numbers"]),
    Awkward("tabs.tsv", table(sep="\t", a=A, b=B, y=Y), ["2 numbers"]),
    Awkward(
        "two_ways.csv", "a,b;y\n" + "1,2;3\n" * ROWS,
        error="may be parted in two ways: say --sep comma or --sep semicolon",
    ),
    Awkward(
        "two_ways_told.csv", table(sep=";", **{"a,b": A, "y": Y}), ["a,b  number"],
        options=(*TARGET, "--sep", "semicolon"),
    ),
    Awkward("marked.csv", "\ufeff" + table(a=A, y=Y), ["1 number", "a  number"]),
    Awkward("utf16.csv", table(a=A, y=Y).encode("utf-16"), error="is no UTF-8 text (UTF-16?)"),
    Awkward(
        "latin.csv", table(a=A, c=["Zürich"] * ROWS, y=Y).encode("latin-1"),
        error="latin.csv is no UTF-8 text: save it as UTF-8",
    ),
    Awkward(
        "latin_head.csv", table(Größe=A, y=Y).encode("latin-1"),
        error="line 1 has the byte 0xf6 at 3, 'Größe,y' if it is Latin-1 (iconv -f latin1",
    ),
    Awkward("empty.csv", "", error="empty.csv is empty"),
    Awkward("head.csv", "a,y\n", error="no rows"),
    Awkward("headless.csv", table(**{"1.5": A, "2.5": Y}), error="should name the columns"),
    Awkward("twice.csv", "a,a,y\n1,2,3\n", error="has more than one column 'a': rename one"),
    Awkward("ragged.csv", "a,y\n1,2\n1,2,3\n", error="ragged.csv cannot be read"),
    Awkward(
        "misspelt.csv", table(a=A, Yield=Y), error="did you mean 'Yield'?",
        options=("--target", "yield "),
    ),
    Awkward("no_target.csv", table(a=A, y=Y), error="name the column to predict (--target)",
            options=()),
    Awkward("short.csv", "a,y\n" + "1,2.5\n2,3.5\n" * 9, error="18 rows: a race needs two batches"),
    Awkward("sheet.xlsx", b"PK", error="is of no known format"),
    Awkward("cut.csv.gz", gzip.compress(table(a=A, y=Y).encode())[:-20], error="cannot be read"),
    Awkward("cut.parquet", b"PAR1", error="cannot be read"),
    Awkward("folder.csv", lambda path: path.mkdir(), error="is a folder: give a file in it"),
]  # fmt: skip


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for one in FILES:
        one.write(folder)
