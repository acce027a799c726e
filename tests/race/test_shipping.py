"""Files on their way to workers, without a cluster: what counts as a refusal, and of what."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from driftrate.data.tables import fingerprint
from driftrate.race.cell import Cell
from driftrate.race.shipping import _TIMES, Files, Refused


@pytest.fixture
def cells(tmp_path):
    """Cells of files with the same content."""
    paths = [tmp_path / f"copy{number}.csv" for number in range(_TIMES + 1)]
    for path in paths:
        path.write_text("a,y\n1,2\n")
    marks = [fingerprint(path) for path in paths]
    return [
        Cell(str(path), "sgd", "default", 0, mark, target="y", model="linear")
        for path, mark in zip(paths, marks, strict=True)
    ]


def test_a_worker_that_stands_still_has_refused_nothing(cells):
    awake = asyncio.Event()

    async def send():
        files = Files("race", lambda *_: awake.wait())
        for _ in range(_TIMES + 1):
            sending = asyncio.create_task(files.send(cells[0], "tcp://a", "worker"))
            await asyncio.sleep(0.01)
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
        awake.set()
        return await files.send(cells[0], "tcp://a", "worker")

    assert asyncio.run(send()) > 0


def test_files_of_one_content_count_by_their_names(cells):
    async def run(*_):
        pass

    async def send():
        files = Files("race", run)
        sent = [await files.send(cell, "tcp://a", "worker") for cell in cells]
        assert [files.came(cell, "worker", 0.0) for cell in cells] == [True] * len(cells)
        # Of the same name it is: a worker that lacks it ever again does not keep it.
        for _ in range(_TIMES - 1):
            await files.send(cells[0], "tcp://a", "worker")
        with pytest.raises(Refused, match="does not keep what it is sent"):
            await files.send(cells[0], "tcp://a", "worker")
        return sent

    assert all(asyncio.run(send()))
