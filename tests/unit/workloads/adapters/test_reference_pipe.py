"""The pipe of the reference client against a scripted cluster: outputs once, in order, with their positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.workloads.adapters import reference_pipe
from aftershock.workloads.adapters.reference_pipe import Pipe
from aftershock.workloads.kafka.wire.batch import parse
from aftershock.workloads.kafka.wire.batch_builder import build

QUICK = {"linger.ms": 0, "retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "fetch.max.wait.ms": 20}
TURNS = 400


@pytest.fixture(params=["consumer", "classic"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def cluster(broker: ScriptedBroker, request: pytest.FixtureRequest) -> Iterator[ScriptedBroker]:
    broker.reset()
    broker.set_transaction_version(request.param)
    broker.create("orders", partitions=2)
    broker.create("billed")
    yield broker
    broker.clear()


def append(cluster: ScriptedBroker, number: int, count: int) -> None:
    """Append inputs to a partition of ``orders``, each with a key, a value and a header of its own."""
    for _ in range(count):
        end = len([*parse(cluster.log("orders", number))])
        text = b"%d-%d" % (number, end)
        headers = [(("aftershock", text), ("other", None))]
        cluster.append("orders", number, build([text], timestamps_ms=[0], keys=[b"k"], headers=headers))


@asynccontextmanager
async def piping(cluster: ScriptedBroker, *, transactional: bool = True, **settings: Any) -> AsyncIterator[Pipe]:
    words = {"bootstrap": cluster.bootstrap, "from": "orders", "to": "billed", "group": "biller", "member": "biller-1"}
    pipe = Pipe({**words, "settings": QUICK | settings, "transactional": transactional})
    await pipe.start()
    try:
        yield pipe
    finally:
        await pipe.close()


async def turn_until(pipe: Pipe, reached: Callable[[], object]) -> None:
    for _ in range(TURNS):
        if reached():
            return
        await pipe.turn()
    raise AssertionError("the pipe did not get that far")


def outputs(cluster: ScriptedBroker) -> list[tuple[bytes | None, str]]:
    """Return the headers of the outputs that are committed, in their order, with the fate of their transaction."""
    found: list[tuple[bytes | None, str]] = []
    open_: list[bytes | None] = []
    for batch in parse(cluster.log("billed")):
        if batch.is_control:
            found += [(mark, batch.marker or "") for mark in open_]
            open_ = []
        else:
            for record in batch.records:
                mark = dict(record.headers)["aftershock"]
                assert (record.key, record.value, dict(record.headers)["other"]) == (b"k", mark, None)
                open_.append(mark)
    return found + [(mark, "none") for mark in open_]


def committed(cluster: ScriptedBroker) -> dict[tuple[str, int], int]:
    return cluster.committed("biller")


async def test_each_input_has_an_output_in_the_order_of_its_partition(cluster: ScriptedBroker, protocol: str) -> None:
    """Outputs and positions are committed together, and a new process goes on behind them."""
    ends: dict[tuple[str, int], int] = {("orders", 0): 5, ("orders", 1): 3}
    for (_, number), count in ends.items():
        append(cluster, number, count)
    async with piping(cluster, **{"group.protocol": protocol}) as pipe:
        await turn_until(pipe, lambda: committed(cluster) == ends)
    append(cluster, 0, 2)
    async with piping(cluster, **{"group.protocol": protocol}) as pipe:
        await turn_until(pipe, lambda: committed(cluster) == {**ends, ("orders", 0): 7})
    for number, count in ((0, 7), (1, 3)):
        of_partition = [mark for mark, _ in outputs(cluster) if mark and mark.startswith(b"%d-" % number)]
        assert [b"%d-%d" % (number, offset) for offset in range(count)] == of_partition
    assert {"commit"} == {fate for _, fate in outputs(cluster)}
    metadata = {(seen.fields["member_id"], seen.fields["generation_id"]) for seen in cluster.journal("TxnOffsetCommit")}
    assert all(member and generation >= 0 for member, generation in metadata)


async def test_a_refused_member_reads_the_records_again(cluster: ScriptedBroker) -> None:
    """Its outputs are aborted, and written again in another transaction."""
    append(cluster, 0, 3)
    cluster.script("TxnOffsetCommit", error=int(ErrorCode.illegal_generation))
    async with piping(cluster) as pipe:
        await turn_until(pipe, lambda: committed(cluster) == {("orders", 0): 3})
        assert pipe.producer.counts["transactions_aborted"] == 1
    # with version 2 the offsets may be refused before the outputs were sent
    fates = [fate for _, fate in outputs(cluster)]
    assert {"commit"} | {*fates} <= {"commit", "abort"}
    assert 3 == fates.count("commit")


async def test_a_commit_without_an_answer_is_asked_again(
    cluster: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_pipe, "_STEP_MS", 2_000.0)
    append(cluster, 0, 3)
    cluster.script("EndTxn", delay_ms=2_500)
    async with piping(cluster) as pipe:
        await turn_until(pipe, lambda: committed(cluster) == {("orders", 0): 3})
    assert ["commit"] * 3 == [fate for _, fate in outputs(cluster)]


async def test_a_fenced_producer_gives_way(cluster: ScriptedBroker) -> None:
    append(cluster, 0, 3)
    cluster.script("EndTxn", error=int(ErrorCode.producer_fenced))
    async with piping(cluster) as pipe:
        with pytest.raises(BrokerError, match="PRODUCER_FENCED"):
            await turn_until(pipe, lambda: False)
    assert committed(cluster) == {}


async def test_no_member_commits_nothing(cluster: ScriptedBroker) -> None:
    """Offsets without the metadata of a member would be refused by nobody."""
    append(cluster, 0, 3)
    async with piping(cluster) as pipe:
        await turn_until(pipe, lambda: committed(cluster) == {("orders", 0): 3})
        cluster.script("ConsumerGroupHeartbeat", error=int(ErrorCode.unknown_member_id))
        seen = len(cluster.journal("ConsumerGroupHeartbeat"))
        await cluster.until("ConsumerGroupHeartbeat", seen + 1)
        await asyncio.sleep(0.1)  # its response
        with pytest.raises(BrokerError, match="no member of its group"):
            pipe.consumer.group_offsets({})


async def test_at_least_once_commits_behind_its_outputs(cluster: ScriptedBroker, protocol: str) -> None:
    append(cluster, 0, 3)
    cluster.script("OffsetCommit", error=int(ErrorCode.fenced_instance_id))
    async with piping(cluster, transactional=False, **{"group.protocol": protocol}) as pipe:
        await turn_until(pipe, lambda: committed(cluster).get(("orders", 0)) == 3)
    assert ["none"] * 3 == [fate for _, fate in outputs(cluster)]


async def test_a_refused_output_ends_the_process(cluster: ScriptedBroker) -> None:
    """Otherwise its position would be committed."""
    append(cluster, 0, 3)
    cluster.script("Produce", error=int(ErrorCode.invalid_record))
    async with piping(cluster, transactional=False) as pipe:
        with pytest.raises(BrokerError, match="an output was refused: INVALID_RECORD"):
            await turn_until(pipe, lambda: False)
    assert committed(cluster) == {}
