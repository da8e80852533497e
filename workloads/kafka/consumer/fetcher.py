"""Fetcher of one consumer, which chooses the broker of each fetch and handles Fetch requests and responses.

Modelled on Kafka's ``AbstractFetch`` and ``Fetcher``. As in Kafka, a partition is fetched again after an error without
back-off; only the reconnect back-off and throttle times (KIP-219) delay fetches.
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
from aftershock.workloads.kafka.consumer.shared import READ_COMMITTED, ConsumerContext, ConsumerSettings
from aftershock.workloads.kafka.rules.fetch_session import FetchPartition, FetchRequestPlan, FetchSession, SessionEvent
from aftershock.workloads.kafka.rules.isolation import AbortedTransactions
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.read_replica import AfterError, ReadReplicas
from aftershock.workloads.kafka.rules.subscription_state import SubscriptionState
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.channel import Channel, Reply
from aftershock.workloads.kafka.wire.codec import Api
from aftershock.workloads.kafka.wire.schema import MILLISECOND

FETCH = ApiVersionRange(Api.FETCH, 15, 17)
"""All these versions of the Fetch API identify topics by id; version 16 adds the leader hints of KIP-951."""
NETWORK_EXCEPTION = 13
FetchPartitions = Mapping[TopicPartition, FetchPartition]


class FetchAnswer(NamedTuple):
    """Fetch response by partition; ``unknown_topic_ids`` are the topic ids that the fetch session doesn't have."""

    partitions: Mapping[TopicPartition, Any]
    unknown_topic_ids: tuple[UUID, ...]


def fetch_request(messages: Any, plan: FetchRequestPlan, settings: ConsumerSettings) -> Any:
    """Return the Fetch request with the partitions that the fetch session has planned."""
    # Only neighbouring partitions of a topic share an entry, because the order of partitions is the order of service.
    topics = tuple(
        messages.FetchTopic(
            topic_id=topic_id,
            partitions=tuple(
                messages.FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=pending.leader_epoch,
                    fetch_offset=pending.fetch_offset,
                    partition_max_bytes=pending.max_bytes,
                )
                for tp, pending in run
            ),
        )
        for topic_id, run in groupby(plan.send.items(), key=lambda item: item[1].topic_id)
    )
    dropped = plan.to_forget(messages.FetchRequest.__version__)
    forgotten = tuple(
        messages.ForgottenTopic(topic_id=topic_id, partitions=tuple(tp.partition for tp, _ in run))
        for topic_id, run in groupby(dropped, key=lambda item: item[1])
    )
    return messages.FetchRequest(
        max_wait=timedelta(milliseconds=settings.fetch_max_wait_ms),
        min_bytes=settings.fetch_min_bytes,
        max_bytes=settings.fetch_max_bytes,
        isolation_level=settings.isolation_level,
        session_id=plan.session_id,
        session_epoch=plan.epoch,
        topics=topics,
        forgotten_topics_data=forgotten,
        rack_id=settings.client_rack or "" if settings.read_replica else "",
    )


def fetch_answer(response: Any, topic_names: Mapping[UUID, str]) -> FetchAnswer:
    topics = [(topic_names[topic.topic_id], topic) for topic in response.responses if topic.topic_id in topic_names]
    return FetchAnswer(
        {TopicPartition(name, part.partition_index): part for name, topic in topics for part in topic.partitions},
        tuple(topic.topic_id for topic in response.responses if topic.topic_id not in topic_names),
    )


