"""ListOffsets and OffsetsForLeaderEpoch on the wire: questions about the logs of partitions to one leader, and answers.

ListOffsets is spoken from 4 (``currentLeaderEpoch``) to 9, OffsetsForLeaderEpoch from 3 (consumers may ask) to 4.

Looks positions up (ListOffsets) and proves them (OffsetsForLeaderEpoch), each at the partition's leader.

Rules (Kafka's ``OffsetFetcher``, ``OffsetFetcherUtils``, ``OffsetsForLeaderEpochUtils``):

1. One request a leader for all of its partitions that need one; they are held until it is answered.
2. Whatever fails is asked again after ``retry.backoff.ms``, with fresh metadata; only a topic that may not be read is
   the application's to hear of.
3. A broker that can't be asked by consumers (OffsetsForLeaderEpoch before version 3) leaves the position as it is.
4. A log that was truncated sends the position back to where it ends now (``position.py``); without a reset policy that
   is the application's to hear of, too.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.kafka.client.requests import Dialect, by_topic
from aftershock.workloads.kafka.consumer.shared import Shared
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

LIST_OFFSETS = Dialect(Api.LIST_OFFSETS, 4, 9)
OFFSET_FOR_LEADER_EPOCH = Dialect(Api.OFFSET_FOR_LEADER_EPOCH, 3, 4)
End = Literal["earliest", "latest"]
TIMESTAMPS: Mapping[ResetPolicy, int] = {"earliest": -2, "latest": -1}


class ListedOffset(NamedTuple):
    """What ListOffsets answered: the offset, and the leader epoch of the record there, if any."""

    error: int
    offset: int
    epoch: int = UNKNOWN


class LookUp(NamedTuple):
    """Which end of the log is asked for, and who is believed to lead."""

    policy: ResetPolicy
    leader: Leader


def list_offsets(messages: Any, asked: Mapping[TopicPartition, LookUp]) -> Any:
    """The request that looks up ``asked``; all of them are led by the node that it goes to."""

    def partition(tp: TopicPartition) -> Any:
        return messages.ListOffsetsPartition(
            partition_index=tp.partition,
            current_leader_epoch=asked[tp].leader.epoch,
            timestamp=TIMESTAMPS[asked[tp].policy],
        )

    topics = tuple(
        messages.ListOffsetsTopic(name=name, partitions=tuple(map(partition, of_topic)))
        for name, of_topic in by_topic(asked)
    )
    return messages.ListOffsetsRequest(replica_id=UNKNOWN, isolation_level=0, topics=topics)


def listed_offsets(response: Any) -> dict[TopicPartition, ListedOffset]:
    """The answers, by partition."""
    return {
        TopicPartition(topic.name, each.partition_index): ListedOffset(
            int(each.error_code), each.offset, each.leader_epoch
        )
        for topic in response.topics
        for each in topic.partitions
    }


def offset_for_leader_epoch(messages: Any, asked: Mapping[TopicPartition, FetchPosition]) -> Any:
    """The request that asks where the epoch of each position ends in the leader's log."""

    def partition(tp: TopicPartition) -> Any:
        return messages.OffsetForLeaderPartition(
            partition=tp.partition,
            current_leader_epoch=asked[tp].leader.epoch,
            leader_epoch=asked[tp].offset_epoch,
        )

    topics = tuple(
        messages.OffsetForLeaderTopic(topic=name, partitions=tuple(map(partition, of_topic)))
        for name, of_topic in by_topic(asked)
    )
    return messages.OffsetForLeaderEpochRequest(replica_id=UNKNOWN, topics=topics)


def end_offsets(response: Any) -> dict[TopicPartition, tuple[int, EndOffset]]:
    """Each partition's error code and end."""
    return {
        TopicPartition(topic.topic, each.partition): (
            int(each.error_code),
            EndOffset(each.leader_epoch, each.end_offset),
        )
        for topic in response.topics
        for each in topic.partitions
    }


