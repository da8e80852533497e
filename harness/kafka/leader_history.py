"""History of partition leaders during a run: a line of ``leaders.jsonl`` per topic id, partition and leader epoch.

Four sources describe the same epochs and are merged; each may be missing:

* ``polled``: Metadata responses during the run, which bound the time of an election;
* ``controller``: the log of the controllers, with exact times, ISRs and unclean elections (``metadata_log``);
* ``leader``: the offset at which each epoch begins, asked of the partitions' last leaders (OffsetsForLeaderEpoch);
* ``checkpoint``: the offsets at which epochs begin in each replica's file ``leader-epoch-checkpoint``.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4 import request as messages

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId, TopicPartition
from aftershock.harness.kafka.admin import Admin, id_as_text, message, metadata_request, per_topic
from aftershock.harness.kafka.metadata_log import APPEND_LINGER_MS, Election

CONTRADICTION_US = 2_000_000
"""Distance between the times of two sources from which on the controllers' clock is not taken for the run's.

A wall clock of another host, or one that was set during the run, is seconds or more off. Between the log of the
controllers and the metadata of a broker lie milliseconds, on a busy host up to a second.
"""

_CONSUMER = -1
_TIMEOUT_S = 2.0
Checkpoints = Mapping[BrokerId, Mapping[TopicPartition, Mapping[int, int]]]
"""Start offset of each epoch in each replica's checkpoint: broker → partition → epoch → offset."""


class EpochKey(NamedTuple):
    topic_id: str
    partition: int
    epoch: int


@dataclass(frozen=True)
class PartitionView:
    """Leader of a partition as a broker knows it; ``leader`` is None if there is none."""

    topic: str
    topic_id: str
    partition: int
    epoch: int
    leader: int | None
    isr: tuple[int, ...]

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.topic_id, self.partition, self.epoch)


@dataclass(frozen=True)
class Polled:
    """First view of a leader epoch, and bounds of the time of its election; ``after_us`` is None if unknown."""

    view: PartitionView
    after_us: int | None
    by_us: int


class LeaderPolls:
    """Leaders of partitions as polled from the brokers, one after the other.

    An epoch was elected before the first response that shows it. It was elected after the last request to any broker
    whose response still showed an older epoch, and of several such brokers the earliest counts, because all but one may
    be cut off from the controllers and know old leaders only. A broker that did not answer its last request does not
    count. ``first`` has the first view of each epoch, ``topic_ids`` the ids of the topics in the latest response. The
    broker None stands for any broker.
    """

    def __init__(self) -> None:
        self.first: dict[EpochKey, Polled] = {}
        self.topic_ids: Mapping[str, str] = {}
        self._latest: dict[BrokerId | None, tuple[int, Mapping[tuple[str, int], int]]] = {}

    def answered(
        self, broker: BrokerId | None, asked_us: int, answered_us: int, views: Sequence[PartitionView]
    ) -> None:
        for view in views:
            if view.key not in self.first:
                older = [
                    then_us
                    for then_us, epochs in self._latest.values()
                    if epochs.get((view.topic_id, view.partition), -1) < view.epoch
                ]
                self.first[view.key] = Polled(view, min(older, default=None), answered_us)
        self.topic_ids = {view.topic: view.topic_id for view in views}
        self._latest[broker] = asked_us, {(view.topic_id, view.partition): view.epoch for view in views}

    def failed(self, broker: BrokerId | None) -> None:
        self._latest.pop(broker, None)


def read_views(admin: Admin, broker: BrokerId | None, topics: Sequence[str]) -> tuple[list[PartitionView], set[int]]:
    """Return the leaders of the partitions of ``topics``, and the brokers of the cluster, as a broker knows them.

    The broker None stands for any; missing topics are skipped.
    """
    response = admin.ask(metadata_request(topics), _TIMEOUT_S, only=broker)
    views = [
        PartitionView(
            topic.name,
            # before Kafka 2.8 the evidence identifies a topic by its name
            id_as_text(topic.topic_id) if getattr(topic, "topic_id", None) else topic.name,
            partition.partition_index,
            partition.leader_epoch,
            partition.leader_id if partition.leader_id >= 0 else None,
            tuple(partition.isr_nodes),
        )
        for topic in response.topics
        if topic.error_code is ErrorCode.none
        for partition in topic.partitions
        if getattr(partition, "leader_epoch", -1) >= 0  # of Metadata v7 and later
    ]
    return views, {int(node.node_id) for node in response.brokers}


