"""The values of an Arrow array as numbers: plain ones, sums of money, decimal commas, times.

It needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from driftrate.errors import DataError

Floats = npt.NDArray[np.float64]
# How numbers are written: 1234.5; $1,234.5 and 12%; 1.234,5 €.
Style = Literal["plain", "marked", "decimal-comma"]

_INFINITE = r"[+-]?(?i:inf|infinity)"
_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_MARK = r"[$€£¥%]?"
_SIGN = r"[+-]?"


def _marked(parted: str, decimals: str) -> str:
    whole = rf"(\d{{1,3}}({parted}\d{{3}})+|\d+)"
    size = rf"{_MARK}\s*{_SIGN}({whole}{decimals}|\.\d+)\s*{_MARK}"
    # A debt stands in brackets: ($12.50).
    return rf"({_SIGN}\s*{size}|\({size}\))"


_FORMS: dict[Style, str] = {
    "plain": _PLAIN,
    "marked": _marked(",", r"(\.\d*)?"),
    "decimal-comma": _marked(r"[. ’']", r"(,\d*)?"),
}
_STYLES = {style: rf"^\s*({form}|{_INFINITE})\s*$" for style, form in _FORMS.items()}
_TIME = r"^\s*\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?\s*(Z|[+-]\d{2}(:?\d{2})?)?)?\s*$"
_DATE = r"^\s*\d{1,4}[/.]\d{1,2}[/.]\d{1,4}(\D.*)?$"
_ZONE = r"(Z|:\d{2}(\.\d+)?\s*[+-]\d{2}(:?\d{2})?)\s*$"
_SHOWN = 5  # rows that an error names
# Whole numbers from here on may become one as floats.
_WIDE = 2.0**53


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text, by itself or as a dictionary."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or (types.is_dictionary(kind) and is_text(kind.value_type))
    )


def check_type(name: str, kind: Any, what: str = "column") -> None:
    """Refuse an Arrow type that is neither text nor a number, before anything of it is decoded."""
    types = pa.types
    if is_text(kind) or types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind):
        return
    leave = f"leave it out (--drop {name}), or " * (what == "column")
    raise DataError(f"{what} {name!r} is of type {kind}: {leave}turn it into numbers")


def as_text(array: Any) -> Any:
    """Return an Arrow array as text."""
    return pc.cast(array, pa.string())


def style_of(array: Any) -> Style | None:
    """Return how more than half of the values that are there are written, None if not as numbers.

    Where two ways fit, it is the plainer one.
    """
    there = len(array) - array.null_count
    found = {style: count(array, form) for style, form in _STYLES.items()}
    best = max(found, key=lambda style: found[style])
    return best if 2 * found[best] > there else None


def mostly_times(array: Any) -> bool:
    """Return whether more than half of what is there are ISO timestamps."""
    if not is_text(array.type):
        return bool(pa.types.is_temporal(array.type))
    return bool(2 * count(array, _TIME) > len(array) - array.null_count)


def mostly_dates(array: Any) -> bool:
    """Return whether more than half of what is there looks like dates that are not ISO."""
    return bool(2 * count(array, _DATE) > len(array) - array.null_count)


def marks(array: Any) -> set[str]:
    """Return the signs of money and the per cent signs that values carry, "" where none."""
    kept = pc.replace_substring_regex(as_text(array), r"[^$€£¥%]", "")
    return set(pc.unique(kept.drop_null()).to_pylist())


def count(array: Any, form: str) -> int:
    """Return how many values of an array match a form."""
    return pc.sum(pc.match_substring_regex(as_text(array), form)).as_py() or 0


def numbers(array: Any, name: str, start: int, style: Style = "plain") -> Floats:
    """Return an Arrow array as reals, NaN where missing; refuse text, by row."""
    if pa.types.is_temporal(array.type):
        array = _ticks(array)
    if style == "plain":
        try:
            reals = pc.cast(array, pa.float64(), safe=False)
            return np.array(reals.to_numpy(zero_copy_only=False), dtype=np.float64)
        except pa.ArrowInvalid:  # text: a blank too many, or words
            pass
    text = pc.utf8_trim_whitespace(as_text(array))
    refuse(text, name, start, _STYLES[style], "text where numbers are expected")
    reals = pc.cast(_plain(text, style), pa.float64())
    return np.array(reals.to_numpy(zero_copy_only=False), dtype=np.float64)


def _plain(text: Any, style: Style) -> Any:
    """Return numbers that are written in a style as text in the plain one."""
    if style == "plain":
        return text
    text = pc.replace_substring(text, "(", "-")
    text = pc.replace_substring_regex(text, r"[$€£¥%\s’')]", "")
    text = pc.replace_substring(text, "," if style == "marked" else ".", "")
    return pc.replace_substring(text, ",", ".")


def exactly(array: Any, style: Style) -> tuple[Iterator[float | Decimal], npt.NDArray[np.intp]]:
    """Return the numbers of an Arrow array, each as often as it is spelled, and their places.

    What is no float, such as 2**53 + 1, is a `Decimal`: the two compare and hash as numbers do. The
    place of what is missing is -1.
    """
    if is_text(array.type):
        array = _plain(pc.utf8_trim_whitespace(as_text(array)), style)
    coded = array.dictionary_encode()
    places = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return map(_exact, coded.dictionary.to_pylist()), places


def _exact(value: Any) -> float | Decimal:
    number = Decimal(str(value))
    near = float(number)
    return near if Decimal(repr(near)) == number else number


def wide(array: Any, values: Floats) -> Any:
    """Return the whole numbers from 2^53 on, as they are written, each once.

    Args:
        array: An Arrow array.
        values: It as reals.
    """
    large = np.abs(values) >= _WIDE
    types, kind = pa.types, array.type
    if not large.any() or not (is_text(kind) or types.is_integer(kind) or types.is_decimal(kind)):
        return pa.array([], pa.string())
    text = pc.utf8_trim_whitespace(as_text(array.filter(pa.array(large))))
    return pc.unique(text.filter(pc.match_substring_regex(text, r"^[+-]?\d+$")))


def seconds(array: Any, name: str, start: int) -> Floats:
    """Return points of time as seconds since 1970, NaN where missing; refuse what is none."""
    if is_text(array.type):
        array = _parsed(array, name, start)
    elif pa.types.is_time(array.type) or pa.types.is_duration(array.type):
        return numbers(array, name, start)
    ticks = pc.cast(pc.cast(array, pa.timestamp("us", array_zone(array)), safe=False), pa.int64())
    return np.array(ticks.to_numpy(zero_copy_only=False), dtype=np.float64) / 1e6


def array_zone(array: Any) -> str | None:
    """Return the zone of an Arrow array of timestamps, if it has one."""
    return array.type.tz if pa.types.is_timestamp(array.type) else None


def order_of(array: Any, name: str, start: int) -> npt.NDArray[Any]:
    """Return a time column as numbers whose order is the order of time."""
    if is_text(array.type) and style_of(array) is None:
        times = seconds(array, name, start)
    else:
        times = numbers(array, name, start)
    lost = np.flatnonzero(~np.isfinite(times))
    if lost.size:
        what = "infinite" if np.isinf(times[lost[0]]) else "missing"
        raise DataError(f"time column {name!r} is {what} in row {start + int(lost[0]) + 1:,}")
    if (np.abs(times) < _WIDE).all():
        return times
    try:
        ticks = _ticks(array) if pa.types.is_temporal(array.type) else array
        return np.array(pc.cast(ticks, pa.int64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:  # beyond 64 bits, or no whole numbers
        return times


def _parsed(array: Any, name: str, start: int) -> Any:
    """Return ISO timestamps as times; those with a zone become UTC."""
    text = pc.utf8_trim_whitespace(as_text(array))
    expected = "ISO timestamps (2024-01-31 09:30:00) are expected"
    refuse(text, name, start, _TIME, f"text where {expected}")
    zoned = count(text, _ZONE)
    if 0 < zoned < len(text) - text.null_count:
        raise DataError(f"column {name!r} has times with a zone and times without: make them alike")
    try:
        return pc.cast(text, pa.timestamp("us", "UTC" if zoned else None))
    except pa.ArrowInvalid as error:
        raise DataError(f"column {name!r} holds a time that is none: {error}") from error


def refuse(text: Any, name: str, start: int, form: str, what: str) -> None:
    """Raise `DataError` that names the rows of a text array that are not of a form."""
    fits = pc.match_substring_regex(text, form).fill_null(True)
    bad = np.flatnonzero(~np.asarray(fits.to_numpy(zero_copy_only=False)))
    if not bad.size:
        return
    rows = ", ".join(f"{start + int(i) + 1:,}" for i in bad[:_SHOWN])
    more = f" and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
    raise DataError(
        f"column {name!r} holds {what}, in row{'s' * (len(bad) > 1)}"
        f" {rows}{more} (the first is {text[int(bad[0])].as_py()!r}): mend or blank them"
    )


def _ticks(array: Any) -> Any:
    """Return points or lengths of time as whole numbers."""
    if pa.types.is_date(array.type):
        array = pc.cast(array, pa.timestamp("ms"))
    wide = pa.types.is_timestamp(array.type) or array.type.bit_width == 64
    return pc.cast(array, pa.int64() if wide else pa.int32())
