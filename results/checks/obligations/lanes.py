"""Lanes, the operations of clients (produce, consume or commit), with the times in which progress was required.

A lane has the spans of the client as a whole and those of each partition. The spans go on after the load for as long as
its records may wait (``AFTER_LOAD_US``), because a client owes progress until its last record is done: a producer
its acknowledgements, a consumer what is left to read (the drain).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aftershock.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from aftershock.results.checks.obligations.leaders import Leaders, leaders_of
from aftershock.results.checks.obligations.reach import Seat, coordinators, harms_of, seats_of, settings_of, terrain_of
from aftershock.results.checks.obligations.scene import Post, Scene
from aftershock.results.checks.obligations.spans import DRAIN_PATIENCE_US, Span, judged_us, spans
from aftershock.results.checks.obligations.waits import client_waits
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import RUN, windows_of
from aftershock.results.slo import Side

AFTER_LOAD_US = 600_000_000
"""Time after the load to which obligations extend: the longest delivery deadline and drain are shorter."""

SELECTOR = "replica.selector.class"
"""Setting of the brokers with which consumers that have a `client_rack` read from followers (KIP-392)."""

_CONNECTING = ("ApiVersions", "Metadata")
_GROUPS = (
    *("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat", "OffsetFetch"),
    "OffsetCommit",
)
_TRANSACTIONS = ("FindCoordinator", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")
APIS: Mapping[Side, tuple[str, ...]] = {
    "produce": ("Produce", "InitProducerId"),
    "consume": ("Fetch", "ListOffsets", "OffsetForLeaderEpoch"),
    "commit": (*_GROUPS, *_TRANSACTIONS, "InitProducerId", "ShareGroupHeartbeat", "ShareFetch", "ShareAcknowledge"),
}
"""APIs of each operation, besides those of every connection, of groups and of transactions; without one of them the
operation stops."""


@dataclass(frozen=True)
class Lane:
    """Spans of time of a client that produces, consumes or commits, by partition and for the client as a ``whole``.

    ``end_us`` is the end of the load; the spans go on after it. A record that is not acknowledged after
    ``deadline_us`` has failed by the plan.
    """

    client: Client
    side: Side
    topics: tuple[str, ...]
    end_us: int
    deadline_us: int
    whole: tuple[Span, ...]
    partitions: Mapping[tuple[str, int], tuple[Span, ...]] = field(default_factory=dict)

    def of(self, partition: int | None, topic: str | None = None) -> tuple[Span, ...]:
        """Return the time spans of a partition; if None or unknown, those of the client as a whole.

        Without a topic it is a partition of the client's only topic.
        """
        if partition is None:
            return self.whole
        return self.partitions.get((topic or self.topics[0], partition), self.whole)

    @property
    def in_load(self) -> tuple[Span, ...]:
        """Spans of the client as a whole up to the end of the load."""
        ending = (replace(span, end_us=min(span.end_us, self.end_us)) for span in self.whole)
        return tuple(span for span in ending if span.start_us < span.end_us)

    @property
    def length_us(self) -> int:
        return self.end_us - self.whole[0].start_us

    @property
    def share(self) -> float:
        """Share of the load after warm-up in which a stall breaks the obligation, as a mean over the partitions."""
        all_spans = [*self.partitions.values()] or [self.whole]
        return sum(judged_us(spans, self.end_us) for spans in all_spans) / (len(all_spans) * max(1, self.length_us))


def lanes(evidence: Evidence, leaders: Leaders | None = None) -> list[Lane]:
    """Return a lane per client and operation; empty if the run ended in warm-up or lacks its nodes and voters.

    ``leaders`` are by default those of the evidence.
    """
    terrain, judged = terrain_of(evidence), windows_of(evidence.phases).get(RUN)
    if terrain is None or not judged:
        return []
    from_us, end_us = judged[0][0], judged[-1][1]
    to_us = end_us + AFTER_LOAD_US
    if leaders is None:
        leaders = leaders_of(evidence)
    scene = Scene.of(terrain, settings_of(evidence), harms_of(evidence, to_us), leaders.values())
    named = {(topic, harm.tampering.partition) for harm in scene.harms if harm.tampering for topic in harm.topics}
    workloads = {workload["name"]: workload for workload in evidence.timeline["workloads"]}
    result = []
    # what a service owes depends on settings that nobody knows
    sides = [
        (owner, side, topics) for owner in evidence.clients for side, topics in owner.topics.items() if side != "pipe"
    ]
    for owner, side, topics in sides:
        workload: Mapping[str, Any] = workloads.get(owner.workload, {})
        arm: Mapping[str, Any] = (workload.get("arms") or {}).get(owner.arm) or {}
        options, own = workload.get(side) or {}, arm.get("settings") or {}
        # groups, commits and transactions also need the coordinator; the groups of commits are many
        group = options.get("group")
        grouped = side == "commit" or bool(group)
        transacts = bool(options.get("transaction")) or (side == "commit" and bool(own.get("transactional")))
        central: list[Seat] = []
        if grouped:
            names = [f"{group}-{owner.arm}"] if group else None
            central += coordinators(evidence, terrain, leaders, OFFSETS_TOPIC, names)
        if transacts:  # the id of a producer is its process's name; committers have many
            ids = owner.workers(side) if side == "produce" else None
            central += coordinators(evidence, terrain, leaders, TRANSACTIONS_TOPIC, ids)
        protocol = options.get("protocol")
        kind = "confluent" if owner.pipe else str(arm.get("client"))  # which sends the inputs of services
        waits = client_waits(kind, own, scene.settings, grouped=grouped, transacts=transacts, protocol=protocol)
        workers = owner.workers(side)
        reserve = workers[int(options.get("members", 1)) :] if side == "consume" else ()
        racks = tuple(dict.fromkeys(options.get("racks") or [str(options.get("rack"))]))
        apis = frozenset(
            (*_CONNECTING, *APIS[side], *(_GROUPS if grouped else ()), *(_TRANSACTIONS if transacts else ()))
        )
        rack = arm.get("client_rack") if side == "consume" and SELECTOR in scene.settings else None
        follows = frozenset(broker for broker in terrain.brokers if rack and terrain.racks.get(broker) == rack)
        post = Post(workers, racks, waits, frozenset(reserve), apis, follows)
        seats: dict[Seat, tuple[int, ...]] = {}
        if side != "commit":
            for topic in topics:
                numbers = {number for name, number in named if name == topic and number is not None}
                seats |= seats_of(evidence, terrain, topic, leaders, numbers)
        whole = _lasting(spans(post, [*seats, *central], scene, from_us, to_us), side, end_us)
        if transacts:
            # a transaction ends when each of its partitions has its marker, and the next one waits for that
            by_seat = dict.fromkeys(seats, whole)
        else:
            by_seat = {
                seat: _lasting(spans(post, [seat, *central], scene, from_us, to_us), side, end_us) for seat in seats
            }
        by_partition = {(seat.topic, number): by_seat[seat] for seat, numbers in seats.items() for number in numbers}
        deadline_us = 1000 * int(options.get("deadline_ms", 0)) or to_us
        result.append(Lane(owner, side, topics, end_us, deadline_us, whole, by_partition))
    return result


def _lasting(spans: tuple[Span, ...], side: Side, end_us: int) -> tuple[Span, ...]:
    """Give a consumer more patience after the end of the load."""
    if side != "consume":
        return spans
    lasting = []
    for span in spans:
        if not span.required or span.end_us <= end_us:
            lasting.append(span)
            continue
        if span.start_us < end_us:
            lasting.append(replace(span, end_us=end_us))
        patience_us = max(span.patience_us, DRAIN_PATIENCE_US)
        lasting.append(replace(span, start_us=max(span.start_us, end_us), patience_us=patience_us))
    return tuple(lasting)
