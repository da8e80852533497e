"""Planted losses, duplicates, phantoms and disorder: each caught by its own check, and no other check alarms."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from evidence_factory import Made, Row, S

from aftershock.results.check import Check, Status
from aftershock.results.evidence import Evidence, read
from aftershock.results.facts import Facts, Finding
from aftershock.results.judge import judged
from aftershock.results.ledger import ledger
from aftershock.results.measure import _findings
from aftershock.results.tables import columns, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

Find = Callable[[Made], list[Check]]


@pytest.fixture
def alarms(spark: "SparkSession", facts: Facts, tmp_path: Path) -> Find:
    """The checks of a spoiled run that are not PASS; what integrity does not read is as in the clean run."""

    def find(made: Made) -> list[Check]:
        return [check for check in checks_of(spark, facts, made, tmp_path) if check.status is not Status.PASS]

    return find


def checks_of(spark: "SparkSession", facts: Facts, made: Made, home: Path) -> tuple[Check, ...]:
    evidence = read(made.write(home / "run"), columns())
    return judged(evidence, replace(facts, findings=findings_of(spark, evidence))).checks


def findings_of(spark: "SparkSession", evidence: Evidence) -> dict[tuple[str, str, str], Finding]:
    readers = [client for client in evidence.clients if client.consumes_from]
    seen = tables(spark, evidence)
    return _findings(ledger(seen.outcomes, seen.log, readers), seen, evidence, readers, 6 * S)


def row_of(rows: list[Row], arm: str | None, producer_id: int, seq: int) -> Row:
    return next(
        row
        for row in rows
        if (row["producer_id"], row["seq"]) == (producer_id, seq) and (arm is None or row["arm"] == arm)
    )


def named(checks: list[Check]) -> dict[tuple[str, str], tuple[float | None, tuple[tuple[int, int], ...]]]:
    return {(check.id, check.subject): (check.observed, check.samples) for check in checks}


def test_a_record_not_delivered_is_lost(alarms: Find, made: Made) -> None:
    """One consume row deleted: integrity/lost of that arm with the record's id, and the plan's own `lost == 0`."""
    spoiled = made.copy()
    spoiled.consume.remove(row_of(spoiled.consume, "patient", 0, 1234))
    found = alarms(spoiled)
    assert named(found) == {
        ("slo/lost", "all arms"): (1.0, ((0, 1234),)),
        ("integrity/lost", "arm=patient consume"): (1.0, ((0, 1234),)),
    }
    assert {check.status for check in found} == {Status.FAIL}


def test_a_record_not_in_the_log_is_lost(alarms: Find, made: Made) -> None:
    """Acknowledged with acks=all and not in the final log."""
    spoiled = made.copy()
    spoiled.log.remove(row_of(spoiled.log, None, 1, 77))
    assert named(alarms(spoiled)) == {
        ("slo/lost", "all arms"): (1.0, ((1, 77),)),
        ("integrity/lost", "arm=patient produce"): (1.0, ((1, 77),)),
    }


def test_acks_1_permits_loss(spark: "SparkSession", facts: Facts, made: Made, tmp_path: Path) -> None:
    """The same with acks=1, and never delivered either: PASS, with the count and the reason."""
    spoiled = made.copy()
    spoiled.timeline["workloads"][0]["produce"] |= {"acks": "1", "idempotence": False}
    spoiled.timeline["slo"] = []
    spoiled.log.remove(row_of(spoiled.log, None, 1, 77))
    for arm in ("baseline", "patient"):
        spoiled.consume.remove(row_of(spoiled.consume, arm, 1, 77))
    checks = checks_of(spark, facts, spoiled, tmp_path)
    lost = next(check for check in checks if (check.id, check.subject) == ("integrity/lost", "arm=patient produce"))
    assert lost.status is Status.PASS
    assert (lost.observed, lost.samples) == (1.0, ((1, 77),))
    assert "permitted by acks=1" in lost.why
    assert {check.status for check in checks} == {Status.PASS}


def test_an_offset_delivered_twice_is_a_duplicate(alarms: Find, made: Made) -> None:
    """One consume row twice, without an assignment between."""
    spoiled = made.copy()
    twice = row_of(spoiled.consume, "baseline", 1, 500)
    spoiled.consume.append(twice | {"done_us": twice["done_us"] + 5 * S})
    assert named(alarms(spoiled)) == {("integrity/duplicate", "arm=baseline consume"): (1.0, ((1, 500),))}


@pytest.mark.parametrize(
    ("topic", "why", "status"), [("orders", None, "PASS"), ("others", None, "FAIL"), ("orders", "a rehearsal", "FAIL")]
)
def test_what_the_plan_itself_deletes_is_no_loss(
    spark: "SparkSession", facts: Facts, made: Made, tmp_path: Path, topic: str, why: str | None, status: str
) -> None:
    """A record gone where a fault deleted some is reported, with the fault; of another topic, or not done, it FAILS."""
    spoiled = made.copy()
    spoiled.timeline["slo"] = []
    spoiled.log.remove(row_of(spoiled.log, None, 1, 77))
    for arm in ("baseline", "patient"):
        spoiled.consume.remove(row_of(spoiled.consume, arm, 1, 77))
    targets = {"brokers": [], "links": [], "topics": [topic], "roles": {"permits": ["lost"]}}
    line = {"fault": "reassign-1", "kind": "delete_records", "state": "injected", "targets": targets, "t_us": 40 * S}
    spoiled.journal.append(line | {"undo": {"verb": "nothing", "args": {}}} | ({"why": why} if why else {}))
    checks = checks_of(spark, facts, spoiled, tmp_path)
    lost = next(check for check in checks if (check.id, check.subject) == ("integrity/lost", "arm=patient produce"))
    assert (status, 1.0) == (lost.status, lost.observed)
    assert ("permitted by reassign-1" in lost.why) == (status == "PASS")


def test_redelivery_after_an_assignment_is_permitted(
    spark: "SparkSession", facts: Facts, made: Made, tmp_path: Path
) -> None:
    """At-least-once: the same, but partitions were assigned to that arm in between. PASS, and told."""
    spoiled = made.copy()
    twice = row_of(spoiled.consume, "baseline", 1, 500)
    spoiled.consume.append(twice | {"done_us": twice["done_us"] + 5 * S})
    spoiled.events.append(spoiled.events[0] | {"t_us": twice["done_us"] + 5 * S - 1})
    checks = checks_of(spark, facts, spoiled, tmp_path)
    assert {check.status for check in checks} == {Status.PASS}
    again = next(c for c in checks if (c.id, c.subject) == ("integrity/duplicate", "arm=baseline consume"))
    assert "1 records were delivered more than once" in again.why


def test_two_copies_in_the_log_are_a_duplicate(alarms: Find, made: Made) -> None:
    """The same id at two offsets, by an idempotent producer; read once more by nobody."""
    spoiled = made.copy()
    spoiled.log.append(row_of(spoiled.log, None, 0, 9) | {"offset": 100_000})
    assert named(alarms(spoiled)) == {("integrity/duplicate", "arm=baseline produce"): (1.0, ((0, 9),))}


def test_phantoms_are_what_nobody_sent(alarms: Find, made: Made) -> None:
    """A foreign record in the log, and a delivered one with an id that has no produce row."""
    spoiled = made.copy()
    spoiled.log.append(spoiled.log[0] | {"offset": 100_000, "producer_id": None, "seq": None})
    ghost = row_of(spoiled.consume, "baseline", 0, 9)
    spoiled.consume.append(ghost | {"offset": 100_001, "seq": 999_999, "done_us": 59 * S})
    assert named(alarms(spoiled)) == {
        ("integrity/phantom", "log"): (1.0, ()),
        ("integrity/phantom", "arm=baseline consume"): (1.0, ((0, 999_999),)),
    }


def test_a_log_out_of_order_is_told(alarms: Find, made: Made) -> None:
    """Two records of one producer and partition that changed places, seen alike by everybody."""
    spoiled = made.copy()
    for rows in (spoiled.produce, spoiled.log, spoiled.consume):
        for row in rows:
            if row["producer_id"] == 0 and row["seq"] in (60, 66):
                row["seq"] = 126 - row["seq"]
    assert named(alarms(spoiled)) == {("integrity/order", "arm=baseline produce"): (1.0, ((0, 60),))}


def test_without_idempotence_disorder_and_duplicates_are_permitted(
    spark: "SparkSession", facts: Facts, made: Made, tmp_path: Path
) -> None:
    """The configuration permits them: PASS, with the count and the reason."""
    spoiled = made.copy()
    spoiled.timeline["workloads"][0]["produce"]["idempotence"] = False
    spoiled.log.append(row_of(spoiled.log, None, 0, 9) | {"offset": 100_000})
    for rows in (spoiled.produce, spoiled.log, spoiled.consume):
        for row in rows:
            if row["producer_id"] == 0 and row["seq"] in (60, 66):
                row["seq"] = 126 - row["seq"]
    checks = checks_of(spark, facts, spoiled, tmp_path)
    assert {check.status for check in checks} == {Status.PASS}
    told = {check.id: check for check in checks if check.subject == "arm=baseline produce"}
    assert "permitted without idempotence" in told["integrity/duplicate"].why
    assert "permitted without idempotence" in told["integrity/order"].why


def test_deliveries_out_of_order_are_told(alarms: Find, made: Made) -> None:
    """Two deliveries of one partition that changed places in time."""
    spoiled = made.copy()
    first, second = (row_of(spoiled.consume, "patient", 0, seq) for seq in (60, 66))
    first["done_us"], second["done_us"] = second["done_us"], first["done_us"]
    # the other producer's record of that partition lies between them
    assert {("integrity/order", "arm=patient consume")} == set(named(alarms(spoiled)))


def test_records_in_doubt_are_told_not_failed(spark: "SparkSession", facts: Facts, made: Made, tmp_path: Path) -> None:
    """Two in doubt, one of them in the log: neither lost nor phantom."""
    spoiled = made.copy()
    for seq in (10, 16):
        row_of(spoiled.produce, "baseline", 0, seq).update(status="in_doubt", error="_MSG_TIMED_OUT")
    spoiled.log.remove(row_of(spoiled.log, None, 0, 16))
    for arm in ("baseline", "patient"):
        spoiled.consume.remove(row_of(spoiled.consume, arm, 0, 16))
    checks = checks_of(spark, facts, spoiled, tmp_path)
    assert {check.status for check in checks} == {Status.PASS}
    lost = next(c for c in checks if (c.id, c.subject) == ("integrity/lost", "arm=baseline produce"))
    assert "of 2 in doubt 1 are in the log" in lost.why


def test_from_latest_owes_nothing_of_warm_up(spark: "SparkSession", facts: Facts, made: Made, tmp_path: Path) -> None:
    """A reader from `latest` that missed a record of warm-up lost nothing; one of steady, it lost."""
    spoiled = made.copy()
    spoiled.timeline["workloads"][0]["consume"]["from"] = "latest"
    spoiled.consume.remove(row_of(spoiled.consume, "baseline", 0, 5))
    spoiled.consume.remove(row_of(spoiled.consume, "baseline", 0, 600))
    checks = checks_of(spark, facts, spoiled, tmp_path)
    failed = named([check for check in checks if check.status is Status.FAIL])
    assert failed["integrity/lost", "arm=baseline consume"] == (1.0, ((0, 600),))


def test_what_an_unfinished_run_lacks_is_not_lost_yet(alarms: Find, made: Made) -> None:
    """Interrupted before the consumers drained: INCONCLUSIVE; a duplicate stands."""
    spoiled = made.copy()
    spoiled.run |= {"status": "interrupted", "why": "SIGINT"}
    spoiled.consume = [row for row in spoiled.consume if row["done_us"] < 40 * S]
    spoiled.log.append(row_of(spoiled.log, None, 0, 9) | {"offset": 100_000})
    found = {(check.id, check.subject): check.status for check in alarms(spoiled)}
    assert found["integrity/lost", "arm=baseline consume"] is Status.INCONCLUSIVE
    assert found["integrity/duplicate", "arm=baseline produce"] is Status.FAIL
    assert found["slo/lost", "all arms"] is Status.INCONCLUSIVE
