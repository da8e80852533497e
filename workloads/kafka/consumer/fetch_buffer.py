"""Buffer of fetched data that ``poll`` has not delivered yet, as in Kafka's ``FetchCollector``.

Record batches are parsed on delivery. A partition's position advances with the delivery of batches, so a committed
position covers only records that the application has received.
"""

from collections.abc import Iterable
from typing import NamedTuple

from aftershock.errors import ClientError, ProtocolError, UnsupportedError
from aftershock.workloads.kafka.rules.isolation import AbortedTransactions
from aftershock.workloads.kafka.rules.subscription_state import SubscriptionState
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch import Batch, parse


class Fetched(NamedTuple):
    """Record batch to deliver; records before ``first_offset`` in the batch must be skipped.

    A batch with ``delivers`` False is a control batch or part of an aborted transaction, and only moves the position.
    """

    topic: str
    partition: int
    batch: Batch
    high_watermark: int
    leader_epoch: int
    broker_id: int
    first_offset: int
    delivers: bool = True


class CompletedFetch:
    """Fetched data of one partition; ``offset`` is the partition's position after the batches that were delivered.

    ``aborted`` are the aborted transactions in the data, of a consumer that reads committed records only.
    """

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        records: bytes,
        *,
        high_watermark: int,
        broker_id: int,
        check_crc: bool = True,
        aborted: AbortedTransactions | None = None,
    ) -> None:
        self._aborted = aborted
        self.tp, self.offset, self._size = tp, offset, len(records)
        self._high_watermark, self._broker_id = high_watermark, broker_id
        self._batches = parse(records, check_crc=check_crc)
        self._has_batch = False

    def next(self) -> Fetched | None:
        """Return the next record batch that contains ``offset`` or later offsets; None at the end of the data.

        Raises ProtocolError if a record batch is corrupt or incomplete, UnsupportedError if a batch has an old format
        or its codec is not installed.
        """
        for batch in self._batches:
            self._has_batch = True
            header = batch.header
            is_dropped = self._aborted is not None and self._aborted.drops(
                header.producer_id,
                batch.last_offset,
                transactional=batch.is_transactional,
                abort_marker=batch.marker == "abort",
            )
            if batch.last_offset >= self.offset:
                topic, partition = self.tp
                delivers = not (is_dropped or batch.is_control)
                source = batch.leader_epoch, self._broker_id
                return Fetched(topic, partition, batch, self._high_watermark, *source, self.offset, delivers)
        if not self._has_batch:
            raise ProtocolError(f"{self._size} bytes of a Fetch response contain no complete record batch")
        return None


class FetchBuffer:
    """Buffer of fetched data and fetch errors by partition, both in the order of arrival."""

    def __init__(self, positions: SubscriptionState) -> None:
        self._positions = positions
        self._entries: dict[TopicPartition, CompletedFetch] = {}
        self._problems: dict[TopicPartition, ClientError] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._entries or tp in self._problems

    def __len__(self) -> int:
        return len(self._entries) + len(self._problems)

    def add(self, entry: CompletedFetch) -> None:
        self._entries[entry.tp] = entry

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._entries.pop(tp, None)
            self._problems.pop(tp, None)

    def fail(self, tp: TopicPartition, error: ClientError) -> None:
        """Store the fetch error of a partition, which is not fetched until ``problem`` has returned the error."""
        self._problems[tp] = error

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return self._entries.keys()

    def has_problem(self, tp: TopicPartition) -> bool:
        return tp in self._problems

    def problem(self) -> ClientError | None:
        return self._problems.pop(next(iter(self._problems))) if self._problems else None

    def take(self, records_max: int) -> list[Fetched]:
        """Return whole record batches in order of arrival, with at least ``records_max`` records if available.

        Control batches, batches of aborted transactions, and batches that compaction has emptied only advance the
        partition's position.
        """
        batches: list[Fetched] = []
        count = 0
        while self._entries and count < records_max:
            entry = next(iter(self._entries.values()))
            fetched = None
            # An entry isn't current if its partition was revoked, reset or sought, or awaits validation.
            if self._positions.is_current(entry.tp, entry.offset):
                try:
                    fetched = entry.next()
                except ProtocolError as error:
                    problem = f"{entry.tp} at offset {entry.offset}: {error}; the next poll fetches the records again"
                    self.fail(entry.tp, ProtocolError(problem))
                except UnsupportedError as error:
                    self.fail(entry.tp, UnsupportedError(f"{entry.tp} at offset {entry.offset}: {error}"))
            if fetched is None:
                del self._entries[entry.tp]
                self._positions.move_to_end(entry.tp)  # the next fetch serves all other partitions first
                continue
            entry.offset = fetched.batch.last_offset + 1
            self._positions.advance(entry.tp, entry.offset, fetched.leader_epoch)
            if fetched.batch.records and fetched.delivers:
                batches.append(fetched)
                count += len(fetched.batch.records)
        return batches
