"""Traffic on links, records per partition, and load of the host, from small tables; building a query collects
nothing.
"""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from aftershock.results.evidence.evidence import Evidence, Phase
from aftershock.results.evidence.schema import METRICS, OUTCOMES
from aftershock.results.measure.samples import PASSAGES, host, produced, proxy_bytes
from aftershock.results.spark.tables import small
from aftershock.results.tables.dims import Dims, Scene, dims
from aftershock.tests.unit.results.evidence_factory import Made, S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Row = tuple[Any, ...]


def metrics(spark: "SparkSession", rows: list[Row], run: int = 0) -> "DataFrame":
    schema = "run int, " + ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in METRICS)
    return spark.createDataFrame([(run, *row) for row in rows], schema)


def with_phases(spark: "SparkSession", *phases: Phase) -> Dims:
    """Return the small tables of a run of which only the phases matter."""
    evidence = SimpleNamespace(phases=phases, journal=(), clients=(), steps=(), events=())
    return Dims(spark, (Scene(cast("Evidence", evidence)),))


def test_bytes_count_only_within_their_time(spark: "SparkSession") -> None:
    """An increment counts if both samples lie in the passage; names match exactly; a decreasing counter adds
    nothing.
    """
    name = "client.sent_bytes/client_a-k{}/{}".format
    rows: list[Row] = [(t * S, 1, name(1, "upstream"), float(10 * t)) for t in range(10)]
    rows += [(t * S, 1, name(1, "downstream"), float(100 - t)) for t in range(10)]
    rows += [(t * S, 11, name(11, "upstream"), float(1000 * t)) for t in range(10)]
    rows += [(t * S, None, "host.cpu_busy", 0.5) for t in range(10)]
    passages = [(0, "a", "client_a-k1", 2 * S, 5 * S), (0, "b", "client_.*-k(?:11)", 0, 9 * S)]
    passages += [(0, "c", "client_b-k1", 0, 9 * S), (1, "d", "client_a-k1", 0, 9 * S)]
    found = proxy_bytes(metrics(spark, rows), small(spark, passages, PASSAGES)).collect()
    assert {row["fault"]: row["bytes"] for row in found} == {"a": 30, "b": 9000}


def test_connections_that_close_are_not_taken_for_workload_traffic(spark: "SparkSession") -> None:
    """Toxiproxy's counters grow when a probe closes its connection, so they prove no exposure."""
    rows = [(t * S, 1, "toxiproxy.received_bytes/client_a-k1/upstream", float(10 * t)) for t in range(10)]
    passage = small(spark, [(0, "a", "client_a-k1", 0, 9 * S)], PASSAGES)
    assert [] == proxy_bytes(metrics(spark, rows), passage).collect()


def test_records_are_counted_by_the_window_of_their_intended_time(spark: "SparkSession", made: Made) -> None:
    """Counts are per fault, topic and partition; records outside every fault window are not counted."""
    of_partition_0 = [row for row in made.produce if row["partition"] == 0 and 16 * S <= row["intended_us"] < 24 * S]
    names = ("op", "topic", "partition", "intended_us")
    kinds = {field.name: field.dataType.simpleString() for field in OUTCOMES}
    schema = "run int, " + ", ".join(f"{name} {kinds[name]}" for name in names)
    outcomes = spark.createDataFrame([(0, *[row.get(name) for name in names]) for row in made.produce], schema)
    known = with_phases(spark, Phase("steady", None, 0, 16 * S), Phase("fault", "latency-1", 16 * S, 24 * S))
    found = {(row["window"], row["topic"], row["partition"]): row["n"] for row in produced(outcomes, known).collect()}
    assert len(of_partition_0) == found["fault/latency-1", "orders", 0]
    assert {"fault/latency-1"} == {window for window, _, _ in found}


