"""The batches that have not ended: the memory they hold, and when they expire.

Kafka: ``BufferPool``, ``IncompleteBatches`` and the expiry of ``RecordAccumulator`` and ``Sender``.

1. A batch takes its memory when it is opened and gives it back when it has ended, once.
2. A batch expires ``delivery.timeout.ms`` after it was created, wherever it is: queued, backing off or in flight.
3. The parts of a split batch are as old as the whole, and hold no memory of the buffer.
"""

from collections.abc import Iterable
from math import inf

from aftershock.workloads.rules.batch import Batch


class Unfinished:
    """``free_bytes`` is what is left of the buffer."""

    def __init__(self, buffer_memory: int, delivery_timeout_ms: float) -> None:
        self.free_bytes = buffer_memory
        self._delivery_timeout_ms = delivery_timeout_ms
        self._batches: dict[Batch, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Batch) -> None:
        """A batch was opened; it is the youngest."""
        self.free_bytes -= batch.reserved
        self._batches[batch] = None

    def add_parts(self, parts: Iterable[Batch]) -> None:
        """A batch was split; its parts go by its age."""
        everything = [*self._batches, *parts]
        self._batches = dict.fromkeys(sorted(everything, key=lambda batch: batch.created_ms))

    def finish(self, batch: Batch) -> None:
        """A batch has ended, well or badly."""
        del self._batches[batch]
        self.free_bytes += batch.reserved
        batch.done = True
        batch.close()

    @property
    def oldest_ms(self) -> float:
        """When the oldest batch was created; infinite when there is none."""
        return next(iter(self._batches)).created_ms if self._batches else inf

    @property
    def next_expiry_ms(self) -> float:
        """When the next batch expires."""
        return self.oldest_ms + self._delivery_timeout_ms

    def expired(self, now_ms: float) -> list[Batch]:
        """The batches whose time is up, oldest first. They stay until they are finished."""
        found = []
        for batch in self._batches:
            if batch.created_ms + self._delivery_timeout_ms > now_ms:
                break
            found.append(batch)
        return found

    def all(self) -> list[Batch]:
        """All of them, oldest first."""
        return list(self._batches)
