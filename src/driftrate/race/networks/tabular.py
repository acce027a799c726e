"""Real streams for networks: tables, standardised once and kept."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from driftrate._html import unfinished
from driftrate.data.tables import fingerprint
from driftrate.race.cell import Reading
from driftrate.race.models import Task
from driftrate.race.networks.network import Network
from driftrate.race.networks.phases import BATCH, Phase, Protocol
from driftrate.race.sources import resolve


def tabular(path: Path, keep: Path, target: str = "y") -> Protocol:
    """Return a table as a protocol, standardised as the race does it.

    What was standardised is kept in a folder, so that processes share it, and a machine without
    Arrow can play it.

    Args:
        path: A CSV or Parquet file.
        keep: The folder.
        target: The column to predict.
    """
    mark = fingerprint(path)
    kept = keep / f"{path.stem}-{mark}-{BATCH}.npz"
    found = _read(kept)
    if found is None:
        # The plain scale, with which the figures of docs/networks.md are made.
        reading = Reading(target=target, scale="plain", model="mlp", batch=BATCH)
        source = resolve(str(path), reading)
        (phase,) = source.phases()
        model = source.make_model()
        assert isinstance(model, Network)
        kept.parent.mkdir(parents=True, exist_ok=True)
        found = {"x": phase.x, "y": phase.y, "task": model.task, "outputs": model.outputs}
        with unfinished(kept) as piece, piece.open("wb") as file:
            np.savez_compressed(file, **found)
    x, y, task, outputs = found["x"], found["y"], str(found["task"]), int(found["outputs"])
    tasks: dict[str, Task] = {"regression": "regression", "binary": "binary", "classes": "classes"}
    network = Network(tasks[task], x.shape[1], outputs)

    def draw(seed: int) -> Iterator[Phase]:
        yield Phase("stream", x, y)

    return Protocol(path.stem, network, len(y), mark, draw)


def _read(kept: Path) -> dict[str, Any] | None:
    """Return what was kept of a table; None if it is not there, or damaged."""
    try:
        with kept.open("rb") as file, np.load(file) as found:
            return {name: found[name] for name in ("x", "y", "task", "outputs")}
    except (OSError, EOFError, KeyError, ValueError, BadZipFile, zlib.error):
        return None
