"""The worker's side of the reference clients, over a scripted broker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from aftershock.errors import BrokerError, SettingError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.adapters.steps import answered, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters.reference import ReferenceConsumer, ReferenceProducer
from aftershock.workloads.load.assignment import Drain, Go, Stop
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.worker import Client

S = 1_000_000
TOPIC = "t"


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3, racks=["a", "b", "c"]) as broker:
        yield broker


@pytest.fixture
def here(broker: ScriptedBroker, bench: Bench) -> Bench:
    """A bench whose assignments lead to the broker, which has one topic of four partitions."""
    broker.reset()
    broker.create(TOPIC, partitions=4)
    bench._common |= {"bootstrap": broker.bootstrap, "topic": TOPIC, "client": "reference"}
    return bench


def producing(bench: Bench, **changes: Any) -> ReferenceProducer:
    told = bench.produce(**changes)
    producer = ReferenceProducer(told, bench.now_us, Events(told, bench.now_us))
    producer.prepare()
    return producer


def consuming(bench: Bench, **changes: Any) -> ReferenceConsumer:
    told = bench.consume(**changes)
    consumer = ReferenceConsumer(told, bench.now_us, Events(told, bench.now_us))
    consumer.prepare()
    return consumer


def sends(bench: Bench, producer: Client, for_us: int = S // 2) -> dict[str, Any]:
    """Go for ``for_us`` (200 records a second), then stop; the answer to that."""
    now_us = bench.now_us()
    producer.obey(Go(start_us=now_us))
    producer.obey(Stop(at_us=now_us + for_us))
    return answered(producer)


def step_for(client: Client, for_us: int) -> None:
    for _ in range(for_us // (S // 10)):
        client.step(S // 10)


def events(bench: Bench) -> list[str]:
    return [json.loads(line)["event"] for line in bench.events.read_text().splitlines()]


def test_rows_say_who_took_a_record_and_at_which_try(here: Bench, broker: ScriptedBroker) -> None:
    """One batch meets a leader that has moved: its rows tell the new broker, its epoch and two attempts."""
    producer = producing(here, linger_ms=0, settings={"batch.size": 100})
    broker.move_leader(TOPIC, 0, to=2)
    assert {"did": "stop", "unreported": 0} == sends(here, producer)
    producer.close()
    sent = rows(here, "p0")
    assert 100 == len(sent)
    assert {"ok"} == {row["status"] for row in sent}
    moved = [row for row in sent if row["partition"] == 0]
    assert {2} == {row["broker_id"] for row in moved}
    assert 2 == max(row["attempts"] for row in moved)
    assert 1 == max(row["leader_epoch"] for row in moved) - min(row["leader_epoch"] for row in sent)
    counters = producer.counters()
    assert (100, 1) == (counters["ok"], counters["hints_accepted"])
    assert {"hint_accepted", "batch_retried"} <= {*events(here)}


def test_a_full_buffer_fails_its_own_records_and_no_others(here: Bench, broker: ScriptedBroker) -> None:
    """While nobody answers two records fit; the others wait for max.block.ms and fail, and what fitted is acked."""
    settings = {
        "buffer.memory": 600,
        "max.block.ms": 100,
        "batch.size": 200,
        "max.in.flight.requests.per.connection": 1,
    }
    producer = producing(here, linger_ms=0, record_size_min=200, record_size_max=200, settings=settings)
    broker.script("Produce", nth=1, times=12, delay_ms=400)
    sends(here, producer)
    producer.close()
    statuses = {row["status"] for row in rows(here, "p0")}
    assert {"ok", "failed"} == statuses
    failed = [row for row in rows(here, "p0") if row["status"] == "failed"]
    assert {None} == {row["offset"] for row in failed}


def test_what_is_delivered_is_noted_with_its_place(here: Bench) -> None:
    """A consumer notes each record once, from whom it was read; drained, it misses nothing."""
    producer = producing(here)
    sends(here, producer)
    producer.close()
    consumer = consuming(here)
    sent = rows(here, "p0")
    ends = {number: sum(row["partition"] == number for row in sent) for number in range(4)}
    consumer.obey(Drain(end_offsets=ends, until_us=here.now_us() + 20 * S))
    assert {"did": "drain", "missing": {}} == answered(consumer)
    consumer.close()
    read = rows(here, "c0")
    assert sorted((row["producer_id"], row["seq"], row["partition"], row["offset"]) for row in sent) == sorted(
        (row["producer_id"], row["seq"], row["partition"], row["offset"]) for row in read
    )
    assert {1, 2, 3} >= {row["broker_id"] for row in read} > set()
    assert all(row["high_watermark"] > row["offset"] for row in read)


def test_a_drain_that_can_not_end_says_what_is_missing(here: Bench) -> None:
    """Offsets that nobody wrote are counted as missing when the time is up."""
    consumer = consuming(here)
    consumer.obey(Drain(end_offsets={0: 3, 1: 0}, until_us=here.now_us() + S // 5))
    assert {"did": "drain", "missing": {0: 3}} == answered(consumer)
    consumer.close()


def test_a_client_begins_at_the_end_if_told_so(here: Bench) -> None:
    """``from: latest``: what was there before is not read, what comes after is."""
    first = producing(here)
    sends(here, first)
    first.close()
    consumer = consuming(here, from_="latest", group="g")
    second = producing(here, worker="p1", producer_id=1)
    sends(here, second)
    second.close()
    ends = {
        number: sum(row["partition"] == number for name in ("p0", "p1") for row in rows(here, name))
        for number in range(4)
    }
    consumer.obey(Drain(end_offsets=ends, until_us=here.now_us() + 20 * S))
    assert {"did": "drain", "missing": {}} == answered(consumer)
    consumer.close()
    assert {1} == {row["producer_id"] for row in rows(here, "c0")}


def test_a_group_that_another_member_began_meanwhile_is_joined(here: Bench, broker: ScriptedBroker) -> None:
    """Who is no member may commit nothing to a group that has one: what that one settled is asked for again."""
    broker.script("OffsetCommit", error=25, times=1)
    consumer = consuming(here, from_="latest", group="g")
    consumer.close()
    asked = [seen.api for seen in broker.journal() if seen.api in ("OffsetFetch", "OffsetCommit")]
    assert ["OffsetFetch", "OffsetCommit", "OffsetFetch", "OffsetCommit"] == asked[:4]


def test_a_group_that_refuses_a_member_for_good_ends_the_worker(here: Bench, broker: ScriptedBroker) -> None:
    """While it joins: the sentence is raised, not told again and again, for no poll would ever be better."""
    broker.script("ConsumerGroupHeartbeat", error=30, times=1_000)
    told = here.consume(group="g")
    consumer = ReferenceConsumer(told, here.now_us, Events(told, here.now_us))
    with pytest.raises(BrokerError, match="the group g rejects this consumer: GROUP_AUTHORIZATION_FAILED"):
        consumer.prepare()
    consumer.close()
    assert "client_error" not in events(here)


def test_a_membership_that_ends_later_ends_the_worker(here: Bench, broker: ScriptedBroker) -> None:
    """In the midst of reading: the step in which that is heard raises."""
    consumer = consuming(here, group="g")
    broker.script("ConsumerGroupHeartbeat", error=30, times=1_000)
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        step_for(consumer, 10 * S)
    consumer.close()


def test_the_error_of_a_partition_is_told_and_reading_goes_on(here: Bench, broker: ScriptedBroker) -> None:
    """Each broker refuses its first fetch, which is told; all there is is delivered in the end."""
    producer = producing(here)
    sends(here, producer)
    producer.close()
    broker.script("Fetch", error=29, times=3)
    consumer = consuming(here)
    ends = {number: sum(row["partition"] == number for row in rows(here, "p0")) for number in range(4)}
    consumer.obey(Drain(end_offsets=ends, until_us=here.now_us() + 20 * S))
    assert {"did": "drain", "missing": {}} == answered(consumer)
    consumer.close()
    assert "client_error" in events(here)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"lingr.ms": 5}, "the nearest is linger.ms"), ({"batch.size": "many"}, "batch.size"), ({"acks": "some"}, "acks")],
)
def test_settings_that_can_not_be(bench: Bench, settings: dict[str, Any], why: str) -> None:
    """A misspelt setting and impossible values are sentences before anything is sent."""
    told = bench.produce(client="reference", settings=settings)
    with pytest.raises(SettingError, match=why):
        ReferenceProducer(told, bench.now_us, Events(told, bench.now_us))


def test_a_setting_of_the_other_side_is_passed_over(here: Bench) -> None:
    """An arm's settings and switches are for its producer and its consumer: each takes its own."""
    both: dict[str, Any] = {
        "settings": {"fetch.max.wait.ms": 100, "batch.size": 1000},
        "switches": {"fetch_session": False, "partitioner": "uniform"},
    }
    producing(here, **both).close()
    consuming(here, **both).close()


def test_a_consumer_tells_what_its_fetches_cost_while_it_reads(here: Bench) -> None:
    """The counters of fetches are told with the progress, so that they can be had block by block; no others are."""
    consumer = consuming(here)
    step_for(consumer, S // 2)
    counts = consumer.progress()["counts"]
    consumer.close()
    assert counts["fetches_full"]
    assert counts["fetch_request_bytes_full"]
    assert {"fetch"} == {name[:5] for name in counts}
