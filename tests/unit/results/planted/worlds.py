"""Longer runs than the default, for defects that need many records."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from aftershock.tests.unit.results.evidence_factory import PARTITIONS, S
from aftershock.tests.unit.results.planted.world import MARGIN, Run, good_run, typed

BLOCK_AT = 65_000
"""The first seq of a run that goes over an edge of the gate's blocks, which are a power of two long: 65,536."""
GROUPS = 3


@cache
def edge_run() -> Run:
    """Return 1,200 records of one producer with one reader."""
    return many(good_run().copy("edge"), 1_200, first=BLOCK_AT)


@cache
def racks_run() -> Run:
    """Return 36,000 records: 12,000 per broker rack, enough for a p99.9 each, without readers."""
    run = many(good_run().copy("racks"), 36_000)
    run.documents["timeline"]["workloads"][0]["consume"] = None
    run.frames["consume"] = run.frames["consume"][:0]
    run.slos("produce.latency p99.9 < 400ms", "produce.latency p99.9 < 400ms for each rack")
    return run


@cache
def commits_run() -> Run:
    """Return 1,000 commits of three groups without consumers, each with its entry in the coordinator's log."""
    run = many(good_run().copy("commits"), 1_000)
    workload = run.documents["timeline"]["workloads"][0]
    workload |= {"produce": None, "consume": None, "commit": {"topic": "orders", "groups": GROUPS, "rate": "20/s"}}
    rows = run.frames["produce"]
    number = rows["seq"] % GROUPS
    place = {"group": "readers-" + number.astype(str), "partition": number, "offset": rows["seq"] // GROUPS}
    run.frames["produce"] = rows.assign(op="commit", leader_epoch=None, bytes=None, **place)
    entries = {"broker_id": 1 + number, "partition": number, "offset": 40 + place["offset"], "transactional": False}
    entries |= {"group": place["group"], "topic": "orders", "topic_partition": number, "committed": place["offset"]}
    run.frames["offsets"] = typed("offsets", pd.DataFrame(entries))
    for name in ("consume", "log"):
        run.frames[name] = run.frames[name][:0]
    _without(run, "reassign-1")  # no record of the topic meets this fault
    return run


MEMBERS = 3
LEFT_US, TAKEN_US = 12 * S, 12_200_000
"""When the patient's second member gives its partitions up, and when the other members get them."""


def consumer(arm: str, number: int) -> str:
    return f"orders-{arm}-consume-{number}"


def group_event(at_us: int, name: str, arm: str, number: int, *partitions: int) -> dict[str, Any]:
    """Return an event of a group's member about partitions."""
    line = {"event": name, "workload": "orders", "arm": arm, "op": "consume", "worker": consumer(arm, number)}
    return line | {"t_us": at_us, "partitions": [["orders", partition] for partition in partitions]}


@cache
def members_run() -> Run:
    """Return a run with groups of three members; the patient's second member leaves, and the others take over."""
    run = good_run().copy("members")
    run.documents["timeline"]["workloads"][0]["consume"] |= {"group": "readers", "members": MEMBERS}
    rows = run.frames["consume"]
    owner = rows["partition"].astype(int) % MEMBERS + 1
    moved = (rows["arm"] == "patient") & (owner == 2) & (rows["done_us"] > LEFT_US)
    owner = owner.where(~moved, 1 + 2 * (rows["partition"].astype(int) // MEMBERS))
    # what is due in between waits for the new owner
    waits = moved & (rows["done_us"] < TAKEN_US)
    done_us = rows["done_us"].where(~waits, TAKEN_US + rows["offset"])
    worker = "orders-" + rows["arm"] + "-consume-" + owner.astype(str)
    run.frames["consume"] = rows.assign(group="readers-" + rows["arm"], worker=worker, done_us=done_us)
    events = [line for line in run.documents["events"] if line["event"] != "assigned"]
    for arm in ("baseline", "patient"):
        events += [group_event(0, "assigned", arm, number + 1, number, number + MEMBERS) for number in range(MEMBERS)]
    events += [group_event(LEFT_US, "revoked", "patient", 2, 1, 4)]
    events += [group_event(TAKEN_US, "assigned", "patient", 1, 1), group_event(TAKEN_US, "assigned", "patient", 3, 4)]
    run.documents["events"] = events
    run.slos(
        "rebalance.count <= 1 for patient",
        "rebalance.duration < 1s for patient",
        "consume.unowned < 1s for patient for each partition",
        "consume.stopped < 1s for patient",
        "assignment.skew <= 3 for patient",
        "consume.lag mean <= 30 records for patient",
        "consume.lag max <= 30 records for patient for each member",
        "consume.freshness max <= 3s for patient for each member",
    )
    return run


def _without(run: Run, fault: str) -> None:
    """Return the run as if the plan did not have this fault."""
    documents = run.documents
    documents["timeline"]["steps"] = [step for step in documents["timeline"]["steps"] if step["id"] != fault]
    for name in ("phases", "journal"):
        documents[name] = [line for line in documents[name] if line["fault"] != fault]


def many(run: Run, count: int, first: int = 0) -> Run:
    """Return the run with ``count`` records of the first arm only, read by that arm, evenly spread over the run."""
    run.documents["timeline"]["workloads"][0]["arms"] = {"baseline": {"client": "reference", "settings": {}}}
    run.documents["run"]["producers"] = run.documents["run"]["producers"][:1]
    run.documents["timeline"]["slo"] = []
    number = np.arange(count)
    seq, intended = first + number, number * (50 * S) // count
    taken = (5000 * np.random.default_rng(1).lognormal(0, 0.3, count)).astype(int)
    partition = number % PARTITIONS
    broker = 1 + partition % 3
    row = {"workload": "orders", "arm": "baseline", "client": "reference", "producer_id": 0, "seq": seq}
    row |= {
        "topic": "orders",
        "topic_id": "t1",
        "partition": partition,
        "offset": number // PARTITIONS,
        "leader_epoch": 3,
    }
    row |= {"broker_id": broker, "broker_rack": np.array(["", "a", "b", "c"])[broker], "bytes": 1000, "status": "ok"}
    row |= {"intended_us": intended}
    sent = {"op": "produce", "client_rack": "a", "deadline_us": intended + 30 * S, "sent_us": intended + 200}
    sent |= {"done_us": intended + taken, "attempts": 1}
    reached = pd.Series(intended + taken + 2000).groupby(partition).cummax().to_numpy()
    read = {"op": "consume", "client_rack": "b", "done_us": reached, "high_watermark": number // PARTITIONS + MARGIN}
    run.frames["produce"] = typed("outcomes", pd.DataFrame(row | sent))
    run.frames["consume"] = typed("outcomes", pd.DataFrame(row | read))
    run.frames["log"] = typed("log", pd.DataFrame(row))
    return run
