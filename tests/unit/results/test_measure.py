"""The Spark jobs on whole runs: what they measure, and that odd evidence is measured too."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from evidence_factory import Made, S, write_rows

from aftershock.results.check import Status
from aftershock.results.evidence import Evidence, read
from aftershock.results.facts import Facts, Longest
from aftershock.results.flows import Passage, crossed, host, produced
from aftershock.results.judge import judged
from aftershock.results.measure import measure
from aftershock.results.schema import METRICS, OUTCOMES
from aftershock.results.tables import columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_the_clean_run_is_measured_as_it_was_made(facts: Facts, made: Made) -> None:
    """Numbers that can be worked out from the factory's rows by hand."""
    steady = facts.distribution("produce.latency", "orders/baseline", "steady")
    rows = [row for row in made.produce if row["producer_id"] == 0 and 6 * S <= row["intended_us"] < 16 * S]
    taken = sorted(row["done_us"] - row["intended_us"] for row in rows)
    assert (steady.n, steady.censored) == (600, 0)
    assert (steady.at[0.5], steady.at[0.95], steady.at[1.0]) == (taken[299], taken[569], taken[599])
    assert facts.distribution("produce.lateness", "orders/patient", "run").at[0.99] == 200
    assert facts.distribution("produce.service", "orders/baseline", "steady").at[1.0] == taken[599] - 200
    assert facts.distribution("consume.latency", "orders/patient", "steady").n == 1200
    assert 2_500_000 < (facts.recoveries["kill-1", "orders/baseline"].recovered_us or 0) < 3_000_000
    assert facts.crossed["latency-1"].bytes == 3 * 11 * 40_000
    assert (facts.host.ticks, facts.host.late_ticks) == (440, 0)
    assert len(facts.bins) == 2 * 2 * 50
    assert {(one.metric, one.rack) for one in facts.bins} == {("produce.latency", "a"), ("consume.latency", "b")}


