"""Clients of a run as targets of faults: an arm for each kind of client, and one arm, ``spared``, that must not be
affected.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from aftershock.harness.cluster import engine
from aftershock.harness.cluster.assignments import java_command, label_worker
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.run.drive import complete_groups
from aftershock.harness.safety import ownership
from aftershock.harness.world.client_processes import spool_for
from aftershock.names import worker_names
from aftershock.tests.chaos.kinds.probe import PARTITIONS, TOPIC
from aftershock.workloads.load.assignment import Assignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.fleet import Fleet

if TYPE_CHECKING:
    from aftershock.tests.chaos.kinds.stand import Stand


SPARED = "spared"
RATE_PER_S = 20
SESSION_MS = 6_000
_PROGRAM = Path(__file__).parents[3] / "docs" / "examples" / "exec_client.py"
_READY_S = 60.0
_FLOWING = 30
_REST_S = 3.0
"""Time in which a group delivers the last records."""


@dataclass
class Work:
    """Outcome rows of the clients by worker, and the events of the run; complete when the clients have ended."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def events_of(self, worker: str, event: str) -> list[dict[str, Any]]:
        """Return a worker's events with one name, in order."""
        return [line for line in self.events if (line.get("worker"), line["event"]) == (worker, event)]


@asynccontextmanager
async def at_work(stand: "Stand", clients: Sequence[str]) -> AsyncIterator[Work]:
    """Run an arm for each of these clients, sending and reading, until the block ends; enter it when all records flow.

    ``confluent`` has one consumer, ``confluent:3`` a group of three and a fourth member in reserve.
    """
    work = Work()
    if not clients:
        yield work
        return
    spool = spool_for(stand.cluster.run_id, stand.home)
    (stand.home / "events.jsonl").write_text("")
    crew = [
        *(assignment for client in clients for assignment in _arm(stand, spool.path, *client.split(":"))),
        _spared(stand, spool.path),
    ]
    try:
        async with Fleet(crew, stand.home / "logs") as fleet:
            await fleet.start(_READY_S)
            await complete_groups(crew, stand.world, stand.clock)
            await fleet.go(stand.clock.now_us())
            await asyncio.to_thread(_await_flow, fleet)
            yield work
            await fleet.stop(stand.clock.now_us())
            if any(":" in client for client in clients):
                await asyncio.sleep(_REST_S)
            await fleet.quit()
    finally:
        spool.salvage()
    for part in sorted((stand.home / "outcomes").glob("part-*.parquet")):
        work.rows[part.stem.removeprefix("part-")] = pq.read_table(part).to_pylist()
        part.unlink()
    work.events += [json.loads(line) for line in (stand.home / "events.jsonl").read_text().splitlines()]


def _arm(stand: "Stand", spool: Path, client: str, members: str = "") -> list[Assignment]:
    """Return producer and consumers; the consumers have their own group with short timeouts."""
    common, count = _common(stand, spool, client, client), int(members) + 1 if members else 1
    group = {"group": f"crew-{client}", "from_": "latest", "members": count}
    return [
        ProduceAssignment.model_validate(_of(common, client, f"crew-{client}-produce") | _LOAD | {"producer_id": 0}),
        *(
            ConsumeAssignment.model_validate(
                _of(common, client, worker) | group | {"number": number, "reserve": 1 < count == number}
            )
            for number, worker in enumerate(worker_names("crew", client, "consume", count), 1)
        ),
    ]


def _spared(stand: "Stand", spool: Path) -> Assignment:
    common = _common(stand, spool, "confluent", SPARED)
    return ProduceAssignment.model_validate({**common, "worker": f"crew-{SPARED}-produce", **_LOAD, "producer_id": 1})


# with keys, the records of a few seconds are for every partition
_LOAD = {
    "rate_per_s": RATE_PER_S,
    "keys": 200,
    "record_size_min": 100,
    "record_size_max": 100,
    "deadline_ms": 20_000,
    "seed": 7,
}


def _common(stand: "Stand", spool: Path, client: str, arm: str) -> dict[str, Any]:
    return {
        "run_id": stand.cluster.run_id,
        "origin_ns": stand.clock.origin_ns,
        "workload": "crew",
        "arm": arm,
        "client": client,
        "topic": TOPIC,
        "topic_id": TOPIC,
        "partitions": PARTITIONS,
        "bootstrap": stand.cluster.bootstrap("a"),
        "rack": "a",
        "settings": {"max.poll.interval.ms": SESSION_MS}
        | ({} if client == "reference" else {"session.timeout.ms": SESSION_MS}),
        "spool": spool,
        "events": stand.home / "events.jsonl",
    }


def _of(common: dict[str, Any], client: str, worker: str) -> dict[str, Any]:
    commands = {"exec": lambda _: (sys.executable, str(_PROGRAM)), "java": lambda run_id: _java(run_id, worker)}
    command = {"command": commands[client](common["run_id"])} if client in commands else {}
    return {**common, **command, "worker": worker}


def _java(run_id: str, worker: str) -> tuple[str, ...]:
    image = engine.java_client_image(engine.connect(), engine.DEFAULT_KAFKA, print)
    return label_worker(java_command(image.name, ownership.labels_of(run_id, Path(), keep=False)), worker)


def _await_flow(fleet: Fleet) -> None:
    def lacking() -> str:
        progress_by_worker = fleet.progress()
        flowing = [name for name, progress in progress_by_worker.items() if progress.ok >= _FLOWING]
        return "" if len(flowing) == len(fleet.pids()) else f"{len(flowing)} of {len(fleet.pids())} clients flow"

    assert not still_lacking(lacking, _READY_S)
