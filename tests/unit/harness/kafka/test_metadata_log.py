"""Elections read from the controllers' log.

``tests/data/metadata_log`` has a segment that a controller of Kafka 4.3.1 wrote while leaders were killed, elected and
reassigned, and the lines that ``kafka-dump-log.sh --cluster-metadata-decoder`` printed for it.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from aftershock.errors import ProtocolError
from aftershock.harness.kafka import metadata_log
from aftershock.harness.kafka.metadata_log import elections
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.kafka.wire.encoder import encode
from aftershock.workloads.kafka.wire.schema import uvarint

DATA = Path(__file__).parents[3] / "data" / "metadata_log"
SEGMENT = (DATA / "00000000000000000000.log").read_bytes()
ID, OTHER = UUID(int=1), UUID(int=2)


def dumped() -> list[tuple[int, str, dict[str, Any]]]:
    """Return time, type and content of the records that Kafka's own tool printed."""
    lines = []
    for line in (DATA / "dump.txt").read_text().splitlines():
        match = re.search(r"CreateTime: (\d+) .* payload: (.*)", line)
        assert match
        payload = json.loads(match[2])
        lines.append((int(match[1]), payload["type"], payload["data"]))
    return lines


def expected(topic: str) -> list[tuple[int, int, int | None, int]]:
    """Return (partition, epoch, leader, time) of each epoch, by counting the records with a leader."""
    topic_id = next(data["topicId"] for _, kind, data in dumped() if kind == "TOPIC_RECORD" and data["name"] == topic)
    epochs: dict[int, int] = {}
    elected = []
    for at_ms, kind, data in dumped():
        if data["topicId"] == topic_id and kind != "TOPIC_RECORD" and "leader" in data:
            number = data["partitionId"]
            epochs[number] = data["leaderEpoch"] if kind == "PARTITION_RECORD" else epochs[number] + 1
            elected.append((number, epochs[number], None if data["leader"] < 0 else data["leader"], at_ms))
    return elected


@pytest.mark.parametrize("topic", ["orders", "__consumer_offsets"])
def test_the_elections_of_a_real_log(topic: str) -> None:
    """As many as the records with a leader that Kafka's own tool printed, with the same times."""
    found = elections(SEGMENT, {topic})
    assert len(found) > 5
    assert expected(topic) == [(one.partition, one.epoch, one.leader, one.at_ms) for one in found]


def test_the_history_of_a_partition_whose_leaders_died() -> None:
    """Leader 3 was killed, elected again, and kept when a replica was removed; at last it died as the only one in
    sync, and broker 1 was elected although it lacked records.
    """
    history = [one for one in elections(SEGMENT, {"orders"}) if one.partition == 0]
    assert [(3, (3, 1, 2)), (1, (1, 2)), (3, (1, 2, 3)), (3, (1, 3)), (None, ()), (1, (1,))] == [
        (one.leader, one.isr) for one in history
    ]
    assert [False] * 5 + [True] == [one.unclean for one in history]
    assert [one.at_ms for one in history[1:]] + [None] == [one.until_ms for one in history]
    assert {"Mge8ZP5cSB6Bw1M2v0ci4g"} == {one.topic_id for one in history}


def test_a_log_that_is_cut_off_ends_early() -> None:
    """The active controller may be writing a batch."""
    whole = elections(SEGMENT, {"orders"})
    for cut in range(1, 2_000, 37):
        part = elections(SEGMENT[:-cut], {"orders"})
        assert [one.at_ms for one in whole[: len(part)]] == [one.at_ms for one in part]
    assert [] == elections(b"", {"orders"})


