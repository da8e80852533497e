"""Offset lookups (ListOffsets) and validations (OffsetsForLeaderEpoch), each at the partition's leader.

Rules (Kafka's ``OffsetFetcher``, ``OffsetFetcherUtils``, ``OffsetsForLeaderEpochUtils``):

1. One request per leader for all of its partitions that need one; they are held until it is answered.
2. A failure is retried after ``retry.backoff.ms``, with fresh metadata; only a missing authorization is reported to the
   application.
3. A broker that does not allow consumers to ask (OffsetsForLeaderEpoch before version 3) leaves the position unchanged.
4. A truncated log moves the position back to its new end (``subscription_state.py``); without a reset policy the
   truncation is reported to the application, too.

ListOffsets is spoken from version 4 (``currentLeaderEpoch``) to 9, OffsetsForLeaderEpoch from 3 (open to consumers) to
4.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.kafka.client.requests import ApiVersionRange, group_by_topic
from aftershock.workloads.kafka.consumer.shared import ConsumerContext
from aftershock.workloads.kafka.rules.subscription_state import (
    EndOffset,
    FetchPosition,
    ResetPolicy,
    Truncation,
    is_retried,
)
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.channel import Channel
from aftershock.workloads.kafka.wire.codec import Api

LIST_OFFSETS = ApiVersionRange(Api.LIST_OFFSETS, 4, 9)
OFFSET_FOR_LEADER_EPOCH = ApiVersionRange(Api.OFFSET_FOR_LEADER_EPOCH, 3, 4)
End = Literal["earliest", "latest"]
TIMESTAMPS: Mapping[ResetPolicy, int] = {"earliest": -2, "latest": -1}


class ListedOffset(NamedTuple):
    """Answer of ListOffsets: the offset, and the leader epoch of the record there, if any."""

    error: int
    offset: int
    epoch: int = UNKNOWN


class LookUp(NamedTuple):
    """End of the log to look up, and the presumed leader."""

    policy: ResetPolicy
    leader: Leader


def list_offsets(messages: Any, requests: Mapping[TopicPartition, LookUp]) -> Any:
    """Return the request that looks up ``requests``; all partitions are led by the node that receives it."""

    def partition(tp: TopicPartition) -> Any:
        return messages.ListOffsetsPartition(
            partition_index=tp.partition,
            current_leader_epoch=requests[tp].leader.epoch,
            timestamp=TIMESTAMPS[requests[tp].policy],
        )

    topics = tuple(
        messages.ListOffsetsTopic(name=name, partitions=tuple(map(partition, of_topic)))
        for name, of_topic in group_by_topic(requests)
    )
    return messages.ListOffsetsRequest(replica_id=UNKNOWN, isolation_level=0, topics=topics)


def listed_offsets(response: Any) -> dict[TopicPartition, ListedOffset]:
    """Return the response by partition."""
    return {
        TopicPartition(topic.name, partition.partition_index): ListedOffset(
            int(partition.error_code), partition.offset, partition.leader_epoch
        )
        for topic in response.topics
        for partition in topic.partitions
    }


def offset_for_leader_epoch(messages: Any, requests: Mapping[TopicPartition, FetchPosition]) -> Any:
    """Return the request for the end of each position's epoch in the leader's log."""

    def partition(tp: TopicPartition) -> Any:
        return messages.OffsetForLeaderPartition(
            partition=tp.partition,
            current_leader_epoch=requests[tp].leader.epoch,
            leader_epoch=requests[tp].offset_epoch,
        )

    topics = tuple(
        messages.OffsetForLeaderTopic(topic=name, partitions=tuple(map(partition, of_topic)))
        for name, of_topic in group_by_topic(requests)
    )
    return messages.OffsetForLeaderEpochRequest(replica_id=UNKNOWN, topics=topics)


def end_offsets(response: Any) -> dict[TopicPartition, tuple[int, EndOffset]]:
    """Return each partition's error code and end offset."""
    return {
        TopicPartition(topic.topic, partition.partition): (
            int(partition.error_code),
            EndOffset(partition.leader_epoch, partition.end_offset),
        )
        for topic in response.topics
        for partition in topic.partitions
    }


