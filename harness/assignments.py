"""From the timeline to what each client process is told: the one place where plan words become client words.

One process for each (workload, arm, operation). The arms of a workload send the same records, evenly interleaved in
time, never at the same instant. ``producer_id`` counts the producing processes of the run from 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from aftershock.faults.timeline import Timeline
from aftershock.harness.cluster import Cluster
from aftershock.workloads.assignment import ConsumeAssignment, ProduceAssignment
from aftershock.workloads.logread import Topic

Assignment = ProduceAssignment | ConsumeAssignment


@dataclass(frozen=True)
class Surroundings:
    """What the assignments of a run have in common: its topics, where its evidence goes, and its clock's origin."""

    run_id: str
    origin_ns: int
    spool: Path
    events: Path
    topics: Mapping[str, Topic]


def assignments(timeline: Timeline, cluster: Cluster, around: Surroundings) -> tuple[Assignment, ...]:
    """What every client process of the run is told."""
    producer_ids = count()
    told: list[Assignment] = []
    for workload in timeline.workloads:
        arms = workload["arms"]
        for number, name in enumerate(arms):
            common = {"run_id": around.run_id, "origin_ns": around.origin_ns, "events": around.events}
            common |= {"spool": around.spool, "workload": workload["name"], "arm": name, **arms[name]}
            if produce := workload["produce"]:
                offset_us = int(number * 1_000_000 / produce["rate_per_s"] / len(arms))
                where = _where(produce, "produce", common, cluster, around)
                load = {key: value for key, value in produce.items() if key not in ("topic", "rack")}
                load |= {"producer_id": next(producer_ids), "offset_us": offset_us, "seed": timeline.seed}
                told.append(ProduceAssignment.model_validate({**where, **load}))
            if consume := workload["consume"]:
                where = _where(consume, "consume", common, cluster, around)
                group = f"{consume['group']}-{name}" if consume["group"] else None
                told.append(ConsumeAssignment.model_validate({**where, "group": group, "from_": consume["from"]}))
    return tuple(told)


def _where(
    part: Mapping[str, Any], op: str, common: Mapping[str, Any], cluster: Cluster, around: Surroundings
) -> dict[str, Any]:
    topic = around.topics[part["topic"]]
    return {
        **common,
        "op": op,
        "worker": f"{common['workload']}-{common['arm']}-{op}",
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "rack": part["rack"],
        "bootstrap": cluster.bootstrap(part["rack"]),
    }
