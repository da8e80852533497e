"""Calibration of this host (``aftershock doctor --calibrate``): the records per second that a client process reaches.

For each kind of client a real worker process sends at a rate that no client reaches, or reads what was sent, for
MEASURE_S, and its own rows tell how many records a second had a result. The cluster is librdkafka's mock cluster in the
calibrating process. So the limit has the costs of the client library, the worker's loop and the recorder, but not those
of Kafka's brokers, the network, Toxiproxy and replication: a plan below the limit may still be too much for the host,
which the check ``harness/generator`` notices. Clients of the kinds ``java`` and ``exec`` are not measured, nor is the
reference committer, which needs newer requests than the mock cluster knows.

``estimate.py`` stores the result and compares plans with it.
"""

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import KafkaException, Producer

from aftershock.errors import Log, WorkloadError
from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.events import run_clock
from aftershock.workloads.load.fleet import Fleet
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.spool import spool_home

CLIENTS = ("confluent", "reference")
MEASURED = (
    *(("confluent", "produce"), ("confluent", "consume"), ("confluent", "commit")),
    *(("reference", "produce"), ("reference", "consume")),
)
MEASURE_S = 2.0
_OVERLOAD = 300_000.0  # records per second
_START_S = 20.0
_RECORD_BYTES, _GROUPS, _PARTITIONS = 200, 50, 4  # of the mock cluster's topics


def calibrate(log: Log, measure_s: float = MEASURE_S) -> dict[str, float]:
    """Measure each kind of client, one after the other; raise WorkloadError if a client can't be measured."""
    mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 2})
    try:
        for client in CLIENTS:
            mock.list_topics(client, timeout=_START_S)  # creates the topic
        broker = next(iter(mock.list_topics(timeout=_START_S).brokers.values()))
    except (KafkaException, StopIteration) as error:
        raise WorkloadError(f"librdkafka's mock cluster did not start ({error}); measure again") from error
    limits, bootstrap = {}, f"{broker.host}:{broker.port}"
    with tempfile.TemporaryDirectory(prefix="aftershock-calibrate-") as folder:
        home = Path(folder)
        spool = spool_home(f"calibrate-{os.getpid()}", home)
        with tempfile.TemporaryDirectory(prefix=spool.name, dir=spool.parent) as rows:
            for client, op in MEASURED:
                log(f"measuring {client} {op}")
                limits[f"{client} {op}"] = _measure(client, op, bootstrap, home, Path(rows), measure_s)
    return limits


def _measure(client: str, op: str, bootstrap: str, home: Path, spool: Path, measure_s: float) -> float:
    """Return the records per second that had a result, between the first and the last of them."""
    origin_ns = time.monotonic_ns()
    common: dict[str, Any] = {
        "run_id": "calibrate",
        "origin_ns": origin_ns,
        "worker": f"{client}-{op}",
        "workload": op,
        "arm": client,
        "client": client,
        "topic": client,
        "topic_id": client,
        "partitions": _PARTITIONS,
        "bootstrap": bootstrap,
        "rack": "a",
        "spool": spool,
        "events": home / "events.jsonl",
    }
    sizes = {"record_size_min": _RECORD_BYTES, "record_size_max": _RECORD_BYTES}
    sending = {"producer_id": 0, "rate_per_s": _OVERLOAD, "deadline_ms": 60_000}
    assignment: Assignment
    if op == "produce":
        assignment = ProduceAssignment(**common, **sending, **sizes, seed=0)
    elif op == "commit":
        assignment = CommitAssignment(**common, **sending, groups=_GROUPS)
    else:
        assignment = ConsumeAssignment(**common)

    async def load() -> None:
        fleet = Fleet([assignment], home / "logs")
        async with fleet:  # the end of the block kills the worker, whose rows stay
            await fleet.start(_START_S)
            await fleet.go(run_clock(origin_ns)())
            await asyncio.sleep(measure_s)

    asyncio.run(load())
    outcomes = home / "outcomes"
    convert(spool, outcomes)
    rows = pq.read_table(outcomes / f"part-{client}-{op}.parquet", columns=["status", "done_us"])
    shutil.rmtree(spool / assignment.worker)
    done_us = rows.filter(pc.equal(rows["status"], "ok"))["done_us"]
    span_us = pc.max(done_us).as_py() - pc.min(done_us).as_py() if len(done_us) else 0
    if not span_us:
        raise WorkloadError(
            f"no record of the {client} client had a result within {measure_s:g} s ({op}); stop other work on the host"
        )
    return float((len(done_us) - 1) * 1e6 / span_us)
