"""Preflight of a run: what a plan needs of this host and of an attached cluster, compared before anything starts.

Space and rates: `estimate.py` says what the plan needs, this file what the host has.

APIs: describing an attached cluster takes Metadata alone (`attached.describe_cluster`). Everything else that a plan
needs is compared with the brokers' offers, so that a missing API is refused by its name instead of failing a run
halfway.
"""

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kio.schema.index import api_key_map

from aftershock.errors import Log, PlanError
from aftershock.faults.sections.cluster import Attach
from aftershock.faults.sections.workloads import group_protocol
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.kafka.versions import OLDEST, api_title
from aftershock.harness.run.estimate import estimate, loads, rate_problems
from aftershock.harness.run.runs import size
from aftershock.workloads.kafka.wire.codec import Versions
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.load.spool import TMPFS


def space(timeline: Timeline, out: Path, docker_root: Path | None, memory: Path = TMPFS) -> tuple[str, list[str]]:
    """Return a sentence about the space that a run needs and finds, and the problems if a part does not fit.

    ``docker_root`` is the folder of Docker's volumes; None if it isn't on this host, or not known yet.
    """
    need = estimate(timeline)
    folder = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    disk, parts, problems = need.disk_bytes, [], []
    shared = memory.is_dir() and os.access(memory, os.W_OK)
    if shared:
        free = shutil.disk_usage(memory).free
        parts.append(f"at most {size(need.memory_bytes)} in {memory} ({size(free)} free)")
        if need.memory_bytes > free:
            problems.append(
                f"the rows of the clients need up to {size(need.memory_bytes)} in {memory}, which has {size(free)} "
                "free; enlarge it (in a container: docker run --shm-size=1g), delete files in it, or lower the rates"
            )
    else:
        disk += need.memory_bytes
    free = shutil.disk_usage(folder).free
    parts.insert(0, f"about {size(disk)} in {out} ({size(free)} free)")
    brokers = need.broker_bytes if docker_root and docker_root.is_dir() else 0
    if brokers and docker_root:
        free_brokers = shutil.disk_usage(docker_root).free
        parts.append(f"about {size(brokers)} of the brokers in {docker_root} ({size(free_brokers)} free)")
        same = folder.stat().st_dev == docker_root.stat().st_dev
        disk += brokers if same else 0
        if brokers > free_brokers and not same:
            problems.append(_full("the brokers' records", brokers, docker_root, free_brokers))
    if disk > free:
        what = "the evidence and the brokers' records" if disk > need.disk_bytes and brokers else "the evidence"
        where = out if what == "the evidence" else f"{out} and {docker_root}"
        problems.append(_full(what, disk, where, free))
    minutes = math.ceil(need.duration_s / 60)
    length = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"  # noqa: PLR2004
    return f"the plan writes {need.rows:,} rows in at most {length}: {', '.join(parts)}", problems


def _full(what: str, needed: int, where: Path | str, free: int) -> str:
    return (
        f"{what} need about {size(needed)} in {where}, which has {size(free)} free; free disk space, "
        "choose another --out, lower the rates, or shorten the plan"
    )


def compare(
    timeline: Timeline, out: Path, docker_root: Path | None, limits: Mapping[str, float]
) -> tuple[str, list[str]]:
    """Return a sentence about the space that a run needs and finds, and the problems of space and rates."""
    sentence, problems = space(timeline, out, docker_root)
    return sentence, problems + rate_problems(loads(timeline), limits, os.cpu_count() or 1)


def preflight(timeline: Timeline, out: Path, docker_root: Path | None, limits: Mapping[str, float], log: Log) -> None:
    """Log the space that the run needs; raise PlanError if the host lacks the space, or can't drive the rates."""
    sentence, problems = compare(timeline, out, docker_root, limits)
    log(sentence)
    if problems:
        raise PlanError([f"{timeline.plan_source}: {problem}" for problem in problems])


_API_KEYS = {api_title(name): key for key, name in api_key_map.items()}
_HARNESS = {api_title(name): oldest for name, oldest in OLDEST.items()}

