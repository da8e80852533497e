"""How the program of a ``client: java`` is started: Kafka's own client in a container on the host's network.

The container's input and output are the program's; it ends when its input does, so also when whoever started it is
killed. It carries the run's labels all the same: what should survive even that is found and removed with the run.

From the timeline to what each client process is told: the one place where plan words become client words.

One process for each (workload, arm, operation). The arms of a workload send the same records, evenly interleaved in
time, never at the same instant. ``producer_id`` counts the producing processes of the run from 0.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from aftershock.errors import EngineError
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster.ownership import WORKER
from aftershock.harness.cluster.target import Target
from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.logread import EndOffsets, Topic

_PROGRAM = "/opt/aftershock/client"


def java_command(image: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments that start a container of ``image`` with the labels of its run (``labels.labels_of``).

    Raises:
        EngineError: the docker command is not on the PATH.
    """
    if shutil.which("docker") is None:
        raise EngineError("`client: java` is started by the docker command, which is not on the PATH: install it")
    # what it writes goes to the worker; a copy in the engine's log would be a write to the disk for each record
    plain = ("docker", "run", "--interactive", "--rm", "--network", "host", "--log-driver", "none", "--pull", "never")
    marks = (word for name, value in labels.items() for word in ("--label", f"{name}={value}"))
    return (*plain, *marks, image, _PROGRAM)


def of_worker(command: tuple[str, ...], worker: str) -> tuple[str, ...]:
    """The same command for one worker, whose name its container carries: faults on clients find it by that."""
    *words, image, program = command
    return (*words, "--label", f"{WORKER}={worker}", image, program)


@dataclass(frozen=True)
class Surroundings:
    """What the assignments of a run have in common: its topics, where its evidence goes, and its clock's origin.

    ``begin`` is where the logs begin for this run, where that isn't 0. ``java`` is the command that starts Kafka's own
    clients, empty when no arm wants them.
    """

    run_id: str
    origin_ns: int
    spool: Path
    events: Path
    topics: Mapping[str, Topic]
    broker_racks: Mapping[int, str]
    begin: EndOffsets = field(default_factory=dict)
    java: tuple[str, ...] = ()


def assignments(timeline: Timeline, cluster: Target, around: Surroundings) -> tuple[Assignment, ...]:
    """What every client process of the run is told."""
    producer_ids = count()
    told: list[Assignment] = []
    for workload in timeline.workloads:
        arms = workload["arms"]
        for number, name in enumerate(arms):
            common = {"run_id": around.run_id, "origin_ns": around.origin_ns, "events": around.events}
            common |= {"spool": around.spool, "broker_racks": around.broker_racks}
            common |= {"workload": workload["name"], "arm": name, **_arm(arms[name], around)}
            for op, made in (("produce", ProduceAssignment), ("commit", CommitAssignment)):
                if load := workload.get(op):
                    period_us = 1_000_000 / load["rate_per_s"] if "rate_per_s" in load else 0  # closed loops have none
                    offset_us = int(number * period_us / len(arms))
                    where = _where(load, op, common, cluster, around)
                    rest = {key: value for key, value in load.items() if key not in ("topic", "rack")}
                    rest |= {"producer_id": next(producer_ids), "offset_us": offset_us}
                    rest |= {"seed": timeline.seed} if op == "produce" else {}
                    told.append(made.model_validate({**where, **rest}))
            if consume := workload["consume"]:
                where = _where(consume, "consume", common, cluster, around)
                group = _group(consume["group"], name) if consume["group"] else None
                rest = {"group": group, "from_": consume["from"], "begin": around.begin.get(consume["topic"], {})}
                told.append(ConsumeAssignment.model_validate({**where, **rest}))
    return tuple(told)


def worker_names(timeline: Timeline) -> Iterator[str]:
    """The name of every client process: its ``client.id`` as well."""
    for workload in timeline.workloads:
        ops = [op for op in ("produce", "consume", "commit") if workload.get(op)]
        yield from (_worker(workload["name"], arm, op) for arm in workload["arms"] for op in ops)


def group_names(timeline: Timeline) -> Iterator[str]:
    """The group of every consumer that is in one."""
    for workload in timeline.workloads:
        if group := (workload["consume"] or {}).get("group"):
            yield from (_group(group, arm) for arm in workload["arms"])


def _group(group: str, arm: str) -> str:
    return f"{group}-{arm}"


def _worker(workload: str, arm: str, op: str) -> str:
    return f"{workload}-{arm}-{op}"


def _arm(arm: Mapping[str, Any], around: Surroundings) -> dict[str, Any]:
    return {**arm, "command": around.java} if arm["client"] == "java" else dict(arm)


def _where(
    part: Mapping[str, Any], op: str, common: Mapping[str, Any], cluster: Target, around: Surroundings
) -> dict[str, Any]:
    topic, worker = around.topics[part["topic"]], _worker(common["workload"], common["arm"], op)
    return {
        **common,
        **({"command": of_worker(common["command"], worker)} if common["client"] == "java" else {}),
        "op": op,
        "worker": worker,
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "rack": part["rack"],
        "bootstrap": cluster.bootstrap(part["rack"]),
        "client_rack": cluster.kafka_rack(common["client_rack"]),
        "security": cluster.security,
    }
