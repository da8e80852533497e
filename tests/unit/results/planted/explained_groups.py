"""Anomalies of groups beside a cause that explains them, and beside one of another place, time or kind.

Two owners at once are planted from 40 s on: the patient's member 3 gets partition 0, of which member 1 goes on to
deliver until it learns of it. The group's coordinator is broker 2, except in runs that say otherwise.
"""

import json
from functools import cache, partial
from typing import Any

import pandas as pd

from aftershock.names import key_partition
from aftershock.tests.unit.results.evidence_factory import PARTITIONS, S
from aftershock.tests.unit.results.planted import catalogue
from aftershock.tests.unit.results.planted.world import Row, Run, typed
from aftershock.tests.unit.results.planted.worlds import consumer, group_event, members_run

GROUP = "readers-patient"
OFFSETS_PARTITIONS = 5
COORDINATED = key_partition(GROUP, OFFSETS_PARTITIONS)
FIRST, THIRD = consumer("patient", 1), consumer("patient", 3)
OVERLAP_US = 40 * S
READ_US = 55 * S
"""When the harness reads the coordinators' logs, after all deliveries and commits."""


@cache
def groups_run() -> Run:
    """Return the run with groups of three members, short sessions, a history of leaders and the coordinators' logs.

    Each member of the patient's group commits what it has read of its partitions every ten seconds.
    """
    run = members_run().copy("groups")
    run.slos()
    settings = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
    config = {f"group.consumer.{name}": value for name, value in settings.items()}
    config["offsets.topic.num.partitions"] = str(OFFSETS_PARTITIONS)
    run.documents["timeline"]["cluster"]["config"] = config
    _led(run, {"leader": 2, "epoch": 0})
    rows = run.frames["consume"]
    patient = rows[rows["arm"] == "patient"]
    entries: list[Row] = []
    for at_us in range(10 * S, 60 * S, 10 * S):
        read = patient[patient["done_us"] < at_us].groupby("partition")["offset"].max()
        last = patient[patient["done_us"] < at_us].sort_values("done_us").groupby("partition")["worker"].last()
        for number in range(PARTITIONS):
            _commit(run, at_us, int(str(last[number])[-1]), number, int(read[number]) + 1)
            entries.append(_entry(len(entries), number, int(read[number]) + 1))
    run.frames["offsets"] = typed("offsets", pd.DataFrame(entries))
    run.documents["events"].append({"event": "offsets_read", "t_us": READ_US, "arm": None})
    return run


defect = partial(catalogue.defect, base=groups_run)


def _commit(run: Run, sent_us: int, member: int, partition: int, offset: int) -> None:
    line = group_event(sent_us + 2_000, "committed", "patient", member) | {"took_us": 2_000}
    run.documents["events"].append(line | {"offsets": [["orders", partition, offset]]})


def _entry(at: int, partition: int, committed: int | None) -> Row:
    place = {"broker_id": 2, "partition": COORDINATED, "offset": 100 + at, "batch": 100 + at, "leader_epoch": 0}
    group = {"transactional": False, "group": GROUP, "topic": "orders", "topic_partition": partition}
    return place | group | {"committed": committed}


def _led(run: Run, *leaderships: Row, partition: int = COORDINATED) -> None:
    """Write the history of the leaders of a partition of the offsets topic."""
    usual = {"topic": "__consumer_offsets", "topic_id": "o1", "partition": partition, "isr": [1, 2, 3]}
    usual |= {"unclean": False, "start_offset": 0, "after_us": 0, "by_us": 0, "sources": ["poll"]}
    lines = [json.dumps(usual | leadership) + "\n" for leadership in leaderships]
    run.files["leaders.jsonl"] = "".join(lines).encode()


def _fault(run: Run, kind: str, from_s: float, until_s: float, undo: str = "nothing", **details: Any) -> None:
    """Add a fault ``own-1`` to the plan and the journal; ``details`` are its targets, ``parameters`` and ``takes``."""
    targets = {"brokers": [], "links": [], "topics": [], "clients": [], "roles": {}}
    step = {"id": "own-1", "kind": kind, "at_ms": 0, "for_ms": 1000, "draws": {}, "met_by": "requests", "severs": True}
    step |= {"parameters": details.pop("parameters", {}), "takes": details.pop("takes", "unknown"), "told": False}
    run.documents["timeline"]["steps"].append(step)
    line = {"fault": "own-1", "kind": kind, "targets": targets | details, "undo": {"verb": undo, "args": {}}}
    witness = {"what": "it", "asked": 1, "observed": 1, "unit": "requests", "n": 1, "ok": True}
    states = (
        ("intended", from_s),
        ("injected", from_s),
        ("witnessed", from_s),
        ("healing", until_s),
        ("healed", until_s),
    )
    lines = [line | {"t_us": int(at_s * S), "state": state} for state, at_s in states]
    lines[2]["witness"] = witness
    run.documents["journal"] += lines


