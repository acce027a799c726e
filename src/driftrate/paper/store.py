"""Finished pieces on disk: computed once, found again after a stop, never half written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from driftrate._digest import digest
from driftrate._html import unfinished
from driftrate.errors import DataError
from driftrate.paper.base import Piece

if TYPE_CHECKING:
    import pyarrow as pa

# The packages whose versions decide results, besides NumPy.
_PACKAGES = {"figure6": ("scikit-learn", "torch")}


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


class PieceStore:
    """A folder of Parquet files, one per piece of the given figures, modules of `driftrate.paper`.

    A figure's pieces are computed anew when the code of its module changes, or that of a module
    behind it; comments, docstrings and layout do not count.
    """

    def __init__(self, folder: Path, figures: Iterable[str]) -> None:
        self.folder = folder
        # Once: a file edited during a run must not split its results.
        self._code = {
            name: digest([f"driftrate.paper.{name}"], _PACKAGES.get(name, ())) for name in figures
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise DataError(f"cannot write to {folder}: {error.strerror}; choose --out") from error

    def path(self, figure: str, piece: Piece) -> Path:
        """Return where a piece lies; the name changes with all that determines it."""
        name = _hash(self._code[figure], figure, piece.name, piece.key)
        return self.folder / figure / f"{piece.name}-{name}.parquet"

    def drawing(self, figure: str, pieces: list[Piece]) -> Path:
        """Return where the picture of these pieces is kept."""
        name = _hash(*(self.path(figure, piece).name for piece in pieces))
        return self.folder / figure / f"picture-{name}.svg"

    def has(self, figure: str, piece: Piece) -> bool:
        """Return whether a piece is done."""
        return self.path(figure, piece).exists()

    def read(self, figure: str, piece: Piece) -> pa.Table:
        """Return a finished piece."""
        import pyarrow.parquet as pq

        return pq.read_table(self.path(figure, piece))

    def compute(self, figure: str, piece: Piece) -> None:
        """Compute a piece and store it; a process that is killed leaves no half-written file."""
        import pyarrow.parquet as pq

        result = piece.compute()
        path = self.path(figure, piece)
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(path) as part:
            pq.write_table(result, part)
        for old in path.parent.glob(f"{piece.name}-{'?' * 12}.parquet"):
            if old != path:
                old.unlink(missing_ok=True)
