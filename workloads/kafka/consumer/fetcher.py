"""What fetches cost on the wire, full and incremental ones apart: the figure that KIP-227 is about.

Counters, each with ``_full`` or ``_incremental`` behind it: ``fetch_request_bytes`` and ``fetch_response_bytes`` are
whole frames; ``fetch_record_bytes`` is the part of the responses that is records, which cost the same with a session
and without.

Fetch on the wire: a plan and its limits to a request, a response to its partitions.

Versions 15 to 17 are spoken: all name topics by id. 16 brings the leader hints of KIP-951; what 17 adds only followers
send.

Where each partition is fetched from: its leader, or the replica that it is leased to; told whenever that changes.

The rule is ``read_replica.py``'s (KIP-392). This joins it to the metadata and the positions, and tells the events
``replica_switched`` and ``replica_failed_back``, the latter with the reason. ``tell`` should be a sparing one
(``sparing.py``): a replica that keeps erring is left and taken again with every fetch.

Fetches what the positions ask for: at most one request a node under way, and nothing that lies undelivered.

Rules (Kafka's ``AbstractFetch``, ``Fetcher``):

1. A node has at most one fetch in flight. While a partition that we would fetch there lies in the buffer, the node is
   left alone: fetching the others would make the session forget that partition, and add it again right after.
2. A partition goes to its leader as of its position, or to the replica that it is leased to (``fetch_routes.py``).
3. A node's answer is judged by its session (``fetch_session.py``) first, then its hints are (``leader_discovery.py``),
   then each partition by itself. One whose position has moved meanwhile is dropped.
4. There is no back-off for partitions with errors: Kafka has none. What bounds the loop is that connecting backs off,
   and that a broker may ask to be left alone for a while (KIP-219).
5. A failed request resets the session, ends the leases in it and asks for metadata. One that waits for its connection
   fails after ``request.timeout.ms`` as well: a replica may have been named that is dead, and doesn't refuse.

It owns no task: ``step`` starts what can be started, answers come by callback on the loop, and ``on_change`` is called
after each.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from aftershock.errors import BrokerError
from aftershock.workloads.kafka.client.requests import Dialect, endpoints, leader_hint
from aftershock.workloads.kafka.client.tasks import Tell
from aftershock.workloads.kafka.consumer.fetch_buffer import Completed
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings, Shared
from aftershock.workloads.kafka.rules.fetch_session import (
    FetchPartition,
    FetchRequestPlan,
    FetchSession,
    SessionEvent,
    SessionVerdict,
)
from aftershock.workloads.kafka.rules.leader_discovery import Refusal
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.read_replica import AfterError, ReadReplicas
from aftershock.workloads.kafka.rules.subscription_state import Positions
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, PartitionMetadata, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.channel import Channel, Reply
from aftershock.workloads.kafka.wire.codec import Api
from aftershock.workloads.kafka.wire.schema import MILLISECOND


class FetchBytes:
    """The sums of one consumer, over all its brokers."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def sent(self, size_bytes: int, *, full: bool) -> None:
        """A request has been written."""
        self._count("request", size_bytes, full)

    def received(self, size_bytes: int, partitions: Iterable[Any], *, full: bool) -> None:
        """It was answered; ``partitions`` are the response's."""
        self._count("response", size_bytes, full)
        self._count("record", sum(len(each.records or b"") for each in partitions), full)

    def _count(self, what: str, size_bytes: int, full: bool) -> None:  # noqa: FBT001 - private, and named by its callers
        self.counts[f"fetch_{what}_bytes_{'full' if full else 'incremental'}"] += size_bytes


FETCH = Dialect(Api.FETCH, 15, 17)


class FetchAnswer(NamedTuple):
    """A Fetch response by partition. ``unknown_topic_ids``: those that the session doesn't know."""

    partitions: Mapping[TopicPartition, Any]
    unknown_topic_ids: tuple[UUID, ...]