EpochStarts = Mapping[TopicPartition, Mapping[int, int]]
"""Offset at which each leader epoch begins: partition → epoch → offset."""


def epoch_starts(admin: Admin, epochs: Mapping[TopicPartition, range]) -> EpochStarts:
    """Return the offsets at which ``epochs`` begin in the logs of the partitions' leaders.

    An epoch that wrote nothing begins where the next epoch does, or at the end of the log. Partitions without a leader
    are left out, and so is what a leader refuses to tell. Raises AdminError if no broker answers at all.

    OffsetsForLeaderEpoch (KIP-320) answers for an epoch with the last epoch in the log that is not later, and the
    offset at which the next epoch begins. Therefore the begin of an epoch is the answer for the epoch before it.
    """
    starts: dict[TopicPartition, dict[int, int]] = {}
    led: dict[BrokerId, list[TopicPartition]] = {}
    for view in read_views(admin, None, sorted({topic for topic, _ in epochs}))[0]:
        where = view.topic, view.partition
        if where in epochs and view.leader is not None:
            starts[where] = {0: 0} if epochs[where].start == 0 else {}  # no epoch precedes the first of a partition
            led.setdefault(BrokerId(view.leader), []).append(where)
    for leader, partitions in led.items():
        with suppress(AdminError):  # the leader does not answer
            for number in range(max(len(epochs[where]) for where in partitions)):
                asked = {where: epochs[where][number] for where in partitions if number < len(epochs[where])}
                values = {where: {"leader_epoch": epoch - 1} for where, epoch in asked.items() if epoch > 0}
                kinds = messages.OffsetForLeaderTopic, messages.OffsetForLeaderPartition
                topics = per_topic(*kinds, values, values.__getitem__)
                request = message(messages.OffsetForLeaderEpochRequest, replica_id=_CONSUMER, topics=topics)
                for topic in admin.ask(request, only=leader).topics if values else ():
                    for answer in topic.partitions:
                        where = topic.topic, answer.partition
                        if answer.error_code is ErrorCode.none and answer.end_offset >= 0:
                            starts[where][asked[where]] = answer.end_offset
    return starts


def parse_checkpoint(lines: Iterable[str]) -> dict[int, int]:
    """Parse a file ``leader-epoch-checkpoint``: a version, the number of entries, then an epoch and offset a line."""
    version, size, *entries = lines
    if (version, int(size)) != ("0", len(entries)):
        raise ValueError(f"a leader epoch checkpoint of version {version} says {size} entries and has {len(entries)}")
    return {int(epoch): int(offset) for epoch, offset in (entry.split() for entry in entries)}


@dataclass(frozen=True)
class WallClock:
    """Conversion of the controllers' wall clock to the run's clock.

    ``origin_unix_us`` is the wall clock's time at the start of the run. ``drift_us`` is by how much the wall clock has
    gained or lost against the run's clock since then.
    """

    origin_unix_us: int
    drift_us: int

    def bounds_us(self, at_ms: int) -> tuple[int, int]:
        """Return the bounds on the run's clock of the time at which the controller wrote a record."""
        at_us = at_ms * 1000 - self.origin_unix_us
        late_us = (APPEND_LINGER_MS + 1) * 1000  # the clock is cut to milliseconds
        return at_us - max(0, self.drift_us), at_us + late_us + max(0, -self.drift_us)


Row = dict[str, Any]