def test_bins_are_told_apart_by_rack(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """An arm that stands in two racks has bins for each; a record that was never read belongs to the plan's rack."""
    moved = made.copy()
    for row in moved.produce:
        row["client_rack"] = "c" if row["arm"] == "patient" and row["seq"] % 2 else "a"
    moved.consume = [row for row in moved.consume if (row["producer_id"], row["seq"]) != (0, 600)]
    found = measure(spark, read(moved.write(tmp_path / "run"), columns()), []).bins
    sent = {(one.client, one.rack): one.n for one in found if one.metric == "produce.latency" and one.start_us == 0}
    assert {("orders/baseline", "a"): 60, ("orders/patient", "a"): 30, ("orders/patient", "c"): 30} == sent
    unread = {(one.client, one.rack, one.start_us) for one in found if one.censored}
    assert {("orders/baseline", "b", 10 * S), ("orders/patient", "b", 10 * S)} == unread


def test_shuffled_and_split_evidence_gives_the_same_facts(
    spark: "SparkSession", facts: Facts, made: Made, tmp_path: Path
) -> None:
    """Neither the order of rows nor how many files they are in is evidence."""
    other = made.copy()
    other.consume = other.consume[::-1]
    home = other.write(tmp_path / "run")
    half = len(other.produce) // 2
    write_rows(home / "outcomes/produce-0.parquet", other.produce[half:], columns()["outcomes"])
    write_rows(home / "outcomes/produce-1.parquet", other.produce[:half], columns()["outcomes"])
    (home / "manifest.json").unlink()
    assert measure(spark, read(home, columns()), [0.95, 0.99]) == facts


def test_a_record_never_consumed_is_censored(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """An acknowledged one counts as slower than anything; a failed one is no sample of consumption at all."""
    spoiled = made.copy()
    spoiled.consume = [row for row in spoiled.consume if (row["producer_id"], row["seq"]) not in {(0, 600), (0, 601)}]
    failed = next(row for row in spoiled.produce if (row["producer_id"], row["seq"]) == (0, 601))
    failed.update(status="failed", error="MSG_SIZE_TOO_LARGE")
    spoiled.log = [row for row in spoiled.log if (row["producer_id"], row["seq"]) != (0, 601)]
    found = measure(spark, read(spoiled.write(tmp_path / "run"), columns()), [])
    consumed = found.distribution("consume.latency", "orders/patient", "steady")
    assert (consumed.n, consumed.censored, consumed.at[1.0]) == (1199, 1, None)
    produced = found.distribution("produce.latency", "orders/baseline", "steady")
    assert (produced.n, produced.censored) == (600, 1)
    assert sum(row.censored for row in found.bins if row.metric == "produce.latency") == 1


def test_an_outage_as_long_as_its_window_is_a_gap(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """Where records were due and none succeeded, the gap is the window's whole length, for senders and readers."""
    start, end = (second * S for second in (26, 34))
    out = made.copy()
    for row in out.produce + out.consume:
        row["done_us"] = end + 1 if start <= row["done_us"] < end else row["done_us"]
    found = measure(spark, read(out.write(tmp_path / "run"), columns()), []).longest
    silent = {key[:2]: gap for key, gap in found.items() if key[2] == "fault/kill-1"}
    metrics, clients = ("produce.gap", "consume.gap"), ("orders/baseline", "orders/patient")
    assert silent == {(metric, client): Longest(0, 8 * S) for metric in metrics for client in clients}


def test_no_rows_prove_nothing(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """Tables of 0 rows: every check of records is INCONCLUSIVE, none is PASS."""
    empty = made.copy()
    empty.produce, empty.consume, empty.log, empty.metrics = [], [], [], []
    evidence = read(empty.write(tmp_path / "run"), columns())
    verdict = judged(evidence, measure(spark, evidence, [0.95, 0.99]))
    of_records = [check for check in verdict.checks if check.kind in ("slo", "compare", "integrity", "exposure")]
    assert {check.status for check in of_records} == {Status.INCONCLUSIVE}
    assert verdict.exit_code == 2


def test_an_interrupted_run_is_judged_by_what_it_left(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """No phases, manifest, log nor metrics: no crash, no PASS of an SLO, no false alarm, and it says why."""
    partial = made.copy()
    partial.run |= {"status": "interrupted", "why": "SIGINT", "warmup": None}
    home = partial.write(tmp_path / "run")
    for name in ("manifest.json", "phases.json", "log/part-0.parquet", "metrics/part-0.parquet"):
        (home / name).unlink()
    evidence = read(home, columns())
    verdict = judged(evidence, measure(spark, evidence, [0.95, 0.99]))
    assert verdict.status is Status.INCONCLUSIVE
    assert {check.status for check in verdict.checks if check.kind == "slo"} == {Status.INCONCLUSIVE}
    complete = next(check for check in verdict.checks if check.id == "harness/complete")
    assert "SIGINT" in complete.why


def test_a_consumer_without_producers_is_judged(spark: "SparkSession", evidence: Evidence) -> None:
    """A plan that only consumes has nothing to be lost: INCONCLUSIVE, with n = 0."""
    idle = tuple(replace(client, produces_to=None, consumes_from="other") for client in evidence.clients)
    facts = measure(spark, replace(evidence, clients=idle, parquet={**evidence.parquet, "outcomes": ()}), [])
    checks = judged(replace(evidence, clients=idle, objectives=()), facts).checks
    lost = [check for check in checks if check.id == "integrity/lost"]
    assert {(check.status, check.n) for check in lost} == {(Status.INCONCLUSIVE, 0)}


def test_bytes_count_only_within_their_time(spark: "SparkSession") -> None:
    """An increment counts if both samples lie in the passage; names match whole; a shrinking counter adds nothing."""
    name = "client.sent_bytes/client_a-k{}/{}".format
    rows = [(t * S, 1, name(1, "upstream"), float(10 * t)) for t in range(10)]
    rows += [(t * S, 1, name(1, "downstream"), float(100 - t)) for t in range(10)]
    rows += [(t * S, 11, name(11, "upstream"), float(1000 * t)) for t in range(10)]
    rows += [(t * S, None, "host.cpu_busy", 0.5) for t in range(10)]
    passages = [Passage("a", "client_a-k1", 2 * S, 5 * S), Passage("b", "client_.*-k(?:11)", 0, 9 * S)]
    passages.append(Passage("c", "client_b-k1", 0, 9 * S))
    found = crossed(spark.createDataFrame(rows, METRICS), passages).collect()
    assert {row["fault"]: row["bytes"] for row in found} == {"a": 30.0, "b": 9000.0}


def test_connections_that_close_are_not_taken_for_workload_traffic(spark: "SparkSession") -> None:
    """Toxiproxy's own counters grow when a *probe* closes its connection: they prove no exposure."""
    rows = [(t * S, 1, "toxiproxy.received_bytes/client_a-k1/upstream", float(10 * t)) for t in range(10)]
    assert [] == crossed(spark.createDataFrame(rows, METRICS), [Passage("a", "client_a-k1", 0, 9 * S)]).collect()


def test_records_are_counted_by_the_windows_they_were_meant_for(spark: "SparkSession", made: Made) -> None:
    """By fault, topic and partition; what was meant for no fault's window is not there."""
    of_partition_0 = [row for row in made.produce if row["partition"] == 0 and 16 * S <= row["intended_us"] < 24 * S]
    rows = [tuple(row.get(name) for name in OUTCOMES.names) for row in made.produce]
    outcomes = spark.createDataFrame(rows, OUTCOMES)
    windows = {"fault/latency-1": ((16 * S, 24 * S),), "steady": ((0, 16 * S),)}
    found = {(row["window"], row["topic"], row["partition"]): row["n"] for row in produced(outcomes, windows).collect()}
    assert len(of_partition_0) == found["fault/latency-1", "orders", 0]
    assert {"fault/latency-1"} == {window for window, _, _ in found}


def test_the_host_is_judged_after_warm_up(spark: "SparkSession") -> None:
    """Ticks and shares outside the time asked for are left out; what was not sampled is null."""
    late = [100_000.0, 100_000.0, 50_000.0, 50_001.0]
    rows = [(t * S, None, "host.tick_late_us", value) for t, value in enumerate(late)]
    row = host(spark.createDataFrame(rows, METRICS), 2 * S, 10 * S).collect()[0]
    assert (row["ticks"], row["late_ticks"], row["steal"]) == (2, 1, None)


def test_nothing_is_collected_while_a_transform_is_built(
    spark: "SparkSession", evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transforms are DataFrame to DataFrame: building them all runs no action."""
    from pyspark.sql.classic.dataframe import DataFrame  # noqa: PLC0415 - the class whose actions are forbidden here

    from aftershock.results import integrity, latency, ledger, recovery  # noqa: PLC0415 - as above
    from aftershock.results.phases import windows_of, with_windows  # noqa: PLC0415 - as above
    from aftershock.results.tables import tables  # noqa: PLC0415 - as above

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a transform ran an action")

    read_ = tables(spark, evidence)
    for action in ("collect", "count", "toPandas", "toArrow", "head", "take", "first", "show"):
        monkeypatch.setattr(DataFrame, action, refuse)
    windows, readers = windows_of(evidence.phases), evidence.clients
    book = ledger.ledger(read_.outcomes, read_.log, readers)
    samples = with_windows(latency.samples(book, readers, 0), "intended_us", windows)
    built = [
        latency.quantiles(latency.histogram(latency.by_window(samples), ["window"]), ["window"], [0.5]),
        recovery.gaps(recovery.successes(book, readers), windows),
        recovery.recoveries(book, {"kill-1": 0}, {"orders/baseline": 5}, 10),
        integrity.findings(book, readers, [], 0),
        integrity.positions(read_.outcomes, read_.log, evidence.producers, {"orders/baseline": [1]}),
    ]
    assert all(frame.columns for frame in built)
