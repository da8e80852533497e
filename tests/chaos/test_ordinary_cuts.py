"""Ordinary cuts fail no correct client: every obligation is met, or the rule is wrong."""

from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

PLAN = """\
name: ordinary-cuts
topics:
  - {name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}
workloads:
  - name: orders
    produce: {topic: orders, rate: 25/s, record_size: 200, deadline: 30s}
    consume: {topic: orders, from: earliest, rack: b}
    arms:
      librdkafka: {client: confluent}
      reference: {client: reference}
timing: {warmup: {min: 4s, max: 60s}, steady: 3s, recovery: 8s}
faults:
  - at: 0s
    choose:
      - {fault: {for: {range: [4s, 14s]}, kind: cut, link: "client(a) <-> broker(2)"}}
      - {fault: {for: {range: [4s, 14s]}, kind: cut, link: "client(a) -> broker(leader of orders/0)"}}
      - {fault: {for: {range: [4s, 14s]}, kind: cut, link: "client(b) <-> broker"}}
      - {fault: {for: {range: [4s, 14s]}, kind: cut, link: "replication(a) <-> broker"}}
      - {fault: {for: {range: [4s, 14s]}, kind: cut, link: "rack(a) <-> rack(b)"}}
      - {fault: {for: {range: [4s, 14s]}, kind: cut, link: "rack(c) -> rack(b)"}}
      - {fault: {for: {range: [4s, 14s]}, kind: cut, rack: c}}
      - {fault: {for: {range: [4s, 14s]}, kind: cut, rack: a, ways: in}}
      - {fault: {for: {range: [4s, 14s]}, kind: cut, shape: minority}}
      - {fault: {for: {range: [4s, 14s]}, kind: refuse, link: "client(a) <-> broker(3)"}}
slo:
  - lost == 0
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(50))
def test_an_ordinary_cut_fails_no_correct_client(chaos: Any, seed: int) -> None:
    """Fifty draws of the cut and of its length, on the same warm cluster."""
    chaos.run(PLAN, seed=seed)
