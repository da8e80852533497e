"""Parts of a record's latency: the parts add up, and indistinguishable parts stay one part."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aftershock.results.explain.events import Force
from aftershock.results.explain.record import Attempted, Part, behind, budget, delivery, on_path, own
from aftershock.tests.unit.results.checks.slo.stage import Stage, client

KINDS = ("batch_retried", "hint_accepted", "hint_refused", "metadata_refreshed", "throttled", "session_lost")


def record(**told: Any) -> Attempted:
    known = {"op": "produce", "client": "orders/a", "producer_id": 0, "seq": 7, "topic": "orders", "partition": 3}
    times = {"offset": 9, "intended_us": 1000, "sent_us": 3000, "done_us": 103_000, "status": "ok", "broker_id": 2}
    return Attempted(**{**known, **times, **told})


def event(kind: str, t_us: int, partition: int | None = 3, **told: Any) -> dict[str, Any]:
    place = {} if kind == "metadata_refreshed" else {"topic": "orders", "partition": partition}
    return {"event": kind, "t_us": t_us, **place, **told}


def parts(one: Attempted, *events: dict[str, Any]) -> dict[str, int]:
    return {part.name: part.us for part in budget(one, events)}


def test_without_attempts_latency_has_two_parts() -> None:
    """librdkafka reports only send time and completion time."""
    assert {"schedule lag": 2000, "in the client or broker": 100_000} == parts(record())


def test_an_attempt_metadata_backoff_and_a_retry_are_parts() -> None:
    """The parts are the first attempt until the hint, the metadata refresh, the back-off, and the second attempt."""
    told = [
        event("hint_refused", 13_000),
        event("metadata_refreshed", 33_000),
        event("batch_retried", 43_000),
        event("batch_retried", 43_000, partition=4),
    ]
    expected = {
        "schedule lag": 2000,
        "in the client or broker": 10_000,
        "waiting for metadata": 20_000,
        "back-off": 10_000,
        "in flight": 60_000,
    }
    assert expected == parts(record(attempts=2), *told)


def test_a_retry_without_hint_is_one_part() -> None:
    """Without a hint between two retries, flight time and back-off can't be distinguished."""
    told = [event("batch_retried", 23_000), event("batch_retried", 53_000)]
    expected = {"schedule lag": 2000, "in the client or broker": 50_000, "in flight": 50_000}
    assert expected == parts(record(attempts=3), *told)


def test_retries_of_earlier_batches_are_waiting_time() -> None:
    """A record with one attempt was not retried; earlier retries count as the batches that the record waited behind."""
    told = [event("batch_retried", 23_000), event("batch_retried", 53_000)]
    assert [] == own(record(attempts=1), told)
    assert 2 == behind(record(attempts=1), told)
    assert [53_000] == [one["t_us"] for one in own(record(attempts=2), told)]
    assert 1 == behind(record(attempts=2), told)


def test_a_record_belongs_to_the_last_batch_that_begins_before_it() -> None:
    """Record 7 belongs to the last batch whose first record is 7 or lower."""
    told = [
        event("batch_retried", at, token=token) for at, token in ((13_000, 1), (23_000, 5), (43_000, 5), (53_000, 9))
    ]
    assert [23_000, 43_000] == [one["t_us"] for one in own(record(attempts=3), told)]
    assert [] == own(record(seq=0, attempts=3), told)
    assert 2 == behind(record(attempts=3), told)


def test_throttling_is_a_part_of_its_own() -> None:
    """Overlapping throttle times of the record's broker count once; those of other brokers do not count."""
    told = [event("throttled", at, node_id=2, throttle_ms=20) for at in (13_000, 23_000)]
    told.append(event("throttled", 13_000, node_id=1, throttle_ms=80))
    expected = {"schedule lag": 2000, "in the client or broker": 70_000, "throttled": 30_000}
    assert expected == parts(record(), *told)


def test_incomplete_records_have_only_their_known_parts() -> None:
    """Records never sent, never acknowledged and never delivered have the parts up to that point."""
    assert {"never sent": 102_000} == parts(record(sent_us=None))
    assert {"schedule lag": 2000} == parts(record(done_us=None))
    assert () == budget(record(sent_us=None, done_us=None), [])
    assert () == delivery(record(op="consume", done_us=None), None)


def test_a_delivery_has_a_part_until_the_acknowledgement() -> None:
    """The parts are before and after the acknowledgement; without the produce row there is one part."""
    one = record(op="consume", sent_us=None, done_us=203_000)
    assert (Part("until acknowledged", 102_000), Part("from acknowledgement to delivery", 100_000)) == delivery(
        one, record()
    )
    assert (Part("in the client or broker", 202_000),) == delivery(one, None)


@given(
    told=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 120_000), st.integers(0, 90)), max_size=12),
    attempts=st.none() | st.integers(1, 6),
)
def test_the_parts_always_add_up(told: list[tuple[str, int, int]], attempts: int | None) -> None:
    """For any attempts in any order, the parts sum to the latency and none is negative."""
    events = [event(kind, at, node_id=2, throttle_ms=ms) for kind, at, ms in sorted(told, key=lambda one: one[1])]
    result = budget(record(attempts=attempts), events)
    assert 102_000 == sum(part.us for part in result)
    assert all(part.us >= 0 for part in result)


def test_lost_packets_are_told_by_what_tcp_sent_again() -> None:
    """So that nobody looks for the 200 ms in Kafka."""
    witness = {"what": "TCP segments", "asked": 1, "observed": 112, "unit": "segments", "n": 900, "ok": True}
    lines = ({"fault": "lossy", "state": "witnessed", "targets": {"links": ["client_a-k2"]}, "witness": witness},)
    lossy = Force("lossy", "packet_loss", lines, (0, 9_000_000), 0, 9_000_000, by_hand=False, rehearsed=False)
    evidence = Stage(clients=[replace(client("a"), produce_rack="a")], steps=["lossy"]).evidence()
    evidence.timeline["steps"][0]["parameters"] = {"share": "5%"}
    text = on_path(record(intended_us=1_000_000, done_us=1_204_000), evidence, [lossy])
    assert text
    assert "packet_loss" in text
    assert text.endswith("for 0.204 s of the record's latency (TCP sent 112 segments again during the fault)")
