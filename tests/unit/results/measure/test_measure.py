"""Spark jobs on whole runs: their measurements, also of unusual evidence. All runs are measured together."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.judge import evaluate
from aftershock.results.measure.layers import SILVER, write_silver
from aftershock.results.measure.measure import measure
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Cut, Facts, LongestGap, MeasurementRequest, Outage, RecoveryCriterion
from aftershock.results.spark import conf
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made, Row, S, write_rows
from aftershock.tests.unit.results.measuring import named, together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BASELINE, PATIENT = "orders/baseline", "orders/patient"
BY_PARTITION, BY_RACK = Cut("produce.latency", "run", "partition"), Cut("produce.service", "steady", "rack")
SECONDS, SILENCE = Cut("consume.latency", "fault/kill-1", None, S), Cut("produce.gap", "fault", "partition")
HOURS = Cut("produce.latency", "run", None, 3600 * S)
ASKED = MeasurementRequest(
    (0.5, 0.95), (0.95,), (BY_PARTITION, BY_RACK, SECONDS, SILENCE), (RecoveryCriterion("kill-1", 0.5, 1.5, 1_000_000),)
)


@dataclass(frozen=True)
class Measured:
    """The evidence and the facts of the unusual runs."""

    evidence: Mapping[str, Evidence]
    facts: Mapping[str, Facts]

    def checks(self, name: str) -> tuple[Check, ...]:
        """Return the checks of one run."""
        return evaluate(self.evidence[name], self.facts[name]).checks


@pytest.fixture(scope="module")
def unusual(spark: "SparkSession", made: Made, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Measure the clean run and every run that a test below uses."""
    spoiled = {
        spoil.__name__: made.copy()
        for spoil in (clean, moved, unread, silent, empty, interrupted, clock_set_back, hours)
    }
    for name, one in spoiled.items():
        globals()[name](one)
    home = tmp_path_factory.mktemp("odd runs, 100% [é]+{x}")
    runs = named(spoiled, home)
    runs["interrupted"] = _cut_short(runs["interrupted"].home)
    runs["idle"] = _idle(runs["clean"])
    runs["split"] = _split(made.copy(), home)
    return Measured(
        runs, together(spark, runs, clean=ASKED, split=ASKED, hours=MeasurementRequest((0.5,), (), (HOURS,)))
    )


def clean(_: Made) -> None:
    """The clean run."""


def moved(run: Made) -> None:
    """An arm has clients in two racks, and one record is not read."""
    for row in run.produce:
        row["client_rack"] = "c" if row["arm"] == "patient" and row["seq"] % 2 else "a"
    run.consume = [row for row in run.consume if (row["producer_id"], row["seq"]) != (0, 600)]


def unread(run: Made) -> None:
    """One record is not read, and one record failed before it had a partition."""
    run.consume = [row for row in run.consume if (row["producer_id"], row["seq"]) not in {(0, 600), (0, 601)}]
    run.log = [row for row in run.log if (row["producer_id"], row["seq"]) != (0, 601)]
    failed = next(row for row in run.produce if (row["producer_id"], row["seq"]) == (0, 601))
    failed.update(status="failed", error="MSG_SIZE_TOO_LARGE", partition=None, offset=None, broker_id=None)


def silent(run: Made) -> None:
    """No record succeeds while the broker is down."""
    start, end = (second * S for second in (26, 34))
    for row in run.produce + run.consume:
        row["done_us"] = end + 1 if start <= row["done_us"] < end else row["done_us"]


def empty(run: Made) -> None:
    """Every table has 0 rows."""
    run.produce, run.consume, run.log, run.metrics = [], [], [], []


def interrupted(run: Made) -> None:
    """The run is interrupted in warm-up."""
    run.run |= {"status": "interrupted", "why": "SIGINT", "warmup": None}


def clock_set_back(run: Made) -> None:
    """The clock goes back between sending and completion of two records."""
    for row in run.produce[100:102]:
        row["done_us"] = row["sent_us"] - 1


def hours(run: Made) -> None:
    """The run lasts 500 times as long, almost seven hours, with the same latencies."""
    for row in (*run.produce, *run.consume):
        later_us = 499 * row["intended_us"]
        row |= {name: row[name] + later_us for name in ("intended_us", "sent_us", "done_us") if row.get(name)}
    for phase in run.phases:
        phase |= {name: 500 * phase[name] for name in ("start_us", "end_us")}
    run.run["marks"] = {name: 500 * at_us for name, at_us in run.run["marks"].items()}
    run.journal = [line | {"t_us": 500 * line["t_us"]} for line in run.journal]