def fetch_request(messages: Any, plan: FetchRequestPlan, settings: ConsumerSettings) -> Any:
    """The request for a plan, in the plan's order; the rack is told only where reading from replicas is on."""
    rack = settings.client_rack if settings.read_replica else None
    return messages.FetchRequest(
        max_wait=timedelta(milliseconds=settings.fetch_max_wait_ms),
        min_bytes=settings.fetch_min_bytes,
        max_bytes=settings.fetch_max_bytes,
        session_id=plan.session_id,
        session_epoch=plan.epoch,
        topics=tuple(_topics(messages, plan.send)),
        forgotten_topics_data=tuple(_forgotten(messages, plan)),
        rack_id=rack or "",
    )


def _topics(messages: Any, send: Mapping[TopicPartition, FetchPartition]) -> Iterable[Any]:
    """Runs of one topic become one entry: only neighbours are joined, for the order is the order of service."""
    for topic_id, run in groupby(send.items(), key=lambda item: item[1].topic_id):
        yield messages.FetchTopic(topic_id=topic_id, partitions=tuple(_partition(messages, *item) for item in run))


def _partition(messages: Any, tp: TopicPartition, asked: FetchPartition) -> Any:
    return messages.FetchPartition(
        partition=tp.partition,
        current_leader_epoch=asked.leader_epoch,
        fetch_offset=asked.fetch_offset,
        partition_max_bytes=asked.max_bytes,
    )


def _forgotten(messages: Any, plan: FetchRequestPlan) -> Iterable[Any]:
    dropped = plan.to_forget(messages.FetchRequest.__version__)
    for topic_id, run in groupby(dropped, key=lambda item: item[1]):
        yield messages.ForgottenTopic(topic_id=topic_id, partitions=tuple(tp.partition for tp, _ in run))


def fetch_answer(response: Any, topic_names: Mapping[UUID, str]) -> FetchAnswer:
    """The partitions of a response; ``topic_names`` are the session's."""
    known = [(topic_names[topic.topic_id], topic) for topic in response.responses if topic.topic_id in topic_names]
    return FetchAnswer(
        {TopicPartition(name, each.partition_index): each for name, topic in known for each in topic.partitions},
        tuple(topic.topic_id for topic in response.responses if topic.topic_id not in topic_names),
    )


class FetchRoutes:
    """The routes of one consumer's partitions."""

    def __init__(self, replicas: ReadReplicas, metadata: Metadata, positions: Positions, tell: Tell) -> None:
        self._replicas, self._metadata, self._positions, self._tell = replicas, metadata, positions, tell
        self._metadata_version = UNKNOWN

    def follow_metadata(self) -> None:
        """Let the positions know who leads now, if anything is new; one whose leader changed goes to the new one."""
        if self._metadata_version == self._metadata.version:
            return
        self._metadata_version = self._metadata.version
        for tp in self._positions.follow(self._metadata.leader):
            with self._told(tp, "leader changed"):
                self._replicas.clear(tp)

    def node_for(self, tp: TopicPartition, now_ms: float) -> int:
        """The node to fetch from next; UNKNOWN when there is none that we know, and then metadata is asked for.

        While metadata knows no leader the position keeps the one it had, as in Kafka.
        """
        position, partition = self._positions.position(tp), self._metadata.partition(tp)
        if position is None or partition is None:
            self._metadata.request_update((tp,))
            return UNKNOWN
        node_id = position.leader.node_id
        if self._replicas.replica(tp) is not None:
            node_id = self._leased_to(tp, partition._replace(leader=position.leader), now_ms)
        if node_id not in self._metadata.nodes:
            self._metadata.request_update((tp,))
            return UNKNOWN
        return node_id

    def _leased_to(self, tp: TopicPartition, partition: PartitionMetadata, now_ms: float) -> int:
        leased = self._replicas.replica(tp)
        chosen = self._replicas.node_for(tp, partition, self._metadata.nodes, now_ms)
        if self._replicas.replica(tp) is None:
            reason = "replica offline" if chosen.refresh_metadata else "lease over"
            self._say("replica_failed_back", tp, leased, reason=reason)
        if chosen.refresh_metadata:
            self._metadata.request_update()
        return chosen.node_id

    def redirected(self, tp: TopicPartition, node_id: int, now_ms: float) -> None:
        """The leader named a replica to read from; UNKNOWN for none."""
        if node_id != UNKNOWN and self._replicas.grant(tp, node_id, now_ms):
            self._say("replica_switched", tp, node_id)

    def on_error(self, tp: TopicPartition, error: int, *, current: bool) -> AfterError:
        """What to do about a partition's error. ``current``: the request was for the position that we have now."""
        with self._told(tp, codes.name(error)):
            return self._replicas.on_error(tp, error, current=current, resets=self._positions.policy != "none")

    def failed(self, partitions: Iterable[TopicPartition]) -> None:
        """A request that these were part of got no answer."""
        for tp in partitions:
            with self._told(tp, "request failed"):
                self._replicas.clear(tp)

    @contextmanager
    def _told(self, tp: TopicPartition, reason: str) -> Iterator[None]:
        """Tell if what is done inside ends the lease of ``tp``."""
        before = self._replicas.replica(tp)
        yield
        if before is not None and self._replicas.replica(tp) is None:
            self._say("replica_failed_back", tp, before, reason=reason)

    def _say(self, event: str, tp: TopicPartition, node_id: int | None, **details: object) -> None:
        self._tell(event, topic=tp.topic, partition=tp.partition, node_id=node_id, **details)