def test_the_host_is_judged_after_warm_up(spark: "SparkSession") -> None:
    """Samples outside the requested time are ignored; a quantity without samples is null."""
    late = [100_000.0, 100_000.0, 50_000.0, 50_001.0]
    rows: list[Row] = [(t * S, None, "host.tick_late_us", value) for t, value in enumerate(late)]
    known = with_phases(spark, Phase("warmup", None, 0, 2 * S), Phase("steady", None, 2 * S, 10 * S))
    (row,) = host(metrics(spark, rows), known).collect()
    assert (row["ticks"], row["late_ticks"], row["steal"]) == (2, 1, None)


def test_nothing_is_collected_while_a_transform_is_built(
    spark: "SparkSession", evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transforms are DataFrame to DataFrame: building every transform of every module runs no Spark action."""
    from pyspark.sql.classic.dataframe import DataFrame  # noqa: PLC0415 - the class whose actions are forbidden here

    from aftershock.results.checks.findings.deliveries import deliveries  # noqa: PLC0415 - as above
    from aftershock.results.checks.findings.sequences import in_doubt, sequences  # noqa: PLC0415 - as above
    from aftershock.results.measure import (  # noqa: PLC0415 - as above  # noqa: PLC0415 - as above
        cuts,
        first_calm,
        gaps,
        lag,
        latency,
        recovery,
        samples,
        stalls,
    )
    from aftershock.results.measure.measure import findings_of_groups, findings_of_records  # noqa: PLC0415 - as above
    from aftershock.results.measure.stalls import SILENCES  # noqa: PLC0415 - as above
    from aftershock.results.spark.tables import tables  # noqa: PLC0415 - as above
    from aftershock.results.tables import gate  # noqa: PLC0415 - as above  # noqa: PLC0415 - as above

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a transform ran an action")

    for action in ("collect", "count", "toPandas", "toArrow", "toLocalIterator", "head", "take", "first", "show"):
        monkeypatch.setattr(DataFrame, action, refuse)
    read, known = tables(spark, [evidence]), dims(spark, [evidence])
    blocks = gate.blocks(read, known)
    book, delivered = gate.ledger(read, blocks), deliveries(read, known)
    rows = samples.samples(read, known, blocks, book)
    waits = stalls.waits(rows, known)
    asked, parts = small(spark, [], cuts.CUTS), small(spark, [], cuts.PARTS)
    built = [
        latency.silver(rows, known, small(spark, [], latency.BINS)),
        latency.silver(rows, known),
        latency.quantiles(
            rows.groupBy("run", rows.done_us.alias("latency_us")).count().withColumnRenamed("count", "n"),
            ["run"],
            [0.5],
        ),
        latency.by_bin(rows, known, small(spark, [], latency.BINS)),
        gaps.success_stretches(gaps.successes(rows, known, None)),
        gaps.success_stretches(gaps.successes(rows, known, S)),
        recovery.slow_slots(rows, small(spark, [], recovery.LIMITS), known, killed=False),
        first_calm.pace_slots(rows, small(spark, [], first_calm.PACES), known, S),
        first_calm.first_calm(rows, small(spark, [], first_calm.LOOKS), S),
        stalls.slots(waits, S),
        stalls.stalls(stalls.acknowledged(stalls.during(waits, small(spark, [], SILENCES), S), rows), S),
        stalls.failures(waits),
        lag.reached(read, known),
        lag.oldest_unread(read, small(spark, [], lag.PROBES)),
        cuts.latencies(rows, asked, parts, known),
        cuts.gaps(rows, asked, parts),
        samples.slowest(rows, [], known),
        samples.produced(rows, known),
        samples.proxy_bytes(read.metrics, small(spark, [], PASSAGES)),
        samples.host(read.metrics, known),
        findings_of_records(read, known, delivered, blocks, book),
        findings_of_groups(read, known, delivered, read.log),
        in_doubt(read, known, delivered),
        sequences(read, known, delivered, [{"doubted": [1], "n": None}]),
    ]
    assert all(frame is None or frame.columns for frame in built)