def _cut_short(home: Path) -> Evidence:
    for name in ("manifest.json", "phases.json", "log/part-0.parquet", "metrics/part-0.parquet"):
        (home / name).unlink()
    return read(home, columns(), trust=None)


def _idle(good: Evidence) -> Evidence:
    """The plan only consumes, from an empty topic."""
    clients = tuple(replace(client, produces_to=(), consumes_from=("other",)) for client in good.clients)
    parts = dict.fromkeys(good.parquet, ())
    return replace(good, clients=clients, parquet=parts, objectives=(), run={**good.run, "run_id": "idle"})


def _split(run: Made, home: Path) -> Evidence:
    """The clean run with shuffled rows in more files."""
    run.run["run_id"] = "split"
    run.consume = run.consume[::-1]
    folder = run.write(home / "split")
    half = len(run.produce) // 2
    write_rows(folder / "outcomes/produce-0.parquet", run.produce[half:], columns()["outcomes"])
    write_rows(folder / "outcomes/produce-1.parquet", run.produce[:half][::-1], columns()["outcomes"])
    (folder / "manifest.json").unlink()
    return read(folder, columns(), trust=None)


def test_the_path_for_many_records_gives_the_same_facts(
    spark: "SparkSession", unusual: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With millions of records Spark aggregates bins and gaps between slots; facts and silver equal those of
    the path for few records.
    """
    runs = list(unusual.evidence.values())

    def told() -> tuple[Mapping[str, Facts], list[bytes]]:
        asked = dict.fromkeys(unusual.evidence, ASKED)
        facts = measure(spark, runs, asked, keep=lambda number, rows: write_silver(rows, runs[number]))
        return facts, [(run.home / SILVER).read_bytes() for run in runs]

    few = told()
    monkeypatch.setattr(conf, "LONG_ROWS", 0)
    assert few == told()


def test_facts_of_the_clean_run_follow_from_its_rows(facts: Facts, made: Made) -> None:
    """The figures are derived by hand from the factory's rows."""
    steady = facts.distribution("produce.latency", "orders/baseline", "steady")
    rows = [row for row in made.produce if row["producer_id"] == 0 and 6 * S <= row["intended_us"] < 16 * S]
    taken = sorted(row["done_us"] - row["intended_us"] for row in rows)
    assert (steady.n, steady.censored) == (600, 0)
    assert (steady.at[0.5], steady.at[0.95], steady.at[1.0]) == (taken[299], taken[569], taken[599])
    assert facts.distribution("produce.lateness", "orders/patient", "run").at[0.99] == 200
    assert facts.distribution("produce.service", "orders/baseline", "steady").at[1.0] == taken[599] - 200
    assert facts.distribution("consume.latency", "orders/patient", "steady").n == 1200
    late = [
        row["done_us"] for row in made.produce if row["producer_id"] == 0 and 26 * S <= row["intended_us"] < 28.9 * S
    ]
    assert facts.recoveries["kill-1", "orders/baseline"].recovered_us == max(late) - 26 * S
    assert facts.crossed["latency-1"].bytes == 3 * 11 * 40_000
    assert (facts.host.ticks, facts.host.late_ticks) == (440, 0)
    assert len(facts.bins) == 2 * 2 * 50
    assert {(one.metric, one.rack) for one in facts.bins} == {("produce.latency", "a"), ("consume.latency", "b")}


def test_bins_are_separate_by_rack(unusual: Measured) -> None:
    """An arm in two racks has bins per rack; an unread record belongs to the rack in the plan."""
    result = unusual.facts["moved"].bins
    sent = {(one.client, one.rack): one.n for one in result if one.metric == "produce.latency" and one.start_us == 0}
    assert {(BASELINE, "a"): 60, (PATIENT, "a"): 30, (PATIENT, "c"): 30} == sent
    unread = {(one.client, one.rack, one.start_us) for one in result if one.censored}
    assert {(BASELINE, "b", 10 * S), (PATIENT, "b", 10 * S)} == unread


def test_runs_judged_together_do_not_affect_each_other(unusual: Measured, facts: Facts, evidence: Evidence) -> None:
    """The clean run has the same facts alone and among nine other runs in folders with unusual names."""
    among, asked = unusual.facts["clean"], {"cuts", "calms", "distributions"}
    same = [field.name for field in fields(Facts) if field.name not in asked]
    assert [] == [name for name in same if getattr(facts, name) != getattr(among, name)]
    assert facts.distributions.keys() == among.distributions.keys()
    assert evaluate(evidence, facts).checks[-4:] == unusual.checks("clean")[-4:]


def test_shuffled_and_split_evidence_gives_the_same_facts(unusual: Measured) -> None:
    """Neither the order of rows nor the number of files changes a result."""
    assert unusual.facts["clean"] == unusual.facts["split"]


def test_a_record_never_consumed_is_censored(unusual: Measured) -> None:
    """An acknowledged record that is never consumed is slower than any; a failed record is no sample of consumption."""
    result = unusual.facts["unread"]
    consumed = result.distribution("consume.latency", PATIENT, "steady")
    assert (consumed.n, consumed.censored, consumed.at[1.0]) == (1199, 1, None)
    produced = result.distribution("produce.latency", BASELINE, "steady")
    assert (produced.n, produced.censored) == (600, 1)
    assert sum(row.censored for row in result.bins if row.metric == "produce.latency") == 1
    first = result.slowest["produce", BASELINE][0], result.slowest["consume", PATIENT][0]
    assert [(601, "failed"), (600, "missing")] == [(one.seq, one.status) for one in first]
    assert 2639 == result.perf[BASELINE].records


def test_an_outage_as_long_as_its_window_is_a_gap(unusual: Measured) -> None:
    """If records were due and none succeeded, the gap is the whole window, for producers and consumers."""
    result = unusual.facts["silent"]
    gaps = {key[:2]: gap for key, gap in result.longest.items() if key[2] == "fault/kill-1"}
    metrics, clients = ("produce.gap", "consume.gap"), (BASELINE, PATIENT)
    assert gaps == {(metric, client): LongestGap(0, 8 * S) for metric in metrics for client in clients}
    stood = {outage.partition: outage for outage in result.unavailable["produce", BASELINE, "fault/kill-1"]}
    assert {None, *range(6)} == stood.keys()
    assert all(7_800_000 < one.total_us == one.longest_us <= 8 * S for one in stood.values())
    assert () == result.unavailable["produce", BASELINE, "steady"]


def test_empty_tables_are_inconclusive(unusual: Measured) -> None:
    """Every check of records is INCONCLUSIVE if tables have 0 rows."""
    of_records = [
        check for check in unusual.checks("empty") if check.kind in ("slo", "compare", "integrity", "exposure")
    ]
    assert {(check.status, check.id) for check in of_records if check.status != Status.INCONCLUSIVE} == set()
    assert evaluate(unusual.evidence["empty"], unusual.facts["empty"]).exit_code == 2


def test_an_interrupted_run_is_judged_by_its_files(unusual: Measured) -> None:
    """Without phases, manifest, log and metrics no SLO passes, no check raises a false alarm, and the reason is
    given.
    """
    verdict = evaluate(unusual.evidence["interrupted"], unusual.facts["interrupted"])
    assert verdict.status is Status.INCONCLUSIVE
    assert {check.status for check in verdict.checks if check.kind == "slo"} == {Status.INCONCLUSIVE}
    complete = next(check for check in verdict.checks if check.id == "harness/complete")
    assert "SIGINT" in complete.why


def test_a_consumer_without_producers_is_judged(unusual: Measured) -> None:
    """In a plan that only consumes, no record can be lost: INCONCLUSIVE with n = 0."""
    lost = [check for check in unusual.checks("idle") if check.id == "integrity/lost"]
    assert {(check.status, check.n) for check in lost} == {(Status.INCONCLUSIVE, 0)}


def test_a_clock_that_goes_back_is_reported(unusual: Measured) -> None:
    """Two records complete before they were sent, so measurements by that clock are INCONCLUSIVE."""
    assert (0, 2) == (unusual.facts["clean"].backwards, unusual.facts["clock_set_back"].backwards)
    (check,) = [check for check in unusual.checks("clock_set_back") if check.id == "harness/clock"]
    assert (Status.INCONCLUSIVE, 2.0) == (check.status, check.observed)
    assert not [check for check in unusual.checks("clean") if check.id == "harness/clock" and check.status != "PASS"]


def steady_of(made: Made, arm: str) -> list[Row]:
    return [row for row in made.produce if row["arm"] == arm and 6 * S <= row["intended_us"] < 16 * S]


def test_cuts_are_exact(unusual: Measured, made: Made) -> None:
    """Cuts are by partition and by slot of a second; an unknown rack is `unknown`, and silence is a gap."""
    result = unusual.facts["clean"]
    of_two = [row for row in made.produce if (row["arm"], row["partition"]) == ("baseline", 2)]
    taken = sorted(row["done_us"] - row["intended_us"] for row in of_two if row["intended_us"] >= 6 * S)
    (two,) = [slice_ for slice_ in result.slices(BY_PARTITION, BASELINE) if slice_.subject == "orders/2"]
    assert (len(taken), taken[len(taken) // 2 - 1], taken[-1]) == (
        two.values.n,
        two.values.at[0.5],
        two.values.slowest_us,
    )
    assert [f"orders/{n}" for n in range(6)] == [slice_.subject for slice_ in result.slices(BY_PARTITION, PATIENT)]
    assert [("unknown", 600)] == [(slice_.subject, slice_.values.n) for slice_ in result.slices(BY_RACK, BASELINE)]
    seconds = result.slices(SECONDS, PATIENT)
    assert [(second * S, 120) for second in range(26, 34)] == [(one.start_us, one.values.n) for one in seconds]
    silences = {slice_.subject: slice_.values.slowest_us or 0 for slice_ in result.slices(SILENCE, BASELINE)}
    assert {"orders/0", "orders/3"} == {partition for partition, longest_us in silences.items() if longest_us > 2 * S}


def test_figures_for_the_report(unusual: Measured, made: Made) -> None:
    """Spectrum points are exact; racks, bands and the figures of perf-test are derived by hand."""
    result = unusual.facts["clean"]
    taken = sorted(row["done_us"] - row["intended_us"] for row in steady_of(made, "baseline"))
    points = result.spectra["produce.latency", BASELINE, "steady"]
    assert points[-1] == (1.0, taken[-1])
    assert all(taken[round(q * 600) - 1] == latency_us for q, latency_us in points)
    assert 20 < len(points) <= 120
    steady = result.distribution("produce.latency", BASELINE, "steady")
    assert steady.mean_us == pytest.approx(sum(taken) / 600)
    assert steady.bands[0.5, 0.95] == (taken[276 - 1], taken[325 - 1])
    (flow,) = [rack for rack in result.racks if (rack.op, rack.client, rack.window) == ("produce", BASELINE, "steady")]
    assert ("a", None, 600, 600_000, taken[299]) == (
        flow.client_rack,
        flow.broker_rack,
        flow.n,
        flow.bytes,
        flow.p50_us,
    )
    service = sorted(row["done_us"] - row["sent_us"] for row in made.produce[:3000] if row["intended_us"] >= 6 * S)
    perf = result.perf[BASELINE]
    assert (2640, service[1320] / 1e3, service[-1] / 1e3) == (perf.records, perf.p50_ms, perf.max_ms)
    assert perf.records_per_s == pytest.approx(60, rel=0.01)


def test_recovery_uses_the_criterion_of_the_slo(unusual: Measured) -> None:
    """An own criterion (p50 within 1.5 x steady for a second) is measured in addition to the default."""
    result = unusual.facts["clean"]
    usual, asked = (result.recovered(calm, BASELINE) for calm in (RecoveryCriterion("kill-1"), ASKED.recoveries[0]))
    assert usual
    assert usual == result.recoveries["kill-1", BASELINE]
    assert asked
    assert (asked.recovered_us or 0) < (usual.recovered_us or 0)
    assert {"latency-1", "kill-1", "reassign-1"} == {fault for fault, _ in result.recoveries}


def test_a_stall_is_unavailability_of_its_partition(unusual: Measured) -> None:
    """The partitions of the killed leader are unavailable from the last success until the next; others are not."""
    stood = unusual.facts["clean"].unavailable["produce", BASELINE, "fault/kill-1"]
    assert {0, 3} == {one.partition for one in stood}
    assert all(isinstance(one, Outage) and 2.9 * S < one.longest_us < 3.1 * S and one.n == 1 for one in stood)


def test_hours_are_measured_separately(unusual: Measured, made: Made) -> None:
    """The count and the median of each complete hour after warm-up are those of its records, also across windows."""
    run = made.copy()
    hours(run)
    start_us = min(phase["start_us"] for phase in run.phases if phase["name"] == "steady")
    expected = []
    for hour in range(6):
        begins_us = start_us + hour * 3600 * S
        took_us = sorted(
            row["done_us"] - row["intended_us"]
            for row in run.produce
            if row["arm"] == "baseline" and begins_us <= row["intended_us"] < begins_us + 3600 * S
        )
        expected.append((begins_us, len(took_us), took_us[-(-len(took_us) // 2) - 1]))
    slices = unusual.facts["hours"].slices(HOURS, BASELINE)
    assert expected == [(part.start_us, part.values.n, part.values.at[0.5]) for part in slices]