def history(
    polled: Mapping[EpochKey, Polled],
    elected: Iterable[Election],
    clock: WallClock | None,
    starts: EpochStarts,
    checkpoints: Checkpoints,
    topic_ids: Mapping[str, str],
) -> list[Row]:
    """Merge the sources into the lines of ``leaders.jsonl``, sorted by topic, id, partition and epoch.

    Epochs that another one followed before the start of the run are left out. ``clock`` is None if the controllers'
    times can't be used; then topics of earlier runs are left out that no poll has shown. ``topic_ids`` has the current
    id of each topic, which ``starts`` and ``checkpoints`` are about.
    """
    elections = {EpochKey(election.topic_id, election.partition, election.epoch): election for election in elected}
    if clock and _contradicts(clock, elections, polled):
        clock = None
    rows: dict[EpochKey, Row] = {}
    of_run = {*topic_ids.values(), *(key.topic_id for key in polled)}
    for key, election in elections.items():
        over_us = None if clock is None or election.until_ms is None else clock.bounds_us(election.until_ms)[1]
        if (key.topic_id in of_run) if clock is None else (over_us is None or over_us >= 0):
            bounds_us = clock.bounds_us(election.at_ms) if clock else (None, None)
            rows[key] = _row(election.topic, key, election.leader, election.isr, election.unclean, *bounds_us)
            rows[key]["sources"].append("controller")
    for key, first in polled.items():
        view = first.view
        row = rows.setdefault(key, _row(view.topic, key, view.leader, view.isr))
        row["sources"].append("polled")
        row["after_us"] = max((t for t in (row["after_us"], first.after_us) if t is not None), default=None)
        row["by_us"] = min((t for t in (row["by_us"], first.by_us) if t is not None), default=None)
    for (topic, partition), offsets in starts.items():
        for epoch, offset in offsets.items():
            key = EpochKey(topic_ids[topic], partition, epoch)
            row = rows.setdefault(key, _row(topic, key))
            row["sources"].append("leader")
            row["start_offset"] = offset
    for broker, of_broker in sorted(checkpoints.items()):
        for (topic, partition), offsets in of_broker.items():
            for epoch, offset in offsets.items():
                key = EpochKey(topic_ids.get(topic, ""), partition, epoch)
                if key in rows:
                    row = rows[key]
                    row["sources"] += [] if "checkpoint" in row["sources"] else ["checkpoint"]
                    if offset != row["start_offset"]:
                        row.setdefault("checkpoints", {})[str(broker)] = offset
    ordered = sorted(rows.values(), key=lambda row: (row["topic"], row["topic_id"], row["partition"], row["epoch"]))
    _bound_by_neighbours(ordered)
    return ordered


def _row(
    topic: str,
    key: EpochKey,
    leader: int | None = None,
    isr: Sequence[int] | None = None,
    unclean: bool | None = None,  # noqa: FBT001 -- a field of the line
    after_us: int | None = None,
    by_us: int | None = None,
) -> Row:
    times_us = {"after_us": after_us, "by_us": by_us}
    isr = None if isr is None else sorted(isr)
    elected = {"leader": leader, "isr": isr, "unclean": unclean, "start_offset": None, **times_us}
    return {"topic": topic, **key._asdict(), **elected, "sources": []}


def _contradicts(clock: WallClock, elections: Mapping[EpochKey, Election], polled: Mapping[EpochKey, Polled]) -> bool:
    for key, first in polled.items():
        if key in elections:
            after_us, by_us = clock.bounds_us(elections[key].at_ms)
            too_early = first.after_us is not None and by_us < first.after_us - CONTRADICTION_US
            if too_early or after_us > first.by_us + CONTRADICTION_US:
                return True
    return False


def _bound_by_neighbours(rows: Sequence[Row]) -> None:
    """Narrow the times of each epoch: it was elected after the epochs before it, and before those after it."""
    for name, narrower, ordered in (("after_us", max, rows), ("by_us", min, rows[::-1])):
        bounds: dict[tuple[str, int], int] = {}
        for row in ordered:
            where = row["topic_id"], row["partition"]
            known = [t for t in (bounds.get(where), row[name]) if t is not None]
            if known:
                row[name] = bounds[where] = narrower(known)
