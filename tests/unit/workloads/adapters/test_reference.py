"""Reference clients as the worker drives them, over a scripted broker."""

import json
from typing import Any

import pytest

from aftershock.errors import BrokerError, SettingError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.adapters.steps import TOPIC, answered, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters.reference import ReferenceConsumer, ReferenceProducer
from aftershock.workloads.load.assignment import Drain, Go, Stop
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.worker import Client

S = 1_000_000


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
    """Go for ``for_us`` (200 records a second), then stop; return the answer to the stop."""
    now_us = bench.now_us()
    producer.obey(Go(start_us=now_us))
    producer.obey(Stop(at_us=now_us + for_us))
    return answered(producer)


def step_for(client: Client, for_us: int) -> None:
    for _ in range(for_us // (S // 10)):
        client.step(S // 10)


def events(bench: Bench) -> list[str]:
    return [json.loads(line)["event"] for line in bench.events.read_text().splitlines()]


def test_rows_have_broker_epoch_and_attempts(here: Bench, broker: ScriptedBroker) -> None:
    """One batch meets a leader that has moved: its rows have the new broker, its epoch and two attempts."""
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


def test_a_full_buffer_fails_only_records_that_do_not_fit(here: Bench, broker: ScriptedBroker) -> None:
    """While no broker answers, two records fit; the others wait for max.block.ms and fail, and the first two are
    acked.
    """
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


def test_each_delivered_record_has_a_row(here: Bench) -> None:
    """With the broker that it was read from; the drain misses no record."""
    producer = producing(here)
    sends(here, producer)
    producer.close()
    consumer = consuming(here)
    sent = rows(here, "p0")
    ends = {number: sum(row["partition"] == number for row in sent) for number in range(4)}
    consumer.obey(Drain(end_offsets={TOPIC: ends}, until_us=here.now_us() + 20 * S))
    assert {"did": "drain", "positions": {TOPIC: ends}} == answered(consumer)
    consumer.close()
    read = rows(here, "c0")
    assert sorted((row["producer_id"], row["seq"], row["partition"], row["offset"]) for row in sent) == sorted(
        (row["producer_id"], row["seq"], row["partition"], row["offset"]) for row in read
    )
    assert {1, 2, 3} >= {row["broker_id"] for row in read} > set()
    assert all(row["high_watermark"] > row["offset"] for row in read)


def test_a_consumer_that_closes_commits_only_what_it_has_processed(here: Bench) -> None:
    """It is closed with polled records in hand: they are delivered first, so nothing below the commits is lost."""
    producer = producing(here)
    sends(here, producer)
    producer.close()
    consumer = consuming(here, group="g", processing_ms=10)
    while not consumer.counters()["received"]:
        consumer.step(S // 100)
    consumer.close()
    assert committed_and_undelivered(here) == (True, [])


def test_a_consumer_that_closes_does_not_poll_again(here: Bench) -> None:
    """It is closed between two polls, with more records at hand: what it does not deliver, it does not commit."""
    producer = producing(here, settings={"batch.size": 1})
    sends(here, producer)
    producer.close()
    consumer = consuming(here, group="g", members=2, settings={"max.poll.records": 1})
    while not consumer.counters()["received"]:
        consumer.step(0)
    consumer.close()
    assert committed_and_undelivered(here) == (True, [])


def committed_and_undelivered(here: Bench) -> tuple[bool, list[tuple[int, int]]]:
    emitted = map(json.loads, here.events.read_text().splitlines())
    commits = [offset for event in emitted if event["event"] == "committed" for offset in event["offsets"]]
    delivered = {(row["partition"], row["offset"]) for row in rows(here, "c0")}
    undelivered = [
        (number, offset) for _, number, end in commits for offset in range(end) if (number, offset) not in delivered
    ]
    return any(offset > 0 for *_, offset in commits), undelivered


MORE = {"more_topics": [{"name": "t2", "topic_id": "id-2", "partitions": 2}]}


@pytest.mark.parametrize(
    "reader",
    [
        {},  # without a group: every partition of both topics
        {"group": "g"},
        {"group": "g", "pattern": "t[0-9]?"},
        {"group": "g", "pattern": "t[0-9]?", "protocol": "classic"},
    ],
)
def test_two_topics_are_filled_in_turn_and_read(here: Bench, broker: ScriptedBroker, reader: dict[str, Any]) -> None:
    """Even records go to the first topic, odd ones to the second; each is delivered at its place."""
    broker.create("t2", partitions=2)
    broker.create("other", partitions=1)
    producer = producing(here, **MORE)
    sends(here, producer)
    producer.close()
    sent = rows(here, "p0")
    assert {("t", 0), ("t2", 1)} == {(row["topic"], row["seq"] % 2) for row in sent}
    assert {here._common["topic_id"], "id-2"} == {row["topic_id"] for row in sent}

    consumer = consuming(here, **MORE, **reader, commit={"every_records": 7} if reader else None)
    ends: dict[str, dict[int, int]] = {"t": dict.fromkeys(range(4), 0), "t2": dict.fromkeys(range(2), 0)}
    for row in sent:
        ends[row["topic"]][row["partition"]] += 1
    consumer.obey(Drain(end_offsets=ends, until_us=here.now_us() + 20 * S))
    assert {"did": "drain", "positions": ends} == answered(consumer)
    consumer.close()
    names = ("topic", "topic_id", "partition", "offset", "producer_id", "seq")
    places = [sorted([row[name] for name in names] for row in rows(here, worker)) for worker in ("p0", "c0")]
    assert places[0] == places[1]
    emitted = [json.loads(line) for line in here.events.read_text().splitlines()]
    assigned = [place for event in emitted if event["event"] == "assigned" for place in event["partitions"]]
    assert sorted([topic, number] for topic, of in ends.items() for number in of) == sorted(assigned)
    if reader:
        committed = [tuple(place) for event in emitted if event["event"] == "committed" for place in event["offsets"]]
        assert {"t", "t2"} == {topic for topic, *_ in committed}
        assert all(0 <= offset <= ends[topic][number] for topic, number, offset in committed)


def test_a_drain_ends_at_its_deadline(here: Bench) -> None:
    """At the deadline the positions are below the ends."""
    consumer = consuming(here)
    consumer.obey(Drain(end_offsets={TOPIC: {0: 3, 1: 0}}, until_us=here.now_us() + S // 5))
    assert {"did": "drain", "positions": {TOPIC: dict.fromkeys(range(4), 0)}} == answered(consumer)
    consumer.close()


def test_from_latest_starts_at_the_end(here: Bench) -> None:
    """Earlier records are not read, later records are."""
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
    consumer.obey(Drain(end_offsets={TOPIC: ends}, until_us=here.now_us() + 20 * S))
    assert {"did": "drain", "positions": {TOPIC: ends}} == answered(consumer)
    consumer.close()
    assert {1} == {row["producer_id"] for row in rows(here, "c0")}


def test_a_second_member_uses_the_first_ones_commit(here: Bench, broker: ScriptedBroker) -> None:
    """A client outside the group may not commit to a group with members: it reads the first member's commit."""
    broker.script("OffsetCommit", error=25, times=1)
    consumer = consuming(here, from_="latest", group="g")
    consumer.close()
    asked = [seen.api for seen in broker.journal() if seen.api in ("OffsetFetch", "OffsetCommit")]
    assert ["OffsetFetch", "OffsetCommit", "OffsetFetch", "OffsetCommit"] == asked[:4]


def test_a_refused_join_ends_the_worker(here: Bench, broker: ScriptedBroker) -> None:
    """The error is raised once, since no later poll would succeed."""
    broker.script("ConsumerGroupHeartbeat", error=30, times=1_000)
    told = here.consume(group="g")
    consumer = ReferenceConsumer(told, here.now_us, Events(told, here.now_us))
    with pytest.raises(BrokerError, match="the group g rejects this consumer: GROUP_AUTHORIZATION_FAILED"):
        consumer.prepare()
    consumer.close()
    assert "client_error" not in events(here)


def test_a_membership_that_ends_later_ends_the_worker(here: Bench, broker: ScriptedBroker) -> None:
    """The error is raised by the step in which the client learns it."""
    consumer = consuming(here, group="g")
    broker.script("ConsumerGroupHeartbeat", error=30, times=1_000)
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        step_for(consumer, 10 * S)
    consumer.close()


def test_a_partition_error_is_an_event_and_reading_continues(here: Bench, broker: ScriptedBroker) -> None:
    """Each broker refuses its first fetch, which gives an event; every record is delivered in the end."""
    producer = producing(here)
    sends(here, producer)
    producer.close()
    broker.script("Fetch", error=29, times=3)
    consumer = consuming(here)
    ends = {number: sum(row["partition"] == number for row in rows(here, "p0")) for number in range(4)}
    consumer.obey(Drain(end_offsets={TOPIC: ends}, until_us=here.now_us() + 20 * S))
    assert {"did": "drain", "positions": {TOPIC: ends}} == answered(consumer)
    consumer.close()
    assert "client_error" in events(here)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"lingr.ms": 5}, "the nearest is linger.ms"), ({"batch.size": "many"}, "batch.size"), ({"acks": "some"}, "acks")],
)
def test_invalid_settings_are_refused(bench: Bench, settings: dict[str, Any], why: str) -> None:
    """A misspelt setting and impossible values are errors before any request."""
    told = bench.produce(client="reference", settings=settings)
    with pytest.raises(SettingError, match=why):
        ReferenceProducer(told, bench.now_us, Events(told, bench.now_us))


def test_producer_and_consumer_take_their_own_settings(here: Bench) -> None:
    """An arm's settings and switches are for its producer and its consumer."""
    both: dict[str, Any] = {
        "settings": {"fetch.max.wait.ms": 100, "batch.size": 1000},
        "switches": {"fetch_session": False, "partitioner": "uniform"},
    }
    producing(here, **both).close()
    consuming(here, **both).close()


def test_draws_are_part_of_the_progress(here: Bench) -> None:
    """Each partition's, so that they can be counted within a fault."""
    producer = producing(here, linger_ms=0, settings={"batch.size": 100}, switches={"switch": "sharp"})
    sends(here, producer)
    counts = producer.progress()["counts"]
    producer.close()
    assert counts["partition_draws"] == sum(counts.get(f"partition_draws_{number}", 0) for number in range(4)) > 1


def test_fetch_counters_are_part_of_the_progress(here: Bench) -> None:
    """So that they can be compared by block; no other counter is."""
    consumer = consuming(here)
    step_for(consumer, S // 2)
    counts = consumer.progress()["counts"]
    consumer.close()
    assert counts["fetches_full"]
    assert counts["fetch_request_bytes_full"]
    assert {"fetch"} == {name[:5] for name in counts}