def _overlapping(run: Run, until_us: int = 45 * S, at_us: int = OVERLAP_US) -> None:
    """Let member 3 own partition 0 from a time on, and let member 1 deliver from it until it learns of it."""
    rows = run.frames["consume"]
    of_partition = (rows["arm"] == "patient") & (rows["partition"] == 0)
    late = of_partition & (rows["done_us"] >= at_us)
    again = rows[late & (rows["done_us"] <= until_us)].to_dict("records")
    run.set("consume", rows.index[late], worker=THIRD)
    run.add("consume", *again)
    events = run.documents["events"]
    run.documents["events"] = [
        line | {"worker": THIRD} if line["event"] == "committed" and _of_partition_0(line, at_us) else line
        for line in events
    ]
    run.documents["events"] += [
        group_event(at_us, "assigned", "patient", 3, 0),
        group_event(until_us + 1, "lost", "patient", 1, 0),
    ]


def _of_partition_0(line: Row, from_us: int) -> bool:
    return bool(line["t_us"] >= from_us and line["offsets"][0][1] == 0)


CO_OWNED = ("integrity/co_owned",)


@defect("two owners for 5 s, 16 s after 50 ms of latency and 6 s after another broker was killed", fails=CO_OWNED)
def two_owners_without_a_cause(run: Run) -> None:
    _overlapping(run)


@defect(
    "the same, and the coordinator's node was frozen before: explained",
    says="own-1 (pause), which kept members of readers-patient from their coordinator",
)
def two_owners_beside_a_frozen_coordinator(run: Run) -> None:
    _overlapping(run)
    _fault(run, "pause", 37, 39, brokers=[2], takes="nodes")


@defect("the same, and another node was frozen", fails=CO_OWNED)
def two_owners_beside_a_frozen_broker(run: Run) -> None:
    _overlapping(run)
    _fault(run, "pause", 37, 39, brokers=[3], takes="nodes")


@defect("the same, and a node was frozen that had coordinated the group before", fails=CO_OWNED)
def two_owners_beside_a_former_coordinator(run: Run) -> None:
    _overlapping(run)
    _led(run, {"leader": 3, "epoch": 0}, {"leader": 2, "epoch": 1, "after_us": 20 * S, "by_us": 21 * S})
    _fault(run, "pause", 37, 39, brokers=[3], takes="nodes")


@defect(
    "the same, in evidence that does not tell who coordinated the group: the judge can't tell",
    unsure=CO_OWNED,
    says="leaders.jsonl is missing",
)
def two_owners_without_history(run: Run) -> None:
    _overlapping(run)
    del run.files["leaders.jsonl"]
    _fault(run, "pause", 37, 39, brokers=[3], takes="nodes")


@defect("two owners for longer than a session and a heartbeat after the coordinator's return", fails=CO_OWNED)
def two_owners_for_long(run: Run) -> None:
    _overlapping(run, 47 * S)
    _fault(run, "pause", 37, 39, brokers=[2], takes="nodes")


@defect(
    "two owners, of whom the first is a zombie: explained",
    says="orders-patient-consume-1 was frozen from 30.0 to 41.0 s",
)
def two_owners_of_whom_one_is_frozen(run: Run) -> None:
    _overlapping(run)
    _fault(run, "zombie", 30, 41, "resume_clients", clients=[FIRST], takes="members")


@defect(
    "the same, and the first owner had lost the partition, joined again, and been assigned it again", fails=CO_OWNED
)
def two_owners_after_the_first_joined_again(run: Run) -> None:
    _overlapping(run)
    _fault(run, "zombie", 30, 39, "resume_clients", clients=[FIRST], takes="members")
    run.documents["events"] += [
        group_event(39_200_000, "lost", "patient", 1, 0),
        group_event(39_200_001, "assigned", "patient", 1, 0),
    ]


@defect("the same, and the second owner was frozen", fails=CO_OWNED)
def two_owners_of_whom_the_second_was_frozen(run: Run) -> None:
    _overlapping(run)
    _fault(run, "zombie", 30, 41, "resume_clients", clients=[THIRD], takes="members")


@defect("the same, and the first owner is frozen after the overlap has begun", fails=CO_OWNED)
def two_owners_before_a_freeze(run: Run) -> None:
    _overlapping(run)
    _fault(run, "pause_client", 41, 42, "resume_clients", clients=[FIRST], takes="members")


