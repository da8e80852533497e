"""Settings of each client process of a run, derived from the workloads of the timeline.

Each combination of workload, arm and operation (produce, consume or commit) has its own client process, or several if
the plan names a number of ``producers`` or ``members``. All arms of a workload send the same records, at send times
that are evenly interleaved between the arms.

An arm with the client ``java`` runs Kafka's own client in a container on the host's network, and the container
exchanges data with the arm's worker process through standard input and output. The container of a Java client ends when
its standard input closes, for example when its worker process is killed.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from aftershock.errors import EngineError
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster.target import Target
from aftershock.harness.safety.ownership import SERVICE, WORKER
from aftershock.names import consumer_names, outputs_reader, pipe_names, topic_names, worker_names
from aftershock.workloads.load.assignment import (
    CONTAINER_ID,
    Assignment,
    CommitAssignment,
    ConsumeAssignment,
    PipeAssignment,
    ProduceAssignment,
)
from aftershock.workloads.load.logread import EndOffsets, Topic

_PROGRAM = "/opt/aftershock/client"


def java_command(image: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ``docker run`` command that starts Kafka's Java client in a container of ``image`` with ``labels``.

    Raises EngineError if the docker command is not on the PATH.
    """
    if shutil.which("docker") is None:
        raise EngineError("`client: java` needs the docker command, which is not on the PATH; install it")
    # no log driver: the engine's log would cost a disk write per record
    options = ("docker", "run", "--interactive", "--rm", "--network", "host", "--log-driver", "none", "--pull", "never")
    label_options = (word for name, value in labels.items() for word in ("--label", f"{name}={value}"))
    return (*options, *label_options, image, _PROGRAM)


def label_worker(command: tuple[str, ...], worker: str) -> tuple[str, ...]:
    """Add the name of a worker as a Docker label to a ``docker run`` command, so that faults find the container."""
    *words, image, program = command
    return (*words, "--label", f"{WORKER}={worker}", image, program)


@dataclass(frozen=True)
class RunContext:
    """Settings that all client processes of a run share.

    ``origin_ns`` is the start of the run's clock, by ``time.monotonic_ns()``. ``spool`` is the folder in shared memory
    to which the clients write a row for each record. ``begin`` has the first offset of this run in each partition in
    which the offset is not 0. ``java`` is the command that starts Kafka's own Java client, empty if no arm uses the
    Java client. ``programs`` has the command of each client with a version. ``labels`` mark containers of the run.
    ``images`` has the image on the engine for each image of a service that the plan names. With ``own_bootstrap``, no
    broker advertises the clients' bootstrap addresses.
    """

    run_id: str
    origin_ns: int
    spool: Path
    events: Path
    topics: Mapping[str, Topic]
    broker_racks: Mapping[int, str]
    begin: EndOffsets = field(default_factory=dict)
    java: tuple[str, ...] = ()
    programs: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    own_bootstrap: bool = False


def assignments(timeline: Timeline, cluster: Target, context: RunContext) -> tuple[Assignment, ...]:
    producer_ids = count()
    result: list[Assignment] = []
    produces = [workload["produce"] for workload in timeline.workloads if workload.get("produce")]
    values = {topic: load["value"] for load in produces if "value" in load for topic in topic_names(load)}
    for workload in timeline.workloads:
        arms = workload["arms"]
        for number, name in enumerate(arms):
            common = {"run_id": context.run_id, "origin_ns": context.origin_ns, "events": context.events}
            common |= {"spool": context.spool, "broker_racks": context.broker_racks}
            common |= {"workload": workload["name"], "arm": name, **arms[name]}
            common |= {"values": values}
            sender = common
            if workload.get("pipe"):  # a service sends no inputs
                sender = {key: value for key, value in common.items() if key not in _OF_SERVICES} | {
                    "client": "confluent"
                }
            for op, assignment_type in (("produce", ProduceAssignment), ("commit", CommitAssignment)):
                if load := workload.get(op):
                    settings = {
                        key: value
                        for key, value in load.items()
                        if key not in ("topic", "topics", "rack", "producers", "value")
                    }
                    workers = worker_names(workload["name"], name, op, load.get("producers", 1))
                    period_us = 0.0  # a closed loop has no rate
                    if "rate_per_s" in load:
                        settings["rate_per_s"] = load["rate_per_s"] / len(workers)
                        period_us = 1_000_000 / load["rate_per_s"]
                    for place, worker in enumerate(workers):
                        settings["number"] = place + 1
                        settings["offset_us"] = int((place + number / len(arms)) * period_us)
                        settings["producer_id"] = next(producer_ids)
                        settings |= {"seed": timeline.seed + place} if op == "produce" else {}
                        connection = _connection(load, op, worker, load["rack"], sender, cluster, context)
                        result.append(assignment_type.model_validate({**connection, **settings}))
            if consume := workload["consume"]:
                result += _consumers(consume, common, cluster, context)
            if pipe := workload.get("pipe"):
                result += _pipes(pipe, common, cluster, context)
    return tuple(result)


