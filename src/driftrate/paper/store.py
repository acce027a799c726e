"""Finished pieces on disk: computed once, found again after a stop, never half written."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import driftrate
from driftrate.errors import DataError
from driftrate.paper.base import Piece

if TYPE_CHECKING:
    import pyarrow as pa

# What decides a result; adapters, plots and pages do not.
_ROOMS = ("schedules", "estimate", "learners", "theory", "streams", "data", "simulation", "paper")


def _digest() -> str:
    """Return a digest of the code that computes results: changed code is run again."""
    root = Path(driftrate.__file__).parent
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Store:
    """A folder of Parquet files, one a piece.

    Args:
        folder: Where the files lie; it is made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._code = _digest()  # once: a file edited during a run must not split its results
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise DataError(f"cannot write to {folder}: {error.strerror}; choose --out") from error

    def path(self, figure: str, piece: Piece) -> Path:
        """Return where a piece lies; the name changes with all that determines it."""
        digest = hashlib.sha256(f"{self._code}\n{figure}\n{piece.name}\n{piece.key}".encode())
        return self.folder / figure / f"{piece.name}-{digest.hexdigest()[:12]}.parquet"

    def drawing(self, figure: str, pieces: list[Piece]) -> Path:
        """Return where the picture of these pieces is kept."""
        names = "\n".join(self.path(figure, piece).name for piece in pieces)
        digest = hashlib.sha256(names.encode()).hexdigest()[:12]
        return self.folder / figure / f"picture-{digest}.svg"

    def has(self, figure: str, piece: Piece) -> bool:
        """Tell whether a piece is done."""
        return self.path(figure, piece).exists()

    def read(self, figure: str, piece: Piece) -> pa.Table:
        """Return a finished piece."""
        import pyarrow.parquet as pq

        return pq.read_table(self.path(figure, piece))

    def compute(self, figure: str, piece: Piece) -> None:
        """Compute a piece and store it whole: a kill in between leaves no trace under its name."""
        import pyarrow.parquet as pq

        result = piece.compute()
        path = self.path(figure, piece)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        try:
            pq.write_table(result, unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        for old in path.parent.glob(f"{piece.name}-{'?' * 12}.parquet"):
            if old != path:
                old.unlink(missing_ok=True)