@defect("the same, and the first owner does not poll: explained", says="orders-patient-consume-1 did not poll")
def two_owners_of_whom_one_does_not_poll(run: Run) -> None:
    _overlapping(run)
    _fault(run, "evict", 35, 44, "resume_polling", clients=[FIRST], takes="members")


def _links(rack: str) -> list[str]:
    return [f"client_{rack}-k{broker}" for broker in (1, 2, 3)]


@defect(
    "the same while the group's links to the coordinator are cut: explained", says="own-1 (cut), which kept members"
)
def two_owners_of_whom_one_is_cut_off(run: Run) -> None:
    _overlapping(run)
    _fault(run, "cut", 38, 44, links=_links("b"), takes="links")


@defect("the same while the links of another rack are cut", fails=CO_OWNED)
def two_owners_beside_a_cut(run: Run) -> None:
    _overlapping(run)
    _fault(run, "cut", 38, 44, links=_links("a"), takes="links")


@defect("the same while the links to the coordinator have 50 ms of latency", fails=CO_OWNED)
def two_owners_in_a_delay(run: Run) -> None:
    _overlapping(run)
    _fault(run, "latency", 38, 44, links=_links("b"), takes="moments", parameters={"delay": "50ms"})


@defect(
    "the same while they have a latency as long as the session: explained", says="own-1 (latency), which kept members"
)
def two_owners_in_a_long_delay(run: Run) -> None:
    _overlapping(run)
    _fault(run, "latency", 38, 44, links=_links("b"), parameters={"delay": "4s"})


def _ruled(run: Run, kind: str, api: str, **rule: Any) -> None:
    rule = {"name": "own-1", "do": kind, "api": api} | rule
    _fault(run, kind, 38, 44, "remove_rules", roles={"rule": rule}, parameters={"api": api})


@defect("the same while heartbeats get no answer: explained", says="own-1 (drop_response), which kept members")
def two_owners_without_heartbeats(run: Run) -> None:
    _overlapping(run)
    _ruled(run, "drop_response", "ConsumerGroupHeartbeat")


@defect("the same while fetches get no answer", fails=CO_OWNED)
def two_owners_without_fetches(run: Run) -> None:
    _overlapping(run)
    _ruled(run, "drop_response", "Fetch")


@defect("the same while the heartbeats of another member get no answer", fails=CO_OWNED)
def two_owners_beside_lost_heartbeats(run: Run) -> None:
    _overlapping(run)
    _ruled(run, "drop_response", "ConsumerGroupHeartbeat", clients=[THIRD])


@defect("the same while heartbeats are half a second late", fails=CO_OWNED)
def two_owners_with_late_heartbeats(run: Run) -> None:
    _overlapping(run)
    _ruled(run, "delay_response", "ConsumerGroupHeartbeat", delay_ms=500)


def _churned(run: Run) -> None:
    """Let a member die by churn, another take over its partitions, and the member return."""
    rows = run.frames["consume"]
    moved = (rows["arm"] == "patient") & (rows["partition"] == 0) & (rows["done_us"] >= OVERLAP_US)
    run.set("consume", rows.index[moved], worker=THIRD)
    workers = [consumer("patient", number) for number in (1, 2, 3)]
    _fault(run, "churn", 38, 46, "start_clients", clients=workers, takes="unknown")
    for line in run.documents["events"]:
        if line["event"] == "committed" and _of_partition_0(line, OVERLAP_US):
            line["worker"] = THIRD
    restarted = group_event(44 * S, "restarted", "patient", 1) | {"life": 1}
    run.documents["events"] += [
        group_event(OVERLAP_US, "assigned", "patient", 3, 0),
        restarted,
        group_event(44 * S, "assigned", "patient", 1, 1, 3),
    ]


@defect("a member that churn killed at a time that nobody tells, and its partition's next owner: no alarm")
def taken_over_from_a_dead_member(run: Run) -> None:
    _churned(run)


@defect("the same, and the member still delivers after the other one has begun", fails=CO_OWNED)
def delivered_by_a_dead_member(run: Run) -> None:
    rows = run.frames["consume"]
    mine = (rows["arm"] == "patient") & (rows["partition"] == 0) & rows["done_us"].between(OVERLAP_US, 42 * S)
    again = rows[mine].to_dict("records")
    _churned(run)
    run.add("consume", *again)


@defect("a member that delivers more than a second after it was killed", fails=("integrity/stale_assignment",))
def delivered_after_a_kill(run: Run) -> None:
    _fault(run, "kill_client", 38, 50, "start_clients", clients=[FIRST], takes="members")


