"""Fetched data that is not delivered yet: one entry per partition, bounded by one fetch per node.

Rules (Kafka's ``FetchCollector``, ``CompletedFetch``):

1. Batches are parsed on delivery; then the position moves behind them. A position therefore always reflects what the
   application has received, and may be committed.
2. An entry whose offset is no longer the partition's position is dropped: the partition was revoked, reset, sought, or
   must be validated first.
3. Batches that are not delivered move the position, too: control batches, and those emptied by compaction.
4. A partition whose data was delivered goes to the end of the assignment order.
5. A partition's error is kept until ``problem`` returns it, and the partition is not fetched before that.
"""

from collections.abc import Iterable
from typing import NamedTuple

from aftershock.errors import ClientError, ProtocolError, UnsupportedError
from aftershock.workloads.kafka.rules.subscription_state import SubscriptionState
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch import Batch, parse


class Fetched(NamedTuple):
    """A delivered batch. Its records from ``first_offset`` on are new; earlier ones were not requested.

    ``high_watermark`` is from the fetch response, ``broker_id`` is the responding broker, ``leader_epoch`` the batch's
    own.
    """

    topic: str
    partition: int
    batch: Batch
    high_watermark: int
    leader_epoch: int
    broker_id: int
    first_offset: int


class CompletedFetch:
    """One partition of one response. ``offset`` is the position after the batches delivered so far."""

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
        self.tp, self.offset = tp, offset
        self._size = len(records)
        self._high_watermark, self._broker_id = high_watermark, broker_id
        self._batches = parse(records, check_crc=check_crc)
        self._has_batch = False

    def next(self) -> Fetched | None:
        """Return the next batch that is not entirely before ``offset``; None at the end.

        Raises: ProtocolError: it is corrupt, or there is no complete batch. UnsupportedError: an old format, or a codec
        that is not installed.
        """
        for batch in self._batches:
            self._has_batch = True
            if batch.last_offset >= self.offset:
                return self._fetched(batch)
        if not self._has_batch:
            raise ProtocolError(f"{self._size} bytes of records contain no complete batch")
        return None

    def _fetched(self, batch: Batch) -> Fetched:
        return Fetched(
            self.tp.topic,
            self.tp.partition,
            batch,
            self._high_watermark,
            batch.leader_epoch,
            self._broker_id,
            self.offset,
        )


class FetchBuffer:
    """Entries in the order of arrival, and errors."""

    def __init__(self, positions: SubscriptionState) -> None:
        self._positions = positions
        self._entries: dict[TopicPartition, CompletedFetch] = {}
        self._problems: dict[TopicPartition, ClientError] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._entries or tp in self._problems

    def __len__(self) -> int:
        return len(self._entries) + len(self._problems)

    def add(self, entry: CompletedFetch) -> None:
        """Keep an entry until it is delivered."""
        self._entries[entry.tp] = entry

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the buffered data and errors of these partitions."""
        for tp in partitions:
            self._entries.pop(tp, None)
            self._problems.pop(tp, None)

    def fail(self, tp: TopicPartition, error: ClientError) -> None:
        """Keep an error until ``problem`` returns it."""
        self._problems[tp] = error

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """Partitions with data, whether or not it is still current."""
        return self._entries.keys()

    def has_problem(self, tp: TopicPartition) -> bool:
        """Return True if an error of this partition is waiting for the application."""
        return tp in self._problems

    def problem(self) -> ClientError | None:
        """Return the oldest error once."""
        return self._problems.pop(next(iter(self._problems))) if self._problems else None

    def take(self, records_max: int) -> list[Fetched]:
        """Return whole batches in order of arrival, until they have ``records_max`` records or more."""
        batches: list[Fetched] = []
        count = 0
        while count < records_max and (fetched := self._next()) is not None:
            batches.append(fetched)
            count += fetched.batch.count
        return batches

    def _next(self) -> Fetched | None:
        """Return the next batch for the application and move the position behind it."""
        while self._entries:
            entry = next(iter(self._entries.values()))
            fetched = self._step(entry)
            if fetched is not None and fetched.batch.count and not fetched.batch.is_control:
                return fetched
        return None

    def _step(self, entry: CompletedFetch) -> Fetched | None:
        """Return the next batch of an entry; remove an entry that has ended or is no longer current."""
        fetched = self._parsed(entry) if self._positions.is_current(entry.tp, entry.offset) else None
        if fetched is None:
            del self._entries[entry.tp]
            self._positions.move_to_end(entry.tp)
            return None
        entry.offset = fetched.batch.last_offset + 1
        self._positions.advance(entry.tp, entry.offset, fetched.leader_epoch)
        return fetched

    def _parsed(self, entry: CompletedFetch) -> Fetched | None:
        try:
            return entry.next()
        except ProtocolError as error:
            where = f"{entry.tp} at offset {entry.offset}"
            self.fail(entry.tp, ProtocolError(f"{where}: {error}; the next poll fetches it again"))
        except UnsupportedError as error:
            self.fail(entry.tp, UnsupportedError(f"{entry.tp} at offset {entry.offset}: {error}"))
        return None
