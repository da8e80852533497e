"""Fetcher of one consumer: routes, requests, responses, and the cost of fetches on the wire.

Fetch rules (Kafka's ``AbstractFetch``, ``Fetcher``):

1. A node has at most one fetch in flight. While a partition of that node lies in the buffer, the node is not fetched
   from: fetching only the others would make the session forget that partition, and add it again right after.
2. A partition is fetched from its leader as of its position, or from the replica that it is leased to
   (``FetchRoutes``).
3. A node's response is checked by its session (``fetch_session.py``) first, then its leader hints are used
   (``leader_discovery.py``), then each partition by itself. A partition whose position has moved since is dropped.
4. There is no back-off for partitions with errors: Kafka has none. The loop is bounded by the back-off of connections,
   and by throttle times (KIP-219).
5. A failed request resets the session, ends its leases and requests metadata. A request that waits for its connection
   fails after ``request.timeout.ms`` as well: the chosen replica may be dead without refusing connections.

The fetcher owns no task: ``step`` starts what can be started, responses arrive by callback on the loop, and
``on_change`` is called after each.

Requests use versions 15 to 17, which identify topics by id. 16 has the leader hints of KIP-951; the additions of 17 are
for followers.

Routes apply the rule of ``read_replica.py`` (KIP-392) to metadata and positions, and report the events
``replica_switched`` and ``replica_failed_back``, the latter with the reason. Their listener should be rate-limited: a
replica that keeps failing is left and chosen again with every fetch.

Counters, each with the suffix ``_full`` or ``_incremental`` (the figure of KIP-227): ``fetch_request_bytes`` and
``fetch_response_bytes`` are whole frames; ``fetch_record_bytes`` is the part of the responses that is records, which
cost the same with and without a session.
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
from aftershock.workloads.kafka.client.requests import ApiVersionRange, endpoints, leader_hint
from aftershock.workloads.kafka.client.tasks import EventListener
from aftershock.workloads.kafka.consumer.fetch_buffer import CompletedFetch
from aftershock.workloads.kafka.consumer.shared import ConsumerContext, ConsumerSettings
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
from aftershock.workloads.kafka.rules.subscription_state import SubscriptionState
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, PartitionMetadata, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.channel import Channel, Reply
from aftershock.workloads.kafka.wire.codec import Api
from aftershock.workloads.kafka.wire.schema import MILLISECOND


class FetchBytes:
    """Sums of one consumer, over all its brokers."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def sent(self, size_bytes: int, *, full: bool) -> None:
        """Count a written request."""
        self._count("request", size_bytes, full)

    def received(self, size_bytes: int, partitions: Iterable[Any], *, full: bool) -> None:
        """Count a response and its partitions."""
        self._count("response", size_bytes, full)
        self._count("record", sum(len(partition.records or b"") for partition in partitions), full)

    def _count(self, kind: str, size_bytes: int, full: bool) -> None:  # noqa: FBT001 - private; both callers name it
        self.counts[f"fetch_{kind}_bytes_{'full' if full else 'incremental'}"] += size_bytes


FETCH = ApiVersionRange(Api.FETCH, 15, 17)


class FetchAnswer(NamedTuple):
    """A Fetch response by partition. ``unknown_topic_ids`` are ids that the session does not know."""

    partitions: Mapping[TopicPartition, Any]
    unknown_topic_ids: tuple[UUID, ...]


def fetch_request(messages: Any, plan: FetchRequestPlan, settings: ConsumerSettings) -> Any:
    """Return the request for a plan, in the plan's order; the rack is sent only if reading from replicas is on."""
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
    """Merge runs of one topic into one entry: only neighbours, because the order is the order of service."""
    for topic_id, run in groupby(send.items(), key=lambda item: item[1].topic_id):
        yield messages.FetchTopic(topic_id=topic_id, partitions=tuple(_partition(messages, *item) for item in run))


def _partition(messages: Any, tp: TopicPartition, pending: FetchPartition) -> Any:
    return messages.FetchPartition(
        partition=tp.partition,
        current_leader_epoch=pending.leader_epoch,
        fetch_offset=pending.fetch_offset,
        partition_max_bytes=pending.max_bytes,
    )


def _forgotten(messages: Any, plan: FetchRequestPlan) -> Iterable[Any]:
    dropped = plan.to_forget(messages.FetchRequest.__version__)
    for topic_id, run in groupby(dropped, key=lambda item: item[1]):
        yield messages.ForgottenTopic(topic_id=topic_id, partitions=tuple(tp.partition for tp, _ in run))