LOST = ("integrity/lost",)


def _ends_low(run: Run, below: int = 200, partition: int = 0) -> None:
    """Let the coordinator's log end below the last commit of a partition."""
    last = run.frames["offsets"]["committed"].iloc[-PARTITIONS + partition]
    run.add("offsets", _entry(1_000, partition, int(last) - below))


@defect(
    "a coordinator's log that ends 200 below the last acknowledged commit of readers",
    fails=("integrity/backward", *LOST),
)
def resumes_far_below(run: Run) -> None:
    _ends_low(run)


@defect("a coordinator's log without the last commit of readers", fails=LOST)
def last_commit_lost(run: Run) -> None:
    run.drop("offsets", run.frames["offsets"].index[-1])


@defect("a coordinator's log that ends with a lower commit, which the group really sent: no alarm")
def rewound(run: Run) -> None:
    _ends_low(run, 30)
    offset = int(run.frames["offsets"]["committed"].iloc[-1])
    at_us = 52 * S
    run.documents["events"] += [
        group_event(at_us, "revoked", "patient", 1, 0),
        group_event(at_us + 1, "assigned", "patient", 3, 0),
    ]
    _commit(run, at_us + S, 3, 0, offset)


@defect("a commit of readers after the coordinators' logs were read: no alarm")
def committed_after_the_reading(run: Run) -> None:
    run.drop("offsets", run.frames["offsets"].index[-1])
    for line in run.documents["events"]:
        if line["event"] == "offsets_read":
            line["t_us"] = 50 * S


@defect("the same as the first, in evidence of readers whose coordinators were not asked: not judged")
def not_read(run: Run) -> None:
    _ends_low(run)
    run.documents["events"] = [line for line in run.documents["events"] if line["event"] != "offsets_read"]


@defect(
    "readers whose coordinators' logs could not be read", unsure=("integrity/backward", "integrity/coverage", *LOST)
)
def reading_failed(run: Run) -> None:
    run.frames["offsets"] = run.frames["offsets"][:0]


def _unclean(run: Run, partition: int, elected_s: float = 51) -> None:
    at_us = int(elected_s * S)
    epoch = {"leader": 3, "epoch": 1, "unclean": True, "start_offset": 120, "after_us": at_us, "by_us": at_us}
    _led(run, {"leader": 2, "epoch": 0}, epoch, partition=partition)


@defect(
    "the last commit of readers lost by an unclean election of their coordinator: explained",
    says="the unclean election of __consumer_offsets",
)
def last_commit_lost_by_an_election(run: Run) -> None:
    last_commit_lost(run)
    _unclean(run, COORDINATED)


@defect("the same by an election of another partition of the offsets topic", fails=LOST)
def last_commit_lost_beside_an_election(run: Run) -> None:
    last_commit_lost(run)
    _unclean(run, (COORDINATED + 1) % OFFSETS_PARTITIONS)


@defect("the same by an election before the commit", fails=LOST)
def last_commit_lost_after_an_election(run: Run) -> None:
    last_commit_lost(run)
    _unclean(run, COORDINATED, 5)


def _deleting(run: Run, *numbers: int, group: str = GROUP, from_s: float = 52, until_s: float = 53) -> None:
    """Add a fault that deletes the offsets of a group for some partitions."""
    offsets = {str(number): int(run.frames["offsets"]["committed"].iloc[-PARTITIONS + number]) for number in numbers}
    roles = {"group": group, "offsets": offsets, "permits": ["commit_behind", "skipped"]}
    _fault(run, "delete_group_offsets", from_s, until_s, topics=["orders"], roles=roles)


def _forgotten(run: Run, number: int) -> None:
    run.add("offsets", _entry(1_000, number, None))


@defect("committed offsets that a fault deleted: explained", says="own-1 (delete_group_offsets), which deleted offset")
def offsets_deleted(run: Run) -> None:
    _forgotten(run, 0)
    _deleting(run, 0)


@defect("the same of another partition", fails=LOST)
def offsets_deleted_beside(run: Run) -> None:
    _forgotten(run, 0)
    _deleting(run, 1)


@defect("the same of another group", fails=LOST)
def offsets_deleted_of_another_group(run: Run) -> None:
    _forgotten(run, 0)
    _deleting(run, 0, group="readers-baseline")


def _read_again(run: Run, member: int, from_offset: int, at_us: int = 53 * S, count: int = 20) -> None:
    """Let a member deliver records of the patient's partition 0 again."""
    rows = run.frames["consume"]
    known = rows[(rows["arm"] == "patient") & (rows["partition"] == 0)].drop_duplicates("offset").sort_values("offset")
    again = known[known["offset"] >= from_offset].head(count).to_dict("records")
    top = max(row["high_watermark"] for row in known.to_dict("records"))
    worker = consumer("patient", member)
    run.add(
        "consume",
        *[row | {"worker": worker, "done_us": at_us + n, "high_watermark": top} for n, row in enumerate(again)],
    )


