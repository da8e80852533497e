"""Offset lookups (ListOffsets) and position validations (OffsetsForLeaderEpoch), as in Kafka's ``OffsetFetcher``.

A failed lookup or validation is retried after ``retry.backoff.ms``, with fresh metadata; only a missing authorization
is reported to the application.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.kafka.client.requests import ApiVersionRange, group_by_topic
from aftershock.workloads.kafka.consumer.shared import ConsumerContext
from aftershock.workloads.kafka.rules.subscription_state import EndOffset, FetchPosition, ResetPolicy, is_retried
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.channel import Channel
from aftershock.workloads.kafka.wire.codec import Api

LIST_OFFSETS = ApiVersionRange(Api.LIST_OFFSETS, 4, 9)
"""Version 4 of the ListOffsets API adds ``currentLeaderEpoch``."""
OFFSET_FOR_LEADER_EPOCH = ApiVersionRange(Api.OFFSET_FOR_LEADER_EPOCH, 3, 4)
"""Version 3 of the OffsetsForLeaderEpoch API is the first version that consumers may use."""
End = Literal["earliest", "latest"]
TIMESTAMPS: Mapping[ResetPolicy, int] = {"earliest": -2, "latest": -1}
UNREACHABLE = (OSError, ProtocolError)
"""Errors of a request without a valid response: refused, lost, timed out, or not in Kafka's protocol."""
UNKNOWN_PARTITION = 3


class ListedOffset(NamedTuple):
    error: int
    offset: int


class LookUp(NamedTuple):
    """Request for the start or end offset of a partition's log, sent to the leader in the metadata."""

    policy: ResetPolicy
    leader: Leader


A = TypeVar("A", LookUp, FetchPosition)


