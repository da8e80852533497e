"""Longer runs than the default, for defects that need many records."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from aftershock.tests.unit.results.evidence_factory import PARTITIONS, S
from aftershock.tests.unit.results.planted.world import MARGIN, Run, good_run, typed

GROUPS = 3


@cache
def edge_run() -> Run:
    """Return 2,500 records of one producer with one reader, which go over an edge of the gate's blocks of 2,048."""
    return many(good_run().copy("edge"), 2_500)


@cache
def racks_run() -> Run:
    """Return 36,000 records: 12,000 per broker rack, enough for a p99.9 each, without readers."""
    run = many(good_run().copy("racks"), 36_000)
    run.documents["timeline"]["workloads"][0]["consume"] = None
    run.frames["consume"] = run.frames["consume"][:0]
    run.slos("produce.latency p99.9 < 400ms", "produce.latency p99.9 < 400ms for each rack")
    return run


PRODUCERS, TOPICS = 2, ("orders", "returns")


@cache
def producers_run() -> Run:
    """Return 2,000 records that two producers send to two topics in turn, with one reader of both topics."""
    run = many(good_run().copy("producers"), 2_000)
    documents, workload = run.documents, run.documents["timeline"]["workloads"][0]
    (topic,), partitions = documents["timeline"]["topics"], 3
    documents["timeline"]["topics"] = [topic | {"name": name, "partitions": partitions} for name in TOPICS]
    documents["run"]["topics"] = [
        {"name": name, "topic_id": f"t{number}", "partitions": partitions} for number, name in enumerate(TOPICS, 1)
    ]
    documents["run"]["producers"] *= PRODUCERS
    documents["run"]["producers"] = [
        row | {"producer_id": number} for number, row in enumerate(documents["run"]["producers"])
    ]
    for side in ("produce", "consume"):
        workload[side]["topics"] = list(TOPICS)
    workload["produce"]["producers"] = PRODUCERS
    assigned = [[name, number] for name in TOPICS for number in range(partitions)]
    documents["events"] = [line | {"partitions": assigned} for line in documents["events"][:1]]
    for name in ("produce", "consume", "log"):
        rows = run.frames[name]
        number = rows["seq"].astype(int)
        of_topic = number // (2 * PRODUCERS) * PRODUCERS + number % PRODUCERS
        second = number // PRODUCERS % 2 == 1
        places = {"partition": of_topic % partitions, "offset": of_topic // partitions}
        named = {"topic": rows["topic"].mask(second, "returns"), "topic_id": rows["topic_id"].mask(second, "t2")}
        ids = {"producer_id": number % PRODUCERS, "seq": number // PRODUCERS}
        marks = {"high_watermark": places["offset"] + MARGIN} if name == "consume" else {}
        run.frames[name] = rows.assign(**ids, **places, **named, **marks)
    run.read_in_order()
    return run


@cache
def commits_run() -> Run:
    """Return 1,000 commits of three groups without consumers, each with its entry in the coordinator's log."""
    run = many(good_run().copy("commits"), 1_000)
    workload = run.documents["timeline"]["workloads"][0]
    workload |= {"produce": None, "consume": None, "commit": {"topic": "orders", "groups": GROUPS, "rate_per_s": 20.0}}
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


def consumer(arm: str, number: int, workload: str = "orders") -> str:
    return f"{workload}-{arm}-consume-{number}"


def group_event(
    at_us: int, name: str, arm: str, number: int, *partitions: int, topic: str = "orders", workload: str = "orders"
) -> dict[str, Any]:
    """Return an event of a group's member about partitions."""
    line = {"event": name, "workload": workload, "arm": arm, "op": "consume", "worker": consumer(arm, number, workload)}
    return line | {"t_us": at_us, "partitions": [[topic, partition] for partition in partitions]}


@cache
def members_run() -> Run:
    """Return a run with groups of three members; the patient's second member leaves, and the others take over."""
    run = good_run().copy("members")
    _group(run, {number: number % MEMBERS + 1 for number in range(PARTITIONS)}, {1: 1, 4: 3})
    return run


def _group(run: Run, owners: dict[int, int], taken: dict[int, int]) -> None:
    """Let members read: ``owners`` by partition, and of those that the patient's second member gives up, the next."""
    run.documents["timeline"]["workloads"][0]["consume"] |= {"group": "readers", "members": MEMBERS}
    rows = run.frames["consume"]
    owner = rows["partition"].map(owners).astype(int)
    moved = (rows["arm"] == "patient") & (owner == 2) & (rows["done_us"] > LEFT_US)
    owner = owner.where(~moved, rows["partition"].map(taken).fillna(0).astype(int))
    # what is due in between waits for the new owner
    waits = moved & (rows["done_us"] < TAKEN_US)
    done_us = rows["done_us"].where(~waits, TAKEN_US + rows["offset"])
    worker = "orders-" + rows["arm"] + "-consume-" + owner.astype(str)
    run.frames["consume"] = rows.assign(group="readers-" + rows["arm"], worker=worker, done_us=done_us)
    events = [line for line in run.documents["events"] if line["event"] != "assigned"]
    for arm in ("baseline", "patient"):
        by_member = {member: [p for p, of in owners.items() if of == member] for member in range(1, MEMBERS + 1)}
        events += [group_event(0, "assigned", arm, member, *numbers) for member, numbers in by_member.items()]
    events.append(group_event(LEFT_US, "revoked", "patient", 2, *taken))
    events += [group_event(TAKEN_US, "assigned", "patient", member, number) for number, member in taken.items()]
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


ORDERS = 3
"""Partitions of `orders` in the runs with two topics; the others are `returns`, with other owners at each number."""


@cache
def topics_run() -> Run:
    """Return a run whose groups read two topics; partition 0 of the second topic changes hands."""
    run = good_run().copy("topics")
    _group(run, {0: 1, 1: 2, 2: 3, 3: 2, 4: 3, 5: 1}, {1: 1, 3: 3})
    documents = run.documents
    for name in ("produce", "consume", "log"):
        rows = run.frames[name]
        second = rows["partition"] >= ORDERS
        named = {"topic": rows["topic"].mask(second, "returns"), "topic_id": rows["topic_id"].mask(second, "t2")}
        run.frames[name] = rows.assign(partition=rows["partition"] % ORDERS, **named)
    for line in documents["events"]:
        line["partitions"] = [[("orders", "returns")[n // ORDERS], n % ORDERS] for _, n in line["partitions"]]
    documents["run"]["topics"] = [
        {"name": "orders", "topic_id": "t1", "partitions": ORDERS},
        {"name": "returns", "topic_id": "t2", "partitions": ORDERS},
    ]
    (topic,) = documents["timeline"]["topics"]
    documents["timeline"]["topics"] = [topic | {"name": name, "partitions": ORDERS} for name in ("orders", "returns")]
    for side in ("produce", "consume"):
        documents["timeline"]["workloads"][0][side]["topics"] = ["orders", "returns"]
    return run


@cache
def shared_run() -> Run:
    """Return a run in which two workloads are in one group: `orders` reads one topic, `returns` the other."""
    run = topics_run().copy("shared")
    documents, rows = run.documents, run.frames["consume"]
    second = rows["topic"] == "returns"
    worker = rows["worker"].str.replace("orders-", "returns-", regex=False)
    named = {"workload": rows["workload"].mask(second, "returns"), "worker": rows["worker"].mask(second, worker)}
    run.frames["consume"] = rows.assign(**named)
    events = []
    for line in documents["events"]:
        for name in ("orders", "returns"):
            own = [place for place in line["partitions"] if place[0] == name]
            worker_name = line["worker"].replace("orders-", f"{name}-")
            if own:
                events.append(line | {"workload": name, "worker": worker_name, "partitions": own})
    documents["events"] = events
    (load,) = documents["timeline"]["workloads"]
    consume = {key: value for key, value in load["consume"].items() if key != "topics"}
    reading = {"name": "returns", "produce": None, "arms": load["arms"], "consume": consume | {"topic": "returns"}}
    documents["timeline"]["workloads"] = [load | {"consume": consume}, reading]
    documents["run"]["values_compared"] += ["returns/baseline", "returns/patient"]
    return run


def _without(run: Run, fault: str) -> None:
    """Return the run as if the plan did not have this fault."""
    documents = run.documents
    documents["timeline"]["steps"] = [step for step in documents["timeline"]["steps"] if step["id"] != fault]
    for name in ("phases", "journal"):
        documents[name] = [line for line in documents[name] if line["fault"] != fault]


def many(run: Run, count: int) -> Run:
    """Return the run with ``count`` records of the first arm only, read by that arm, evenly spread over the run."""
    workload = run.documents["timeline"]["workloads"][0]
    workload["arms"] = {"baseline": {"client": "reference", "settings": {}}}
    workload["produce"]["rate_per_s"] = count / 50
    run.documents["run"]["producers"] = run.documents["run"]["producers"][:1]
    run.documents["timeline"]["slo"] = []
    number = seq = np.arange(count)
    intended = number * (50 * S) // count
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