UNREACHABLE = (OSError, ProtocolError)
"""No valid response: refused, lost, timed out, or not in Kafka's protocol."""
UNKNOWN_PARTITION = 3
A = TypeVar("A")


class OffsetFetcher:
    """Lookups and validations of one consumer. ``step`` starts what is due; ``find`` is for the application."""

    def __init__(self, shared: ConsumerContext) -> None:
        self._shared = shared
        self._tasks: set[asyncio.Task[None]] = set()

    def step(self, now_ms: float) -> float:
        """Start what is due; return milliseconds until something else is."""
        positions, leader = self._shared.positions, self._shared.metadata.leader
        waits = self._shared.buffer.has_problem
        resets = {tp: LookUp(policy, leader(tp)) for tp, policy in positions.to_reset(now_ms).items() if not waits(tp)}
        self._start(self._reset, by_node(resets, lambda lookup: lookup.leader))
        proofs = {tp: position for tp, position in positions.to_validate(now_ms).items() if not waits(tp)}
        self._start(self._validate, by_node(proofs, lambda position: position.leader))
        return positions.held_ms(now_ms)

    def _start(
        self,
        ask: Callable[[int, dict[TopicPartition, A]], Coroutine[Any, Any, None]],
        requests: Mapping[int, dict[TopicPartition, A]],
    ) -> None:
        """Rule 1."""
        for node_id, of_node in requests.items():
            self._shared.positions.hold(of_node, math.inf)
            task = asyncio.create_task(self._guarded(ask(node_id, of_node), of_node))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _guarded(self, asking: Coroutine[Any, Any, None], partitions: Collection[TopicPartition]) -> None:
        """Rule 2, for a whole request."""
        try:
            await asking
        except UNREACHABLE:
            self._retry_later(partitions)
        except ClientError as error:
            for tp in partitions:
                self._fail(tp, error)
        self._shared.on_change()

    def _retry_later(self, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            until_ms = self._shared.clock_ms() + self._shared.settings.retry_backoff_ms
            self._shared.metadata.request_update(partitions)
            self._shared.positions.hold(partitions, until_ms)

    def _handle_errors(self, errors: Mapping[TopicPartition, int], action: str) -> None:
        """Rule 2, for the partitions of an answer."""
        self._retry_later([tp for tp, error in errors.items() if is_retried(error)])
        for tp, error in errors.items():
            if not is_retried(error):
                self._fail(tp, _broker_error(tp, error, action))

    def _fail(self, tp: TopicPartition, error: ClientError) -> None:
        """Report the error to the application; the request is repeated after that."""
        self._shared.buffer.fail(tp, error)
        self._shared.positions.hold((tp,), 0)

    # ---- lookups

    async def _reset(self, node_id: int, requests: dict[TopicPartition, LookUp]) -> None:
        answers = await self._list(node_id, requests)
        for tp, answer in answers.items():
            if not answer.error and self._shared.positions.looked_up(
                tp, requests[tp].policy, answer.offset, self._shared.metadata.leader(tp)
            ):
                self._report("position_found", tp, offset=answer.offset, end=requests[tp].policy)
        self._handle_errors({tp: answer.error for tp, answer in answers.items() if answer.error}, "looked up")

    async def _list(
        self, node_id: int, requests: Mapping[TopicPartition, LookUp]
    ) -> dict[TopicPartition, ListedOffset]:
        """Return an answer for each of ``requests``: a partition missing in the response is unknown."""
        channel = await self._channel(node_id)
        request = list_offsets(LIST_OFFSETS.messages(channel.versions), requests)
        reply = await channel.request(request, timeout_ms=self._shared.settings.request_timeout_ms)
        answers = listed_offsets(reply.response)
        for tp, answer in answers.items():
            if answer.epoch != UNKNOWN:
                self._shared.metadata.saw_epoch(tp, answer.epoch)
        return {tp: answers.get(tp, ListedOffset(UNKNOWN_PARTITION, UNKNOWN)) for tp in requests}

    async def find(self, end: End, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where these logs start or end. Retries until all are known; raise BrokerError for a final error."""
        offsets: dict[TopicPartition, int] = {}
        while missing := [tp for tp in partitions if tp not in offsets]:
            answers = await self._list_anywhere({tp: LookUp(end, self._shared.metadata.leader(tp)) for tp in missing})
            offsets |= {tp: answer.offset for tp, answer in answers.items() if not answer.error}
            if len(offsets) < len(partitions):
                self._shared.metadata.request_update(missing)
                self._shared.on_change()
                await asyncio.sleep(self._shared.settings.retry_backoff_ms / 1000)
        return offsets

    async def _list_anywhere(self, requests: Mapping[TopicPartition, LookUp]) -> dict[TopicPartition, ListedOffset]:
        """Return what each leader answers now; raise BrokerError for a final error."""
        answers: dict[TopicPartition, ListedOffset] = {}
        for node_id, of_node in by_node(requests, lambda lookup: lookup.leader).items():
            with suppress(*UNREACHABLE):
                answers |= await self._list(node_id, of_node)
        for tp, answer in answers.items():
            if answer.error and not is_retried(answer.error):
                raise _broker_error(tp, answer.error, "looked up")
        return answers

    # ---- validations

    async def _validate(self, node_id: int, requests: dict[TopicPartition, FetchPosition]) -> None:
        channel = await self._channel(node_id)
        if channel.versions.offered.get(OFFSET_FOR_LEADER_EPOCH.api, (0, 0))[1] < OFFSET_FOR_LEADER_EPOCH.least:
            self._shared.positions.skip_validation(requests)
            return
        request = offset_for_leader_epoch(OFFSET_FOR_LEADER_EPOCH.messages(channel.versions), requests)
        reply = await channel.request(request, timeout_ms=self._shared.settings.request_timeout_ms)
        answers = end_offsets(reply.response)
        nothing = (UNKNOWN_PARTITION, EndOffset(UNKNOWN, UNKNOWN))
        errors = {tp: error for tp in requests if (error := answers.get(tp, nothing)[0])}
        for tp, position in requests.items():
            if tp not in errors:
                self._validated(tp, position, answers[tp][1])
        self._handle_errors(errors, "validated")

    def _validated(self, tp: TopicPartition, position: FetchPosition, end: EndOffset) -> None:
        """Rule 4."""
        truncation = self._shared.positions.validated(tp, position, end)
        if truncation is None:
            return
        self._report("truncation_detected", tp, offset=position.offset, end=end.offset, mended=truncation.mended)
        if not truncation.mended:
            self._fail(tp, _truncation_error(tp, truncation))

    # ---- helpers

    async def _channel(self, node_id: int) -> Channel:
        if node_id == UNKNOWN:
            raise ConnectionError("no leader is known")
        return await self._shared.brokers.channel(node_id)

    def _report(self, event: str, tp: TopicPartition, **details: object) -> None:
        self._shared.on_event(event, topic=tp.topic, partition=tp.partition, **details)

    async def close(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def by_node(
    requests: Mapping[TopicPartition, A], leader_of: Callable[[A], Leader]
) -> dict[int, dict[TopicPartition, A]]:
    """Group requests by leader; UNKNOWN where no leader is known."""
    nodes: dict[int, dict[TopicPartition, A]] = {}
    for tp, value in requests.items():
        nodes.setdefault(leader_of(value).node_id, {})[tp] = value
    return nodes


def _broker_error(tp: TopicPartition, error: int, action: str) -> BrokerError:
    return BrokerError(
        f"the offset of {tp} cannot be {action}: {codes.name(error)}; check that this client is authorized to read it",
        error,
    )


def _truncation_error(tp: TopicPartition, truncation: Truncation) -> BrokerError:
    end = "unknown" if truncation.end is None else truncation.end.offset
    return BrokerError(
        f"the log of {tp} was truncated before offset {truncation.position.offset} (its end: {end}), so records that "
        f"were read are lost; set auto.offset.reset, or assign a position",
        codes.OFFSET_OUT_OF_RANGE,
    )
