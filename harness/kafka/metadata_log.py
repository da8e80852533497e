"""Elections of partition leaders, parsed from the log of the controllers (the topic ``__cluster_metadata``).

1. A partition begins with the leader and the leader epoch in its PartitionRecord. Each PartitionChangeRecord that has
   the field ``leader`` raises the leader epoch by one, also if the leader stays the same, and -1 means no leader.
2. An election is unclean if its record sets ``leaderRecoveryState`` to RECOVERING (KIP-704). A partition that is still
   recovering, or whose metadata version is older than 3.2, does not get that field; there the election is unclean if
   the record shrinks the ISR to a leader that was neither in the ISR nor in the ELR (KIP-966), and is not part of a
   reassignment.
3. The timestamp of a record is the wall clock of the active controller when the controller began the record's batch,
   which it writes to its log within ``controller.quorum.append.linger.ms``.

Source: ``PartitionRegistration.merge`` and ``PartitionChangeBuilder`` of Kafka 4.3.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import UUID

from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32

from aftershock.errors import ProtocolError
from aftershock.harness.kafka.admin import id_as_text
from aftershock.workloads.kafka.wire.batch import parse
from aftershock.workloads.kafka.wire.decoder import decode
from aftershock.workloads.kafka.wire.schema import read_uvarint

APPEND_LINGER_MS = 25
"""Kafka's default of ``controller.quorum.append.linger.ms``."""

_FRAME_VERSION = 1
_NO_LEADER, _NO_LEADER_CHANGE = -1, -2
_RECOVERING = 1


