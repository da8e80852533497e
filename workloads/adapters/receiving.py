"""Start offsets, outcome rows and positions of one consumer, the same for every client library."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from aftershock.workloads.adapters.confluent_settings import consumer_config
from aftershock.workloads.adapters.sending import REQUEST_TIMEOUT_S, retry_until_result
from aftershock.workloads.load.assignment import CommitSchedule, ConsumeAssignment, Drain, Order, Place
from aftershock.workloads.load.events import Clock, Events, Tally
from aftershock.workloads.load.schedule import US_PER_MS, Filler, Headers, JsonValue, Mark, mark_in
from aftershock.workloads.load.spool import UNKNOWN, ConsumeSpool, Status


def resolve_start_offsets(assignment: ConsumeAssignment) -> dict[Place, int]:
    """Return a consumer's start offsets by place (committed offsets, or the current start or end of the log).

    If a group starts at ``latest``, its start offsets are committed, because the group would otherwise start at the end
    of the log at the time of its assignment, and miss earlier records. All requests are retried without a limit; if the
    commit is rejected because another consumer has joined the group (UNKNOWN_MEMBER_ID), that consumer commits.
    """
    plain = assignment.model_copy(update={"settings": {}})  # the settings may be those of another library
    partitions = [TopicPartition(*place) for place in assignment.places]
    with closing(Consumer(consumer_config(plain))) as consumer:

        def log_offset(topic: str, number: int) -> TopicPartition:
            marks = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=REQUEST_TIMEOUT_S)
            if marks is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  # librdkafka's own errors
            return TopicPartition(topic, number, marks[1] if assignment.from_ == "latest" else marks[0])

        def resolve() -> dict[Place, int]:
            if assignment.group is None:
                committed = partitions
            else:
                committed = consumer.committed(partitions, timeout=REQUEST_TIMEOUT_S)
            missing = [log_offset(start.topic, start.partition) for start in committed if start.offset < 0]
            if assignment.group is not None and assignment.from_ == "latest" and missing:
                consumer.commit(offsets=missing, asynchronous=False)
            found = [*committed, *missing]
            return {(start.topic, start.partition): start.offset for start in found if start.offset >= 0}

        return retry_until_result(resolve)


class PendingCommits:
    """Positions that a consumer has processed and not committed yet, with the time at which it must commit them."""

    def __init__(self, schedule: CommitSchedule, clock: Clock) -> None:
        self._schedule, self._clock = schedule, clock
        self._positions: dict[Place, int] = {}
        self._records, self._since_us = 0, clock()

    def processed(self, place: Place, offset: int) -> None:
        self._positions[place] = offset + 1
        self._records += 1

    def due(self) -> dict[Place, int]:
        """Return the positions to commit now, by place; empty if none are due. The next call returns newer ones."""
        every_us = (self._schedule.every_ms or 0) * US_PER_MS
        enough = self._schedule.every_records is not None and self._records >= self._schedule.every_records
        if not enough and not (every_us and self._clock() - self._since_us >= every_us):
            return {}
        return self.take(list(self._positions))

    def take(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the positions of ``places`` that are not committed yet, because the partitions are given up."""
        taken = {place: self._positions.pop(place) for place in places if place in self._positions}
        if not self._positions:
            self._records, self._since_us = 0, self._clock()
        return taken