def hosts_of(timeline: Timeline, clients: Iterable[Assignment]) -> dict[str, tuple[str, ...]]:
    """Return the clients on each further host, by the name of the host: those of ``run_on``, spread in turn."""
    workers = {load["name"]: load["run_on"]["workers"] for load in timeline.workloads if "run_on" in load}
    hosts: dict[str, tuple[str, ...]] = {}
    for client in clients:
        if count := workers.get(client.workload):
            name = host_name(client.workload, (client.number - 1) % count)
            hosts[name] = (*hosts.get(name, ()), client.worker)
    return hosts


def host_name(workload: str, place: int) -> str:
    return f"{workload}-{place + 1}"


def _consumers(
    consume: Mapping[str, Any], common: Mapping[str, Any], cluster: Target, context: RunContext
) -> Iterator[ConsumeAssignment]:
    names = ("protocol", "assignor", "commit", "processing_ms", "pattern", "isolation")
    settings = {name: consume[name] for name in names if name in consume}
    begin = {topic: context.begin[topic] for topic in topic_names(consume) if topic in context.begin}
    settings |= {"from_": consume["from"], "begin": begin}
    settings["group"] = _group(consume["group"], common["arm"]) if consume["group"] else None
    racks = consume.get("racks") or [consume["rack"]]
    workers = consumer_names(common["workload"], common["arm"], consume)
    settings["members"] = len(workers)
    for place, worker in enumerate(workers):
        settings["number"] = place + 1
        settings["reserve"] = place >= consume.get("members", 1)
        settings["instance_id"] = worker if consume.get("static") else None
        rack = racks[place % len(racks)]
        connection = _connection(consume, "consume", worker, rack, common, cluster, context)
        yield ConsumeAssignment.model_validate({**connection, **settings})


_PIPE_CONFIG = "AFTERSHOCK_PIPE"
"""Variable with the settings of our own pipes."""

_OF_SERVICES = ("command", "image", "env", "file", "ready")
"""Keys of an arm that describe a service."""


def _pipes(
    pipe: Mapping[str, Any], common: Mapping[str, Any], cluster: Target, context: RunContext
) -> Iterator[Assignment]:
    """Yield an arm's processes of a service, and the harness's reader of its outputs.

    The reader uses a listener that no fault affects, because it stands for the end of the pipe, not for a client.
    """
    workload, arm = common["workload"], common["arm"]
    plain = {key: value for key, value in common.items() if key not in _OF_SERVICES}
    workers, to, group = pipe_names(workload, arm, pipe), pipe["to"][arm], pipe["groups"].get(arm)
    service = {key: common[key] for key in ("env", "file", "ready") if key in common}
    service |= {"members": len(workers), "to": to, "group": group, "restart_ms": pipe["restart_ms"]}
    if common["client"] != "service":
        words = ("bootstrap", "from", "group", "member", "to")
        config: dict[str, Any] = {word: f"{{{word}}}" for word in words}
        config["settings"] = common["settings"] | common.get("switches", {})
        config["transactional"] = bool(pipe.get("transactional"))
        service |= {"env": {_PIPE_CONFIG: json.dumps(config)}, "ready": {"log": "started"}}
    for place, worker in enumerate(workers):
        connection = _connection({"topic": pipe["from"]}, "pipe", worker, pipe["rack"], plain, cluster, context)
        command = service_command({**common, **service}, worker, context)
        own = {"command": command, "number": place + 1, "reserve": place >= pipe["members"]}
        own["in_container"] = _in_container(common)
        yield PipeAssignment.model_validate({**connection, **service, **own})
    reader = {**plain, "client": "reference", "settings": {}}
    name = outputs_reader(workload, arm)
    connection = _connection({"topic": to}, "consume", name, pipe["rack"], reader, cluster, context)
    begin = {to: context.begin[to]} if to in context.begin else {}
    own_way = {"bootstrap": cluster.bootstrap(None), "observes": pipe["mark"], "begin": begin}
    own_way |= {"isolation": "read_committed"} if pipe.get("transactional") else {}
    yield ConsumeAssignment.model_validate({**connection, **own_way})


