"""What is recorded of last stable offsets, and of which topics."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aftershock.faults.targets.values import BrokerId
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.run import polling
from aftershock.harness.run.recording import Sample
from aftershock.harness.run.stable_offsets import StableOffsetRecorder, recorded_topics
from aftershock.harness.safety.rundir import RunClock
from aftershock.results.evidence.transactions import open_transactions_ms, timeouts_ms
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.workloads.kafka.wire.batch_builder import build

PERIOD_US = 20_000


@pytest.fixture
def brokers() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(2) as cluster:
        cluster.create("orders", partitions=2)
        yield cluster


@pytest.fixture
def admin(brokers: ScriptedBroker) -> Iterator[Admin]:
    with closing(Admin({BrokerId(node): address for node, address in brokers.addresses.items()})) as admin:
        yield admin


async def test_each_leader_is_sampled_and_a_last_time_at_the_end(
    brokers: ScriptedBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 1 has an open transaction."""
    record = {"timestamps_ms": [1], "producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    brokers.append("orders", 1, build([b"x"], **record))  # type: ignore[arg-type]
    monkeypatch.setattr(polling, "PERIOD_US", PERIOD_US)
    kept: list[Sample] = []
    enough = asyncio.Event()

    def keep(samples: Sequence[Sample]) -> None:
        kept.extend(samples)
        if len(kept) >= 12:
            enough.set()

    target = cast("Any", SimpleNamespace(admin=admin))
    async with StableOffsetRecorder(target, ["orders"], RunClock.starting_now(), keep):
        await asyncio.wait_for(enough.wait(), 20)
        during = len(kept)
    leaders = {state.partition: state.leader for state in admin.partitions(["orders"])}
    named = {(sample.name, sample.broker_id) for sample in kept}
    assert {
        (f"stable_offset.{which}/orders/{number}", leader)
        for number, leader in leaders.items()
        for which in ("stable", "end")
    } == named
    assert {"stable_offset.end/orders/1": 1} == {sample.name: sample.value for sample in kept if sample.value}
    assert {name for name, _ in named} <= {sample.name for sample in kept[during:]}


async def test_a_broker_that_does_not_answer_gives_no_samples(brokers: ScriptedBroker, admin: Admin) -> None:
    leader = next(state.leader for state in admin.partitions(["orders"]) if state.partition == 0)
    brokers.down(int(cast("int", leader)))
    recorder = StableOffsetRecorder(
        cast("Any", SimpleNamespace(admin=admin)), ["orders"], RunClock.starting_now(), list
    )
    assert [] == await asyncio.to_thread(recorder._sample, admin, cast("BrokerId", leader))


def test_topics_with_transactions_and_how_long_those_may_be_open() -> None:
    """A service's time-out is its own setting or Kafka's default; the offsets that it commits are recorded too."""
    pipe = {"transactional": True, "to": {"ours": "billed", "lib": "charged"}}
    arms = {"ours": {"settings": {}}, "lib": {"settings": {"transaction.timeout.ms": 10_000}}}
    workloads: list[dict[str, Any]] = [
        {"produce": {"topics": ["a", "b"], "transaction": {"timeout_ms": 20_000}}, "arms": {}},
        {"produce": {"topic": "b", "transaction": {"timeout_ms": 30_000}}, "arms": {}},
        {"produce": {"topic": "orders"}, "pipe": pipe, "arms": arms},
        {"consume": {"topic": "a"}, "arms": {}},
    ]
    expected = {"a": 20_000, "b": 30_000, "billed": 60_000, "charged": 10_000, "__consumer_offsets": 60_000}
    assert expected == timeouts_ms(workloads)
    assert 35_000 == open_transactions_ms(20_000, {})
    scan = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    assert 26_000 == open_transactions_ms(20_000, {scan: "1000"})
    for cluster, internal in (({}, True), ({"attach": {}}, False)):
        timeline = cast("Any", SimpleNamespace(workloads=workloads, cluster=cluster))
        assert internal == ("__consumer_offsets" in recorded_topics(timeline))