def fetch_answer(response: Any, topic_names: Mapping[UUID, str]) -> FetchAnswer:
    """Return the partitions of a response; ``topic_names`` are the session's."""
    topics = [(topic_names[topic.topic_id], topic) for topic in response.responses if topic.topic_id in topic_names]
    return FetchAnswer(
        {TopicPartition(name, part.partition_index): part for name, topic in topics for part in topic.partitions},
        tuple(topic.topic_id for topic in response.responses if topic.topic_id not in topic_names),
    )


class FetchRoutes:
    """Node to fetch from, for each partition of one consumer."""

    def __init__(
        self, replicas: ReadReplicas, metadata: Metadata, positions: SubscriptionState, on_event: EventListener
    ) -> None:
        self._replicas, self._metadata, self._positions, self._on_event = replicas, metadata, positions, on_event
        self._metadata_version = UNKNOWN

    def follow_metadata(self) -> None:
        """Apply new leaders in the metadata to the positions; a changed leader ends the partition's lease."""
        if self._metadata_version == self._metadata.version:
            return
        self._metadata_version = self._metadata.version
        for tp in self._positions.follow(self._metadata.leader):
            with self._reporting_lease_end(tp, "leader changed"):
                self._replicas.clear(tp)

    def node_for(self, tp: TopicPartition, now_ms: float) -> int:
        """Return the node to fetch from next; UNKNOWN, after requesting metadata, if there is none.

        While the metadata has no leader the position keeps its previous one, as in Kafka.
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
            self._report("replica_failed_back", tp, leased, reason=reason)
        if chosen.refresh_metadata:
            self._metadata.request_update()
        return chosen.node_id

    def redirected(self, tp: TopicPartition, node_id: int, now_ms: float) -> None:
        """Lease the replica that the leader named; UNKNOWN for none."""
        if node_id != UNKNOWN and self._replicas.grant(tp, node_id, now_ms):
            self._report("replica_switched", tp, node_id)

    def on_error(self, tp: TopicPartition, error: int, *, current: bool) -> AfterError:
        """Return the reaction to a partition's error. ``current``: the request was for the current position."""
        with self._reporting_lease_end(tp, codes.name(error)):
            return self._replicas.on_error(tp, error, current=current, resets=self._positions.policy != "none")

    def failed(self, partitions: Iterable[TopicPartition]) -> None:
        """End the leases of these partitions: a request with them got no response."""
        for tp in partitions:
            with self._reporting_lease_end(tp, "request failed"):
                self._replicas.clear(tp)

    @contextmanager
    def _reporting_lease_end(self, tp: TopicPartition, reason: str) -> Iterator[None]:
        """Report the end of the lease of ``tp`` if the block ends it."""
        before = self._replicas.replica(tp)
        yield
        if before is not None and self._replicas.replica(tp) is None:
            self._report("replica_failed_back", tp, before, reason=reason)

    def _report(self, event: str, tp: TopicPartition, node_id: int | None, **details: object) -> None:
        self._on_event(event, topic=tp.topic, partition=tp.partition, node_id=node_id, **details)


FetchPartitions = Mapping[TopicPartition, FetchPartition]
NETWORK_EXCEPTION = 13


class PendingFetch(NamedTuple):
    """A request in flight: its node, its session, whether it is full, and the partitions that it covers."""

    node_id: int
    session: FetchSession
    full: bool
    partitions: FetchPartitions


