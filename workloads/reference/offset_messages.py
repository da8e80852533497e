"""ListOffsets and OffsetsForLeaderEpoch on the wire: questions about the logs of partitions to one leader, and answers.

ListOffsets is spoken from 4 (``currentLeaderEpoch``) to 9, OffsetsForLeaderEpoch from 3 (consumers may ask) to 4.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from aftershock.workloads.reference.speak import Dialect, by_topic
from aftershock.workloads.rules.position import EndOffset, FetchPosition, ResetPolicy
from aftershock.workloads.rules.values import UNKNOWN, Leader, TopicPartition
from aftershock.workloads.wire.versions import Api

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
