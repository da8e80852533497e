"""Independent model of a broker's sequence check for one partition: ProducerStateManager and ProducerAppendInfo.

It keeps, for each producer id, the epoch and the last five batches. Written from Kafka's broker, not from our
client.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

BATCHES_TO_RETAIN = 5
INT32_MAX = 2**31 - 1
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_RECORD, MESSAGE_TOO_LARGE = 45, 47, 87, 10


class Sent(NamedTuple):
    """A batch on the wire: the request's values, whatever the client's object has later."""

    producer_id: int
    epoch: int
    base: int
    records: tuple[int, ...]


class Producer:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[tuple[int, int]] = deque(maxlen=BATCHES_TO_RETAIN)

    def next_base(self) -> int:
        if not self.batches:
            return 0
        base, count = self.batches[-1]
        last = base + count - 1 if base + count - 1 <= INT32_MAX else base + count - 2 - INT32_MAX
        return 0 if last == INT32_MAX else last + 1


class PartitionLog:
    """One partition's log and its producer states. Records are numbers; ``poisoned`` records are refused."""

    def __init__(self, *, records_max: int, poisoned: Sequence[int] = ()) -> None:
        self.records: list[int] = []
        self.poisoned: set[int] = set(poisoned)
        self.records_max = records_max
        self.producers: dict[int, Producer] = {}

    def append(self, sent: Sent) -> int:
        """Return the error code; 0 also for one of the last five batches, which is not written again."""
        if self.poisoned.intersection(sent.records):
            return INVALID_RECORD
        if len(sent.records) > self.records_max:
            return MESSAGE_TOO_LARGE
        known = self.producers.get(sent.producer_id)
        if known and known.epoch == sent.epoch and (sent.base, len(sent.records)) in known.batches:
            return 0
        error = self._check(known, sent)
        if not error:
            self._write(sent)
        return error

    @staticmethod
    def _check(known: Producer | None, sent: Sent) -> int:
        if known is None:
            return 0
        if sent.epoch < known.epoch:
            return INVALID_PRODUCER_EPOCH
        expected = 0 if sent.epoch > known.epoch else known.next_base()
        return 0 if sent.base == expected else OUT_OF_ORDER_SEQUENCE_NUMBER

    def _write(self, sent: Sent) -> None:
        known = self.producers.get(sent.producer_id)
        if known is None or known.epoch != sent.epoch:
            known = self.producers[sent.producer_id] = Producer(sent.epoch)
        known.batches.append((sent.base, len(sent.records)))
        self.records.extend(sent.records)