def test_a_damaged_or_incomplete_log_is_refused() -> None:
    damaged = bytearray(SEGMENT)
    damaged[len(damaged) // 2] ^= 255
    with pytest.raises(ProtocolError, match="corrupt"):
        elections(bytes(damaged), {"orders"})
    size = 12 + int.from_bytes(SEGMENT[8:12], "big")
    with pytest.raises(ProtocolError, match="lacks the offsets 0 to 0"):
        elections(SEGMENT[size:], {"orders"})


def log(*records: tuple[int, int, Any]) -> bytes:
    """Return a segment with a batch per record, given as (type, version, content); a record per second."""
    batches = []
    for offset, (key, version, content) in enumerate(records):
        value = uvarint(1) + uvarint(key) + uvarint(version) + encode(content)
        batches.append(build([value], timestamps_ms=[1000 * offset], base_offset=offset))
    return b"".join(batches)


def topic(topic_id: UUID = ID, name: str = "t") -> tuple[int, int, Any]:
    return 2, 0, metadata_log._Topic(name=name, topic_id=topic_id)


def removal(topic_id: UUID = ID) -> tuple[int, int, Any]:
    return 9, 0, metadata_log._TopicRemoval(topic_id=topic_id)


def partition(isr: Sequence[int], *, topic_id: UUID = ID, epoch: int = 0, version: int = 0, **how: Any) -> Any:
    none: tuple[int, ...] = ()
    fields: dict[str, Any] = {"partition_id": 0, "topic_id": topic_id, "replicas": (1, 2, 3), "isr": tuple(isr)}
    fields |= {"removing_replicas": none, "adding_replicas": none, "leader": isr[0], "leader_epoch": epoch}
    kind = metadata_log._PartitionV1 if version else metadata_log._Partition
    directories = {"directories": (UUID(int=7),)} if version else {}
    return 3, version, kind(**fields, partition_epoch=0, **directories, **how)


def change(**fields: Any) -> tuple[int, int, Any]:
    return 5, 2, metadata_log._PartitionChange(partition_id=0, topic_id=ID, **fields)  # type: ignore[arg-type]


def test_a_deleted_topic_ends_its_epochs() -> None:
    """A topic that is created again has epochs of its own."""
    again = log(topic(), partition([1, 2]), removal(), topic(OTHER), partition([2], topic_id=OTHER, epoch=4))
    first, second = elections(again, {"t"})
    assert (1000, 2000, 0) == (first.at_ms, first.until_ms, first.epoch)
    assert (4000, None, 4) == (second.at_ms, second.until_ms, second.epoch)
    assert first.topic_id != second.topic_id
    assert [] == elections(again, {"other"})


UNCLEAN: dict[str, tuple[list[Any], bool]] = {
    "the controller says so": ([change(isr=(3,), leader=3, leader_recovery_state=1)], True),
    # without leader recovery (before 3.2), or while the partition recovers already
    "out of sync": ([change(isr=(1,)), change(isr=(), leader=-1), change(isr=(3,), leader=3)], True),
    "in sync": ([change(isr=(2,), leader=2)], False),
    "eligible": ([change(isr=(), leader=-1, elr=(3,)), change(isr=(3,), leader=3, elr=())], False),
    "reassigned": ([change(isr=(3,), leader=3, replicas=(3,))], False),
    "no leader": ([change(isr=(), leader=-1)], False),
    "recovered": ([change(isr=(1, 2), leader_recovery_state=0), change(leader=2)], False),
}


@pytest.mark.parametrize("case", UNCLEAN)
def test_unclean_elections(case: str) -> None:
    changes, unclean = UNCLEAN[case]
    assert unclean is elections(log(topic(), partition([1, 2]), *changes), {"t"})[-1].unclean


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_versions_of_a_partition(version: int) -> None:
    """Version 1 adds directories; ELR is a tagged field of version 2."""
    how = {"elr": (3,)} if version == 2 else {}
    segment = log(
        topic(), partition([1, 2], version=version, **how), change(isr=(), leader=-1), change(leader=3, isr=(3,))
    )
    found = elections(segment, {"t"})
    assert [(0, 1), (1, None), (2, 3)] == [(one.epoch, one.leader) for one in found]
    assert (version != 2) is found[-1].unclean


def test_what_this_version_does_not_know_is_refused() -> None:
    """A record of an unknown version can have any content; other unknown records are skipped."""
    content = metadata_log._TopicRemoval(topic_id=ID)
    assert 1 == len(elections(log(topic(), partition([1]), (99, 7, content)), {"t"}))
    with pytest.raises(ProtocolError, match="type 5 in the unknown version 9"):
        elections(log(topic(), (5, 9, content)), {"t"})
    with pytest.raises(ProtocolError, match="changes the unknown partition t/0"):
        elections(log(topic(), change(leader=2)), {"t"})
    frame = build([uvarint(2) + uvarint(2) + uvarint(0)], timestamps_ms=[0])
    with pytest.raises(ProtocolError, match="frame version 2"):
        elections(frame, {"t"})