class _Record:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic(_Record):
    name: str = field(metadata={"kafka_type": "string"})
    topic_id: UUID = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicRemoval(_Record):
    topic_id: UUID = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition(_Record):
    """PartitionRecord; the array of directories, which version 1 added before the tagged fields, is not read."""

    partition_id: i32 = field(metadata={"kafka_type": "int32"})
    topic_id: UUID = field(metadata={"kafka_type": "uuid"})
    replicas: tuple[i32, ...] = field(metadata={"kafka_type": "int32"})
    isr: tuple[i32, ...] = field(metadata={"kafka_type": "int32"})
    removing_replicas: tuple[i32, ...] = field(metadata={"kafka_type": "int32"})
    adding_replicas: tuple[i32, ...] = field(metadata={"kafka_type": "int32"})
    leader: i32 = field(metadata={"kafka_type": "int32"})
    leader_epoch: i32 = field(metadata={"kafka_type": "int32"})
    partition_epoch: i32 = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionV1(_Partition):
    directories: tuple[UUID | None, ...] = field(metadata={"kafka_type": "uuid"})
    elr: tuple[i32, ...] = field(metadata={"kafka_type": "int32", "tag": 1}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionChange(_Record):
    partition_id: i32 = field(metadata={"kafka_type": "int32"})
    topic_id: UUID = field(metadata={"kafka_type": "uuid"})
    isr: tuple[i32, ...] | None = field(metadata={"kafka_type": "int32", "tag": 0}, default=None)
    leader: i32 = field(metadata={"kafka_type": "int32", "tag": 1}, default=i32(_NO_LEADER_CHANGE))
    replicas: tuple[i32, ...] | None = field(metadata={"kafka_type": "int32", "tag": 2}, default=None)
    leader_recovery_state: i8 = field(metadata={"kafka_type": "int8", "tag": 5}, default=i8(-1))
    elr: tuple[i32, ...] | None = field(metadata={"kafka_type": "int32", "tag": 6}, default=None)


_RECORDS: dict[tuple[int, int], type[Any]] = {
    (2, 0): _Topic,
    (3, 0): _Partition,
    (3, 1): _PartitionV1,
    (3, 2): _PartitionV1,
    (5, 0): _PartitionChange,
    (5, 1): _PartitionChange,
    (5, 2): _PartitionChange,
    (9, 0): _TopicRemoval,
}
"""Classes of the records that elections depend on, by their ``apiKey`` and version."""

_KEYS = frozenset(key for key, _ in _RECORDS)


@dataclass(frozen=True)
class Election:
    """Begin of one leader epoch of a partition.

    ``leader`` is None if the partition then has no leader. ``isr`` is the ISR with which the epoch begins. ``at_ms`` is
    the controllers' wall clock; ``until_ms`` is that of the next epoch, or of the topic's deletion, None for the last.
    """

    topic: str
    topic_id: str
    partition: int
    epoch: int
    leader: int | None
    isr: tuple[int, ...]
    unclean: bool
    at_ms: int
    until_ms: int | None = None


@dataclass(frozen=True)
class _State:
    """State of a partition; ``election`` is the index of its latest election."""

    isr: tuple[int, ...]
    elr: tuple[int, ...]
    election: int = -1


def elections(segments: bytes, topics: Collection[str]) -> list[Election]:
    """Return all elections of partitions of ``topics``, of deleted topics too, in the order of the log.

    ``segments`` has the bytes of the metadata log's segments from offset 0 on, in order; an incomplete last batch is
    ignored. Raises ProtocolError if the log does not begin at offset 0, is damaged, or has a record of an unknown
    version.
    """
    names: dict[UUID, str] = {}
    elected: list[Election] = []
    states: dict[tuple[UUID, int], _State] = {}

    for at_ms, record in _records(segments):
        if isinstance(record, _Topic):
            if record.name in topics:
                names[record.topic_id] = record.name
        elif isinstance(record, _TopicRemoval):
            for identity in [identity for identity in states if identity[0] == record.topic_id]:
                number = states.pop(identity).election
                elected[number] = replace(elected[number], until_ms=at_ms)
        elif record.topic_id in names:
            identity = record.topic_id, record.partition_id
            if isinstance(record, _Partition):
                state, epoch, unclean = _State(record.isr, getattr(record, "elr", ())), int(record.leader_epoch), False
            elif identity not in states:
                raise ProtocolError(
                    f"the metadata log changes the unknown partition {names[identity[0]]}/{identity[1]}"
                )
            else:
                before = states[identity]
                isr = before.isr if record.isr is None else record.isr
                state = _State(isr, before.elr if record.elr is None else record.elr, before.election)
                if record.leader == _NO_LEADER_CHANGE:
                    states[identity] = state
                    continue
                ended = elected[before.election] = replace(elected[before.election], until_ms=at_ms)
                epoch, unclean = ended.epoch + 1, _is_unclean(record, before)
            states[identity] = replace(state, election=len(elected))
            leader = None if record.leader == _NO_LEADER else record.leader
            place = names[record.topic_id], id_as_text(record.topic_id), record.partition_id
            elected.append(Election(*place, epoch, leader, state.isr, unclean, at_ms))
    return elected


def _is_unclean(change: _PartitionChange, before: _State) -> bool:
    if change.leader_recovery_state == _RECOVERING:
        return True
    is_new_isr = change.isr == (change.leader,) and change.leader not in (*before.isr, *before.elr)
    return is_new_isr and change.replicas is None


def _records(segments: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the timestamp in ms and the content of each record of the metadata log that elections depend on."""
    expected_offset = 0
    for batch in parse(segments):
        if batch.base_offset != expected_offset:
            raise ProtocolError(f"the metadata log lacks the offsets {expected_offset} to {batch.base_offset - 1}")
        expected_offset = batch.last_offset + 1
        if batch.is_control:
            continue
        for record in batch.records:
            if (value := record.value) is None:
                continue
            frame_version, at = read_uvarint(value, 0)
            key, at = read_uvarint(value, at)
            version, at = read_uvarint(value, at)
            if frame_version != _FRAME_VERSION:
                raise ProtocolError(f"a record of the metadata log has the unknown frame version {frame_version}")
            if key in _KEYS:
                if (key, version) not in _RECORDS:
                    raise ProtocolError(f"a record of the metadata log has type {key} in the unknown version {version}")
                yield record.timestamp_ms, decode(_RECORDS[key, version], value, at)[0]