class ReceiveRecorder:
    """Outcome rows, counts and positions of a consumer; ``foreign`` counts records that no producer of the run sent.

    Records of topics that are not in the assignment, which a pattern may match, are ``foreign`` and get no outcome row.
    ``owned`` are the partitions that are assigned to the consumer now. ``pending`` holds what the consumer itself must
    commit, None if its client library commits.
    """

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._assignment, self._clock, self._events = assignment, clock, events
        self.tally = Tally()
        self.assignments = 0
        self.foreign = 0
        self.owned: set[Place] = set()
        self.pending = PendingCommits(assignment.own_commits, clock) if assignment.own_commits else None
        self._filler = Filler()
        self._values = {topic: JsonValue(template) for topic, template in assignment.values.items()}
        self._spool = ConsumeSpool(assignment.spool, assignment)
        self._topic_numbers = {topic.name: number for number, topic in enumerate(assignment.topics)}
        self._begin = {(topic, number): at for topic, ats in assignment.begin.items() for number, at in ats.items()}
        self._positions: dict[Place, int] = {}
        self._drain: Drain | None = None
        self._drain_progress: _DrainProgress | None = None

    def begin_at(self, starts: Mapping[Place, int]) -> dict[Place, int]:
        """Return the start offsets by place, which are ``starts`` except after a restart without a consumer group.

        A restarted consumer without a group continues after its last delivered record, like an application that stores
        its offsets with its results.
        """
        delivered = {} if self._assignment.group or not self._assignment.life else self._spool.positions()
        self._positions = {**starts, **delivered}
        return dict(self._positions)

    def resume(self) -> None:
        """Continue at the position that the earlier processes of this worker had reached, group or not."""
        self._positions = self._spool.positions()

    def assigned(self, places: Iterable[Place], member: str | None = None, epoch: int = UNKNOWN) -> None:
        """Record partitions that were assigned in addition to those that the consumer has.

        The event names those that the consumer had already as ``again``: a client program that reports what it owns
        instead of what it gains breaks the protocol.
        ``member`` is the consumer's member id, None without a group; ``epoch`` is its member epoch (KIP-848), or the
        generation of a classic group.
        """
        self.assignments += 1
        if member is not None:
            self._spool.member(member)
        given = list(places)
        again = [[*place] for place in given if place in self.owned]
        self.owned.update(given)
        self._emit("assigned", given, epoch, **({"again": again} if again else {}))

    def revoked(self, places: Iterable[Place], epoch: int = UNKNOWN) -> None:
        """Record partitions that the consumer gives up before another member may get them."""
        given = list(places)
        self.owned.difference_update(given)
        self._emit("revoked", given, epoch)

    def lost(self, places: Iterable[Place], epoch: int = UNKNOWN) -> None:
        """Record partitions that the consumer lost, so that another member may have them already."""
        given = list(places)
        self.owned.difference_update(given)
        if self.pending:
            self.pending.take(given)
        self._emit("lost", given, epoch)

    def fenced(self, error: str, took_us: int) -> None:
        """Record that the coordinator has answered, after ``took_us``, that it does not know the member."""
        self._events.emit("member_fenced", t_us=self._clock(), error=error, took_us=took_us)

    def committed(self, offsets: Mapping[Place, int], took_us: int | None = None, epoch: int = UNKNOWN) -> None:
        """Record a successful commit of offsets by place, whose response came ``took_us`` after the request.

        ``epoch`` is the member epoch or generation that the request had.
        """
        rows = [[*place, offset] for place, offset in offsets.items()]
        if rows:
            details = {"took_us": took_us} if took_us is not None else {}
            self._events.emit("committed", t_us=self._clock(), offsets=rows, **details, **_known(epoch))

    def _emit(self, event: str, places: Iterable[Place], epoch: int, **details: Any) -> None:
        partitions = [[*place] for place in places]
        self._events.emit(event, t_us=self._clock(), partitions=partitions, **_known(epoch), **details)

    def obey(self, order: Order) -> None:
        """Store a ``drain`` order; a consumer ignores all other orders."""
        if isinstance(order, Drain):
            self._drain, self._drain_progress = order, None

    def take(
        self,
        mark: Mark | None,
        *,
        place: Place,
        offset: int,
        high_watermark: int = UNKNOWN,
        leader_epoch: int = UNKNOWN,
        size_bytes: int,
        value: bytes | None = None,
        broker_id: int = UNKNOWN,
    ) -> None:
        """Record the delivery of a record; a record that no producer of the run sent has no ``mark``.

        The record's ``value`` is compared with the value that was sent, unless the client reports no values (None).
        Records that were in the topic before the run are counted as foreign, but get no outcome row.
        """
        done_us = self._clock()
        if self.pending:
            self.pending.processed(place, offset)
        self._positions[place] = max(offset + 1, self._positions.get(place, 0))
        topic_number = self._topic_numbers.get(place[0])
        if topic_number is None or offset < self._begin.get(place, 0):
            self.foreign += 1
            return
        self._spool.append(
            producer_id=mark.producer_id if mark else UNKNOWN,
            seq=mark.seq if mark else UNKNOWN,
            intended_us=mark.intended_us if mark else UNKNOWN,
            done_us=done_us,
            topic_number=topic_number,
            partition=place[1],
            offset=offset,
            high_watermark=high_watermark,
            leader_epoch=leader_epoch,
            size_bytes=size_bytes,
            broker_id=broker_id,
            corrupt=mark is not None and value is not None and not self._is_value(place[0], mark, value),
        )
        if mark:
            self.tally.ended(Status.OK, done_us - mark.intended_us)
        else:
            self.foreign += 1

    def _is_value(self, topic: str, mark: Mark, value: bytes) -> bool:
        if self._assignment.observes:
            return True  # nobody knows what a service makes of an input
        template = self._values.get(topic)
        return template.is_value(mark, value) if template else self._filler.is_value(mark.seq, value)

    def mark_of(self, headers: Headers, key: bytes | None, value: bytes | None) -> Mark | None:
        """Return the mark of a record that was read; None for a record that no producer of the run sent."""
        return mark_in(self._assignment.observes or "header", headers, key, value)

    def reached(self, place: Place, position: int) -> None:
        """Advance the consumer's position, also past transaction markers, which are never delivered."""
        self._positions[place] = max(position, self._positions.get(place, 0))

    def idle(self) -> None:
        self._spool.idle()

    def answer(self) -> dict[str, Any] | None:
        """Return the answer to a ``drain`` order, with the consumer's positions by topic and partition.

        If its partitions have unread offsets, the event ``drain_incomplete`` records each partition's position and end,
        how many offsets the consumer read since the order, and how long ago it last read any.
        """
        if self._drain is None:
            return None
        ends = {(topic, number): end for topic, of in self._drain.end_offsets.items() for number, end in of.items()}
        if self._assignment.members > 1:  # the other partitions are those of other members
            ends = {place: end for place, end in ends.items() if place in self.owned}
        positions = {place: self._positions.get(place, 0) for place in ends}
        missing = {place: end - positions[place] for place, end in ends.items() if positions[place] < end}
        if missing:
            now_us, unread = self._clock(), sum(missing.values())
            if self._drain_progress is None:
                self._drain_progress = _DrainProgress(now_us, unread, now_us, unread)
            if not self._drain_progress.gives_up(self._drain, now_us, unread):
                return None
            rows = [[*place, positions[place], end] for place, end in ends.items()]
            progress = self._drain_progress
            read, idle_us = progress.unread_at_start - progress.unread, now_us - progress.progress_us
            # of a client that has ended nobody can tell whether it would have read on
            idle = {} if self._assignment.ended else {"idle_us": idle_us}
            self._events.emit("drain_incomplete", t_us=now_us, positions=rows, read=read, **idle)
        self._drain = None
        reached: dict[str, dict[int, int]] = {}
        for (topic, number), position in self._positions.items():
            reached.setdefault(topic, {})[number] = position
        return {"did": "drain", "positions": reached}


