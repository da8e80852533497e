"""Buffer of fetched data that ``poll`` has not delivered yet, at most one fetch response per broker.

Modelled on Kafka's ``FetchCollector`` and ``CompletedFetch``. Batches are parsed on delivery; the partition's position
then advances past the delivered batches, so a position covers only records that the application has received, and may
be committed.
"""

from collections.abc import Iterable
from typing import NamedTuple

from aftershock.errors import ClientError, ProtocolError, UnsupportedError
from aftershock.workloads.kafka.rules.subscription_state import SubscriptionState
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch import Batch, parse


class Fetched(NamedTuple):
    """Record batch to deliver, without records before ``first_offset``; broker ``broker_id`` sent the batch."""

    topic: str
    partition: int
    batch: Batch
    high_watermark: int
    leader_epoch: int
    broker_id: int
    first_offset: int


class CompletedFetch:
    """Data of one partition in a fetch response; ``offset`` is the position after the batches delivered so far."""

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        records: bytes,
        *,
        high_watermark: int,
        broker_id: int,
        check_crc: bool = True,
    ) -> None:
        self.tp, self.offset, self._size = tp, offset, len(records)
        self._high_watermark, self._broker_id = high_watermark, broker_id
        self._batches = parse(records, check_crc=check_crc)
        self._has_batch = False

    def next(self) -> Fetched | None:
        """Return the next batch that contains ``offset`` or later offsets; None at the end of the data.

        Raises ProtocolError if a batch is corrupt or no batch is complete, UnsupportedError if a batch has an old
        format or its codec is not installed.
        """
        for batch in self._batches:
            self._has_batch = True
            if batch.last_offset >= self.offset:
                topic, partition = self.tp
                return Fetched(
                    topic, partition, batch, self._high_watermark, batch.leader_epoch, self._broker_id, self.offset
                )
        if not self._has_batch:
            raise ProtocolError(f"{self._size} bytes of a Fetch response contain no complete record batch")
        return None


class FetchBuffer:
    """Buffer of fetched partitions and of errors, both in the order of arrival."""

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
        """Store a partition's fetch error; the partition is not fetched until ``problem`` has returned the error."""
        self._problems[tp] = error

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """Partitions with data in the buffer, whether or not the data matches their current positions."""
        return self._entries.keys()

    def has_problem(self, tp: TopicPartition) -> bool:
        return tp in self._problems

    def problem(self) -> ClientError | None:
        return self._problems.pop(next(iter(self._problems))) if self._problems else None

    def take(self, records_max: int) -> list[Fetched]:
        """Return whole batches in order of arrival, until they have ``records_max`` records or the buffer is empty.

        A partition's position also advances past batches that are not delivered to the application: control batches,
        and batches emptied by compaction.
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
            if fetched.batch.count and not fetched.batch.is_control:
                batches.append(fetched)
                count += fetched.batch.count
        return batches
