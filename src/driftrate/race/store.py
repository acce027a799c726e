"""Finished cells on disk: written at once, found again after a stop, shared by processes."""

from __future__ import annotations

import json
import math
import os
import socket
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from time import time
from typing import Any, cast, get_args
from zlib import crc32

from driftrate.errors import DataError
from driftrate.race.cell import Cell, Result, Status, without_result

_LAYOUT = 1
# A claim is renewed this often, and free for others once it is this old.
BEAT_SECONDS = 3.0
STALE_SECONDS = 20.0
_TABLES = """
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY, cell TEXT NOT NULL, status TEXT NOT NULL, time_limit REAL NOT NULL,
    result TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (
    key TEXT PRIMARY KEY, owner TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    beat REAL NOT NULL
) WITHOUT ROWID;
"""


# Played again: a cell that failed or could not be played, since the cause may be gone, and one that
# ran out of time under a shorter limit than now.
_DONE = (
    "FROM results WHERE key = ? AND status NOT IN ('failed', 'not played') "
    "AND NOT (status = 'timeout' AND time_limit < ?)"
)


_NUMBERS = ("loss", "error", "regret")
_DAMAGED = "it is damaged; move it away, then run again"
_FOREIGN = "it is not a store of race results; choose --out"


class CellStore:
    """An SQLite file of results, one row per cell.

    A rollback journal, not a write-ahead log: a race commits a few small rows a second, and the
    journal needs neither shared memory nor side files, so the store can be copied as one file and
    lie on a network folder. A process killed in mid-write leaves a journal that the next one rolls
    back.

    Processes that share a store *claim* a cell before they compute it. A claim lapses when its
    process is gone or has not renewed it for a while; at worst a cell is computed twice, to the
    same result.

    Args:
        path: The file; it is made if missing.
        patience: How many seconds to wait for another process that holds the file.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> cell = Cell("a.csv", "sgd", "default", 0, "ab12", target="y", model="linear")
        >>> with TemporaryDirectory() as folder, CellStore(Path(folder) / "race.sqlite") as store:
        ...     store.claim(cell), store.get(cell)
        (True, None)
    """

    def __init__(self, path: Path, patience: float = 30.0) -> None:
        self.path = path
        self.dropped = 0
        self._owner = uuid.uuid4().hex
        self._host = socket.gethostname()
        self._turn = threading.Lock()
        self._closing = threading.Event()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            said = f"cannot write to {path.parent}: {error.strerror}; choose --out"
            raise DataError(said) from error
        with self._told():
            # Cells are claimed in joblib's threads and stored in the main one, in turns.
            self._base = sqlite3.connect(
                path, timeout=patience, isolation_level=None, check_same_thread=False
            )
        with ExitStack() as undo:
            undo.callback(self._base.close)
            self._prepare()
            undo.pop_all()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()

    def _prepare(self) -> None:
        with self._told():
            self._base.execute("PRAGMA journal_mode = DELETE")
            self._base.execute("PRAGMA synchronous = FULL")
            layout, tables = self._layout()
        if layout == 0:
            with self._change() as base:
                # Another process may have been first; another program's file is left as it is.
                layout, tables = self._layout()
                if layout == 0 and not tables:
                    for statement in _TABLES.split(";"):
                        base.execute(statement)
                    base.execute(f"PRAGMA user_version = {_LAYOUT}")
                    return
        if not {"results", "claims"} <= tables and (tables or layout in (0, _LAYOUT)):
            raise DataError(f"store {self.path}: {_FOREIGN}")
        if layout != _LAYOUT:
            ours = f"this driftrate knows {_LAYOUT}; choose --out"
            raise DataError(f"{self.path} has layout {layout}, {ours}")

    def _layout(self) -> tuple[int, set[str]]:
        """Return the number of the layout and the names of the tables."""
        (layout,) = self._base.execute("PRAGMA user_version").fetchone()
        names = self._base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return layout, {name for (name,) in names}

    def __enter__(self) -> CellStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all claims and of the file."""
        self._closing.set()
        self._beating.join()
        # If this fails, they lapse by themselves; the error that matters was already raised.
        with closing(self._base), suppress(DataError), self._change() as base:
            base.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))

    def put(self, cell: Cell, result: Result, limit: float = math.inf) -> None:
        """Store a cell that ran under a limit of seconds and let go of its claim, or neither."""
        key = cell.key()
        text = json.dumps({**result, "check": _check(result)})
        row = (key, json.dumps(asdict(cell)), result["status"], limit, text)
        with self._change() as base:
            base.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?)", row)
            base.execute("DELETE FROM claims WHERE key = ?", (key,))

    def get(self, cell: Cell, limit: float = math.inf) -> Result | None:
        """Return the result of a cell, if under this limit it need not be played again.

        A row that is damaged is dropped, and counted in `dropped`: the cell is played again.
        """
        key = cell.key()
        with self._turn, self._told():
            # As bytes: what is damaged may be no text.
            found = f"SELECT CAST(result AS BLOB) {_DONE}"
            row = self._base.execute(found, (key, limit)).fetchone()
        if row is None:
            return None
        result = _read(row[0])
        if result is None:
            with self._change() as base:
                base.execute("DELETE FROM results WHERE key = ?", (key,))
            self.dropped += 1
        return result

    def claim(self, cell: Cell, limit: float = math.inf) -> bool:
        """Take a cell for this process; False if it is done, or if another process is at it."""
        key = cell.key()
        with self._change() as base:
            if base.execute(f"SELECT key {_DONE}", (key, limit)).fetchone() is not None:
                return False
            others = "SELECT host, pid, beat FROM claims WHERE key = ? AND owner != ?"
            other = base.execute(others, (key, self._owner)).fetchone()
            if other is not None and self._alive(*other):
                return False
            row = (key, self._owner, self._host, os.getpid(), time())
            base.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)", row)
        return True

    def _alive(self, host: str, pid: int, beat: float) -> bool:
        # A row that was edited may hold anything.
        if not isinstance(beat, float) or abs(time() - beat) > STALE_SECONDS:
            return False
        # Signal 0 asks whether a process is there; on Windows it would end it.
        if host != self._host or os.name != "posix":
            return True
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, TypeError, OverflowError):
            return False
        except OSError:
            return True
        return True

    def _beat(self) -> None:
        while not self._closing.wait(BEAT_SECONDS):
            # The next beat may do; if not, `put` says so in the main thread.
            with suppress(DataError), self._change() as base:
                base.execute("UPDATE claims SET beat = ? WHERE owner = ?", (time(), self._owner))

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that takes the write lock at once, so that two never deadlock."""
        with self._turn, self._told():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
                self._base.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already.
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn SQLite's errors into one line that says what to do."""
        try:
            yield
        except UnicodeDecodeError as error:  # the name of a table
            raise DataError(f"store {self.path}: {_DAMAGED}") from error
        except sqlite3.Error as error:
            # The primary code of an extended one.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            advice = {
                sqlite3.SQLITE_FULL: "the disk is full; free some space, then run again to go on",
                sqlite3.SQLITE_BUSY: "another program holds it locked; close it, then run again",
                sqlite3.SQLITE_NOTADB: _FOREIGN,
                sqlite3.SQLITE_ERROR: _FOREIGN,  # no such column
                sqlite3.SQLITE_IOERR: "the disk does not answer; run again, or choose --out",
                sqlite3.SQLITE_CORRUPT: _DAMAGED,
                sqlite3.SQLITE_READONLY: "it may not be written; choose --out",
                sqlite3.SQLITE_CANTOPEN: "it cannot be opened; choose --out",
            }.get(code, str(error))
            raise DataError(f"store {self.path}: {advice}") from error


def _check(result: Mapping[str, Any]) -> int:
    """Return a checksum of a result: a digit that flips on the disk is still a digit."""
    return crc32(json.dumps(result).encode())


def _read(text: bytes) -> Result | None:
    """Return the result that a row holds; None if it is damaged."""
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(result, dict) or not without_result("ok", "").keys() <= result.keys():
        return None
    # Rows of version 0.1.0 have none.
    if "check" in result and result.pop("check") != _check(result):
        return None
    places = result["curve_steps"]
    curves = [value for key, value in result.items() if key.endswith("curve")]
    fine = (
        result["status"] in get_args(Status)
        and isinstance(result["message"], str)
        and _count(result["steps"])
        and _real(result["seconds_per_step"])
        and all(result[key] is None or _real(result[key]) for key in _NUMBERS)
        and all(isinstance(curve, list) for curve in [places, *curves])
        and all(_real(value) for curve in curves for value in curve)
        and all(map(_count, places))
        and all(one < other for one, other in pairwise([0, *places]))
    )
    return cast(Result, result) if fine else None


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _real(value: object) -> bool:
    return isinstance(value, float) or _count(value)
