"""Labels that arrive late, as in forecasting: learning waits for them, prediction does not."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Waiting(Generic[_Item]):
    """Batches that are predicted and not yet learned from.

    The label of row i arrives right after row i + delay is predicted. A batch is learned from
    whole, in one step, once the last of its labels has arrived: after ⌈delay/batch⌉ more batches.
    What is still waiting at the end of a stream is never learned from.

    Args:
        delay: Rows between a row and its label; 0 if none.
        batch: Rows in a batch.

    Example:
        >>> waiting = Waiting(delay=20, batch=16)
        >>> waiting.steps, [waiting.push(batch) for batch in "abcd"]
        (2, [None, None, 'a', 'b'])
    """

    def __init__(self, delay: int, batch: int) -> None:
        self.steps = -(-delay // batch)
        self._queue: deque[_Item] = deque()

    def push(self, item: _Item) -> _Item | None:
        """Take in a batch that was predicted; return the one whose labels are there, if any."""
        self._queue.append(item)
        return self._queue.popleft() if len(self._queue) > self.steps else None