# lowest versions that clients need; those of the reference client are its `ApiVersionRange`s
_OTHER, _REFERENCE = "other", "reference"
_PRODUCE = {  # version 3 is the first with record headers, which identify a record
    _OTHER: {"Produce": 3},
    _REFERENCE: {"Produce": 3, "Metadata": 10},
}
_CONSUME = {
    _OTHER: {"Fetch": 4, "ListOffsets": 1},
    _REFERENCE: {"Fetch": 15, "ListOffsets": 4, "OffsetForLeaderEpoch": 3, "Metadata": 10},
}
_TRANSACTION = {
    _OTHER: {"InitProducerId": 0, "AddPartitionsToTxn": 0, "EndTxn": 0, "FindCoordinator": 0},
    _REFERENCE: {"InitProducerId": 3, "AddPartitionsToTxn": 3, "EndTxn": 3, "FindCoordinator": 4},
}
_COMMIT = {
    _OTHER: {"FindCoordinator": 0, "OffsetCommit": 2, "OffsetFetch": 1},
    _REFERENCE: {"FindCoordinator": 4, "OffsetCommit": 8, "OffsetFetch": 9},
}
_CLASSIC = {
    _OTHER: {"JoinGroup": 0, "SyncGroup": 0, "Heartbeat": 0, "LeaveGroup": 0},
    _REFERENCE: {"JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 5},
}
_TOPIC_IN_METADATA = 12  # version of the requests by which the effect of a fault on links is measured


@dataclass(frozen=True)
class Need:
    """An API that ``part`` of a plan needs, in the version ``oldest`` or a later one."""

    api: str
    oldest: int
    part: str


def required_apis(timeline: Timeline, attach: Attach) -> Iterator[Need]:
    """Yield the APIs that a plan needs on an attached cluster."""
    yield from _harness_needs(("ListOffsets", "Fetch", "DescribeConfigs"), "reading the topics and every replica")
    for topic in attach.create:
        yield from _harness_needs(("CreateTopics", "DeleteTopics"), f"the topic {topic} under `attach.create`")
    for workload in timeline.workloads:
        for arm, settings in workload["arms"].items():
            client = f"the arm {arm} of the workload {workload['name']} (client {settings['client']})"
            for api, oldest in _client_needs(workload, settings).items():
                yield Need(api, oldest, client)
        if group := (workload.get("consume") or {}).get("group"):
            removing = ("FindCoordinator", "ListGroups", "DescribeGroups", "LeaveGroup")
            yield from _harness_needs(removing, f"the group {group}, whose members are removed at the end")
    for step in timeline.steps:
        fault = step.fault()
        yield from _harness_needs(fault.kafka_apis(), f"the fault {step.id}")
        if fault.links():
            yield Need("Metadata", _TOPIC_IN_METADATA, f"the fault {step.id}")


def refuse_missing_apis(timeline: Timeline, attach: Attach, offered: Mapping[Address, Versions]) -> None:
    """Raise PlanError if a broker lacks an API that the plan needs; ``offered`` has the versions of each broker."""
    problems: dict[str, None] = {}
    for need in required_apis(timeline, attach):
        for address, versions in offered.items():
            lowest, highest = versions.offered.get(_API_KEYS[need.api], (0, -1))
            if highest < need.oldest:
                has = f"only versions {lowest} to {highest} of {need.api}" if highest >= 0 else f"no {need.api}"
                sentence = (
                    f"the broker at {address} offers {has}, and {need.part} needs version {need.oldest} or later: "
                    "remove that part of the plan, or attach a cluster that offers it"
                )
                problems[f"{timeline.plan_source}: {sentence}"] = None
    if problems:
        raise PlanError(list(problems))


def _harness_needs(apis: tuple[str, ...], part: str) -> Iterator[Need]:
    for api in apis:
        yield Need(api, _HARNESS[api], part)


def _client_needs(workload: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, int]:
    kind = _REFERENCE if settings["client"] == "reference" else _OTHER
    needs: dict[str, int] = {}
    if produce := workload.get("produce"):
        needs |= _PRODUCE[kind]
        if produce["idempotence"]:
            needs["InitProducerId"] = 0
        if produce.get("transaction"):
            needs |= _TRANSACTION[kind]
    if workload.get("commit"):
        needs |= _COMMIT[kind]
    if consume := workload.get("consume"):
        needs |= _CONSUME[kind]
        if consume.get("group"):
            needs |= _COMMIT[kind]
            if group_protocol(consume.get("protocol"), settings["client"], settings["settings"]) == "consumer":
                needs |= {"ConsumerGroupHeartbeat": 0, "ConsumerGroupDescribe": 0}
            else:
                needs |= _CLASSIC[kind]
    return needs