class FetchRoutes:
    """Choice of the broker to fetch each partition from (its leader, or temporarily a closer replica, KIP-392).

    The event ``replica_switched`` is reported when a partition is first fetched from a replica, and
    ``replica_failed_back`` when it is fetched from its leader again. The event listener should be rate-limited, because
    both events may happen with every fetch.
    """

    def __init__(
        self, replicas: ReadReplicas, metadata: Metadata, positions: SubscriptionState, on_event: EventListener
    ) -> None:
        self._replicas, self._metadata, self._positions, self._on_event = replicas, metadata, positions, on_event
        self._metadata_version = UNKNOWN

    def follow_metadata(self) -> None:
        """Fetch partitions from their new leaders if the metadata has changed."""
        if self._metadata_version == self._metadata.version:
            return
        self._metadata_version = self._metadata.version
        for tp in self._positions.follow(self._metadata.leader):
            with self._reporting_lease_end(tp, "leader changed"):
                self._replicas.clear(tp)

    def node_for(self, tp: TopicPartition, now_ms: float) -> int:
        """Return the broker to fetch a partition from; if none is known, request metadata and return UNKNOWN."""
        position, partition = self._positions.position(tp), self._metadata.partition(tp)
        if position is None or partition is None:
            self._metadata.request_update((tp,))
            return UNKNOWN
        node_id, leased = position.leader.node_id, self._replicas.replica(tp)
        if leased is not None:
            chosen = self._replicas.node_for(
                tp, partition._replace(leader=position.leader), self._metadata.nodes, now_ms
            )
            node_id = chosen.node_id
            if self._replicas.replica(tp) is None:
                reason = "replica offline" if chosen.refresh_metadata else "lease over"
                self._report("replica_failed_back", tp, leased, reason=reason)
            if chosen.refresh_metadata:
                self._metadata.request_update()
        if node_id not in self._metadata.nodes:
            self._metadata.request_update((tp,))
            return UNKNOWN
        return node_id

    def redirected(self, tp: TopicPartition, node_id: int, now_ms: float) -> None:
        """Fetch a partition from the replica ``node_id`` that its leader named, for a limited time (KIP-392)."""
        if node_id != UNKNOWN and self._replicas.grant(tp, node_id, now_ms):
            self._report("replica_switched", tp, node_id)

    def on_error(self, tp: TopicPartition, error: int, *, current: bool) -> AfterError:
        """Return what to do after a fetch error; ``current`` is False if the position has changed since the fetch."""
        with self._reporting_lease_end(tp, codes.name(error)):
            return self._replicas.on_error(tp, error, current=current, resets=self._positions.policy != "none")

    def on_failure(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch the partitions of a failed request from their leaders again, not from replicas."""
        for tp in partitions:
            with self._reporting_lease_end(tp, "request failed"):
                self._replicas.clear(tp)

    @contextmanager
    def _reporting_lease_end(self, tp: TopicPartition, reason: str) -> Iterator[None]:
        """Report ``replica_failed_back`` if the ``with`` block ends the fetching from a replica."""
        before = self._replicas.replica(tp)
        yield
        if before is not None and self._replicas.replica(tp) is None:
            self._report("replica_failed_back", tp, before, reason=reason)

    def _report(self, event: str, tp: TopicPartition, node_id: int | None, **details: object) -> None:
        self._on_event(event, topic=tp.topic, partition=tp.partition, node_id=node_id, **details)


class PendingFetch(NamedTuple):
    node_id: int
    session: FetchSession
    full: bool
    partitions: FetchPartitions


class Fetcher:
    """Fetches and fetch sessions (KIP-227) of one consumer.

    The counters ``fetch_request_bytes``, ``fetch_response_bytes`` (whole messages) and ``fetch_record_bytes`` (records
    in responses) have the suffix ``_full`` or ``_incremental``, by the kind of the Fetch request.
    """

    def __init__(self, shared: ConsumerContext, routes: FetchRoutes) -> None:
        self._shared, self._settings, self._routes = shared, shared.settings, routes
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: dict[int, asyncio.Future[Reply]] = {}
        self._throttled_until_ms: dict[int, float] = {}
        self._unsent_since_ms: dict[int, float] = {}
        self._session_events: dict[int, SessionEvent] = {}
        self._refused_hints: dict[TopicPartition, Leader] = {}
        self._bytes: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        return sum((session.counts for session in self._sessions.values()), self._bytes)

    def step(self, now_ms: float) -> float:
        """Start every fetch that is possible now; return the milliseconds until ``step`` must be called again.

        No fetch is sent to a broker while data of one of its partitions is in the buffer, because a request for other
        partitions would remove the buffered partition from the fetch session.
        """
        self._routes.follow_metadata()
        buffer, positions, route = self._shared.buffer, self._shared.positions, self._routes.node_for
        buffered = (tp for tp in buffer.partitions if positions.valid_position(tp))
        busy = {*self._in_flight, *(route(tp, now_ms) for tp in buffered)}
        if self._shared.metadata.nodes.keys() <= busy:
            return math.inf
        by_node: dict[int, dict[TopicPartition, FetchPartition]] = {}
        for tp in positions.fetchable():
            if tp in buffer or (node_id := route(tp, now_ms)) in busy or node_id == UNKNOWN:
                continue
            position = positions.position(tp)
            assert position is not None  # noqa: S101  # the partition is fetchable
            by_node.setdefault(node_id, {})[tp] = FetchPartition(
                self._shared.metadata.topic_id(tp.topic),
                position.offset,
                self._settings.max_partition_fetch_bytes,
                position.leader.epoch,
            )
        self._unsent_since_ms = {node_id: ms for node_id, ms in self._unsent_since_ms.items() if node_id in by_node}
        return min((self._start(node_id, of_node, now_ms) for node_id, of_node in by_node.items()), default=math.inf)

    def _start(self, node_id: int, partitions: FetchPartitions, now_ms: float) -> float:
        """Send a Fetch request; return infinity, or the milliseconds until a Fetch request can be sent.

        A fetch that waits for a connection fails after ``request.timeout.ms``, because a dead replica may not refuse
        connections.
        """
        throttled_ms = self._throttled_until_ms.get(node_id, now_ms) - now_ms
        if throttled_ms > 0:
            return throttled_ms
        channel = self._shared.brokers.ready(node_id)
        if channel is None:
            late_ms = self._unsent_since_ms.setdefault(node_id, now_ms) + self._settings.request_timeout_ms
            if now_ms < late_ms:
                return min(self._shared.brokers.wait_ms(node_id), late_ms - now_ms)
            del self._unsent_since_ms[node_id]
            self._on_failure(
                node_id, partitions, session=False, reason="no connection to the broker was established in time"
            )
            return 0
        self._unsent_since_ms.pop(node_id, None)
        session = self._sessions.setdefault(node_id, FetchSession(enabled=self._settings.fetch_session))
        plan, sent_before = session.build(partitions), channel.sent_bytes
        future = self._send(channel, plan)
        self._count_bytes("request", channel.sent_bytes - sent_before, plan.full)
        self._in_flight[node_id] = future
        future.add_done_callback(partial(self._on_done, PendingFetch(node_id, session, plan.full, partitions)))
        return math.inf

    def _send(self, channel: Channel, plan: FetchRequestPlan) -> asyncio.Future[Reply]:
        messages = FETCH.messages(channel.versions, self._shared.discovery.version_cap(Api.FETCH))
        request = fetch_request(messages, plan, self._settings)
        return channel.request(request, timeout_ms=self._settings.request_timeout_ms)

    def _count_bytes(self, kind: str, size_bytes: int, full: bool) -> None:  # noqa: FBT001 - private
        self._bytes[f"fetch_{kind}_bytes_{'full' if full else 'incremental'}"] += size_bytes

    def _on_done(self, pending: PendingFetch, future: asyncio.Future[Reply]) -> None:
        del self._in_flight[pending.node_id]
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._on_response(pending, future.result())
        else:
            reason, session = str(error) or type(error).__name__, pending.session.is_open
            self._on_failure(pending.node_id, pending.session.on_failure(), session=session, reason=reason)
        self._shared.on_change()

    def _on_failure(self, node_id: int, partitions: Collection[TopicPartition], *, session: bool, reason: str) -> None:
        self._shared.on_event("fetch_failed", node_id=node_id, session=session, reason=reason)
        self._routes.on_failure(partitions)
        self._shared.discovery.apply_hints(dict.fromkeys(partitions, (NETWORK_EXCEPTION, Leader())), ())

    def _on_response(self, pending: PendingFetch, reply: Reply) -> None:
        shared, response, node_id = self._shared, reply.response, pending.node_id
        throttled_ms, error = response.throttle_time / MILLISECOND, int(response.error_code)
        self._throttled_until_ms[node_id] = shared.clock_ms() + throttled_ms
        if throttled_ms:
            shared.on_event("throttled", node_id=node_id, throttle_ms=throttled_ms)
        answer = fetch_answer(response, pending.session.topic_names)
        self._count_bytes("response", reply.size_bytes, pending.full)
        record_bytes = sum(len(data.records or b"") for data in answer.partitions.values())
        self._count_bytes("record", record_bytes, pending.full)
        verdict = pending.session.on_response(
            error=error,
            session_id=response.session_id,
            partitions=answer.partitions.keys(),
            throttle_ms=throttled_ms,
            unknown_topic_ids=answer.unknown_topic_ids,
        )
        event, previous_event = verdict.event, self._session_events.get(node_id)
        # A broker that grants no session refuses with every response; report only the first refusal.
        if event is not None and not event == previous_event == SessionEvent.REFUSED:
            self._session_events[node_id] = event
            reason = verdict.problem or (codes.name(error) if error else "")
            shared.on_event(f"session_{event}", node_id=node_id, session_id=pending.session.session_id, reason=reason)
        if verdict.refresh_metadata:
            shared.metadata.request_update()
        if verdict.accepted:
            self._take_hints(pending, answer, response)
            for tp, data in answer.partitions.items():
                self._take(pending, tp, data)

    def _take_hints(self, pending: PendingFetch, answer: FetchAnswer, response: Any) -> None:
        """Apply the leader hints (KIP-951) of a Fetch response; a repeated leader hint is reported once."""
        errors = {
            tp: (int(data.error_code), leader_hint(data)) for tp, data in answer.partitions.items() if data.error_code
        }
        if not errors:
            return
        routed = {tp: pending.partitions[tp].leader_epoch for tp in errors}

        def is_ignored(tp: TopicPartition) -> bool:
            self._routes.follow_metadata()
            return self._shared.positions.valid_position(tp) is None

        verdicts = self._shared.discovery.apply_hints(errors, endpoints(response), routed, is_ignored=is_ignored)
        for tp, refusal in verdicts.items():
            hint = errors[tp][1]
            details = {"topic": tp.topic, "partition": tp.partition, **hint._asdict()}
            if refusal is None:
                self._shared.on_event("hint_accepted", **details)
            elif self._refused_hints.get(tp) != hint:
                self._refused_hints[tp] = hint
                self._shared.on_event("hint_refused", reason=refusal.name.lower(), **details)

    def _take(self, pending: PendingFetch, tp: TopicPartition, data: Any) -> None:
        if self._shared.positions.valid_position(tp) is None:  # for example after a leader hint in the response
            if data.error_code:
                self._shared.positions.move_to_end(tp)
            return
        offset = pending.partitions[tp].fetch_offset
        if data.error_code:
            self._on_partition_error(tp, int(data.error_code), offset)
        elif self._shared.positions.is_current(tp, offset):
            self._routes.redirected(tp, data.preferred_read_replica, self._shared.clock_ms())
            if data.records:
                aborted = None
                if self._settings.isolation_level == READ_COMMITTED:
                    listed = data.aborted_transactions or ()
                    aborted = AbortedTransactions((entry.producer_id, entry.first_offset) for entry in listed)
                self._shared.buffer.add(
                    CompletedFetch(
                        tp,
                        offset,
                        data.records,
                        high_watermark=data.high_watermark,
                        broker_id=pending.node_id,
                        check_crc=self._settings.check_crcs,
                        aborted=aborted,
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
            out_of_range = error == codes.OFFSET_OUT_OF_RANGE
            advice = (
                "reset the position of the partition, or set auto.offset.reset"
                if out_of_range
                else "see the log of the broker for the cause"
            )
            problem = f"{tp} cannot be fetched at offset {offset}: {codes.name(error)}; {advice}"
            self._shared.buffer.fail(tp, BrokerError(problem, error))

    def abandon(self) -> None:
        for future in self._in_flight.values():
            future.cancel()

    async def end_sessions(self) -> None:
        futures = []
        for node_id, session in self._sessions.items():
            plan, channel = session.close(), self._shared.brokers.ready(node_id, before_metadata=True)
            if plan is not None and channel is not None:
                futures.append(self._send(channel, plan))
        await asyncio.gather(*futures, return_exceptions=True)
