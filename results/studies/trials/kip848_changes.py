"""Silence and owners of each partition around the changes of a consumer group's members, for KIP-848's claims.

In the plans of this trial a workload is named after its group's protocol. All groups read the same records, and so does
the consumer ``alone``, which has no group and therefore no rebalance.

A **change** is the time in which a member leaves (until it is started again), joins (from then until the next change),
dies (until it is started again), or is restarted (until the next member is), or in which the groups' coordinator is
dead. A fault that was not witnessed or met no traffic is no change.

The **owner** of a partition is the member that was assigned it last. A partition is **kept** in a change if its owner
is the same before and after and nobody else was its owner meanwhile, also if the owner gave it up meanwhile, as in the
eager protocol. All others, and those of the member that left or died, have **moved**. Partitions of a member that is
**busy** (a fault stops its process) are left out, because it delivers nothing under any protocol. While the coordinator
is dead, partitions that the same broker led are left out, because every client has to wait for their new leaders.

The **silence** of a partition is the longest time in which a record was due and the group delivered none, so it does
not depend on how far apart the records are. A record is due from its intended time on, or from the delivery of the
record before it if that is later (as in ``results/measure/rebalances.py``).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aftershock.results.evidence.files import read_lines
from aftershock.results.studies.part import Floats, Part, Slice

CONSUMER, COOPERATIVE, EAGER, ALONE = "consumer", "cooperative", "eager", "alone"
PROTOCOLS = (CONSUMER, COOPERATIVE, EAGER)
LEAVES, DIES, JOINS, RESTARTS, COORDINATOR = "leaves", "dies", "joins", "restarts", "coordinator"
WRITER = "writes/writer"

Place = int
"""Number of a partition; the plans have one topic."""


@dataclass(frozen=True)
class Delivered:
    """Records that a group delivered, by partition: offset, intended time, and time of the first delivery.

    ``again_us`` has the times of all further deliveries.
    """

    offset: Mapping[Place, NDArray[np.int64]]
    intended_us: Mapping[Place, NDArray[np.int64]]
    done_us: Mapping[Place, NDArray[np.int64]]
    again_us: NDArray[np.int64]


def delivered(part: Part, protocol: str) -> Delivered:
    columns = ("partition", "offset", "intended_us", "done_us")
    rows = part.outcomes("consume", columns, f"{protocol}/members").drop_null()
    ordered = rows.sort_by([(name, "ascending") for name in ("partition", "offset", "done_us")])
    partition, offset, intended_us, done_us = (ordered[name].to_numpy().astype(np.int64) for name in columns)
    is_first = np.ones(len(offset), bool)
    is_first[1:] = (np.diff(partition) != 0) | (np.diff(offset) != 0)
    masks = {int(number): is_first & (partition == number) for number in np.unique(partition)}
    offsets, intended, done = (
        {place: values[mask] for place, mask in masks.items()} for values in (offset, intended_us, done_us)
    )
    return Delivered(offsets, intended, done, np.sort(done_us[~is_first]))


@dataclass(frozen=True)
class Waits:
    """Start and end of the time in which each record of a partition was due; the end is infinite if nothing followed.

    ``again_us`` has the times of repeated deliveries.
    """

    spans_us: Mapping[Place, tuple[Floats, Floats]]
    again_us: NDArray[np.int64]

    def silences_s(self, span: Slice) -> dict[Place, float]:
        """Return the silence of each partition within a span of time, in seconds."""
        silences = {}
        for place, (from_us, to_us) in self.spans_us.items():
            waited = np.minimum(to_us, span.end_us) - np.maximum(from_us, span.start_us)
            silences[place] = max(0.0, float(waited.max(initial=0.0))) / 1e6
        return silences

    def again(self, span: Slice) -> int:
        return int(((self.again_us >= span.start_us) & (self.again_us < span.end_us)).sum())


def waits(ours: Delivered, every: Delivered) -> Waits:
    """Return the waits of a group for all records that the consumer without a group received, ``every``."""
    spans = {}
    for place, offsets in every.offset.items():
        done_us = np.full(len(offsets), np.inf)
        own = ours.offset.get(place, np.empty(0, np.int64))
        _, at, own_at = np.intersect1d(offsets, own, assume_unique=True, return_indices=True)
        if len(at):
            done_us[at] = ours.done_us[place][own_at]
        # what ends a wait is the delivery of the record, or of a later one
        ends_us = np.minimum.accumulate(done_us[::-1])[::-1]
        reached_us = np.maximum.accumulate(np.where(np.isfinite(done_us), done_us, -np.inf))
        before_us = np.concatenate([[-np.inf], reached_us[:-1]])
        spans[place] = np.maximum(every.intended_us[place], before_us), ends_us
    return Waits(spans, ours.again_us)


@dataclass(frozen=True)
class Event:
    """Partitions that a member got (``assigned``), gave up (``revoked``), or had lost without knowing (``lost``)."""

    t_us: int
    event: str
    worker: str
    places: frozenset[Place]


def ownership(part: Part, protocol: str) -> list[Event]:
    """Return the events of a group's members about their partitions, in order of time."""
    lines = [line for event in ("assigned", "revoked", "lost") for line in part.events(event)]
    events = [
        Event(line["t_us"], line["event"], line["worker"], frozenset(number for _, number in line["partitions"]))
        for line in lines
        if line["workload"] == protocol
    ]
    return sorted(events, key=lambda event: event.t_us)


