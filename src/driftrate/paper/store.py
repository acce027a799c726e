"""Finished pieces on disk: computed once, found again after a stop, never half written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from io import BytesIO
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
_DIGITS = "?" * 12  # of a hash in a name


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


class PieceStore:
    """A folder of Parquet files, one per piece of the given figures, modules of `driftrate.paper`.

    A figure's pieces are computed anew when the code of its module changes, or that of a module
    behind it; comments, docstrings and layout do not count. A file's name ends in a hash of its
    content: one that is damaged is computed anew, too.
    """

    def __init__(self, folder: Path, figures: Iterable[str]) -> None:
        self.folder = folder
        self.damaged: list[str] = []  # pieces that were, and are computed again
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
        """Return how the file of a piece begins, which changes with all that determines it."""
        name = _hash("\n".join([self._code[figure], figure, piece.name, piece.key]).encode())
        return self.folder / figure / f"{piece.name}-{name}"

    def find(self, figure: str, piece: Piece) -> Path | None:
        """Return where a finished piece lies; one that is damaged is removed, and told."""
        path = self.path(figure, piece)
        for file in path.parent.glob(f"{path.name}-{_DIGITS}.parquet"):
            if file.stem.endswith(_hash(file.read_bytes())):
                return file
            file.unlink(missing_ok=True)
            self.damaged.append(path.name)
        return None

    def has(self, figure: str, piece: Piece) -> bool:
        """Return whether a piece is done."""
        return self.find(figure, piece) is not None

    def read(self, figure: str, piece: Piece) -> pa.Table:
        """Return a finished piece."""
        import pyarrow.parquet as pq

        file = self.find(figure, piece)
        if file is None:
            raise DataError(f"{self.path(figure, piece)} is gone: run again to compute it")
        return pq.read_table(file)

    def compute(self, figure: str, piece: Piece) -> None:
        """Compute a piece and store it; a process that is killed leaves no half-written file."""
        import pyarrow.parquet as pq

        path, content = self.path(figure, piece), BytesIO()
        pq.write_table(piece.compute(), content)
        file = path.with_name(f"{path.name}-{_hash(content.getvalue())}.parquet")
        file.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(file) as part:
            part.write_bytes(content.getvalue())
        # Those of other code or seeds, and of the versions that gave a name no hash of the content.
        for ending in (_DIGITS, f"{_DIGITS}-{_DIGITS}"):
            for old in path.parent.glob(f"{piece.name}-{ending}.parquet"):
                if old != file:
                    old.unlink(missing_ok=True)
