"""Figures from records: recoveries equal to the query of docs/SLO.md on real runs, and figures of made runs."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.outages import KILLED, client_outages
from aftershock.results.evidence.pack import unpack
from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import RecoveryCriterion
from aftershock.results.spark.tables import columns
from aftershock.results.studies.part import Part
from aftershock.results.studies.recount import CALM, Recount, Unit, Value
from aftershock.results.studies.suite import Figure, Row
from aftershock.tests.unit.results.measure.test_recovery import PACKS, ROOT, STORED, by_definition, figures
from aftershock.tests.unit.results.measure.test_recovery import Recount as Query
from aftershock.tests.unit.results.studies.audited import EVERY_US, FAULT_S, QUICK_US, S, audited
from aftershock.tests.unit.results.studies.trials.made import verdict


def row(figure: Figure) -> Row:
    return Row("half-open", "half-open", "orders", figure, {"lag": 1}, "")


def recounts(evidence: Evidence) -> list[Recount]:
    part = Part("", JudgedRun(evidence.home, evidence.run, evidence.timeline, {}, verdict("r", [])))
    return [Recount(part, workload["name"]) for workload in evidence.timeline["workloads"] if workload.get("produce")]


def test_recoveries_are_those_of_the_documented_query(tmp_path: Path) -> None:
    """On all stored runs of real clusters whose faults kill no producer, to the microsecond."""
    homes = [ROOT / "tests" / "data" / "evidence" / name for name in STORED]
    homes += [unpack(ROOT / "docs" / "evidence" / "packs" / f"{name}.pack.zip", tmp_path) for name in PACKS]
    seen = []
    for home in homes:
        evidence = by_definition(2, read(home, columns(), None))
        if any(side == "produce" for side, _ in client_outages(evidence, KILLED)):
            continue
        query = Query(evidence)
        for counts in recounts(evidence):
            for arm in counts.arms:
                for step in evidence.steps:
                    criterion = RecoveryCriterion(step["id"], CALM.q, CALM.factor, CALM.for_us)
                    expected = query.recovery(counts.key(arm), criterion)
                    assert figures(counts.recovered(arm, step["id"])) == expected, (home, arm, step["id"])
                    seen += [expected] if expected else []
    assert len(seen) > 60
    assert len({recovered_us for recovered_us, *_ in seen}) > 30


def test_the_figures_of_a_made_run(tmp_path: Path) -> None:
    """The second copy is not normal before the heal in the first repetition, and never in the second one."""
    counts = Recount(audited(tmp_path / "run", {"a": [3.0, 4.0], "a-2nd": [45.0, 59.5]}), "orders")
    values = counts.values(row("recovery"), "a")
    assert [Unit(1, 0), Unit(1, 1), Unit(2, 0), Unit(2, 1)] == sorted(values)
    assert 3.0 == pytest.approx(values[Unit(1, 0)].s, abs=(EVERY_US + QUICK_US) / S)
    assert (Value(FAULT_S, healed=True),) * 2 == (values[Unit(1, 1)], values[Unit(2, 1)])
    after = counts.values(row("after_heal"), "a")
    assert (0.0, False) == (after[Unit(1, 0)].s, after[Unit(1, 0)].is_bound)
    assert 5.0 == pytest.approx(after[Unit(1, 1)].s, abs=0.1)
    assert after[Unit(2, 1)].open
    waits = counts.values(row("wait"), "a")
    assert [3.0, 45.0, 4.0, 59.5] == [pytest.approx(waits[unit].s, abs=0.1) for unit in sorted(waits)]
    silences = counts.values(row("silence"), "a")
    assert [3.0, 45.0, 4.0, 59.5] == [pytest.approx(silences[unit].s, abs=0.5) for unit in sorted(silences)]
    p95 = counts.values(row("p95"), "a")
    due = np.arange(0, FAULT_S, EVERY_US / S)
    expected = np.quantile(np.maximum(3.0 - due, 0), 0.95, method="inverted_cdf")
    assert expected == pytest.approx(p95[Unit(1, 0)].s, abs=0.1)
    assert 0 == counts.failed("a")
    assert {1: pytest.approx(3.0, abs=0.1), 2: pytest.approx(4.0, abs=0.1)} == counts.gaps_s("a", "produce")
    assert "its record 1:" in counts.slowest("a")
    assert "took 59." in counts.slowest("a")


def test_a_record_that_was_given_up_is_no_success(tmp_path: Path) -> None:
    counts = Recount(audited(tmp_path / "run", {"a": [3.0, 4.0]}, failed={"a": 7}), "orders")
    assert (7, {1: 0, 2: 0}) == (counts.failed("a"), counts.failed_by_block("a"))


def test_the_slowest_record_is_one_under_a_fault(tmp_path: Path) -> None:
    """A record that was slower in warm-up is not cited."""
    part = audited(tmp_path / "run", {"a": [3.0, 4.0]})
    path = part.home / "outcomes" / "part-0.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[0]["done_us"] += 30 * S
    pq.write_table(pa.Table.from_pylist(rows), path)
    cited = Recount(part, "orders").slowest("a")
    assert "took 4.0 s" in cited.replace("3.9", "4.0")


def test_repetitions_without_proof_do_not_count(tmp_path: Path) -> None:
    unseen = Check("witness/f-2", "witness", "fault=f-2", Status.INCONCLUSIVE, 0, 1, "", "not seen")
    counts = Recount(audited(tmp_path / "run", {"a": [3.0, 4.0]}, unseen), "orders")
    assert {Unit(1, 0)} == {*counts.values(row("recovery"), "a")}