def _in_container(arm: Mapping[str, Any]) -> bool:
    return arm["client"] == "java" or "image" in arm


def has_service_containers(timeline: Timeline) -> bool:
    """Return True if processes of a pipe run in containers of their own."""
    return any(_in_container(arm) for load in timeline.workloads if load.get("pipe") for arm in load["arms"].values())


def service_command(arm: Mapping[str, Any], worker: str, context: RunContext) -> tuple[str, ...]:
    """Return the command line of a service; a container runs on the host's network, with the worker's name as label."""
    if arm["client"] in ("confluent", "reference"):
        return (sys.executable, "-P", "-m", f"aftershock.workloads.adapters.{arm['client']}_pipe")
    if arm["client"] == "java":
        *words, image, program = label_worker(context.java, worker)
        words += ["--cidfile", CONTAINER_ID, "--label", f"{SERVICE}={arm['arm']}"]
        return (*words, "--env", f"{_PIPE_CONFIG}={arm['env'][_PIPE_CONFIG]}", image, program, "pipe")
    if "image" not in arm:
        return tuple(arm["command"])
    if shutil.which("docker") is None:
        raise EngineError("a service with an `image` needs the docker command, which is not on the PATH; install it")
    options = ["docker", "run", "--rm", "--network", "host", "--log-driver", "local", "--pull", "never"]
    options += ["--cidfile", CONTAINER_ID]
    for name, value in {**context.labels, WORKER: worker, SERVICE: arm["arm"]}.items():
        options += ["--label", f"{name}={value}"]
    for name, value in arm.get("env", {}).items():
        options += ["--env", f"{name}={value}"]
    if arm.get("file") is not None:
        # not --volume, because the path has colons, of the run's owner
        options += ["--mount", "type=bind,source={file},target={file},readonly"]
    return (*options, context.images.get(arm["image"], arm["image"]), *arm.get("command", ()))


def _connection(
    load: Mapping[str, Any],
    op: str,
    worker: str,
    rack: str,
    common: Mapping[str, Any],
    cluster: Target,
    context: RunContext,
) -> dict[str, Any]:
    topic, *more = (context.topics[name] for name in topic_names(load))
    program: dict[str, Any] = {}
    if common.get("version"):
        program = {"command": context.programs[common["client"], common["version"]]}
    elif common["client"] == "java":
        program = {"command": label_worker(context.java, worker)}
    return {
        **common,
        **program,
        "op": op,
        "worker": worker,
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "more_topics": [asdict(further) for further in more],
        "rack": rack,
        "bootstrap": cluster.bootstrap(rack, own_addresses=context.own_bootstrap),
        "client_rack": cluster.kafka_rack(common["client_rack"]),
        "security": cluster.security,
    }


def all_worker_names(timeline: Timeline) -> Iterator[str]:
    """Yield the name of each client process of a run; Kafka sees the name as ``client.id``."""
    for workload in timeline.workloads:
        for arm in workload["arms"]:
            if produce := workload.get("produce"):
                yield from worker_names(workload["name"], arm, "produce", produce.get("producers", 1))
            if consume := workload.get("consume"):
                yield from consumer_names(workload["name"], arm, consume)
            if workload.get("commit"):
                yield from worker_names(workload["name"], arm, "commit")
            if pipe := workload.get("pipe"):
                yield from pipe_names(workload["name"], arm, pipe)
                yield outputs_reader(workload["name"], arm)


def group_names(timeline: Timeline) -> Iterator[str]:
    for workload in timeline.workloads:
        if group := (workload.get("consume") or {}).get("group"):
            yield from (_group(group, arm) for arm in workload["arms"])
        yield from (workload.get("pipe") or {}).get("groups", {}).values()


def _group(group: str, arm: str) -> str:
    return f"{group}-{arm}"
