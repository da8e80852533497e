"""Made runs of KIP-848's trial: three groups of eight members, and a consumer without a group, read sixteen partitions.

Member m owns the partitions 2m - 2 and 2m - 1. If it is away, its neighbours own them, and it gets them back later. A
busy member keeps them, and delivers nothing meanwhile.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.results.model.check import Check
from aftershock.results.studies.part import Part
from aftershock.results.studies.trials.kip848_changes import ALONE, CONSUMER, COOPERATIVE, EAGER, PROTOCOLS
from aftershock.tests.unit.results.studies.trials.on_disk import part as part_on_disk

SECOND_US = 1_000_000
PARTITIONS, MEMBERS, STEADY_S, EVERY_S, LATENCY_S = 16, 8, 36.0, 0.25, 0.01
BUSY = 7
"""Member that is busy while another leaves."""
NOTICED_S, MOVED_S = 0.5, 1.5
"""When after a change the group begins to rebalance, and for how long a moved partition has no owner."""


@dataclass(frozen=True)
class Fault:
    """Fault on one member of each group: its id, times in seconds, and when its member's partitions move."""

    entry: str
    block: int
    member: int
    start_s: float
    healing_s: float
    healed_s: float


def changes(blocks: int = 7) -> list[Fault]:
    """Return the faults of plan ``848-changes``."""
    faults = []
    for block in range(1, blocks + 1):
        at_s = 40.0 + 45 * (block - 1)
        faults.append(Fault("left", block, 2, at_s, at_s + 6, at_s + 14))
        faults.append(Fault("busy", block, BUSY, at_s, at_s + 5, at_s + 5.2))
        faults.append(Fault("died", block, 5, at_s + 21, at_s + 31, at_s + 39))
    return faults


def restarts() -> list[Fault]:
    """Return the faults of plan ``848-roll``."""
    starts_s = [40.0 + 15 * number for number in range(MEMBERS)]
    rolled = [Fault(f"rolled-{n}", 0, n, at_s, at_s + 2, at_s + 9) for n, at_s in enumerate(starts_s, 1)]
    return rolled + [
        Fault(f"busy-{n}", 0, (n + 3) % MEMBERS + 1, at_s, at_s + 5, at_s + 5.2) for n, at_s in enumerate(starts_s, 1)
    ]


@dataclass(frozen=True)
class Group:
    """Behaviour of a group: for how long its kept partitions stop in each rebalance, and which of them do.

    ``gives_up`` is True if members give up kept partitions meanwhile. ``stops`` are further spans in seconds without a
    delivery, by partition; a span without an end lasts for ever. ``again`` are times of repeated deliveries.
    """

    stop_s: float = 0.0
    stopped: Sequence[int] = range(PARTITIONS)
    gives_up: bool = False
    stops: Mapping[int, Sequence[tuple[float, float]]] = field(default_factory=dict)
    again: Sequence[float] = ()


AS_THE_KIP = {
    CONSUMER: Group(),
    COOPERATIVE: Group(0.3),
    EAGER: Group(1.2, gives_up=True),
    ALONE: Group(),
}
Spans = dict[int, list[tuple[float, float]]]


def run(
    home: Path,
    groups: Mapping[str, Group],
    faults: Sequence[Fault] = (),
    checks: Sequence[Check] = (),
    leaders: Mapping[int, int] | None = None,
) -> Part:
    """Return a judged run of these groups, others behaving as KIP-848 says; ``leaders`` maps partitions to brokers."""
    faults = faults or changes()
    end_s = max(fault.healed_s for fault in faults) + 6
    events, tables = list[dict[str, Any]](), [_produced(leaders or {}, end_s)]
    for protocol, group in {**AS_THE_KIP, **groups}.items():
        lines, stops = ([], {}) if protocol == ALONE else _rebalances(protocol, group, faults)
        events += lines
        tables.append(_consumed(protocol, group, stops, end_s))
    windows, journal = list[dict[str, Any]](), list[dict[str, Any]]()
    for fault in faults:
        # a broker's death concerns all groups
        for of in ("",) if fault.entry == "coordinator" else PROTOCOLS:
            entry = f"{fault.entry}-{of}".removesuffix("-")
            name = f"{entry}-{fault.block}" if fault.block else entry
            targets = {"clients": [worker(of, fault.member)]} if of else {"brokers": [fault.member]}
            times = {"intended": fault.start_s, "healing": fault.healing_s, "healed": fault.healed_s}
            journal += [
                {"t_us": _us(at_s), "fault": name, "state": state, "targets": targets} for state, at_s in times.items()
            ]
            span = {"start_us": _us(fault.start_s), "end_us": _us(fault.healed_s)}
            windows.append({"name": "fault", "fault": name, "entry": entry, "block": fault.block, **span})
    windows.append({"name": "recovery", "fault": None, "block": 0, "start_us": _us(end_s - 6), "end_us": _us(end_s)})
    made = part_on_disk(home, slices=6, events=sorted(events, key=lambda line: line["t_us"]), checks=checks)
    (home / "outcomes").mkdir()
    pq.write_table(pa.concat_tables(tables, promote_options="default"), home / "outcomes" / "part-0.parquet")
    (home / "phases.json").write_text(json.dumps([*json.loads((home / "phases.json").read_text()), *windows]))
    (home / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in journal))
    return made