UNREACHABLE = (OSError, ProtocolError)
"""No answer came: refused, lost, too late, or nothing that Kafka would say."""
UNKNOWN_PARTITION = 3
A = TypeVar("A")


class Offsets:
    """The lookups and validations of one consumer. ``step`` starts what is due; ``find`` is for the application."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._tasks: set[asyncio.Task[None]] = set()

    def step(self, now_ms: float) -> float:
        """Start what is due; milliseconds until something else is."""
        positions, leader = self._shared.positions, self._shared.metadata.leader
        waits = self._shared.buffer.has_problem
        resets = {tp: LookUp(policy, leader(tp)) for tp, policy in positions.to_reset(now_ms).items() if not waits(tp)}
        self._start(self._reset, by_node(resets, lambda asked: asked.leader))
        proofs = {tp: position for tp, position in positions.to_validate(now_ms).items() if not waits(tp)}
        self._start(self._validate, by_node(proofs, lambda position: position.leader))
        return positions.held_ms(now_ms)

    def _start(
        self,
        ask: Callable[[int, dict[TopicPartition, A]], Coroutine[Any, Any, None]],
        asked: Mapping[int, dict[TopicPartition, A]],
    ) -> None:
        """Rule 1."""
        for node_id, of_node in asked.items():
            self._shared.positions.hold(of_node, math.inf)
            task = asyncio.create_task(self._guarded(ask(node_id, of_node), of_node))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _guarded(self, asking: Coroutine[Any, Any, None], partitions: Collection[TopicPartition]) -> None:
        """Rule 2, for a whole request."""
        try:
            await asking
        except UNREACHABLE:
            self._later(partitions)
        except ClientError as error:
            for tp in partitions:
                self._fail(tp, error)
        self._shared.on_change()

    def _later(self, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            until_ms = self._shared.clock_ms() + self._shared.settings.retry_backoff_ms
            self._shared.metadata.request_update(partitions)
            self._shared.positions.hold(partitions, until_ms)

    def _sort_out(self, errors: Mapping[TopicPartition, int], what: str) -> None:
        """Rule 2, for the partitions of an answer."""
        self._later([tp for tp, error in errors.items() if is_retried(error)])
        for tp, error in errors.items():
            if not is_retried(error):
                self._fail(tp, _refused(tp, error, what))

    def _fail(self, tp: TopicPartition, error: ClientError) -> None:
        """The application's to hear of; asked again as soon as it has."""
        self._shared.buffer.fail(tp, error)
        self._shared.positions.hold((tp,), 0)

    # ---- lookups

    async def _reset(self, node_id: int, asked: dict[TopicPartition, LookUp]) -> None:
        answers = await self._list(node_id, asked)
        for tp, answer in answers.items():
            if not answer.error and self._shared.positions.looked_up(
                tp, asked[tp].policy, answer.offset, self._shared.metadata.leader(tp)
            ):
                self._say("position_found", tp, offset=answer.offset, end=asked[tp].policy)
        self._sort_out({tp: answer.error for tp, answer in answers.items() if answer.error}, "looked up")

    async def _list(self, node_id: int, asked: Mapping[TopicPartition, LookUp]) -> dict[TopicPartition, ListedOffset]:
        """An answer for each of ``asked``: what the broker leaves out is an unknown partition."""
        channel = await self._channel(node_id)
        request = list_offsets(LIST_OFFSETS.messages(channel.versions), asked)
        reply = await channel.request(request, timeout_ms=self._shared.settings.request_timeout_ms)
        answers = listed_offsets(reply.response)
        for tp, answer in answers.items():
            if answer.epoch != UNKNOWN:
                self._shared.metadata.saw_epoch(tp, answer.epoch)
        return {tp: answers.get(tp, ListedOffset(UNKNOWN_PARTITION, UNKNOWN)) for tp in asked}

    async def find(self, end: End, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where these logs begin or end. Keeps asking until it has them all; BrokerError where that won't help."""
        found: dict[TopicPartition, int] = {}
        while missing := [tp for tp in partitions if tp not in found]:
            answers = await self._list_anywhere({tp: LookUp(end, self._shared.metadata.leader(tp)) for tp in missing})
            found |= {tp: answer.offset for tp, answer in answers.items() if not answer.error}
            if len(found) < len(partitions):
                self._shared.metadata.request_update(missing)
                self._shared.on_change()
                await asyncio.sleep(self._shared.settings.retry_backoff_ms / 1000)
        return found

    async def _list_anywhere(self, asked: Mapping[TopicPartition, LookUp]) -> dict[TopicPartition, ListedOffset]:
        """What can be had now, from each leader; BrokerError for what never will."""
        answers: dict[TopicPartition, ListedOffset] = {}
        for node_id, of_node in by_node(asked, lambda look_up: look_up.leader).items():
            with suppress(*UNREACHABLE):
                answers |= await self._list(node_id, of_node)
        for tp, answer in answers.items():
            if answer.error and not is_retried(answer.error):
                raise _refused(tp, answer.error, "looked up")
        return answers

    # ---- validations

    async def _validate(self, node_id: int, asked: dict[TopicPartition, FetchPosition]) -> None:
        channel = await self._channel(node_id)
        if channel.versions.offered.get(OFFSET_FOR_LEADER_EPOCH.api, (0, 0))[1] < OFFSET_FOR_LEADER_EPOCH.least:
            self._shared.positions.skip_validation(asked)
            return
        request = offset_for_leader_epoch(OFFSET_FOR_LEADER_EPOCH.messages(channel.versions), asked)
        reply = await channel.request(request, timeout_ms=self._shared.settings.request_timeout_ms)
        answers = end_offsets(reply.response)
        nothing = (UNKNOWN_PARTITION, EndOffset(UNKNOWN, UNKNOWN))
        errors = {tp: error for tp in asked if (error := answers.get(tp, nothing)[0])}
        for tp, position in asked.items():
            if tp not in errors:
                self._validated(tp, position, answers[tp][1])
        self._sort_out(errors, "validated")

    def _validated(self, tp: TopicPartition, asked: FetchPosition, end: EndOffset) -> None:
        """Rule 4."""
        truncation = self._shared.positions.validated(tp, asked, end)
        if truncation is None:
            return
        self._say("truncation_detected", tp, offset=asked.offset, end=end.offset, mended=truncation.mended)
        if not truncation.mended:
            self._fail(tp, _truncated(tp, truncation))

    # ---- helpers

    async def _channel(self, node_id: int) -> Channel:
        if node_id == UNKNOWN:
            raise ConnectionError("no leader is known")
        return await self._shared.brokers.channel(node_id)

    def _say(self, event: str, tp: TopicPartition, **details: object) -> None:
        self._shared.tell(event, topic=tp.topic, partition=tp.partition, **details)

    async def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def by_node(asked: Mapping[TopicPartition, A], leader_of: Callable[[A], Leader]) -> dict[int, dict[TopicPartition, A]]:
    """What is asked, by the node that leads; UNKNOWN where no leader is known."""
    nodes: dict[int, dict[TopicPartition, A]] = {}
    for tp, value in asked.items():
        nodes.setdefault(leader_of(value).node_id, {})[tp] = value
    return nodes


def _refused(tp: TopicPartition, error: int, what: str) -> BrokerError:
    return BrokerError(f"the offset of {tp} can't be {what}: {codes.name(error)}; may this client read it?", error)


def _truncated(tp: TopicPartition, truncation: Truncation) -> BrokerError:
    end = "unknown" if truncation.end is None else truncation.end.offset
    return BrokerError(
        f"the log of {tp} was truncated before offset {truncation.position.offset} (its end: {end}), so records that "
        f"were read are gone; set auto.offset.reset, or assign a position",
        codes.OFFSET_OUT_OF_RANGE,
    )
