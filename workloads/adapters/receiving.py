"""Where a consumer begins, settled before anything is produced that it must not miss.

What every consuming client does alike, whichever library reads: what was delivered, and how far that is.

Rules: a record is noted when the library hands it over, which is when an application would see it; after ``drain`` the
answer comes when every partition has been read to its end, or the time is up. A reader that was killed and has no group
goes on behind what was delivered to it, as an application does that keeps its offsets beside its results. What was in
the topic before the run is counted, and not noted: the evidence has no log of that.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from aftershock.workloads.adapters.confluent_settings import consumer_config
from aftershock.workloads.adapters.sending import ASK_TIMEOUT_S, until_answered
from aftershock.workloads.load.assignment import ConsumeAssignment
from aftershock.workloads.load.events import Clock, Events, Tally
from aftershock.workloads.load.orders import Drain, Order
from aftershock.workloads.load.schedule import Filler, Mark
from aftershock.workloads.load.spool import UNKNOWN, ConsumeSpool, Status


def settle_starts(told: ConsumeAssignment) -> dict[int, int]:
    """Each partition's first offset to read: what the group has committed, else as ``from`` says, as it is now.

    A group that begins at the end of the log has that committed for it: else it would begin wherever the end is when
    its members are assigned their partitions. Asks for as long as it takes, and from the start each time: a group
    that has got its first member meanwhile takes no commit from us any more (UNKNOWN_MEMBER_ID), and needs none.
    """
    plain = told.model_copy(update={"settings": {}})  # what another library's settings mean is not for us to say
    with closing(Consumer(consumer_config(plain))) as consumer:
        return until_answered(lambda: _settle(consumer, told))


def _settle(consumer: Consumer, told: ConsumeAssignment) -> dict[int, int]:
    known = _committed(consumer, told)
    fresh = [_fresh(consumer, told, each.partition) for each in known if each.offset < 0]
    if told.group is not None and told.from_ == "latest" and fresh:
        consumer.commit(offsets=fresh, asynchronous=False)
    return {start.partition: start.offset for start in [*known, *fresh] if start.offset >= 0}


def _committed(consumer: Consumer, told: ConsumeAssignment) -> list[TopicPartition]:
    """Every partition, with an offset where the group has committed one."""
    partitions = [TopicPartition(told.topic, number) for number in range(told.partitions)]
    return partitions if told.group is None else consumer.committed(partitions, timeout=ASK_TIMEOUT_S)


def _fresh(consumer: Consumer, told: ConsumeAssignment, number: int) -> TopicPartition:
    """The end or the beginning of the log, as it is now."""
    marks = consumer.get_watermark_offsets(TopicPartition(told.topic, number), timeout=ASK_TIMEOUT_S)
    if marks is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  # librdkafka's own errors
    return TopicPartition(told.topic, number, marks[1] if told.from_ == "latest" else marks[0])


class Receiving:
    """The spool, the tally and the positions of one reader."""

    def __init__(self, told: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._told, self._clock, self._events = told, clock, events
        self.tally = Tally()
        self.assignments = 0
        self._foreign = 0
        self._filler = Filler()
        self._spool = ConsumeSpool(told.spool, told)
        self._positions: dict[int, int] = {}
        self._drain: Drain | None = None

    def begin_at(self, settled: Mapping[int, int]) -> dict[int, int]:
        """Partition → where reading begins: a partition that nothing is delivered from is read as far.

        ``settled`` is where a new reader would begin, or where the group stands.
        """
        known = {} if self._told.group or not self._told.life else self._spool.positions()
        self._positions = {**settled, **known}
        return dict(self._positions)

    def assigned(self, partitions: Iterable[int], member: str | None = None) -> None:
        """Partitions were given to this client, as ``member`` of its group if it has one."""
        self.assignments += 1
        if member is not None:
            self._spool.member(member)
        self._say("assigned", partitions)

    def revoked(self, partitions: Iterable[int]) -> None:
        """Partitions were taken from this client."""
        self._say("revoked", partitions)

    def committed(self, offsets: Iterable[tuple[int, int]]) -> None:
        """The group's offsets were committed, by partition; its coordinator said so."""
        told = [[self._told.topic, number, offset] for number, offset in offsets]
        if told:
            self._events.emit("committed", offsets=told)

    def _say(self, event: str, partitions: Iterable[int]) -> None:
        self._events.emit(event, partitions=[[self._told.topic, number] for number in partitions])

    def obey(self, order: Order) -> None:
        """``drain`` sets the end; a reader has no schedule, so ``go`` and ``stop`` are not for it."""
        if isinstance(order, Drain):
            self._drain = order

    def take(
        self,
        mark: Mark | None,
        *,
        partition: int,
        offset: int,
        high_watermark: int = UNKNOWN,
        leader_epoch: int = UNKNOWN,
        size_bytes: int,
        value: bytes | None = None,
        broker_id: int = UNKNOWN,
    ) -> None:
        """One record was delivered, now; ``mark`` is None when it is foreign, UNKNOWN stands for what isn't known.

        ``value`` is None where the client does not tell it.
        """
        done_us = self._clock()
        self._positions[partition] = max(offset + 1, self._positions.get(partition, 0))
        if offset < self._told.begin.get(partition, 0):
            self._foreign += 1
            return
        self._spool.append(
            producer_id=mark.producer_id if mark else UNKNOWN,
            seq=mark.seq if mark else UNKNOWN,
            intended_us=mark.intended_us if mark else UNKNOWN,
            done_us=done_us,
            partition=partition,
            offset=offset,
            high_watermark=high_watermark,
            leader_epoch=leader_epoch,
            size_bytes=size_bytes,
            broker_id=broker_id,
            corrupt=mark is not None and value is not None and not self._filler.is_value(mark.seq, value),
        )
        if mark:
            self.tally.ended(Status.OK, done_us - mark.intended_us)
        else:
            self._foreign += 1

    def reached(self, partition: int, position: int) -> None:
        """All before ``position`` has been delivered, or was never meant to be (a transaction's marker)."""
        self._positions[partition] = max(position, self._positions.get(partition, 0))

    def idle(self) -> None:
        """Use a quiet moment to make room for rows."""
        self._spool.idle()

    def answer(self) -> dict[str, Any] | None:
        """After ``drain``: how many offsets are missing, by partition; none when all were reached."""
        if self._drain is None:
            return None
        ends = self._drain.end_offsets.items()
        missing = {number: end - at for number, end in ends if (at := self._positions.get(number, 0)) < end}
        if missing and self._clock() < self._drain.until_us:
            return None
        self._drain = None
        return {"did": "drain", "missing": missing}

    def counters(self) -> dict[str, int]:
        """Records delivered, ours and foreign, and how often partitions were assigned."""
        return {"received": self.tally.done, "foreign": self._foreign, "assignments": self.assignments}
