"""Batches that a consumer with ``isolation.level=read_committed`` drops, because their transactions were aborted.

Modelled on Kafka's ``CompletedFetch``. A broker returns records below the last stable offset, the first offset of the
oldest open transaction, and the aborted transactions in the fetched range, each with its producer id and first offset.

1. A transaction takes effect at the first batch whose last offset is not below the transaction's first offset.
2. From there on, transactional batches of its producer id are dropped, until the producer id's ABORT marker.
3. Batches of other producers, and batches without a transaction, are delivered. Control batches are never delivered.
"""

from collections.abc import Iterable
from heapq import heapify, heappop


class AbortedTransactions:
    """Aborted transactions of one partition in one Fetch response, as pairs of producer id and first offset."""

    def __init__(self, transactions: Iterable[tuple[int, int]] = ()) -> None:
        self._pending = [(first_offset, producer_id) for producer_id, first_offset in transactions]
        heapify(self._pending)
        self._producer_ids: set[int] = set()

    def drops(self, producer_id: int, last_offset: int, *, transactional: bool, abort_marker: bool) -> bool:
        """Return True if a batch must be dropped; called once for every batch, in the order of the log."""
        if producer_id < 0:
            return False
        while self._pending and self._pending[0][0] <= last_offset:
            self._producer_ids.add(heappop(self._pending)[1])
        if abort_marker:
            self._producer_ids.discard(producer_id)
            return False
        return transactional and producer_id in self._producer_ids
