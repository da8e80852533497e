"""Load of a plan and what it writes, from its timeline alone, and the rates that this host drives.

``estimate`` is pure. The bytes for each row are measured: a row of the outcomes takes 5.2 bytes in Parquet in a long
run, and up to 12 in a short run; stored runs hold the estimate in ``tests/unit/harness/run/test_preflight.py``.

The limits on rates are those of ``aftershock doctor --calibrate``, which are stored in ``calibration.json`` in the XDG
cache, with the identity of the host; a file of another host is ignored. Without a calibration only RATE_BOUND refuses a
plan, and ``plan check`` warns above USUAL_RATE. The module is imported by ``plan check``, so it must load quickly.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from aftershock.errors import AftershockError, EvidenceError
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.safety.lease import cache_folder
from aftershock.names import Client, topic_names
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.workloads.load.spool import CONSUME_ROW, OVERDUE_US, PRODUCE_ROW, ROWS

SAVE_PERIOD_S = 60.0
"""Seconds between two moments at which everything recorded so far is on the disk (``recording.py``)."""
SEGMENTS_A_MOVE = 16
"""Number of new segments, of about 1 MiB, after which rows are moved earlier."""

RATE_BOUND = 200_000.0
"""Records per second that no client process reaches: the recorder alone, without a client, needs 5 us a record."""

USUAL_RATE = 5_000.0
"""Produced records per second and core above which ``plan check`` asks for a calibration: about a tenth of what one
client process alone reaches on a core (docs/LONG_RUNS.md), as brokers, replicas, proxies and readers share the host."""

CLOSED_LOOP = 10_000.0
"""Assumed commits per second of a closed loop (``in_flight``), at most 100 for each commit in flight."""

_MOVE_S = 10.0  # until the runner has noticed that a move is due, and has moved the rows
_OUTCOME, _LOG, _OFFSET = 6, 2, 3  # bytes for each row on the disk
_FILES = 12_000  # bytes for each client, beside its rows
_RUN = 12_000_000  # logs, report and results of judging
_METRICS_A_SECOND, _METRICS_A_CLIENT = 100, 50
_EVENTS_A_SECOND = {client: 1_000 if client == "reference" else 60 for client in get_args(Client)}
_FAULT = 14_000  # bytes in the journal and the timeline
_RECORD, _REPLICA = 100, 12_000_000  # bytes of a broker for each record beside the value, and for each replica


@dataclass(frozen=True)
class ClientLoad:
    """Load of a client's ``processes``, which share the rate; that of a closed loop is assumed.

    They run ``here``, or in pods. ``deadline_s`` is the longest time for which a row stays open; 0 for a consumer.
    """

    name: str
    client: str
    op: str
    rate_per_s: float
    deadline_s: float
    closed_loop: bool = False
    processes: int = 1
    here: bool = True


@dataclass(frozen=True)
class Estimate:
    """Upper estimate of what a run writes: on the disk, at any moment in shared memory, and in the brokers' volumes."""

    duration_s: float
    rows: int
    disk_bytes: int
    memory_bytes: int
    broker_bytes: int


def loads(timeline: Timeline) -> list[ClientLoad]:
    """Return the load of the processes of each client; a consumer reads the records of all producers of its topics."""
    produced: dict[str, float] = {}
    for workload in timeline.workloads:
        if produce := workload.get("produce"):
            rate = produce["rate_per_s"] * len(workload["arms"])
            for topic in (topics := topic_names(produce)):
                produced[topic] = produced.get(topic, 0.0) + rate / len(topics)
    found = []
    for workload in timeline.workloads:
        for arm, settings in workload["arms"].items():
            for op in ("produce", "consume", "commit", "pipe"):
                part: Mapping[str, Any] = workload.get(op) or {}
                if not part:
                    continue
                rate = part.get("rate_per_s")
                if op == "consume":
                    rate = sum(produced.get(topic, 0.0) for topic in topic_names(part))
                elif op == "pipe":
                    rate = produced.get(part["from"], 0.0) * part["outputs_max"]
                closed_loop = rate is None
                rate = min(CLOSED_LOOP, 100 * part["in_flight"]) if rate is None else rate
                deadline_s = part.get("deadline_ms", 0) / 1000
                name = f"{workload['name']}/{arm} {op}"
                processes = part.get("producers") or part.get("members") or 1
                here = "kubernetes" not in workload.get("run_on", {})
                client = settings["client"]
                found.append(ClientLoad(name, client, op, rate, deadline_s, closed_loop, processes, here))
    return found


