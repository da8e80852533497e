from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from aftershock.errors import WorkloadError
from aftershock.tests.mock_cluster import MockCluster
from aftershock.workloads.adapters.conformance.bench import PARTITIONS
from aftershock.workloads.load.assignment import PipeAssignment
from aftershock.workloads.load.fleet import Fleet, read_lives
from aftershock.workloads.load.logread import ReadLimit, Topic, end_offsets, read_log
from aftershock.workloads.load.outcomes import convert

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aftershock.tests.unit.workloads.conftest import Bench


READY_S = 60.0
S = 1_000_000


async def until(condition: Callable[[], bool], what: str, deadline_s: float = 30) -> None:
    """Wait for a condition; the failure names the condition."""
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():  # noqa: ASYNC110  # it happens in another process
                await asyncio.sleep(0.02)  # what is waited for happens in another process
    except TimeoutError:
        pytest.fail(f"waited {deadline_s} s for {what}")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def topics(bench: Bench) -> list[Topic]:
    return [Topic(bench.topic, f"id-of-{bench.topic}", PARTITIONS)]


def rows(directory: Path, worker: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(directory / f"part-{worker}.parquet").to_pylist()
    return found


async def run_to_the_end(fleet: Fleet, bench: Bench, stop_us: int) -> dict[str, dict[int, int]]:
    """Stop, drain and quit; every consumer must have reached the end."""
    await fleet.stop(stop_us)
    ends = await asyncio.to_thread(end_offsets, bench._common["bootstrap"], topics(bench), 20)
    assert await fleet.drain(ends, 30) == {}
    await fleet.quit()
    return ends


def test_a_consumer_without_records_does_not_delay_the_warm_up(bench: Bench) -> None:
    """It counts if a worker produces to its topic, or once it has read something."""
    idle = bench.consume(worker="idle", topic="idle")
    fleet = Fleet([bench.produce(worker="p0", producer_id=0), bench.consume(worker="c0"), idle], bench.logs)
    assert {"p0": [], "c0": []} == fleet.medians_us()
    fleet._workers[-1].seconds.add(S, [5])
    fleet._workers[-1].seconds.add(2 * S, [])
    assert {"p0": [], "c0": [], "idle": [5]} == fleet.medians_us()


async def test_every_record_sent_is_recorded_logged_and_consumed(live_bench: Bench) -> None:
    """Two arms from end to end: schedule kept, no record without its rows, the log and both consumers agree."""
    bench = live_bench
    fleet = Fleet(
        [
            bench.produce(worker="p0", producer_id=0, keys=5),
            bench.produce(worker="p1", producer_id=1, arm="other", offset_us=2_500, keys=5),
            bench.consume(worker="c0", client_rack="a"),
            bench.consume(worker="c1", arm="other", group="g-other", from_="latest"),
        ],
        bench.logs,
    )
    async with fleet:
        await fleet.start(READY_S)
        start_us = bench.now_us() + 50_000
        await fleet.go(start_us)
        ends = await run_to_the_end(fleet, bench, start_us + S)
        assert {worker.pid for worker in fleet._workers if worker.pid and not gone(worker.pid)} == set()
        assert fleet.progress().keys() == {"p0", "p1", "c0", "c1"}
        connections = ("node_disconnected", "request_timed_out")
        producers, consumers = (
            dict.fromkeys(("p0", "p1"), connections),
            dict.fromkeys(("c0", "c1"), (*connections, "values")),
        )
        assert fleet.reports() == producers | consumers
    convert(bench.spool, bench.outcomes)
    ends = end_offsets(bench._common["bootstrap"], topics(bench), 20)
    read_log(bench._common["bootstrap"], topics(bench), ends, bench.log, ReadLimit(20))
    sent = rows(bench.outcomes, "p0") + rows(bench.outcomes, "p1")
    assert [row["seq"] for row in sent] == [*range(200), *range(200)]
    assert [row["intended_us"] - start_us for row in sent] == [
        offset + n * 5_000 for offset in (0, 2_500) for n in range(200)
    ]
    assert {row["status"] for row in sent} == {"ok"}
    assert all(row["intended_us"] <= row["sent_us"] <= row["done_us"] <= row["deadline_us"] for row in sent)
    assert [row["bytes"] for row in sent[:200]] == [row["bytes"] for row in sent[200:]]
    place = ("producer_id", "seq", "partition", "offset")
    written = sorted(tuple(row[name] for name in place) for row in sent)
    for reader in (rows(bench.log, bench.topic), rows(bench.outcomes, "c0"), rows(bench.outcomes, "c1")):
        assert sorted(tuple(row[name] for name in place) for row in reader) == written
    assert sum(ends[bench.topic].values()) == 400
    intended = {(row["producer_id"], row["seq"]): (row["intended_us"], row["bytes"]) for row in sent}
    for row in rows(bench.outcomes, "c0"):
        assert (row["intended_us"], row["bytes"]) == intended[row["producer_id"], row["seq"]]
        assert row["offset"] < row["high_watermark"]
        assert row["done_us"] > row["intended_us"]
    assert {row["member"] for row in rows(bench.outcomes, "c0")} == {None}
    assert all(row["member"] for row in rows(bench.outcomes, "c1"))
    told = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assigned = [line for line in told if line["event"] == "assigned"]
    assert {line["worker"]: len(line["partitions"]) for line in assigned} == {"c0": PARTITIONS, "c1": PARTITIONS}
    assert {line["worker"] for line in told if line["event"] == "counters"} == {"p0", "p1", "c0", "c1"}


async def test_members_of_a_group_share_the_partitions(live_bench: Bench) -> None:
    """Three members, with each kind of commits, deliver every record between them."""
    bench = live_bench
    group = {"group": bench.topic, "members": 3, "settings": {"session.timeout.ms": 6_000}}
    members = [
        bench.consume(worker="c1", number=1, **group),
        bench.consume(worker="c2", number=2, commit={"every_ms": 100}, **group),
        bench.consume(worker="c3", number=3, commit={"every_records": 10}, processing_ms=1, **group),
    ]
    async with Fleet([bench.produce(), *members], bench.logs) as fleet:
        await fleet.start(READY_S)
        await asyncio.sleep(6)  # the mock cluster, like Kafka, waits 3 s for more members
        start_us = bench.now_us()
        await fleet.go(start_us)
        await run_to_the_end(fleet, bench, start_us + S)
    convert(bench.spool, bench.outcomes)
    read = [row for worker in ("c1", "c2", "c3") for row in rows(bench.outcomes, worker)]
    assert {row["seq"] for row in read} == {*range(200)}  # again after a rebalance
    assert len({row["worker"] for row in read}) >= 2
    told = [json.loads(line) for line in bench.events.read_text().splitlines()]
    committed = {line["worker"] for line in told if line["event"] == "committed" and "took_us" in line}
    assert committed <= {"c2", "c3"}
    assert committed


async def test_two_workloads_share_a_group(live_bench: Bench, mock_cluster: MockCluster) -> None:
    """Each reads its own topic to the end: the drain of one doesn't wait for the topic of the other."""
    bench, second = live_bench, f"{live_bench.topic}-returns"
    mock_cluster.create(second, 2)
    returns: dict[str, Any] = {"name": second, "topic_id": "id-2", "partitions": 2}
    back = {"workload": "back", "topic": second, "topic_id": "id-2", "partitions": 2}
    group = {"group": bench.topic, "settings": {"session.timeout.ms": 6_000}, "members": 2}
    members = [
        bench.consume(worker="c1", number=1, **group),
        bench.consume(worker="c2", number=2, **group),
        bench.consume(worker="b1", number=1, **group | back),
        bench.consume(worker="b2", number=2, **group | back),
    ]
    async with Fleet([bench.produce(more_topics=[returns]), *members], bench.logs) as fleet:
        await fleet.start(READY_S)
        await asyncio.sleep(6)  # the mock cluster, like Kafka, waits 3 s for more members
        start_us = bench.now_us()
        await fleet.go(start_us)
        await fleet.stop(start_us + S)
        both = [*topics(bench), Topic(second, "id-2", 2)]
        ends = await asyncio.to_thread(end_offsets, bench._common["bootstrap"], both, 20)
        beyond = {bench.topic: ends[bench.topic], second: {number: end + 7 for number, end in ends[second].items()}}
        assert await fleet.drain(ends, 30) == {}
        unread = await fleet.drain(beyond, 1)
        assert {"b1": {(second, 0): 7, (second, 1): 7}} == unread, "the records of one topic are due at one workload"
        await fleet.quit()
    convert(bench.spool, bench.outcomes)
    for workers, name, left in ((("c1", "c2"), bench.topic, 0), (("b1", "b2"), second, 1)):
        read = [row for worker in workers for row in rows(bench.outcomes, worker)]
        assert {name} == {row["topic"] for row in read}
        assert {*range(left, 200, 2)} == {row["seq"] for row in read}


async def test_latest_reads_nothing_from_before_it_was_ready(live_bench: Bench) -> None:
    """``from: latest`` starts at the end of the log when the consumer reported ready, with and without a group."""
    bench = live_bench
    async with Fleet([bench.produce(worker="before")], bench.logs) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        await fleet.stop(bench.now_us() + S // 4)
    late = [bench.consume(worker="c0", from_="latest"), bench.consume(worker="c1", from_="latest", group=bench.topic)]
    async with Fleet([bench.produce(worker="after", producer_id=1), *late], bench.logs) as fleet:
        await fleet.start(READY_S)
        start_us = bench.now_us()
        await fleet.go(start_us)
        await run_to_the_end(fleet, bench, start_us + S // 4)
    convert(bench.spool, bench.outcomes)
    for worker in ("c0", "c1"):
        read = sorted((row["producer_id"], row["seq"]) for row in rows(bench.outcomes, worker))
        assert read == [(1, seq) for seq in range(50)]


async def test_an_outage_of_the_whole_cluster_ends_nobody(live_bench: Bench) -> None:
    """All brokers stop and return: the schedule is kept, errors become events, and every record arrives."""
    bench = live_bench
    with MockCluster() as cluster:
        cluster.create(bench.topic, PARTITIONS)
        bench._common["bootstrap"] = cluster.bootstrap
        async with Fleet([bench.produce(), bench.consume()], bench.logs) as fleet:
            await fleet.start(READY_S)
            start_us = bench.now_us()
            await fleet.go(start_us)
            await until(lambda: fleet.progress()["p0"].ok > 0 if "p0" in fleet.progress() else False, "a first success")
            cluster.down()
            down_us = bench.now_us()
            await until(lambda: fleet.progress()["p0"].sent > fleet.progress()["p0"].ok + 100, "records piling up")
            up_us = bench.now_us()
            cluster.up()
            await run_to_the_end(fleet, bench, bench.now_us() + S // 2)
    convert(bench.spool, bench.outcomes)
    sent = rows(bench.outcomes, "p0")
    assert {row["status"] for row in sent} == {"ok"}
    hit = [row for row in sent if down_us < row["intended_us"] < up_us - S // 10]
    assert len(hit) > 50
    assert all(row["sent_us"] < up_us <= row["done_us"] for row in hit)
    assert {row["seq"] for row in rows(bench.outcomes, "c0")} == {row["seq"] for row in sent}
    assert '"event": "client_error"' in bench.events.read_text()


async def test_records_that_miss_their_deadline_are_in_doubt(live_bench: Bench) -> None:
    """The cluster stays down: each record gets its final status at its deadline, and stop waits for it."""
    bench = live_bench
    with MockCluster() as cluster:
        cluster.create(bench.topic, PARTITIONS)
        bench._common["bootstrap"] = cluster.bootstrap
        async with Fleet([bench.produce(deadline_ms=400), bench.consume()], bench.logs) as fleet:
            await fleet.start(READY_S)
            cluster.down()
            start_us = bench.now_us()
            await fleet.go(start_us)
            await fleet.stop(start_us + S // 5)
            missing = await fleet.drain({bench.topic: {0: 7, 1: 0}}, 0.1)
            await fleet.quit()
    assert missing == {"c0": {(bench.topic, 0): 7}}
    convert(bench.spool, bench.outcomes)
    sent = rows(bench.outcomes, "p0")
    assert [row["seq"] for row in sent] == list(range(40))
    assert {(row["status"], row["error"], row["offset"]) for row in sent} == {("in_doubt", "_MSG_TIMED_OUT", None)}
    assert all(row["deadline_us"] == row["intended_us"] + 400_000 <= row["done_us"] for row in sent)


async def test_a_record_that_is_too_large_and_a_full_queue_are_failures(live_bench: Bench) -> None:
    """Both are rejected before anything is sent: certain failures; nothing blocks or is sent twice."""
    bench = live_bench
    large = bench.produce(worker="large", record_size_max=5000, settings={"message.max.bytes": 1000})
    held = {"queue.buffering.max.messages": 3, "linger.ms": 60_000, "batch.num.messages": 1000}
    full = bench.produce(worker="full", producer_id=1, settings=held, deadline_ms=61_000)
    async with Fleet([large, full], bench.logs) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        await until(lambda: len(fleet.progress()) == 2 and fleet.progress()["full"].failed > 20, "a full queue")
    convert(bench.spool, bench.outcomes)
    refused = [row for row in rows(bench.outcomes, "large") if row["bytes"] > 1000]
    # the fleet's end is a kill, which may come between a worker's last record and its refusal
    assert {(row["status"], row["error"]) for row in refused[:-1]} == {("failed", "MSG_SIZE_TOO_LARGE")}
    queued = [(row["status"], row["error"]) for row in rows(bench.outcomes, "full")]
    assert queued[:3] == [("in_doubt", None)] * 3
    assert set(queued[3:-1]) == {("failed", "_QUEUE_FULL")}


async def test_a_killed_worker_is_named_at_once_and_its_rows_survive(live_bench: Bench) -> None:
    """kill -9 of one client: watch and later commands raise, the others end with the block, its rows are evidence."""
    bench = live_bench
    async with Fleet([bench.produce(), bench.consume()], bench.logs) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        await until(lambda: "p0" in fleet.progress() and fleet.progress()["p0"].ok > 20, "some successes")
        pids = fleet.pids()
        os.kill(pids["p0"], signal.SIGKILL)
        with pytest.raises(
            WorkloadError, match=r"the producer of arm baseline .* ended early: killed by signal 9; its"
        ):
            await asyncio.wait_for(fleet.watch(), 20)
        with pytest.raises(WorkloadError, match="ended early"):
            await fleet.stop(bench.now_us())
        assert not gone(pids["c0"])
    assert gone(pids["c0"])
    convert(bench.spool, bench.outcomes)
    sent = rows(bench.outcomes, "p0")
    assert [row["seq"] for row in sent] == list(range(len(sent)))
    assert sum(row["status"] == "ok" for row in sent) > 20
    assert all(row["done_us"] is None for row in sent if row["status"] == "in_doubt")


async def test_refused_settings_are_a_sentence(bench: Bench) -> None:
    """librdkafka's message about a setting reaches the user without a traceback, and no process is left."""
    bad = bench.produce(settings={"compression.type": "brotli"})
    with pytest.raises(WorkloadError, match=r"ended early: librdkafka: Invalid value .brotli.*; its log is .*p0\.log$"):
        async with Fleet([bad], bench.logs) as fleet:
            await fleet.start(READY_S)
    assert all(gone(pid) for pid in fleet.pids().values())


async def test_a_cluster_that_never_answers_is_a_deadline(bench: Bench) -> None:
    """Start gives up at its deadline, names a worker, and leaves no process."""
    with pytest.raises(WorkloadError, match="is not ready after 3 s") as late:
        async with Fleet([bench.consume()], bench.logs) as fleet:
            await fleet.start(3)
    assert "\n    " in str(late.value)
    assert "127.0.0.1:1/bootstrap: Connect" in str(late.value)
    assert all(gone(pid) for pid in fleet.pids().values())


async def test_quit_does_not_wait_for_a_cluster_that_is_gone(live_bench: Bench) -> None:
    """Closing a client on a dead cluster may take long; the counters are written and the process ends in time."""
    bench = live_bench
    with MockCluster() as cluster:
        cluster.create(bench.topic, PARTITIONS)
        bench._common["bootstrap"] = cluster.bootstrap
        async with Fleet([bench.consume(group="g")], bench.logs) as fleet:
            await fleet.start(READY_S)
            cluster.down()
            await fleet.quit(2)
            assert all(gone(pid) for pid in fleet.pids().values())
    assert '"event": "counters"' in bench.events.read_text()


def test_workers_need_names_of_their_own(bench: Bench) -> None:
    """Two workers with one name would share a log and a spool."""
    with pytest.raises(ValueError, match="names must be unique"):
        Fleet([bench.produce(), bench.produce()], bench.logs)


def piped(bench: Bench, name: str, code: str, **more: Any) -> PipeAssignment:
    common = bench.consume().model_dump(include={*PipeAssignment.model_fields} - {"op", "worker", "members", "number"})
    bench.consume().spool.mkdir(exist_ok=True)
    own = {"worker": name, "op": "pipe", "to": "billed", "command": [sys.executable, "-c", code]}
    return PipeAssignment.model_validate(common | own | more)


async def test_a_service_that_never_becomes_ready(bench: Bench) -> None:
    """The sentence says what was waited for."""
    service = piped(bench, "p", "import time; time.sleep(600)", ready={"log": "started"})
    async with Fleet([service], bench.logs) as fleet:
        with pytest.raises(
            WorkloadError, match=r"not ready after 2 s \(no line of its output matches `started`\); its"
        ):
            await fleet.start(2)


async def test_workers_in_turn(bench: Bench) -> None:
    """Each starts when the one before has joined; a service in reserve does not start."""
    joined: list[str] = []
    note = bench.logs.parent / "started"

    def service(name: str, **more: Any) -> PipeAssignment:
        code = f"import time; open({str(note)!r}, 'a').write('{name} '); time.sleep(600)"
        return piped(bench, name, code, **more)

    async def join(_name: str) -> None:
        joined.append(note.read_text())

    names = ("p1", "p2", "p3")
    async with Fleet([*map(service, reversed(names)), service("p4", reserve=True)], bench.logs) as fleet:
        await fleet.start(60, [names], join)
        assert ["p1 ", "p1 p2 ", "p1 p2 p3 "] == joined
        lives = read_lives(bench.consume().spool, [*names, "p4"])
        assert dict.fromkeys(names, "running") == {name: life.state for name, life in lives.items()}
        await fleet.quit()
        lives = read_lives(bench.consume().spool, names)
        assert dict.fromkeys(names, "ended") == {name: life.state for name, life in lives.items()}
