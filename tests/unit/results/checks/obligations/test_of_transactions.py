"""What a producer of transactions owes: it needs its coordinator, and a new Kafka producer after it was fenced."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from aftershock.names import TRANSACTIONS_TOPIC, key_partition
from aftershock.results.checks.obligations.lanes import lanes
from aftershock.results.evidence.leadership import Leadership
from aftershock.results.model.check import Status
from aftershock.tests.unit.results.checks.obligations.plays import Fault, Play, S, lasting
from aftershock.tests.unit.results.checks.obligations.test_excuses import judged, tampered
from aftershock.tests.unit.results.checks.obligations.test_spans import BASE_S, COORDINATOR_S, FIND_S, SESSION_S, due_s

# the topic has its only replica on broker 1, so the death of broker 3 matters to nobody but a coordinator's clients
ELSEWHERE: dict[str, Any] = {"assignment": {0: [1]}, "in_sync_min": 1}
DEATH = lasting("kill", 40, 70, brokers=(3,), controller=False)
FENCED = Fault("fence_producer", 40, 40, 40, 40.2, clients=("w-base-produce",), lasting=False)


def test_the_death_of_its_coordinator_excuses_a_transactional_producer() -> None:
    """Without recorded leaders, each broker may coordinate."""
    assert [(10, 130)] == due_s(Play([DEATH], **ELSEWHERE))
    excused = [(10, 40), (40 + SESSION_S + FIND_S + COORDINATOR_S, 70), (70 + BASE_S + COORDINATOR_S, 130)]
    assert excused == due_s(Play([DEATH], transaction=True, **ELSEWHERE))


@pytest.mark.parametrize(
    ("coordinator", "grace_s"),
    [(3, 44 - 40 + FIND_S + COORDINATOR_S), (2, SESSION_S)],
    ids=["dies", "loses a follower"],
)
def test_the_recorded_coordinator(coordinator: int, grace_s: float) -> None:
    """The producer's id is the name of its process. A coordinator that lives waits for the ISR to shrink."""
    row: dict[str, Any] = dict.fromkeys(field.name for field in fields(Leadership))
    row |= {"topic": TRANSACTIONS_TOPIC, "partition": key_partition("w-base-produce", 50)}
    row |= {"isr": (1, 2, 3), "sources": ()}
    history = [Leadership(**row | {"epoch": 0, "leader": coordinator, "after_us": 0, "by_us": 0})]
    if coordinator == 3:
        history.append(Leadership(**row | {"epoch": 1, "leader": 2, "after_us": 43 * S, "by_us": 44 * S}))
    evidence = replace(Play([DEATH], transaction=True, **ELSEWHERE).evidence(), leaders=tuple(history))
    lane = next(lane for lane in lanes(evidence) if lane.side == "produce")
    assert 40 + grace_s == min(span.start_us for span in lane.of(0) if span.required and span.end_us > 40 * S) / S


def test_each_partition_needs_the_leaders_of_all() -> None:
    """A transaction waits for its markers in each partition, and the next one for the transaction."""
    death = lasting("kill", 40, 70, brokers=(2,), controller=False)
    play: dict[str, Any] = {"faults": [death], "assignment": {0: [1], 1: [2]}, "in_sync_min": 1}

    def required(*, transaction: bool) -> bool:
        lane = next(lane for lane in lanes(Play(**play, transaction=transaction).evidence()) if lane.side == "produce")
        return all(span.required for span in lane.of(0) if span.start_us < 60 * S and span.end_us > 50 * S)

    assert required(transaction=False)
    assert not required(transaction=True)


@pytest.mark.parametrize("api", ["EndTxn", "AddPartitionsToTxn", "FindCoordinator"])
def test_requests_of_transactions_that_fail(api: str) -> None:
    """They stop producers of transactions, and no others."""
    fault = tampered(16, 60, api=api)
    assert judged(Play([fault], transaction=True), 20, 55).status is Status.PASS
    assert judged(Play([fault]), 20, 55).status is Status.FAIL


def test_a_fenced_producer_is_created_anew() -> None:
    """A client that goes on with the old epoch, every request of which is refused, breaks its obligation."""
    play = Play([FENCED], transaction=True)
    assert judged(play, 40, 44).status is Status.PASS
    assert judged(play, 40, 130, waited_s=0.1).status is Status.FAIL
    assert judged(play, 40, 52).status is Status.FAIL