def estimate(timeline: Timeline) -> Estimate:
    """Estimate from the plan's rates and durations, with the longest warm-up.

    In shared memory a client has, apart from two segments, the rows since the previous move, and the rows that are
    still open. While faults last, rows may stay open until OVERDUE_US after their deadline. The runner moves rows when
    all clients together have filled SEGMENTS_A_MOVE segments, or after SAVE_PERIOD_S.
    """
    timing, clients = timeline.timing, loads(timeline)
    duration_s = (timing.warmup_max_ms + timing.steady_ms + timeline.length_ms) / 1000
    segments_a_second = sum(client.rate_per_s for client in clients) / ROWS
    period_s = min(SAVE_PERIOD_S, SEGMENTS_A_MOVE / segments_a_second if segments_a_second else SAVE_PERIOD_S) + _MOVE_S
    memory, disk, rows = 0, _RUN + _FAULT * len(timeline.steps), 0
    for client in clients:
        count = math.ceil(client.rate_per_s * duration_s)
        open_s = client.deadline_s + OVERDUE_US / 1e6 if client.deadline_s and timeline.steps else 1.0
        held = 2 + math.ceil(client.rate_per_s * (period_s + open_s) / ROWS)
        segments = min(held, 1 + math.ceil(count / ROWS))
        if client.here:
            memory += segments * ROWS * (CONSUME_ROW if client.op in ("consume", "pipe") else PRODUCE_ROW)
        rows += count
        disk += _FILES + count * (_OUTCOME + {"produce": _LOG, "commit": _OFFSET}.get(client.op, 0))
        disk += int(duration_s * (_EVENTS_A_SECOND[client.client] + _METRICS_A_CLIENT))
    disk += int(duration_s * _METRICS_A_SECOND)
    brokers = 0
    for topic in timeline.topics:
        brokers += topic["replication"] * topic["partitions"] * _REPLICA
        for workload in timeline.workloads:
            produce = workload.get("produce") or {}
            if topic["name"] in (topics := topic_names(produce)):
                value = (produce["record_size_min"] + produce["record_size_max"]) / 2 + _RECORD
                records = produce["rate_per_s"] / len(topics) * len(workload["arms"]) * duration_s
                brokers += int(records * value) * topic["replication"]
    if timeline.cluster.get("disks") or "attach" in timeline.cluster:
        brokers = 0  # the log directories are in memory, or on hosts of their own
    return Estimate(duration_s, rows, disk, memory, brokers)


def rate_problems(clients: Sequence[ClientLoad], limits: Mapping[str, float], cores: int) -> list[str]:
    """Return a sentence for each rate that this host can't drive, and for the sum of the rates.

    ``limits`` maps client and operation (``confluent produce``) to the measured records per second of one process on a
    core of its own.
    """
    problems, needed = [], 0.0
    for client in (client for client in clients if client.here and not client.closed_loop):
        limit, each = limits.get(f"{client.client} {client.op}"), client.rate_per_s / client.processes
        needed += client.rate_per_s / limit if limit else 0.0
        if limit and each > limit:
            problems.append(
                f"{client.name}: {each:,.0f}/s exceeds the {limit:,.0f}/s that one {client.client} client reached on "
                "this host (aftershock doctor --calibrate); lower the rate, or spread it over more `producers`"
            )
        elif not limit and each > RATE_BOUND:
            problems.append(
                f"{client.name}: {each:,.0f}/s exceeds {RATE_BOUND:,.0f}/s, which no client process "
                "reaches on any host; lower the rate, or measure this host with: aftershock doctor --calibrate"
            )
    if not problems and needed > cores:
        problems.append(
            f"the clients together need {needed:.1f} cores at the rates that this host reached (aftershock doctor "
            f"--calibrate), and it has {cores}; lower the rates"
        )
    return problems


def host_identity() -> dict[str, Any]:
    """Return what identifies this host: its machine id, and the model and number of its CPUs."""
    facts: dict[str, Any] = {"machine": "", "cpu": "", "cores": os.cpu_count()}
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        if path.is_file():
            facts["machine"] = path.read_text(encoding="ascii").strip()
            break
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            facts["cpu"] = line.partition(":")[2].strip()
            break
    return facts


def limits_file() -> Path:
    return cache_folder() / "calibration.json"


def read_limits() -> dict[str, float]:
    """Return the records per second by client and operation (``confluent produce``); empty without a calibration."""
    path = limits_file()
    try:
        document = read_object(path) if path.exists() else {}
        limits = {str(name): float(rate) for name, rate in document.get("records_per_s", {}).items()}
    except (EvidenceError, TypeError, ValueError, AttributeError) as error:
        raise AftershockError(
            f"{path}: not a calibration ({error}); measure again: aftershock doctor --calibrate"
        ) from error
    return limits if document.get("host") == host_identity() else {}


def store_limits(limits: Mapping[str, float]) -> Path:
    path = limits_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_whole(path, json.dumps({"host": host_identity(), "records_per_s": dict(limits)}, indent=1) + "\n")
    except OSError as error:
        raise AftershockError(f"{path}: can't be written ({error.strerror}); set XDG_CACHE_HOME") from error
