"""What was fetched and not yet handed over: one entry a partition, bounded by one fetch a node.

Rules (Kafka's ``FetchCollector``, ``CompletedFetch``):

1. Batches are parsed when they are handed over; then the position moves behind them. So a position is always what the
   application has, and a commit of it is true.
2. An entry whose offset is no longer the partition's position is dropped: the partition was taken away, reset, sought,
   or has to be validated first.
3. Batches that the application isn't to see move the position, too: control batches, and those emptied by compaction.
4. A partition that was handed over goes to the end of the assignment order.
5. What goes wrong with a partition is kept until ``problem`` is asked, and the partition isn't fetched before.
"""

from collections.abc import Iterable
from typing import NamedTuple

from aftershock.errors import ClientError, ProtocolError, UnsupportedError
from aftershock.workloads.kafka.rules.subscription_state import Positions
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch import Batch, parse


class Fetched(NamedTuple):
    """One batch handed over. Its records at ``first_offset`` and later are new, those before it were not asked for.

    ``high_watermark`` is what the fetch answer said, ``broker_id`` who answered, ``leader_epoch`` the batch's own.
    """

    topic: str
    partition: int
    batch: Batch
    high_watermark: int
    leader_epoch: int
    broker_id: int
    first_offset: int


class Completed:
    """One partition of one answer. ``offset`` is where the batches left are to go on from."""

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
        self._whole = False

    def next(self) -> Fetched | None:
        """The next batch that isn't wholly before ``offset``; None at the end.

        Raises:
            ProtocolError: it is corrupt, or there is not one whole batch.
            UnsupportedError: an old format, or a codec that isn't installed.
        """
        for batch in self._batches:
            self._whole = True
            if batch.last_offset >= self.offset:
                return self._fetched(batch)
        if not self._whole:
            raise ProtocolError(f"{self._size} bytes of records hold no whole batch")
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
    """The entries, in the order of arrival, and the problems."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._entries: dict[TopicPartition, Completed] = {}
        self._problems: dict[TopicPartition, ClientError] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._entries or tp in self._problems

    def __len__(self) -> int:
        return len(self._entries) + len(self._problems)

    def add(self, entry: Completed) -> None:
        """Keep an entry until it is taken."""
        self._entries[entry.tp] = entry

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what is buffered of these."""
        for tp in partitions:
            self._entries.pop(tp, None)
            self._problems.pop(tp, None)

    def fail(self, tp: TopicPartition, error: ClientError) -> None:
        """Keep a problem until ``problem`` is asked."""
        self._problems[tp] = error

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """The partitions with data, whether or not it is still wanted."""
        return self._entries.keys()

    def has_problem(self, tp: TopicPartition) -> bool:
        """Whether the application has yet to hear of one."""
        return tp in self._problems

    def problem(self) -> ClientError | None:
        """The oldest problem, once."""
        return self._problems.pop(next(iter(self._problems))) if self._problems else None

    def take(self, records_max: int) -> list[Fetched]:
        """Whole batches in order of arrival, until they have ``records_max`` records or more."""
        taken: list[Fetched] = []
        count = 0
        while count < records_max and (fetched := self._next()) is not None:
            taken.append(fetched)
            count += fetched.batch.count
        return taken

    def _next(self) -> Fetched | None:
        """The next batch to be seen by the application; the position is behind it then."""
        while self._entries:
            entry = next(iter(self._entries.values()))
            fetched = self._step(entry)
            if fetched is not None and fetched.batch.count and not fetched.batch.is_control:
                return fetched
        return None

    def _step(self, entry: Completed) -> Fetched | None:
        """The next batch of an entry; at its end, or where it is no longer wanted, the entry goes."""
        fetched = self._parsed(entry) if self._positions.is_current(entry.tp, entry.offset) else None
        if fetched is None:
            del self._entries[entry.tp]
            self._positions.move_to_end(entry.tp)
            return None
        entry.offset = fetched.batch.last_offset + 1
        self._positions.advance(entry.tp, entry.offset, fetched.leader_epoch)
        return fetched

    def _parsed(self, entry: Completed) -> Fetched | None:
        try:
            return entry.next()
        except ProtocolError as error:
            where = f"{entry.tp} at offset {entry.offset}"
            self.fail(entry.tp, ProtocolError(f"{where}: {error}; the next poll fetches it again"))
        except UnsupportedError as error:
            self.fail(entry.tp, UnsupportedError(f"{entry.tp} at offset {entry.offset}: {error}"))
        return None