Wanted = Mapping[TopicPartition, FetchPartition]
NETWORK_EXCEPTION = 13


class Asked(NamedTuple):
    """A request under way: to whom, over which session, whether it names all of it, and what it says or implies."""

    node_id: int
    session: FetchSession
    full: bool
    wanted: Wanted


class Fetcher:
    """The fetch loop of one consumer, a step at a time."""

    def __init__(self, shared: Shared, routes: FetchRoutes) -> None:
        self._shared, self._settings, self._routes = shared, shared.settings, routes
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: dict[int, asyncio.Future[Reply]] = {}
        self._not_before_ms: dict[int, float] = {}
        self._unsent_since_ms: dict[int, float] = {}
        self._session_events: dict[int, SessionEvent] = {}
        self._refused_hints: dict[TopicPartition, Leader] = {}
        self._bytes = FetchBytes()

    @property
    def counts(self) -> Counter[str]:
        """The counters of all sessions, and what fetches cost."""
        return sum((session.counts for session in self._sessions.values()), self._bytes.counts)

    # ---- what to fetch where

    def step(self, now_ms: float) -> float:
        """Start every fetch that can be started; milliseconds until the next try, unless something happens before."""
        self._routes.follow_metadata()
        taken = self._taken(now_ms)
        if self._shared.metadata.nodes.keys() <= taken:
            return math.inf
        wanted = self._wanted(taken, now_ms)
        self._unsent_since_ms = {node_id: ms for node_id, ms in self._unsent_since_ms.items() if node_id in wanted}
        return min((self._start(node_id, of_node, now_ms) for node_id, of_node in wanted.items()), default=math.inf)

    def _taken(self, now_ms: float) -> set[int]:
        """The nodes that rule 1 leaves alone."""
        buffered = (tp for tp in self._shared.buffer.partitions if self._shared.positions.valid_position(tp))
        return {*self._in_flight, *(self._routes.node_for(tp, now_ms) for tp in buffered)}

    def _wanted(self, taken: set[int], now_ms: float) -> dict[int, Wanted]:
        """By node, in order of service, what to fetch from all other nodes."""
        buffer, route = self._shared.buffer, self._routes.node_for
        wanted: dict[int, dict[TopicPartition, FetchPartition]] = {}
        for tp in self._shared.positions.fetchable():
            if tp not in buffer and (node_id := route(tp, now_ms)) not in taken and node_id != UNKNOWN:
                wanted.setdefault(node_id, {})[tp] = self._fetch_partition(tp)
        return dict(wanted)

    def _fetch_partition(self, tp: TopicPartition) -> FetchPartition:
        position = self._shared.positions.position(tp)
        assert position is not None  # noqa: S101  # it is fetchable
        return FetchPartition(
            self._shared.metadata.topic_id(tp.topic),
            position.offset,
            self._settings.max_partition_fetch_bytes,
            position.leader.epoch,
        )

    def _start(self, node_id: int, wanted: Wanted, now_ms: float) -> float:
        """Send, or say how long that can't be done."""
        throttled_ms = self._not_before_ms.get(node_id, now_ms) - now_ms
        if throttled_ms > 0:
            return throttled_ms
        channel = self._shared.brokers.ready(node_id)
        if channel is None:
            return self._unsent(node_id, wanted, now_ms)
        self._unsent_since_ms.pop(node_id, None)
        self._send(channel, node_id, wanted)
        return math.inf

    def _unsent(self, node_id: int, wanted: Wanted, now_ms: float) -> float:
        """How long to wait for a connection; rule 5 where that has taken too long."""
        late_ms = self._unsent_since_ms.setdefault(node_id, now_ms) + self._settings.request_timeout_ms
        if now_ms < late_ms:
            return min(self._shared.brokers.wait_ms(node_id), late_ms - now_ms)
        del self._unsent_since_ms[node_id]
        self._lost(node_id, wanted, session=False, reason="there was no connection to send it over in time")
        return 0

    def _send(self, channel: Channel, node_id: int, wanted: Wanted) -> None:
        messages = FETCH.messages(channel.versions, self._shared.discovery.version_cap(Api.FETCH))
        session = self._sessions.setdefault(node_id, FetchSession(enabled=self._settings.fetch_session))
        plan, before_bytes = session.build(wanted), channel.sent_bytes
        request = fetch_request(messages, plan, self._settings)
        future = channel.request(request, timeout_ms=self._settings.request_timeout_ms)
        self._bytes.sent(channel.sent_bytes - before_bytes, full=plan.full)
        self._in_flight[node_id] = future
        future.add_done_callback(partial(self._done, Asked(node_id, session, plan.full, wanted)))

    # ---- what comes back

    def _done(self, asked: Asked, future: asyncio.Future[Reply]) -> None:
        del self._in_flight[asked.node_id]
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._answered(asked, future.result())
        else:
            self._failed(asked, error)
        self._shared.on_change()

    def _failed(self, asked: Asked, error: BaseException) -> None:
        reason, session = str(error) or type(error).__name__, asked.session.is_open
        self._lost(asked.node_id, asked.session.failed(), session=session, reason=reason)

    def _lost(self, node_id: int, partitions: Collection[TopicPartition], *, session: bool, reason: str) -> None:
        """Rule 5."""
        self._shared.tell("fetch_failed", node_id=node_id, session=session, reason=reason)
        self._routes.failed(partitions)
        self._shared.discovery.offered(dict.fromkeys(partitions, (NETWORK_EXCEPTION, Leader())), ())

    def _answered(self, asked: Asked, reply: Reply) -> None:
        """Rule 3."""
        response = reply.response
        throttled_ms = response.throttle_time / MILLISECOND
        self._not_before_ms[asked.node_id] = self._shared.clock_ms() + throttled_ms
        if throttled_ms:
            self._shared.tell("throttled", node_id=asked.node_id, throttle_ms=throttled_ms)
        answer = fetch_answer(response, asked.session.topic_names)
        self._bytes.received(reply.size_bytes, answer.partitions.values(), full=asked.full)
        verdict = asked.session.answered(
            error=int(response.error_code),
            session_id=response.session_id,
            partitions=answer.partitions.keys(),
            throttle_ms=throttled_ms,
            unknown_topic_ids=answer.unknown_topic_ids,
        )
        self._tell_session(asked, verdict, int(response.error_code))
        if verdict.accepted:
            self._take_hints(asked, answer, response)
            for tp, data in answer.partitions.items():
                self._take(asked, tp, data)

    def _tell_session(self, asked: Asked, verdict: SessionVerdict, error: int) -> None:
        """A broker that grants no sessions says so with every answer; that is told once."""
        event, before = verdict.event, self._session_events.get(asked.node_id)
        if event is not None and not event == before == SessionEvent.REFUSED:
            reason = verdict.problem or (codes.name(error) if error else "")
            self._session_events[asked.node_id] = event
            session_id = asked.session.session_id
            self._shared.tell(f"session_{event}", node_id=asked.node_id, session_id=session_id, reason=reason)
        if verdict.refresh_metadata:
            self._shared.metadata.request_update()

    def _take_hints(self, asked: Asked, answer: FetchAnswer, response: Any) -> None:
        errors = {
            tp: (int(data.error_code), leader_hint(data)) for tp, data in answer.partitions.items() if data.error_code
        }
        if not errors:
            return
        routed = {tp: asked.wanted[tp].leader_epoch for tp in errors}
        verdicts = self._shared.discovery.offered(errors, endpoints(response), routed)
        for tp, refusal in verdicts.items():
            self._tell_hint(tp, errors[tp][1], refusal)
        self._routes.follow_metadata()

    def _tell_hint(self, tp: TopicPartition, hint: Leader, refusal: Refusal | None) -> None:
        """A refused hint is told once: by rule 4 it may come a thousand times a second."""
        if refusal is None:
            self._shared.tell("hint_accepted", topic=tp.topic, partition=tp.partition, **hint._asdict())
        elif self._refused_hints.get(tp) != hint:
            self._refused_hints[tp] = hint
            self._shared.tell(
                "hint_refused", topic=tp.topic, partition=tp.partition, reason=refusal.value, **hint._asdict()
            )

    def _take(self, asked: Asked, tp: TopicPartition, data: Any) -> None:
        """One partition's answer; dropped if its position is gone, or unproven since the hints were taken."""
        if self._shared.positions.valid_position(tp) is None:
            return
        offset = asked.wanted[tp].fetch_offset
        if data.error_code:
            self._refused(tp, int(data.error_code), offset)
        elif self._shared.positions.is_current(tp, offset):
            self._routes.redirected(tp, data.preferred_read_replica, self._shared.clock_ms())
            self._keep(asked, tp, data)

    def _keep(self, asked: Asked, tp: TopicPartition, data: Any) -> None:
        if not data.records:
            return
        self._shared.buffer.add(
            Completed(
                tp,
                asked.wanted[tp].fetch_offset,
                data.records,
                high_watermark=data.high_watermark,
                broker_id=asked.node_id,
                check_crc=self._settings.check_crcs,
            )
        )

    def _refused(self, tp: TopicPartition, error: int, offset: int) -> None:
        action = self._routes.on_error(tp, error, current=self._shared.positions.is_current(tp, offset))
        self._shared.positions.move_to_end(tp)
        if action is AfterError.REFRESH:
            self._shared.metadata.request_update()
        elif action is AfterError.RESET:
            self._shared.positions.reset(tp)
            self._shared.tell("position_reset", topic=tp.topic, partition=tp.partition, offset=offset)
        elif action in {AfterError.OUT_OF_RANGE, AfterError.FATAL}:
            self._shared.buffer.fail(tp, _broker_error(tp, error, offset))

    # ---- the end

    def abandon(self) -> None:
        """Nobody is interested in what is under way any more."""
        for future in self._in_flight.values():
            future.cancel()

    async def end_sessions(self) -> None:
        """End every session at its broker, as far as there is a connection; wait for that to be heard."""
        endings = [self._end(node_id, session) for node_id, session in self._sessions.items()]
        await asyncio.gather(*(ending for ending in endings if ending is not None), return_exceptions=True)

    def _end(self, node_id: int, session: FetchSession) -> asyncio.Future[Reply] | None:
        plan, channel = session.close(), self._shared.brokers.ready(node_id)
        if plan is None or channel is None:
            return None
        messages = FETCH.messages(channel.versions, self._shared.discovery.version_cap(Api.FETCH))
        request = fetch_request(messages, plan, self._settings)
        return channel.request(request, timeout_ms=self._settings.request_timeout_ms)


def _broker_error(tp: TopicPartition, error: int, offset: int) -> BrokerError:
    advice = "reset its position, or set auto.offset.reset" if error == 1 else "see the broker's log"
    return BrokerError(f"{tp} can't be fetched at offset {offset}: {codes.name(error)}; {advice}", error)
