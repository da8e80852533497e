"""The tables of SLO metrics and integrity rules: a new row suffices to add a metric or a rule."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from aftershock.results.checks.check import NO_DOUBTS, Status
from aftershock.results.checks.integrity import integrity_checks
from aftershock.results.checks.rules import RULES, Event, EventCount, Rule
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.measure.facts import Facts, Finding
from aftershock.results.slo import METRICS, Count, Metric, parse
from aftershock.results.slo.metrics import ABOVE, Reading, Selection
from aftershock.tests.unit.results.checks.slo.stage import S, Stage, client, latencies


def test_a_row_adds_a_metric_with_a_unit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parser, printed SLO, value, unit and sentence follow from the row."""

    def value(_: Selection, reading: Reading) -> Fraction:
        return Fraction(reading.n * 1_000_000, reading.length_us)

    def sentence(selection: Selection, reading: Reading) -> str:
        return f"{selection.about.shown(reading.value)} were sent"

    monkeypatch.setitem(
        METRICS, "produce.rate", Metric("produce", "latency", "records/s", (), value, sentence, ops=ABOVE)
    )
    text = "produce.rate >= 100 records/s in fault"
    assert str(parse(text)) == text
    stage = Stage()
    stage.latency(latencies(1000, 5))
    check = stage.check(text)
    assert (check.status, check.observed, check.unit, check.why) == (
        Status.PASS,
        100.0,
        "records/s",
        "100 records/s were sent",
    )
    assert stage.check("produce.rate > 100 records/s in fault").status is Status.FAIL


def test_a_row_adds_a_rule_that_is_counted_in_events(monkeypatch: pytest.MonkeyPatch, evidence: Evidence) -> None:
    """The check, its advice, its samples and the SLO follow from the row."""

    def count(events: Sequence[Event]) -> EventCount:
        splits = [event for event in events if event["event"] == "batch_split"]
        return EventCount(len(splits), len(splits), tuple(event["token"] for event in splits), "a note")

    rule = Rule("a batch that was split", "nothing", "send smaller batches", {"produce": "split"}, count)
    monkeypatch.setitem(RULES, "split", replace(rule, unit="batches", if_examined=True))
    assert parse("split == 0") == Count("split", "==", 0)
    event = {"event": "batch_split", "arm": "patient", "workload": "orders", "op": "produce", "t_us": 1, "token": 7}
    others = [event | {"arm": "unknown"}, event | {"op": "consume"}]
    result = replace(evidence, events=(*evidence.events, event, *others))
    (check,) = [check for check in integrity_checks(result, Facts(), NO_DOUBTS) if check.id == "integrity/split"]
    assert (check.status, check.subject, check.arm) == (Status.FAIL, "arm=patient produce", "patient")
    assert (check.why, check.next) == ("1 of 1 batches; a note", "send smaller batches")
    assert [seq for _, seq in check.samples] == [7]


def test_every_overlap_of_assignments_is_compared_with_the_faults() -> None:
    """Two partitions have two owners while a fault is in force: both overlaps are permitted and reported."""
    workloads = [{"name": name, "consume": {"group": "g"}, "arms": {"a": {}}} for name in ("orders", "audit")]
    owned = {"event": "assigned", "arm": "a", "partitions": [["orders", 0], ["orders", 1]]}
    evidence = replace(
        Stage(clients=[client("a"), client("a", "audit")]).evidence(),
        timeline={"workloads": workloads, "steps": []},
        journal=(
            {"fault": "f", "state": "intended", "t_us": 20 * S},
            {"fault": "f", "state": "healed", "t_us": 30 * S},
        ),
        events=(owned | {"workload": "orders", "t_us": 21 * S}, owned | {"workload": "audit", "t_us": 22 * S}),
    )
    read = [Finding("phantom", "consume", f"{name}/a", 100, 0) for name in ("orders", "audit")]
    facts = Facts(findings={(finding.rule, finding.side, finding.client): finding for finding in read})
    checks = [check for check in integrity_checks(evidence, facts, NO_DOUBTS) if check.id == "integrity/co_owned"]
    assert [check.status for check in checks] == [Status.PASS, Status.PASS]
    assert all(check.why.startswith("none of 2 assignments; 2 further overlaps are permitted") for check in checks)


def test_every_rule_is_counted_and_described() -> None:
    """A rule without a finding could not fail, and a rule without a text could not be understood."""
    for name, rule in RULES.items():
        assert rule.findings, name
        assert all((rule.forbids, rule.explained_by, rule.advice)), name
        assert {*rule.optional} <= {*rule.findings}, name
