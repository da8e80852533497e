"""Partitions that two members of a group delivered from at once, against a comparison of each pair of lanes."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from aftershock.results.checks.findings.deliveries import of_lanes
from aftershock.results.tables.dims import Dims, Scene
from aftershock.tests.unit.results.checks.slo.stage import A, S, Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGUN = "struct<at_us:bigint,assigned:boolean,committed:bigint,committed_us:bigint,ended_us:bigint>"
DELIVERED = (
    "run int, client string, worker string, group string, topic string, partition int, member string, lane bigint, "
    "at bigint, offset bigint, producer_id int, seq bigint"
)
Span = tuple[int, str, int, int]
"""Partition, member, first and last delivery."""


def found(spark: "SparkSession", spans: list[Span]) -> list[Any]:
    """Return the findings of `co_owned`; a span is delivered in a lane of its own, at its start and its end."""
    consume = {"topic": "orders", "group": "readers"}
    workloads = [{"name": "orders", "consume": consume, "arms": {"a": {}, "b": {}}}]
    evidence = Stage().evidence()
    evidence = replace(evidence, timeline={**evidence.timeline, "workloads": workloads})
    dims = Dims(spark, (Scene(evidence),))
    rows = [
        (0, A, member, "readers-a", "orders", partition, member, lane, at, at, 0, at)
        for lane, (partition, member, *times) in enumerate(spans)
        for at in times
    ]
    delivered = dims.table(rows, DELIVERED).withColumn("begun", F.lit(None).cast(BEGUN))
    findings = of_lanes(delivered, dims)
    assert findings is not None
    return findings.where("rule = 'co_owned'").collect()


def test_overlaps_are_those_of_each_pair(spark: "SparkSession") -> None:
    """Lanes that touch, repeat or contain others, of three members of two partitions; each names the earlier owner."""
    rng, spans = random.Random(5), list[Span]()  # noqa: S311
    for _ in range(300):
        start = rng.randrange(60) * S
        spans.append((rng.randrange(2), rng.choice("xyz"), start, start + rng.choice((0, 0, 1, 1, 4)) * S))
    overlaps = []
    for lane, (partition, member, start, end) in enumerate(spans):
        later = [
            other[2]
            for number, other in enumerate(spans)
            if other[0] == partition
            and other[1] != member
            and (other[2], other[1], number) > (start, member, lane)
            and other[2] <= end
        ]
        if later:
            overlaps.append((partition, member, min(later), end))
    rows = found(spark, spans)
    assert 0 < len(overlaps) < len(spans) == sum(row["examined"] for row in rows)
    broken = [row["at"] for row in rows if row["broken"]]
    assert sorted(overlaps) == sorted((at.partition, at.worker, at.from_us, at.until_us) for at in broken)


def test_many_lanes_of_one_partition(spark: "SparkSession") -> None:
    """Two members take turns 30 000 times, and overlap once; a list of all lanes for each would need 30 GB."""
    spans: list[Span] = [(0, "xy"[turn % 2], 10 * turn, 10 * turn + 9) for turn in range(30_000)]
    spans[500] = (0, "x", 5_000, 5_010)
    rows = found(spark, spans)
    assert (30_000, 1) == (sum(row["examined"] for row in rows), sum(row["broken"] for row in rows))
