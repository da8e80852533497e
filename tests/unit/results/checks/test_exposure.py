"""Exposure to a moved coordinator of transactions: the transactions of the ids that it coordinates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aftershock.names import TRANSACTIONS_TOPIC, key_partition
from aftershock.results.checks.witness import exposure
from aftershock.results.evidence.evidence import Evidence, Pipe
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Distribution, Facts
from aftershock.tests.unit.results.checks.obligations.plays import Play

STEP: dict[str, Any] = {"id": "moved", "kind": "move_transaction_coordinator", "met_by": "topics", "severs": False}
METRICS = {"transaction": "produce.transaction", "produce": "produce.latency", "pipe": "pipe.latency"}
"""Names of the distributions in the facts, as measured by Spark."""
PRODUCER, MEMBER = "w-base-produce", "w-base-pipe"


def judged(evidence: Evidence, partition: int, **counts: int) -> Check:
    roles = {"transactional_id": PRODUCER, "partition": partition, "from": 2}
    targets = {"brokers": [], "links": [], "topics": [TRANSACTIONS_TOPIC], "clients": [], "roles": roles}
    evidence = replace(evidence, journal=({"fault": "moved", "state": "injected", "targets": targets, "t_us": 1},))
    known = {(METRICS[name], "w/base", "fault/moved"): Distribution(n=n) for name, n in counts.items()}
    return exposure(evidence, Facts(distributions=known), STEP)


@pytest.mark.parametrize(
    ("transaction", "is_own", "transactions", "status"),
    [
        pytest.param(True, True, 40, Status.PASS, id="its transactions"),
        pytest.param(True, True, 0, Status.INCONCLUSIVE, id="none at that time"),
        pytest.param(True, False, 40, Status.INCONCLUSIVE, id="those of another coordinator"),
        pytest.param(False, True, 40, Status.INCONCLUSIVE, id="a producer without transactions"),
    ],
)
def test_producers(transaction: bool, is_own: bool, transactions: int, status: Status) -> None:
    own = key_partition(PRODUCER, 50)
    evidence = Play(transaction=transaction).evidence()
    check = judged(evidence, own if is_own else (own + 1) % 50, transaction=transactions, produce=400)
    assert check.status is status
    assert "transactions" in check.why


@pytest.mark.parametrize(
    ("client", "is_own", "status"),
    [
        pytest.param("confluent", True, Status.PASS, id="a pipe of ours"),
        pytest.param("confluent", False, Status.INCONCLUSIVE, id="a pipe of ours with another coordinator"),
        pytest.param("service", False, Status.PASS, id="a service whose ids nobody knows"),
    ],
)
def test_services(client: str, is_own: bool, status: Status) -> None:
    """Of their transactions nobody tells, so their outputs count."""
    play = Play(client=client).evidence()
    (workload,) = play.timeline["workloads"]
    pipe: dict[str, Any] = {"transactional": True, "members": 1}
    timeline = play.timeline | {"workloads": [workload | {"pipe": pipe}]}
    reads = dict.fromkeys(Pipe.__dataclass_fields__) | {"writes": "billed", "members": 1}
    evidence = replace(play, timeline=timeline, clients=(replace(play.clients[0], pipe=Pipe(**reads)),))
    own = key_partition(MEMBER, 50)
    assert judged(evidence, own if is_own else (own + 1) % 50, pipe=12).status is status
