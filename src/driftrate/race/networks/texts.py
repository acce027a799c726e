"""Texts that change their language, byte by byte, for a small transformer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from driftrate.data.tables import Stamp, stamp
from driftrate.errors import DataError
from driftrate.race.networks.digits import folder
from driftrate.race.networks.network import Transformer
from driftrate.race.networks.phases import BATCH, Phase, Protocol

FILE = "texts.npz"
# Languages that methods may be developed on.
DEVELOPMENT = ("en", "de", "py")

Bytes = npt.NDArray[np.uint8]


def texts(path: Path | None = None, languages: tuple[str, ...] = ()) -> Protocol:
    """Return one pass over texts, in order, its halves scored apart.

    Args:
        path: A folder of texts, taken in the order of their names, or a file like `texts.npz` with
            `text`, `segment` (the bytes of a piece) and `order` (the languages, by turns); that
            file of the data if None.
        languages: The pieces to take, of such a file; all if none.
    """
    place = path or folder() / FILE
    text = _read(place, languages)
    model = Transformer()
    rows = (len(text) - 1) // (BATCH * model.context) * BATCH
    if rows < 2 * BATCH:
        needs = f"two batches, {2 * BATCH * model.context + 1:,} bytes"
        raise DataError(f"{place} has {len(text):,} bytes of text: a race needs {needs}")
    mark = hashlib.sha256(text.tobytes()).hexdigest()[:16]
    name = "texts_development" if languages else "texts"
    halves = ("first half", "second half")

    def draw(seed: int) -> Iterator[Phase]:
        whole = rows * model.context
        x = text[:whole].reshape(rows, -1)
        y = text[1 : whole + 1].reshape(rows, -1).astype(np.int64)
        middle = rows // BATCH // 2 * BATCH
        yield Phase(halves[0], x[:middle], y[:middle])
        yield Phase(halves[1], x[middle:], y[middle:])

    return Protocol(name, model, rows, mark, draw)


def _read(place: Path, languages: tuple[str, ...]) -> Bytes:
    try:
        files = [place]
        if place.is_dir():
            files = sorted(file for file in place.iterdir() if file.is_file())
        return _bytes(place, languages, tuple((file, stamp(file)) for file in files))
    except (OSError, KeyError, ValueError) as error:
        told = "give a folder of texts, or set DRIFTRATE_DATA"
        raise DataError(f"{place} cannot be read as texts: {error}; {told}") from error


@lru_cache(maxsize=2)
def _bytes(place: Path, languages: tuple[str, ...], files: tuple[tuple[Path, Stamp], ...]) -> Bytes:
    if place.is_dir():
        return np.frombuffer(b"".join(file.read_bytes() for file, _ in files), np.uint8)
    with np.load(place) as found:
        text, piece, order = found["text"], int(found["segment"]), found["order"].tolist()
    if not languages:
        return np.asarray(text)
    count = len(text) // piece
    pieces = [text[k * piece : (k + 1) * piece] for k in range(count)]
    return np.concatenate(
        [one for k, one in enumerate(pieces) if order[k % len(order)] in languages]
    )