class Fetcher:
    """Fetch loop of one consumer, a step at a time."""

    def __init__(self, shared: ConsumerContext, routes: FetchRoutes) -> None:
        self._shared, self._settings, self._routes = shared, shared.settings, routes
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: dict[int, asyncio.Future[Reply]] = {}
        self._throttled_until_ms: dict[int, float] = {}
        self._unsent_since_ms: dict[int, float] = {}
        self._session_events: dict[int, SessionEvent] = {}
        self._refused_hints: dict[TopicPartition, Leader] = {}
        self._bytes = FetchBytes()

    @property
    def counts(self) -> Counter[str]:
        """Counters of all sessions, and the cost of fetches."""
        return sum((session.counts for session in self._sessions.values()), self._bytes.counts)

    # ---- what to fetch where

    def step(self, now_ms: float) -> float:
        """Start every fetch that can be started.

        Return milliseconds until the next try, unless an event comes first.
        """
        self._routes.follow_metadata()
        busy = self._busy_nodes(now_ms)
        if self._shared.metadata.nodes.keys() <= busy:
            return math.inf
        partitions = self._partitions_by_node(busy, now_ms)
        self._unsent_since_ms = {node_id: ms for node_id, ms in self._unsent_since_ms.items() if node_id in partitions}
        return min((self._start(node_id, of_node, now_ms) for node_id, of_node in partitions.items()), default=math.inf)

    def _busy_nodes(self, now_ms: float) -> set[int]:
        """Return the nodes that rule 1 excludes."""
        buffered = (tp for tp in self._shared.buffer.partitions if self._shared.positions.valid_position(tp))
        return {*self._in_flight, *(self._routes.node_for(tp, now_ms) for tp in buffered)}

    def _partitions_by_node(self, busy: set[int], now_ms: float) -> dict[int, FetchPartitions]:
        """Return, by node and in order of service, the partitions to fetch from all other nodes."""
        buffer, route = self._shared.buffer, self._routes.node_for
        partitions: dict[int, dict[TopicPartition, FetchPartition]] = {}
        for tp in self._shared.positions.fetchable():
            if tp not in buffer and (node_id := route(tp, now_ms)) not in busy and node_id != UNKNOWN:
                partitions.setdefault(node_id, {})[tp] = self._fetch_partition(tp)
        return dict(partitions)

    def _fetch_partition(self, tp: TopicPartition) -> FetchPartition:
        position = self._shared.positions.position(tp)
        assert position is not None  # noqa: S101  # it is fetchable
        return FetchPartition(
            self._shared.metadata.topic_id(tp.topic),
            position.offset,
            self._settings.max_partition_fetch_bytes,
            position.leader.epoch,
        )

    def _start(self, node_id: int, partitions: FetchPartitions, now_ms: float) -> float:
        """Send the request, or return the time for which that is impossible."""
        throttled_ms = self._throttled_until_ms.get(node_id, now_ms) - now_ms
        if throttled_ms > 0:
            return throttled_ms
        channel = self._shared.brokers.ready(node_id)
        if channel is None:
            return self._unsent(node_id, partitions, now_ms)
        self._unsent_since_ms.pop(node_id, None)
        self._send(channel, node_id, partitions)
        return math.inf

    def _unsent(self, node_id: int, partitions: FetchPartitions, now_ms: float) -> float:
        """Return the time to wait for a connection; apply rule 5 after the time-out."""
        late_ms = self._unsent_since_ms.setdefault(node_id, now_ms) + self._settings.request_timeout_ms
        if now_ms < late_ms:
            return min(self._shared.brokers.wait_ms(node_id), late_ms - now_ms)
        del self._unsent_since_ms[node_id]
        self._fetch_failed(node_id, partitions, session=False, reason="no connection was established in time")
        return 0

    def _send(self, channel: Channel, node_id: int, partitions: FetchPartitions) -> None:
        messages = FETCH.messages(channel.versions, self._shared.discovery.version_cap(Api.FETCH))
        session = self._sessions.setdefault(node_id, FetchSession(enabled=self._settings.fetch_session))
        plan, before_bytes = session.build(partitions), channel.sent_bytes
        request = fetch_request(messages, plan, self._settings)
        future = channel.request(request, timeout_ms=self._settings.request_timeout_ms)
        self._bytes.sent(channel.sent_bytes - before_bytes, full=plan.full)
        self._in_flight[node_id] = future
        future.add_done_callback(partial(self._done, PendingFetch(node_id, session, plan.full, partitions)))

    # ---- what comes back

    def _done(self, pending: PendingFetch, future: asyncio.Future[Reply]) -> None:
        del self._in_flight[pending.node_id]
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._answered(pending, future.result())
        else:
            self._failed(pending, error)
        self._shared.on_change()

    def _failed(self, pending: PendingFetch, error: BaseException) -> None:
        reason, session = str(error) or type(error).__name__, pending.session.is_open
        self._fetch_failed(pending.node_id, pending.session.failed(), session=session, reason=reason)

    def _fetch_failed(
        self, node_id: int, partitions: Collection[TopicPartition], *, session: bool, reason: str
    ) -> None:
        """Rule 5."""
        self._shared.on_event("fetch_failed", node_id=node_id, session=session, reason=reason)
        self._routes.failed(partitions)
        self._shared.discovery.offered(dict.fromkeys(partitions, (NETWORK_EXCEPTION, Leader())), ())

    def _answered(self, pending: PendingFetch, reply: Reply) -> None:
        """Rule 3."""
        response = reply.response
        throttled_ms = response.throttle_time / MILLISECOND
        self._throttled_until_ms[pending.node_id] = self._shared.clock_ms() + throttled_ms
        if throttled_ms:
            self._shared.on_event("throttled", node_id=pending.node_id, throttle_ms=throttled_ms)
        answer = fetch_answer(response, pending.session.topic_names)
        self._bytes.received(reply.size_bytes, answer.partitions.values(), full=pending.full)
        verdict = pending.session.answered(
            error=int(response.error_code),
            session_id=response.session_id,
            partitions=answer.partitions.keys(),
            throttle_ms=throttled_ms,
            unknown_topic_ids=answer.unknown_topic_ids,
        )
        self._report_session(pending, verdict, int(response.error_code))
        if verdict.accepted:
            self._take_hints(pending, answer, response)
            for tp, data in answer.partitions.items():
                self._take(pending, tp, data)

    def _report_session(self, pending: PendingFetch, verdict: SessionVerdict, error: int) -> None:
        """Report a session's event.

        A broker that grants no sessions refuses with every response; that is reported once.
        """
        event, before = verdict.event, self._session_events.get(pending.node_id)
        if event is not None and not event == before == SessionEvent.REFUSED:
            reason = verdict.problem or (codes.name(error) if error else "")
            self._session_events[pending.node_id] = event
            session_id = pending.session.session_id
            self._shared.on_event(f"session_{event}", node_id=pending.node_id, session_id=session_id, reason=reason)
        if verdict.refresh_metadata:
            self._shared.metadata.request_update()

    def _take_hints(self, pending: PendingFetch, answer: FetchAnswer, response: Any) -> None:
        errors = {
            tp: (int(data.error_code), leader_hint(data)) for tp, data in answer.partitions.items() if data.error_code
        }
        if not errors:
            return
        routed = {tp: pending.partitions[tp].leader_epoch for tp in errors}
        verdicts = self._shared.discovery.offered(errors, endpoints(response), routed)
        for tp, refusal in verdicts.items():
            self._report_hint(tp, errors[tp][1], refusal)
        self._routes.follow_metadata()

    def _report_hint(self, tp: TopicPartition, hint: Leader, refusal: Refusal | None) -> None:
        """Report a hint. A refused hint is reported once: by rule 4 it may arrive a thousand times a second."""
        if refusal is None:
            self._shared.on_event("hint_accepted", topic=tp.topic, partition=tp.partition, **hint._asdict())
        elif self._refused_hints.get(tp) != hint:
            self._refused_hints[tp] = hint
            self._shared.on_event(
                "hint_refused", topic=tp.topic, partition=tp.partition, reason=refusal.value, **hint._asdict()
            )

    def _take(self, pending: PendingFetch, tp: TopicPartition, data: Any) -> None:
        """Handle one partition's data; dropped if its position is gone, or unvalidated since the hints were applied."""
        if self._shared.positions.valid_position(tp) is None:
            return
        offset = pending.partitions[tp].fetch_offset
        if data.error_code:
            self._on_partition_error(tp, int(data.error_code), offset)
        elif self._shared.positions.is_current(tp, offset):
            self._routes.redirected(tp, data.preferred_read_replica, self._shared.clock_ms())
            if data.records:
                self._shared.buffer.add(
                    CompletedFetch(
                        tp,
                        offset,
                        data.records,
                        high_watermark=data.high_watermark,
                        broker_id=pending.node_id,
                        check_crc=self._settings.check_crcs,
                    )
                )

    def _on_partition_error(self, tp: TopicPartition, error: int, offset: int) -> None:
        action = self._routes.on_error(tp, error, current=self._shared.positions.is_current(tp, offset))
        self._shared.positions.move_to_end(tp)
        if action is AfterError.REFRESH:
            self._shared.metadata.request_update()
        elif action is AfterError.RESET:
            self._shared.positions.reset(tp)
            self._shared.on_event("position_reset", topic=tp.topic, partition=tp.partition, offset=offset)
        elif action in {AfterError.OUT_OF_RANGE, AfterError.FATAL}:
            self._shared.buffer.fail(tp, _broker_error(tp, error, offset))

    # ---- the end

    def abandon(self) -> None:
        """Cancel the requests in flight."""
        for future in self._in_flight.values():
            future.cancel()

    async def end_sessions(self) -> None:
        """End every session at its broker, as far as there is a connection, and wait for the responses."""
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
    return BrokerError(f"{tp} cannot be fetched at offset {offset}: {codes.name(error)}; {advice}", error)