class OffsetFetcher:
    def __init__(self, shared: ConsumerContext) -> None:
        self._shared = shared
        self._tasks: set[asyncio.Task[None]] = set()

    def step(self, now_ms: float) -> float:
        """Start the lookups and validations that are due; return the milliseconds until the next is due."""
        positions, leader = self._shared.positions, self._shared.metadata.leader
        waits = self._shared.buffer.has_problem
        resets = {tp: LookUp(policy, leader(tp)) for tp, policy in positions.to_reset(now_ms).items() if not waits(tp)}
        self._start(self._reset, by_node(resets))
        unvalidated = {tp: position for tp, position in positions.to_validate(now_ms).items() if not waits(tp)}
        self._start(self._validate, by_node(unvalidated))
        return positions.held_ms(now_ms)

    def _start(
        self,
        request: Callable[[int, dict[TopicPartition, A]], Coroutine[Any, Any, None]],
        requests: Mapping[int, dict[TopicPartition, A]],
    ) -> None:

        async def guarded(node_id: int, partitions: dict[TopicPartition, A]) -> None:
            try:
                await request(node_id, partitions)
            except UNREACHABLE:
                self._retry_later(partitions)
            except ClientError as error:
                for tp in partitions:
                    self._fail(tp, error)
            self._shared.on_change()

        for node_id, partitions in requests.items():
            self._shared.positions.hold(partitions, math.inf)
            task = asyncio.create_task(guarded(node_id, partitions))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _retry_later(self, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            until_ms = self._shared.clock_ms() + self._shared.settings.retry_backoff_ms
            self._shared.metadata.request_update(partitions)
            self._shared.positions.hold(partitions, until_ms)

    def _handle_errors(self, errors: Mapping[TopicPartition, int], action: str) -> None:
        self._retry_later([tp for tp, error in errors.items() if is_retried(error)])
        for tp, error in errors.items():
            if not is_retried(error):
                self._fail(tp, _broker_error(tp, error, action))

    def _fail(self, tp: TopicPartition, error: ClientError) -> None:
        self._shared.buffer.fail(tp, error)
        self._shared.positions.hold((tp,), 0)

    async def _channel(self, node_id: int) -> Channel:
        if node_id == UNKNOWN:
            raise ConnectionError("the metadata has no leader of the partition")
        return await self._shared.brokers.channel(node_id)

    async def _reset(self, node_id: int, requests: dict[TopicPartition, LookUp]) -> None:
        answers, positions = await self._list(node_id, requests), self._shared.positions
        for tp, (error, offset) in answers.items():
            policy = requests[tp].policy
            if not error and positions.apply_lookup(tp, policy, offset, self._shared.metadata.leader(tp)):
                self._report("position_found", tp, offset=offset, end=policy)
        self._handle_errors({tp: answer.error for tp, answer in answers.items() if answer.error}, "looked up")

    async def _list(
        self, node_id: int, requests: Mapping[TopicPartition, LookUp]
    ) -> dict[TopicPartition, ListedOffset]:
        """Look up offsets by ListOffsets; a partition that the response lacks gets UNKNOWN_TOPIC_OR_PARTITION."""
        channel = await self._channel(node_id)
        messages = LIST_OFFSETS.messages(channel.versions)
        topics = tuple(
            messages.ListOffsetsTopic(
                name=name,
                partitions=tuple(
                    messages.ListOffsetsPartition(
                        partition_index=tp.partition,
                        current_leader_epoch=requests[tp].leader.epoch,
                        timestamp=TIMESTAMPS[requests[tp].policy],
                    )
                    for tp in of_topic
                ),
            )
            for name, of_topic in group_by_topic(requests)
        )
        request = messages.ListOffsetsRequest(
            replica_id=UNKNOWN, isolation_level=self._shared.settings.isolation_level, topics=topics
        )
        reply = await channel.request(request, timeout_ms=self._shared.settings.request_timeout_ms)
        answers = dict.fromkeys(requests, ListedOffset(UNKNOWN_PARTITION, UNKNOWN))
        for topic in reply.response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.leader_epoch != UNKNOWN:
                    self._shared.metadata.update_epoch(tp, part.leader_epoch)
                if tp in answers:
                    answers[tp] = ListedOffset(int(part.error_code), part.offset)
        return answers

    async def find(self, end: End, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the start or end offset of each partition's log, retrying without a limit.

        Raises BrokerError if this client is not authorized to read a partition.
        """
        offsets: dict[TopicPartition, int] = {}
        while missing := [tp for tp in partitions if tp not in offsets]:
            requests = {tp: LookUp(end, self._shared.metadata.leader(tp)) for tp in missing}
            answers: dict[TopicPartition, ListedOffset] = {}
            for node_id, of_node in by_node(requests).items():
                with suppress(*UNREACHABLE):
                    answers |= await self._list(node_id, of_node)
            for tp, answer in answers.items():
                if answer.error and not is_retried(answer.error):
                    raise _broker_error(tp, answer.error, "looked up")
            offsets |= {tp: answer.offset for tp, answer in answers.items() if not answer.error}
            if len(offsets) < len(partitions):
                self._shared.metadata.request_update(missing)
                self._shared.on_change()
                await asyncio.sleep(self._shared.settings.retry_backoff_ms / 1000)
        return offsets

    async def _validate(self, node_id: int, requests: dict[TopicPartition, FetchPosition]) -> None:
        """Detect truncation of the log by a comparison of the consumer's positions with the leader's log."""
        positions, channel = self._shared.positions, await self._channel(node_id)
        if channel.versions.offered.get(OFFSET_FOR_LEADER_EPOCH.api, (0, 0))[1] < OFFSET_FOR_LEADER_EPOCH.least:
            positions.skip_validation(requests)
            return
        messages = OFFSET_FOR_LEADER_EPOCH.messages(channel.versions)
        topics = tuple(
            messages.OffsetForLeaderTopic(
                topic=name,
                partitions=tuple(
                    messages.OffsetForLeaderPartition(
                        partition=tp.partition,
                        current_leader_epoch=requests[tp].leader.epoch,
                        leader_epoch=requests[tp].offset_epoch,
                    )
                    for tp in of_topic
                ),
            )
            for name, of_topic in group_by_topic(requests)
        )
        request = messages.OffsetForLeaderEpochRequest(replica_id=UNKNOWN, topics=topics)
        reply = await channel.request(request, timeout_ms=self._shared.settings.request_timeout_ms)
        answers = {
            TopicPartition(topic.topic, part.partition): part
            for topic in reply.response.topics
            for part in topic.partitions
        }
        errors: dict[TopicPartition, int] = {}
        for tp, position in requests.items():
            answer = answers.get(tp)
            error = UNKNOWN_PARTITION if answer is None else int(answer.error_code)
            if answer is None or error:
                errors[tp] = error
                continue
            end = EndOffset(answer.leader_epoch, answer.end_offset)
            truncation = positions.apply_validation(tp, position, end)
            if truncation is None:
                continue
            repaired = truncation.repaired
            self._report("truncation_detected", tp, offset=position.offset, end=end.offset, mended=repaired)
            if not repaired:
                end_offset = "unknown" if truncation.end is None else truncation.end.offset
                message = (
                    f"the log of {tp} was truncated before offset {truncation.position.offset} (its end: "
                    f"{end_offset}), so records that were read are lost; set auto.offset.reset, or assign a position "
                    "of the partition"
                )
                self._fail(tp, BrokerError(message, codes.OFFSET_OUT_OF_RANGE))
        self._handle_errors(errors, "validated")

    def _report(self, event: str, tp: TopicPartition, **details: object) -> None:
        self._shared.on_event(event, topic=tp.topic, partition=tp.partition, **details)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def by_node(requests: Mapping[TopicPartition, A]) -> dict[int, dict[TopicPartition, A]]:
    """Group lookups or validations by the node id of the partition's leader, which may be UNKNOWN."""
    nodes: dict[int, dict[TopicPartition, A]] = {}
    for tp, value in requests.items():
        nodes.setdefault(value.leader.node_id, {})[tp] = value
    return nodes


def _broker_error(tp: TopicPartition, error: int, action: str) -> BrokerError:
    return BrokerError(
        f"the offset of {tp} cannot be {action}: {codes.name(error)}; check that this client is authorized to read it",
        error,
    )
