"""A cell: one method at one setting and one seed on one stream, and what came of it."""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NotRequired, TypedDict, cast

from driftrate.errors import ConfigError

CURVE_POINTS = 200
"""The most points that a curve of a result has."""
# A mean loss above this many times that of predicting nothing (a score of 0) is a divergence.
_ABSURD = 1000.0

# How features and regressions' targets are scaled, the first where nothing is said.
SCALES = ("robust", "plain")
TASKS = ("classes", "regression")
# What is said of files alone.
OF_FILES = ("target", "time", "task", "drop", "kind", "sep")

Status = Literal["ok", "diverged", "failed", "timeout", "not played"]
"""How a cell ended. `"not played"` is no fault of the method: the same command plays it again."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a stream is read: all that determines its batches, besides its name and content.

    Every value is a JSON value, because a cell is stored and sent as JSON.

    Args:
        target: The target column of the files.
        time: The column to sort the files by.
        task: classes or regression, where the target may be either.
        drop: Columns to leave out, with commas between.
        kind: What columns are, as zip=category,price=decimal-comma; number, category, time, index
            or decimal-comma.
        sep: What parts the columns of a CSV: one sign, or comma, semicolon, tab or bar.
        scale: robust, for running scales that no single row spoils and that forget, with targets
            never clipped; or plain, the mean and deviation of all rows before, clipped at ±5.
        model: linear, logistic, softmax or mlp; the linear one that fits the target if none.
        batch: Rows in a batch.
        hidden: Widths of a network's hidden layers, with commas between; 128,128, or those of the
            protocol, if none.
        rows: How many of a stream's first rows are played; all if none.
        delay: After how many rows the label of a row arrives; learning waits, prediction does not.
    """

    target: str | None = None
    time: str | None = None
    task: str | None = None
    drop: str | None = None
    kind: str | None = None
    sep: str | None = None
    scale: str = SCALES[0]
    model: str | None = None
    batch: int = 16
    hidden: str | None = None
    rows: int | None = None
    delay: int = 0

    def __post_init__(self) -> None:
        self.check_counts("batch")
        self.check_words()

    def check_counts(self, *names: str) -> None:
        """Raise `ConfigError` unless these, and rows if given, are whole numbers from 1 on."""
        for name in (*names, *(["rows"] if self.rows is not None else [])):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be an integer >= 1, got {value!r}")
        if isinstance(self.delay, bool) or not isinstance(self.delay, int) or self.delay < 0:
            raise ConfigError(f"delay must be an integer >= 0, got {self.delay!r}")

    def check_words(self) -> None:
        """Raise `ConfigError` unless task, scale, drop and kind say what they may."""
        for name, choices in (("task", (None, *TASKS)), ("scale", SCALES)):
            value = getattr(self, name)
            if value not in choices:
                known = ", ".join(one for one in choices if one is not None)
                raise ConfigError(f"{name} must be one of {known}, got {value!r}")
        for pair in _parted(self.kind):
            if not all(pair.rpartition("=")):
                raise ConfigError(f"kind must be column=kind, with commas between, got {pair!r}")

    @property
    def dropped(self) -> tuple[str, ...]:
        """The columns to leave out."""
        return tuple(_parted(self.drop))

    @property
    def kinds(self) -> dict[str, str]:
        """What columns are, by name.

        Example:
            >>> Reading(kind='zip=category,"a,b"=number').kinds
            {'zip': 'category', 'a,b': 'number'}
        """
        parts = (pair.rpartition("=") for pair in _parted(self.kind))
        return {name.strip(): kind.strip() for name, _, kind in parts}

    def without_columns(self) -> Reading:
        """Return the reading of a stream that is no file."""
        nothing: dict[str, Any] = dict.fromkeys(OF_FILES)
        return replace(self, **nothing)


@dataclass(frozen=True)
class Cell(Reading):
    """Everything that determines a result: a reading of a stream, and what is played on it.

    Args:
        stream: The stream as given: a path, `river:NAME`, `openml:NAME`, `synthetic:KIND,...` or
            `cytometry`.
        method: A name of `contestants()`.
        setting: `"default"`, or one point of the method's grid as canonical JSON.
        seed: The seed of whatever is drawn.
        fingerprint: A hash of the source's content: an edited file makes new cells.
        code: A hash of the code that plays it, of `code_of`: an edited method makes new cells.
            Empty for a cell that is not to be kept.
        shuffle: The number of a drawn order of the rows, of `shuffled`; 0 for their own.

    Example:
        >>> cell = Cell("elec2.parquet", "adam", "default", 0, "ab12", target="y", model="logistic")
        >>> len(cell.key())
        64
    """

    stream: str
    method: str
    setting: str
    seed: int
    fingerprint: str
    code: str = ""
    shuffle: int = 0

    def key(self) -> str:
        """Return the SHA-256 of the cell."""
        return hashlib.sha256(canonical(asdict(self)).encode()).hexdigest()


class Result(TypedDict):
    """The result of a cell: JSON values, the same on every run except for the seconds.

    `loss` and `error` are means over all steps played, `regret` is a sum and None where no oracle
    is known. Curves hold running means (regret: running sums; rate: the rates themselves) at
    `curve_steps`; a method without a rate has an empty `rate_curve`, a stream without an oracle an
    empty `regret_curve`. The `memory_curve` holds how many past rows the method believes in, and is
    empty for one that does not say so. `figures` has the mean loss and error of the phases that a
    network's protocol scores apart.
    """

    status: Status
    message: str
    loss: float | None
    error: float | None
    regret: float | None
    steps: int
    seconds_per_step: float
    curve_steps: list[int]
    loss_curve: list[float]
    error_curve: list[float]
    regret_curve: list[float]
    rate_curve: list[float]
    memory_curve: list[float]
    figures: NotRequired[dict[str, tuple[float, float]]]


def without_result(status: Status, message: str) -> Result:
    """Return the result of a cell that has no numbers.

    Example:
        >>> without_result("timeout", "over 60 s in one step")["loss"] is None
        True
    """
    numbers = {"loss": None, "error": None, "regret": None, "steps": 0, "seconds_per_step": 0.0}
    curves: dict[str, object] = {key: [] for key in Result.__annotations__ if "curve" in key}
    return cast(Result, {"status": status, "message": message, **numbers, **curves})


def absurd(loss: float, nothing: float) -> str:
    """Return what a mean loss has of a divergence, empty if nothing.

    Example:
        >>> absurd(2.0, 0.5), absurd(1e4, 0.5)
        ('', 'a mean loss of 1e+04, over 1,000 times the 0.5 of predicting nothing')
    """
    if not 0.0 < _ABSURD * nothing < loss:
        return ""
    times = f"over {_ABSURD:,.0f} times the {nothing:.3g} of predicting nothing"
    return f"a mean loss of {loss:.3g}, {times}"


def one_line(error: BaseException) -> str:
    """Return what was raised, and the first line of what it says."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _parted(text: str | None) -> list[str]:
    """Return what stands between commas, but for those in quotation marks."""
    rows = csv.reader([text or ""], skipinitialspace=True)
    return [one.strip() for row in rows for one in row if one.strip()]


def canonical(value: object) -> str:
    """Return the one JSON text of a value.

    Example:
        >>> canonical({"b": 1, "a": 0.1})
        '{"a":0.1,"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
