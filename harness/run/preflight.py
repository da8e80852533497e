"""Preflight of a run: the space and the rates that a plan needs, compared with this host before anything starts.

`estimate` is pure. The bytes for each row are measured: a row of the outcomes takes 5.2 bytes in Parquet in a long run,
and up to 12 in a short run; stored runs hold the estimate in `tests/unit/harness/run/test_preflight.py`.

The limits on rates are those of `aftershock doctor --calibrate` (`calibration.py`). Without a calibration only
RATE_BOUND applies.
"""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import Log, PlanError
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.run.drive import SAVE_PERIOD_S, SEGMENTS_A_MOVE
from aftershock.harness.run.runs import size
from aftershock.names import topic_names
from aftershock.workloads.load.spool import CONSUME_ROW, OVERDUE_US, PRODUCE_ROW, ROWS, TMPFS

RATE_BOUND = 200_000.0
"""Records per second that no client process reaches: the recorder alone, without a client, needs 5 us a record."""

CLOSED_LOOP = 10_000.0
"""Assumed commits per second of a closed loop (``in_flight``), at most 100 for each commit in flight."""

_MOVE_S = 10.0  # until the runner has noticed that a move is due, and has moved the rows
_OUTCOME, _LOG, _OFFSET = 6, 2, 3  # bytes for each row on the disk
_FILES = 12_000  # bytes for each client, beside its rows
_RUN = 12_000_000  # logs, report and results of judging
_METRICS_A_SECOND, _METRICS_A_CLIENT = 100, 50
_EVENTS_A_SECOND = {"reference": 1_000, "confluent": 60, "java": 60, "exec": 60}
_FAULT = 14_000  # bytes in the journal and the timeline
_RECORD, _REPLICA = 100, 12_000_000  # bytes of a broker for each record beside the value, and for each replica


@dataclass(frozen=True)
class ClientLoad:
    """Load of one client process; the rate of a closed loop is assumed.

    ``deadline_s`` is the longest time for which a row stays open; 0 for a consumer.
    """

    name: str
    client: str
    op: str
    rate_per_s: float
    deadline_s: float
    closed_loop: bool = False


@dataclass(frozen=True)
class Estimate:
    """Upper estimate of what a run writes: on the disk, at any moment in shared memory, and in the brokers' volumes."""

    duration_s: float
    rows: int
    disk_bytes: int
    memory_bytes: int
    broker_bytes: int


def loads(timeline: Timeline) -> list[ClientLoad]:
    """Return the load of each client process; a consumer reads the records of all producers of its topics."""
    produced: dict[str, float] = {}
    for workload in timeline.workloads:
        if produce := workload.get("produce"):
            rate = produce["rate_per_s"] * len(workload["arms"])
            for topic in (topics := topic_names(produce)):
                produced[topic] = produced.get(topic, 0.0) + rate / len(topics)
    found = []
    for workload in timeline.workloads:
        for arm, settings in workload["arms"].items():
            for op in ("produce", "consume", "commit"):
                part: Mapping[str, Any] = workload.get(op) or {}
                if not part:
                    continue
                rate = part.get("rate_per_s")
                if op == "consume":
                    rate = sum(produced.get(topic, 0.0) for topic in topic_names(part))
                closed_loop = rate is None
                rate = min(CLOSED_LOOP, 100 * part["in_flight"]) if rate is None else rate
                deadline_s = part.get("deadline_ms", 0) / 1000
                name = f"{workload['name']}/{arm} {op}"
                found.append(ClientLoad(name, settings["client"], op, rate, deadline_s, closed_loop))
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
        memory += segments * ROWS * (CONSUME_ROW if client.op == "consume" else PRODUCE_ROW)
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
    for client in (client for client in clients if not client.closed_loop):
        limit = limits.get(f"{client.client} {client.op}")
        needed += client.rate_per_s / limit if limit else 0.0
        if limit and client.rate_per_s > limit:
            problems.append(
                f"{client.name}: {client.rate_per_s:,.0f}/s exceeds the {limit:,.0f}/s that one {client.client} client "
                "reached on this host (aftershock doctor --calibrate); lower the rate, or spread it over more workloads"
            )
        elif not limit and client.rate_per_s > RATE_BOUND:
            problems.append(
                f"{client.name}: {client.rate_per_s:,.0f}/s exceeds {RATE_BOUND:,.0f}/s, which no client process "
                "reaches on any host; lower the rate, or measure this host with: aftershock doctor --calibrate"
            )
    if not problems and needed > cores:
        problems.append(
            f"the clients together need {needed:.1f} cores at the rates that this host reached (aftershock doctor "
            f"--calibrate), and it has {cores}; lower the rates"
        )
    return problems


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