def worker(protocol: str, member: int) -> str:
    return f"{protocol}-members-consume-{member}"


def _us(seconds: float) -> int:
    return round(seconds * SECOND_US)


def _rebalances(protocol: str, group: Group, faults: Sequence[Fault]) -> tuple[list[dict[str, Any]], Spans]:
    """Return the events of a group's members, and the spans in seconds without a delivery, by partition."""
    events, stops = list[dict[str, Any]](), Spans()

    def add(at_s: float, event: str, member: int, places: Sequence[int]) -> None:
        line = {"t_us": _us(at_s), "event": event, "partitions": [["orders", place] for place in places]}
        events.append(line | {"workload": protocol, "arm": "members", "worker": worker(protocol, member)})

    own = {member: (2 * member - 2, 2 * member - 1) for member in range(1, MEMBERS + 1)}
    for member, places in own.items():
        add(1.0, "assigned", member, places)
    for fault in (fault for fault in faults if fault.entry.startswith("busy")):
        for place in own[fault.member]:
            stops.setdefault(place, []).append((fault.start_s, fault.healing_s))
    for fault in (fault for fault in faults if not fault.entry.startswith(("busy", "coordinator"))):
        moving = dict(zip(own[fault.member], (fault.member - 1 or MEMBERS, fault.member % MEMBERS + 1), strict=True))
        for at_s, returns in ((fault.start_s, False), (fault.healing_s, True)):
            begin_s, moved_s = at_s + NOTICED_S, at_s + NOTICED_S + MOVED_S
            for place, taker in moving.items():
                stops.setdefault(place, []).append((begin_s if returns else at_s, moved_s))
                if returns:
                    add(begin_s, "revoked", taker, [place])
                add(moved_s, "assigned", fault.member if returns else taker, [place])
            for other in own.keys() - {fault.member}:
                if group.gives_up:
                    add(begin_s, "revoked", other, own[other])
                    add(begin_s + group.stop_s, "assigned", other, own[other])
                for place in {*own[other]}.intersection(group.stopped if group.stop_s else ()):
                    stops.setdefault(place, []).append((begin_s, begin_s + group.stop_s))
    return events, stops


def _consumed(protocol: str, group: Group, stops: Spans, end_s: float) -> pa.Table:
    """Return the deliveries; those that fall into a stop are made at its end, or never."""
    due_s = np.arange(1.0, end_s, EVERY_S)
    tables = []
    for place in range(PARTITIONS):
        done_s = due_s + LATENCY_S
        for start_s, stop_s in (*stops.get(place, ()), *group.stops.get(place, ())):
            done_s[(done_s >= start_s) & (done_s < stop_s)] = stop_s + LATENCY_S
        offset = np.arange(len(due_s))
        if place == 0 and group.again:
            repeated = np.searchsorted(due_s, group.again) - 1
            offset, done_s = np.append(offset, repeated), np.append(done_s, group.again)
        delivered = np.isfinite(done_s)
        columns = {"partition": np.full(len(offset), place, np.int32), "offset": offset}
        times = {"intended_us": due_s[offset] * SECOND_US, "done_us": np.where(delivered, done_s, 0) * SECOND_US}
        columns |= {name: np.rint(values).astype(np.int64) for name, values in times.items()}
        rows = pa.table({name: values[delivered] for name, values in columns.items()})
        tables.append(rows)
    return _of(pa.concat_tables(tables), "consume", protocol, "members")


def _produced(leaders: Mapping[int, int], end_s: float) -> pa.Table:
    """Return a record to each partition in each second, acknowledged by the partition's leader."""
    seconds = np.arange(1, round(end_s))
    places, at_s = (values.ravel() for values in np.meshgrid(np.arange(PARTITIONS), seconds))
    brokers = np.array([leaders.get(place, 1) for place in places], np.int32)
    columns = {"partition": places.astype(np.int32), "broker_id": brokers, "done_us": at_s * SECOND_US}
    return _of(pa.table(columns), "produce", "writes", "writer")


def _of(rows: pa.Table, op: str, workload: str, arm: str) -> pa.Table:
    for name, value in (("op", op), ("workload", workload), ("arm", arm)):
        rows = rows.append_column(name, pa.array([value] * len(rows)))
    return rows
