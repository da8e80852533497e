"""Client processes on a cluster: started, stopped and drained as in a run, without plan or verdict."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.harness.cluster.cluster import Cluster
from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.events import run_clock
from aftershock.workloads.load.fleet import Fleet
from aftershock.workloads.load.logread import Topic, end_offsets
from aftershock.workloads.load.outcomes import convert

Row = dict[str, Any]
During = Callable[[Fleet], Awaitable[None]]


@dataclass
class Load:
    """Clients of one topic. ``rows`` has every outcome row, and ``read_to`` the end offsets, once the load is over."""

    cluster: Cluster
    home: Path
    topic: Topic
    rows: list[Row] = field(default_factory=list)
    read_to: dict[int, int] = field(default_factory=dict)
    origin_ns: int = field(default_factory=time.monotonic_ns)
    _producers: int = 0

    def _common(self, worker: str, client: str, rack: str) -> dict[str, Any]:
        topic = asdict(self.topic)
        return {
            "run_id": self.cluster.run_id,
            "origin_ns": self.origin_ns,
            "worker": worker,
            "workload": "w",
            "arm": worker,
            "client": client,
            "topic": topic["name"],
            "topic_id": topic["topic_id"],
            "partitions": topic["partitions"],
            "bootstrap": self.cluster.bootstrap(rack),
            "rack": rack,
            "spool": self.home / "spool",
            "events": self.home / "events.jsonl",
        }

    def produce(self, worker: str, client: str, rack: str = "a", **changes: Any) -> ProduceAssignment:
        plain = {"rate_per_s": 50, "record_size_min": 200, "record_size_max": 200, "seed": 7, "deadline_ms": 20_000}
        self._producers += 1
        numbered = {"producer_id": self._producers - 1}
        return ProduceAssignment(**(self._common(worker, client, rack) | plain | numbered | changes))

    def commit(self, worker: str, client: str, rack: str = "a", **changes: Any) -> CommitAssignment:
        self._producers += 1
        numbered = {"producer_id": self._producers - 1}
        return CommitAssignment(
            **(self._common(worker, client, rack) | {"rate_per_s": 20, "groups": 4} | numbered | changes)
        )

    def consume(self, worker: str, client: str, rack: str = "a", **changes: Any) -> ConsumeAssignment:
        return ConsumeAssignment(**(self._common(worker, client, rack) | changes))

    def run(self, crew: Sequence[Assignment], seconds: float, during: During | None = None) -> None:
        """Run the load for ``seconds`` or as long as ``during`` takes; raise if a worker dies or misses records."""
        self.home.mkdir(parents=True, exist_ok=True)
        asyncio.run(self._run(crew, seconds, during))
        convert(self.home / "spool", self.home / "outcomes")
        tables = [pq.read_table(path) for path in sorted((self.home / "outcomes").glob("*.parquet"))]
        self.rows = pa.concat_tables(tables).to_pylist()

    async def _run(self, crew: Sequence[Assignment], seconds: float, during: During | None) -> None:
        now_us = run_clock(self.origin_ns)
        async with Fleet(crew, self.home / "logs") as fleet:
            await fleet.start(40)
            await fleet.go(now_us() + 200_000)
            await (during(fleet) if during else asyncio.sleep(seconds))
            await fleet.stop(now_us())
            ends = await asyncio.to_thread(end_offsets, self.cluster.bootstrap(None), [self.topic], 20)
            self.read_to = dict(ends[self.topic.name])
            missing = await fleet.drain(ends, 30)
            assert {} == missing
            await fleet.quit()

    def of(self, worker: str, status: str | None = None) -> list[Row]:
        """Return the rows of one worker, optionally with one status."""
        return [row for row in self.rows if row["arm"] == worker and status in (None, row["status"])]


def new_topic(cluster: Cluster, name: str, partitions: int, led_by: int | None = None, **config: str) -> Topic:
    """Create a topic of three in-sync replicas; with ``led_by`` that broker leads every partition, as preferred
    leader.
    """
    topic_id = cluster.admin.create_topic(name, partitions, 3, config)
    cluster.await_in_sync(20, [name])  # Every broker has the topic in its metadata by then.
    if led_by is not None:
        others = [broker for broker in sorted(cluster.nodes) if broker != led_by]
        placed = {(name, number): (led_by, *others) for number in range(partitions)}
        cluster.admin.reassign(placed)
        wait(lambda: not cluster.admin.reassigning())
        cluster.admin.elect_preferred(placed)
        wait(lambda: {led_by} == {each.leader for each in cluster.admin.partitions([name])})
    cluster.await_in_sync(20, [name])
    return Topic(name, topic_id, partitions)


def wait(reached: Callable[[], bool], deadline_s: float = 20.0) -> None:
    """Wait until the condition holds; fail at the deadline."""
    until_s = time.monotonic() + deadline_s
    while not reached():
        assert time.monotonic() < until_s, "not in time"
        time.sleep(0.05)


def records(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return producer and number of each record."""
    return [(row["producer_id"], row["seq"]) for row in rows]


def out_of_order(rows: Sequence[Row]) -> list[Row]:
    """Return deliveries to one reader whose number is not above the previous one of the same producer and partition."""
    last: dict[tuple[int, int], int] = {}
    wrong = []
    for row in rows:
        lane = row["producer_id"], row["partition"]
        if row["seq"] <= last.get(lane, -1):
            wrong.append(row)
        last[lane] = row["seq"]
    return wrong


def rotate_leaders(cluster: Cluster, topic: str) -> None:
    """Rotate every replica list by one, and make the new first replica the leader."""
    turned = {
        (topic, each.partition): (*each.replicas[1:], each.replicas[0]) for each in cluster.admin.partitions([topic])
    }
    cluster.admin.reassign(turned)
    wait(lambda: not cluster.admin.reassigning())
    cluster.admin.elect_preferred(turned)
    wait(lambda: all(each.leader == turned[topic, each.partition][0] for each in cluster.admin.partitions([topic])))