@dataclass(frozen=True)
class Change:
    """Change of a group; ``clients`` are the members that left or died, ``brokers`` the nodes that did.

    ``busy`` are members that a fault stopped meanwhile, and let go on.
    """

    kind: str
    block: int
    span: Slice
    clients: frozenset[str]
    brokers: frozenset[int]
    busy: frozenset[str] = frozenset()


def changes(part: Part, protocol: str) -> Iterator[Change]:
    """Yield the changes of a group by ids of faults such as ``left-eager``; ``coordinator`` concerns all groups."""
    healing: dict[str, int] = {}
    targets: dict[str, tuple[frozenset[str], frozenset[int]]] = {}
    for line in read_lines(part.home / "journal.jsonl"):
        if line["state"] == "healing":
            healing.setdefault(line["fault"], line["t_us"])
        if named := line.get("targets"):
            targets[line["fault"]] = frozenset(named.get("clients", ())), frozenset(named.get("brokers", ()))
    windows = [row for row in part.windows() if row["name"] == "fault"]
    pauses = [row for row in windows if row["entry"].startswith("busy-") and row["fault"] in targets]

    def busy(span: Slice) -> frozenset[str]:
        meanwhile = [row for row in pauses if row["start_us"] < span.end_us and row["end_us"] > span.start_us]
        return frozenset(client for row in meanwhile for client in targets[row["fault"]][0])

    last_us = max((row["end_us"] for row in part.windows()), default=0)
    entries = {row["entry"] for row in windows}
    for row in (row for entry in sorted(entries) for row in part.proven(entry)):
        name, _, of = row["entry"].rpartition("-")
        if row["fault"] not in healing or (of != protocol and row["entry"] != COORDINATOR):
            continue
        start_us, healing_us = row["start_us"], healing[row["fault"]]
        later_us = [other["start_us"] for other in windows if other["entry"].endswith(f"-{of}")]
        next_us = min((at_us for at_us in later_us if at_us > healing_us), default=last_us)
        away, block = targets.get(row["fault"], (frozenset(), frozenset())), row["block"]
        until_healing, until_next = Slice(start_us, healing_us), Slice(start_us, next_us)
        if name == "left":
            yield Change(LEAVES, block, until_healing, *away, busy(until_healing))
            yield Change(JOINS, block, Slice(healing_us, next_us), *away)
        elif name == "died":
            yield Change(DIES, block, until_healing, *away)
        elif name.startswith("rolled-"):
            yield Change(RESTARTS, int(name.removeprefix("rolled-")), until_next, *away, busy(until_next))
        elif row["entry"] == COORDINATOR:
            yield Change(COORDINATOR, block, until_healing, *away)


@dataclass(frozen=True)
class Observed:
    """Silences of a group's partitions in a change, in seconds; ``alone`` are those of kept partitions without a group.

    ``given_up`` are kept partitions that their owner gave up meanwhile. ``owned_s`` is the time from the start of the
    change until the last partition was assigned, None without a new assignment. ``again`` counts repeated deliveries.
    """

    change: Change
    kept: Mapping[Place, float]
    alone: Mapping[Place, float]
    moved: Mapping[Place, float]
    given_up: frozenset[Place]
    owned_s: float | None
    again: int


def observe(part: Part, protocol: str) -> list[Observed]:
    """Return what was observed of a group in each of its changes, in order of time."""
    events, every = ownership(part, protocol), delivered(part, ALONE)
    ours, alone = waits(delivered(part, protocol), every), waits(every, every)
    found = []
    for change in sorted(changes(part, protocol), key=lambda change: change.span):
        span = change.span
        before, after = (owners(events, at_us) for at_us in span)
        during = [event for event in events if span.start_us <= event.t_us < span.end_us]
        taken = {place for place, owner in before.items() for event in during if took(event, place, owner)}
        silences_s, alone_s = ours.silences_s(span), alone.silences_s(span)
        left_out = led_by(part, change.brokers, span.start_us) if change.kind == COORDINATOR else set[Place]()
        left_out |= {place for place, owner in before.items() if owner in change.busy}
        places = before.keys() & silences_s.keys() - left_out
        kept = {p for p in places if before[p] == after[p] and before[p] not in change.clients} - taken
        given_up = {place for event in during if event.event != "assigned" for place in event.places if place in kept}
        assigned_us = [event.t_us for event in during if event.event == "assigned" and event.places]
        found.append(
            Observed(
                change,
                {place: silences_s[place] for place in sorted(kept)},
                {place: alone_s[place] for place in sorted(kept)},
                {place: silences_s[place] for place in sorted(places - kept)},
                frozenset(given_up),
                (max(assigned_us) - span.start_us) / 1e6 if assigned_us else None,
                ours.again(span),
            )
        )
    return found


def owners(events: Collection[Event], at_us: int) -> dict[Place, str]:
    """Map each partition to the member that was assigned it last, up to a time."""
    assigned = [event for event in events if event.event == "assigned" and event.t_us < at_us]
    return {place: event.worker for event in assigned for place in event.places}


def took(event: Event, place: Place, owner: str) -> bool:
    """Return True if by this event another member than the owner got the partition."""
    return event.event == "assigned" and place in event.places and event.worker != owner


def led_by(part: Part, brokers: Collection[int], at_us: int) -> set[Place]:
    """Return the partitions whose last record before a time was acknowledged by one of the brokers."""
    rows = part.outcomes("produce", ("partition", "broker_id", "done_us"), WRITER).drop_null()
    rows = rows.filter(pc.less(rows["done_us"], at_us)).sort_by("done_us")
    leaders = dict(zip(rows["partition"].to_pylist(), rows["broker_id"].to_pylist(), strict=True))
    return {place for place, leader in leaders.items() if leader in brokers}
