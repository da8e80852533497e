"""Where logs begin and end, and moving the beginning (DeleteRecords, KIP-107). Only a partition's leader can do it.

The end is the high watermark: what consumers may read, and as far as Kafka lets records be deleted.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from kio.schema.delete_records.v2 import request as delete
from kio.schema.list_offsets.v9 import request as offsets

from aftershock.errors import AdminError
from aftershock.faults.values import BrokerId, TopicPartition
from aftershock.harness.admin import TIMEOUT, Admin, by_topic, raise_for

T = TypeVar("T")
_EARLIEST, _LATEST = -2, -1
_CONSUMER = -1


def log_ends(admin: Admin, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """(log start, high watermark) of each partition. AdminError if one has no leader."""
    numbers = [(topic, state.partition) for state in admin.partitions([topic])]
    starts, ends = _offsets(admin, numbers, _EARLIEST), _offsets(admin, numbers, _LATEST)
    return {where: (starts[where], ends[where]) for where in numbers}


def delete_records(admin: Admin, before: Mapping[TopicPartition, int]) -> None:
    """Raise each log start to this offset, on the leader; its followers learn of it as they fetch."""
    for leader, partitions in _by_leader(admin, before):
        topics = tuple(
            delete.DeleteRecordsTopic(
                name=cast("Any", topic),
                partitions=tuple(
                    delete.DeleteRecordsPartition(
                        partition_index=cast("Any", number), offset=cast("Any", before[topic, number])
                    )
                    for number in numbers
                ),
            )
            for topic, numbers in by_topic(partitions)
        )
        _each(
            admin.ask_controller(delete.DeleteRecordsRequest(topics=topics, timeout=TIMEOUT), leader),
            "delete records of",
            lambda result: result.low_watermark,
        )


def _offsets(admin: Admin, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for leader, led in _by_leader(admin, partitions):
        topics = tuple(
            offsets.ListOffsetsTopic(
                name=cast("Any", topic),
                partitions=tuple(
                    offsets.ListOffsetsPartition(partition_index=cast("Any", n), timestamp=cast("Any", timestamp))
                    for n in numbers
                ),
            )
            for topic, numbers in by_topic(led)
        )
        request = offsets.ListOffsetsRequest(
            replica_id=cast("Any", _CONSUMER), isolation_level=cast("Any", 0), topics=topics
        )
        found |= _each(admin.ask(request, only=leader), "list offsets of", lambda result: int(result.offset))
    return found


def _by_leader(admin: Admin, partitions: Iterable[TopicPartition]) -> Iterable[tuple[BrokerId, list[TopicPartition]]]:
    wanted = set(partitions)
    led: dict[BrokerId, list[TopicPartition]] = {}
    for state in admin.partitions(sorted({topic for topic, _ in wanted})):
        if (where := (state.topic, state.partition)) in wanted:
            if state.leader is None:
                raise AdminError(f"{state.topic}/{state.partition} has no leader to ask", "LEADER_NOT_AVAILABLE")
            led.setdefault(state.leader, []).append(where)
    return led.items()


def _each(response: Any, what: str, of: Callable[[Any], T]) -> dict[TopicPartition, T]:
    for topic in response.topics:
        for result in topic.partitions:
            raise_for(result.error_code, f"{what} {topic.name}/{result.partition_index}")
    return {
        (topic.name, result.partition_index): of(result) for topic in response.topics for result in topic.partitions
    }