def _handed_over(run: Run, at_us: int = 52 * S) -> None:
    """Let partition 0 go from member 1 to member 3 after all its deliveries."""
    run.documents["events"] += [
        group_event(at_us, "revoked", "patient", 1, 0),
        group_event(at_us + 1, "assigned", "patient", 3, 0),
    ]


def _last_commit(run: Run) -> int:
    return int(run.frames["offsets"]["committed"].iloc[-PARTITIONS])


@defect(
    "records delivered again at the end by a member without an assignment of their partition",
    fails=("integrity/stale_assignment", "integrity/duplicate"),
)
def delivered_again_by_a_stranger(run: Run) -> None:
    _read_again(run, 3, _last_commit(run) - 30)


@defect(
    "records delivered again by a new owner from the last commit on: no alarm",
    says="2 records were delivered more than once",
)
def delivered_again_from_the_commit(run: Run) -> None:
    _handed_over(run)
    for line in run.documents["events"]:
        if line["event"] == "committed" and line["t_us"] > 49 * S and line["offsets"][0][1] == 0:
            line["offsets"][0][2] -= 2
    rows = run.frames["offsets"]
    last = _last_commit(run)
    run.set("offsets", rows.index[-PARTITIONS], committed=last - 2)
    _read_again(run, 3, last - 2, count=2)


@defect(
    "records delivered again by a new owner from before the last commit",
    fails=("integrity/commit_behind", "integrity/duplicate"),
)
def delivered_again_from_before_the_commit(run: Run) -> None:
    _handed_over(run)
    _read_again(run, 3, _last_commit(run) - 30)


@defect("the same after a fault deleted the commit: explained", says="20 of 3020 records: all explained by own-1")
def delivered_again_after_a_deletion(run: Run) -> None:
    offsets_deleted(run)
    run.documents["events"] = [
        line | {"t_us": READ_US} if line["event"] == "offsets_read" else line for line in run.documents["events"]
    ]
    run.documents["events"] += [
        group_event(51 * S, "revoked", "patient", 1, 0),
        group_event(52_500_000, "assigned", "patient", 3, 0),
    ]
    _read_again(run, 3, _last_commit(run) - 30)


@defect(
    "the same, and the fault deleted it after the new owner had begun",
    fails=("integrity/commit_behind", "integrity/duplicate"),
)
def delivered_again_before_a_deletion(run: Run) -> None:
    _forgotten(run, 0)
    _deleting(run, 0, from_s=53, until_s=54)
    _handed_over(run)
    _read_again(run, 3, _last_commit(run) - 30)


@defect(
    "the same after an unclean election of the coordinator between them: explained",
    says="all explained by the unclean election of __consumer_offsets",
)
def delivered_again_after_an_election(run: Run) -> None:
    delivered_again_from_before_the_commit(run)
    _unclean(run, COORDINATED)


def _reset(run: Run, position: int, at_us: int = 52 * S) -> None:
    line = group_event(at_us, "position_reset", "patient", 1) | {"topic": "orders", "partition": 0, "offset": position}
    run.documents["events"].append(line)


@defect("records delivered again after a reset of a position that the log has", fails=("integrity/duplicate",))
def delivered_again_after_a_reset(run: Run) -> None:
    _reset(run, 100)
    _read_again(run, 1, 0)


@defect(
    "the same of a position beyond the log: explained",
    says="a reset of the position 1000000 in orders/0, which was out of range",
)
def delivered_again_out_of_range(run: Run) -> None:
    _reset(run, 1_000_000)
    _read_again(run, 1, 0)


@defect("the same of a client that must not reset its position", fails=("integrity/duplicate",))
def delivered_again_without_a_policy(run: Run) -> None:
    delivered_again_out_of_range(run)
    run.arms["arms"]["patient"]["settings"] = {"auto.offset.reset": "none"}


@defect(
    "records delivered again by a client that reports no assignments: the judge can't tell",
    unsure=("integrity/duplicate", "integrity/co_owned"),
    says="perhaps explained by an assignment of which the client does not tell",
)
def delivered_again_and_not_told(run: Run) -> None:
    run.documents["events"] = [
        line for line in run.documents["events"] if not (line["event"] == "assigned" and line["arm"] == "patient")
    ]
    _read_again(run, 3, _last_commit(run) - 30)
