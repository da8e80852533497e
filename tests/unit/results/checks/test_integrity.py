"""The tables of SLO metrics and integrity rules: a new row suffices to add a metric or a rule."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from aftershock.results.checks.integrity import OF_TRANSACTIONS, integrity_checks, integrity_results
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.model.check import Status
from aftershock.results.model.facts import Facts, Finding
from aftershock.results.model.rules import RULES, Event, EventCount, Rule, decreases
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
    (check,) = [
        check for check in integrity_checks(result, integrity_results(result, Facts())) if check.id == "integrity/split"
    ]
    assert (check.status, check.subject, check.arm) == (Status.FAIL, "arm=patient produce", "patient")
    assert (check.why, check.next) == ("1 of 1 batches; a note", "send smaller batches")
    assert [seq for _, seq in check.samples] == [7]


@pytest.mark.parametrize(("brokers", "status"), [([1], Status.INCONCLUSIVE), ([], Status.FAIL)])
def test_every_overlap_of_assignments_is_compared_with_the_faults(brokers: list[int], status: Status) -> None:
    """Two partitions have two owners during a fault, of which nobody knows whether it was at their coordinator."""
    consume = {"group": "g", "topic": "orders"}
    workloads = [{"name": name, "consume": consume, "arms": {"a": {}}} for name in ("orders", "audit")]
    owned = {"event": "assigned", "arm": "a", "partitions": [["orders", 0], ["orders", 1]]}
    line = {"fault": "f", "targets": {"brokers": brokers}}
    evidence = Stage(clients=[client("a"), client("a", "audit")]).evidence()
    evidence = replace(
        evidence,
        timeline={
            **evidence.timeline,
            "workloads": workloads,
            "steps": [{"id": "f", "kind": "pause", "takes": "nodes"}],
        },
        journal=(
            line | {"state": "intended", "t_us": 20 * S},
            line | {"state": "injected", "t_us": 20 * S},
            line | {"state": "healed", "t_us": 30 * S},
        ),
        events=(owned | {"workload": "orders", "t_us": 21 * S}, owned | {"workload": "audit", "t_us": 22 * S}),
    )
    read = [Finding("phantom", "consume", f"{name}/a", 100, 0) for name in ("orders", "audit")]
    facts = Facts(findings={(finding.rule, finding.side, finding.client): finding for finding in read})
    checks = integrity_checks(evidence, integrity_results(evidence, facts))
    checks = [check for check in checks if check.id == "integrity/co_owned"]
    assert [check.status for check in checks] == [status, status]
    perhaps = ": all perhaps explained by f (pause), which kept members of g-a from their coordinator"
    assert all(check.why.startswith(f"2 of 2 assignments{perhaps if brokers else ''}") for check in checks)


@pytest.mark.parametrize(
    ("took_us", "expected"),
    [((1_000, 1_000), (2, 1, 0)), ((None, 1_000), (2, 1, 0)), ((1_000, None), (2, 1, 1)), ((None, None), (2, 1, 1))],
)
def test_a_lower_commit_without_its_time_of_sending_is_undecided(
    took_us: tuple[int | None, int | None], expected: tuple[int, int, int]
) -> None:
    """The higher commit was sent before its acknowledgement, so only the lower one's time matters."""
    line = {"event": "committed", "worker": "w"}
    events = [line | {"t_us": at * S, "offsets": [["orders", 0, offset]]} for at, offset in ((1, 100), (2, 90))]
    events = [event if took is None else event | {"took_us": took} for event, took in zip(events, took_us, strict=True)]
    count = decreases(events)
    assert expected == (count.examined, count.broken, count.undated)


def _of_transactions(
    findings: Sequence[Finding], *, transaction: bool = True
) -> dict[tuple[str, str], tuple[Status, str]]:
    """Return status and why of the rules about transactions, by rule and subject, of one producer that also reads."""
    produce = {"topic": "orders"} | ({"transaction": {"records": 10}} if transaction else {})
    workload = {"name": "orders", "produce": produce, "consume": {"topic": "orders"}, "arms": {"a": {}}}
    evidence = Stage(clients=[client("a")]).evidence()
    evidence = replace(
        evidence, timeline={**evidence.timeline, "workloads": [workload], "steps": []}, journal=(), events=()
    )
    facts = Facts(findings={(finding.rule, finding.side, finding.client): finding for finding in findings})
    checks = integrity_checks(evidence, integrity_results(evidence, facts))
    ids = {f"integrity/{rule}": rule for rule in OF_TRANSACTIONS}
    return {(ids[check.id], check.subject): (check.status, check.why) for check in checks if check.id in ids}


ENDED = [
    Finding("torn", "produce", "orders/a", 20, 0),
    Finding("lost_commit", "produce", "orders/a", 15, 0),
    Finding("unaborted", "produce", "orders/a", 5, 0),
    Finding("aborted_read", "consume", "orders/a", 150, 0),
    Finding("fenced_write", "consume", "log", 60, 0),
]


def test_rules_about_transactions_need_transactions() -> None:
    """Without any in the plan the rules are not even listed; with transactions each has one check."""
    assert {} == _of_transactions(ENDED, transaction=False)
    found = _of_transactions(ENDED)
    assert {Status.PASS} == {status for status, _ in found.values()}
    assert [*OF_TRANSACTIONS] == sorted((rule for rule, _ in found), key=OF_TRANSACTIONS.index)
    assert ("fenced_write", "log") in found


def test_transactions_that_did_not_end_are_not_judged() -> None:
    """The rules about whole transactions are INCONCLUSIVE then, but a breach of another transaction is a breach."""
    open_ones = Finding("undecided", "produce", "orders/a", 2, 2)
    found = {rule: result for (rule, _), result in _of_transactions([*ENDED, open_ones]).items()}
    for rule in ("torn", "lost_commit", "unaborted"):
        status, why = found[rule]
        assert status is Status.INCONCLUSIVE
        assert "2 transactions have not ended in the log" in why
    assert {Status.PASS} == {found[rule][0] for rule in ("aborted_read", "fenced_write")}
    broken = replace(ENDED[0], broken=1)
    assert Status.FAIL is dict(_of_transactions([broken, open_ones]))["torn", "arm=a produce"][0]


def test_an_abort_after_a_commit_names_its_policy() -> None:
    permitted = Finding("unaborted_permitted", "produce", "orders/a", 1, 1)
    status, why = _of_transactions([*ENDED, permitted])["unaborted", "arm=a produce"]
    assert status is Status.PASS
    assert "1 further transactions were committed" in why
    assert "on_commit_timeout: abort" in why


def test_every_rule_is_counted_and_described() -> None:
    """A rule without a finding could not fail, and a rule without a text could not be understood."""
    for name, rule in RULES.items():
        assert rule.findings, name
        assert all((rule.forbids, rule.explained_by, rule.advice)), name
        assert {*rule.optional} <= {*rule.findings}, name
