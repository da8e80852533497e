"""Partitions that two members of a group owned at once, against a comparison of each pair of spans."""

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from aftershock.results.checks.findings.groups import co_owned
from aftershock.results.checks.findings.ownership import SESSION_US
from aftershock.results.checks.findings.records import summed
from aftershock.results.measure.tables import Dims, Scene
from aftershock.tests.unit.results.checks.slo.stage import A, S, Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELIVERED = (
    "run int, client string, worker string, group string, topic string, partition int, member string, lane bigint, "
    "at bigint"
)
Span = tuple[int, str, int, int]
"""Partition, member, first and last delivery."""


def found(spark: "SparkSession", spans: list[Span], fault_us: int) -> dict[str, tuple[int, int]]:
    """Return (examined, broken) by rule; a span is delivered by a lane of its own, at its start and its end."""
    consume = {"topic": "orders", "group": "readers"}
    workloads = [{"name": "orders", "consume": consume, "arms": {"a": {}, "b": {}}}]
    evidence = Stage().evidence()
    journal = ({"t_us": fault_us, "fault": "kill-1", "state": "injected"},)
    evidence = replace(evidence, timeline={**evidence.timeline, "workloads": workloads}, journal=journal)
    dims = Dims(spark, (Scene(evidence),))
    rows = [
        (0, A, "orders-a-consume", "readers-a", "orders", partition, member, lane, at)
        for lane, (partition, member, *times) in enumerate(spans)
        for at in times
    ]
    findings = co_owned(dims.table(rows, DELIVERED), dims)
    assert findings is not None
    return {row["rule"]: (row["examined"], row["broken"]) for row in summed(findings).collect()}


def test_overlaps_are_those_of_each_pair(spark: "SparkSession") -> None:
    """Spans that touch, repeat or contain others, of three members of two partitions, before and during a fault."""
    rng, spans = random.Random(5), list[Span]()  # noqa: S311
    for _ in range(300):
        start = rng.randrange(60) * S
        spans.append((rng.randrange(2), rng.choice("xyz"), start, start + rng.choice((0, 0, 1, 1, 4)) * S))
    fault_us = 40 * S
    broken: Counter[str] = Counter()
    for partition, member, start, end in spans:
        others = [other[2] for other in spans if other[0] == partition and other[1] != member]
        within = [at for at in others if start <= at <= end]
        broken["co_owned"] += any(at < fault_us for at in within)
        broken["co_owned_in_fault"] += any(fault_us <= at <= fault_us + SESSION_US for at in within)
    assert 0 < broken["co_owned"] < len(spans)
    assert 0 < broken["co_owned_in_fault"] < len(spans)
    assert {rule: (len(spans), n) for rule, n in broken.items()} == found(spark, spans, fault_us)


def test_many_spans_of_one_partition(spark: "SparkSession") -> None:
    """Two members take turns 30 000 times, and overlap once; a list of all spans for each would need 30 GB."""
    spans: list[Span] = [(0, "xy"[turn % 2], 10 * turn, 10 * turn + 9) for turn in range(30_000)]
    spans[500] = (0, "x", 5_000, 5_010)
    assert found(spark, spans, 100 * S)["co_owned"] == (30_000, 1)