def _known(epoch: int) -> dict[str, int]:
    return {} if epoch == UNKNOWN else {"epoch": epoch}


@dataclass
class _DrainProgress:
    """Progress of a consumer towards the ends of its topics: unread offsets at the start and at the last progress."""

    start_us: int
    unread_at_start: int
    progress_us: int
    unread: int

    def gives_up(self, drain: Drain, now_us: int, unread: int) -> bool:
        """Update the progress; return True if the consumer will not reach the end in time."""
        moves = unread < self.unread
        if moves:
            self.progress_us, self.unread = now_us, unread
        if now_us >= drain.until_us:
            return True
        spent_us = now_us - self.start_us
        if drain.idle_us is None or spent_us < drain.idle_us:
            return False
        # At the mean rate since the order, the rest takes spent_us * unread / read. Only a consumer that moves is slow:
        # of one that does not it must be seen whether it stands still.
        read = self.unread_at_start - unread
        too_slow = moves and spent_us * unread > (drain.until_us - now_us) * read
        return too_slow or now_us - self.progress_us >= drain.idle_us


class ReceivingClient:
    """Methods of ``worker.Client`` that are the same for all consumers."""

    _receiving: ReceiveRecorder
    _polls = True

    def keep_polling(self, polls: bool) -> None:  # noqa: FBT001 -- a switch
        self._polls = polls

    def obey(self, order: Order) -> None:
        self._receiving.obey(order)

    def answer(self) -> dict[str, Any] | None:
        return self._receiving.answer()

    def counters(self) -> dict[str, int]:
        receiving = self._receiving
        return {"received": receiving.tally.done, "foreign": receiving.foreign, "assignments": receiving.assignments}
