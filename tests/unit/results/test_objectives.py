"""SLOs, witnesses, exposure and harness checks, judged from the clean run's measurements with one change each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from aftershock.results.checks.witness import exposure
from aftershock.results.evidence.evidence import Evidence, Objective
from aftershock.results.judge import evaluate
from aftershock.results.measure.exposure import passages
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.model.facts import Distribution, Facts, Finding, Host, ProxyTraffic
from aftershock.tests.unit.results.stored_facts import clean_facts

BASELINE, PATIENT = "orders/baseline", "orders/patient"


@pytest.fixture(scope="module")
def facts() -> Facts:
    """Stored measurements of the clean run, so that these tests need no Spark."""
    return clean_facts()


def slo_check(evidence: Evidence, facts: Facts, text: str, subject: str = "arm=baseline") -> Check:
    """Return the check of this SLO alone."""
    asked = replace(evidence, objectives=(Objective(text, "plan.yaml:1:1"),))
    return next(c for c in evaluate(asked, facts).checks if c.kind in ("slo", "compare") and c.subject == subject)


def with_distribution(facts: Facts, key: tuple[str, str, str], distribution: Distribution) -> Facts:
    return replace(facts, distributions={**facts.distributions, key: distribution})


def not_passed(verdict: Verdict) -> dict[tuple[str, str], Status]:
    return {(c.id, c.subject): c.status for c in verdict.checks if c.status is not Status.PASS}


def test_a_good_run_raises_no_alarm(evidence: Evidence, facts: Facts) -> None:
    """Every check of the clean run passes with enough samples; pairs of id and subject are unique."""
    verdict = evaluate(evidence, facts)
    assert not_passed(verdict) == {}
    assert verdict.exit_code == 0
    assert all(check.n >= check.minimum >= 1 for check in verdict.checks)
    assert all(check.why and check.why == check.why.strip() for check in verdict.checks)
    assert len({(check.id, check.subject) for check in verdict.checks}) == len(verdict.checks)
    assert {check.kind for check in verdict.checks} == {
        "slo", "compare", "integrity", "obligation", "witness", "exposure", "harness",
    }  # fmt: skip


def test_a_latency_slo_is_compared_with_the_measured_quantile(evidence: Evidence, facts: Facts) -> None:
    """The latency fault adds 50 ms: a limit of 60 ms passes and a limit of 50 ms fails, in every arm."""
    assert slo_check(evidence, facts, "produce.latency p95 < 60ms in fault/latency-1").status is Status.PASS
    failed = slo_check(evidence, facts, "produce.latency p95 < 50ms in fault/latency-1", "arm=patient")
    assert (failed.status, failed.threshold, failed.unit, failed.at) == (Status.FAIL, 50.0, "ms", "plan.yaml:1:1")
    assert 50 < (failed.observed or 0) < 70
    assert failed.next


def spoil_witness(evidence: Evidence, fault: str, change: Mapping[str, Any]) -> Evidence:
    lines = [
        {**line, "witness": {**line["witness"], **change}} if line["fault"] == fault and "witness" in line else line
        for line in evidence.journal
    ]
    return replace(evidence, journal=tuple(lines))


def test_a_failed_witness_makes_slos_of_its_fault_inconclusive(evidence: Evidence, facts: Facts) -> None:
    """A toxic removed during its fault affects the fault's windows and their union; steady and integrity checks
    stand.
    """
    spoiled = spoil_witness(evidence, "latency-1", {"observed": 0.4, "ok": False})
    verdict = evaluate(spoiled, facts)
    undecided = {id_ for id_, _ in not_passed(verdict)}
    assert undecided == {
        "witness/latency-1",
        "slo/produce.latency-p95-fault/latency-1",
        "slo/produce.success",
        "slo/produce.gap-fault",
        "slo/consume.latency-p99",
        "slo/lost",
    }
    assert set(not_passed(verdict).values()) == {Status.INCONCLUSIVE}
    assert verdict.exit_code == 2
    told = next(check for check in verdict.checks if check.id == "slo/produce.gap-fault")
    assert "witness/latency-1" in told.why


def test_a_loss_stands_without_a_witness(evidence: Evidence, facts: Facts) -> None:
    """An integrity FAIL outweighs the failed witness, and so does `lost == 0`."""
    key = ("lost", "consume", BASELINE)
    lossy = replace(facts, findings={**facts.findings, key: Finding(*key, 6000, 1, ((0, 7),))})
    verdict = evaluate(spoil_witness(evidence, "latency-1", {"ok": False}), lossy)
    failed = [check.id for check in verdict.checks if check.status is Status.FAIL]
    assert failed == ["slo/lost", "integrity/lost"]
    assert verdict.exit_code == 1


def test_a_fault_that_failed_or_never_came_has_no_witness(evidence: Evidence, facts: Facts) -> None:
    """A `failed` line and an empty journal give different reasons, and both are INCONCLUSIVE."""
    failed = {"t_us": 1, "fault": "kill-1", "kind": "kill", "state": "failed", "why": "no such broker", "targets": {}}
    for journal, says in (((*evidence.journal, failed), "no such broker"), ((), "never injected")):
        checks = {check.id: check for check in evaluate(replace(evidence, journal=journal), facts).checks}
        assert checks["witness/kill-1"].status is Status.INCONCLUSIVE
        assert says in checks["witness/kill-1"].why


@pytest.mark.parametrize("fault", ["latency-1", "kill-1"])
def test_a_fault_without_exposed_traffic_is_inconclusive(evidence: Evidence, facts: Facts, fault: str) -> None:
    """Without bytes over the links, the exposure check and the fault's own SLOs are INCONCLUSIVE."""
    unmet = replace(facts, crossed={**facts.crossed, fault: ProxyTraffic(0, 30)})
    verdict = evaluate(evidence, unmet)
    assert not_passed(verdict)[f"exposure/{fault}", f"fault={fault}"] is Status.INCONCLUSIVE
    assert any(fault in check.why for check in verdict.checks if check.kind == "slo")


def test_topics_without_records_were_not_exposed(evidence: Evidence, facts: Facts) -> None:
    """The reassigned topic got no record in the fault's window."""
    silent = {key: value for key, value in facts.distributions.items() if key[2] != "fault/reassign-1"}
    verdict = evaluate(evidence, replace(facts, distributions=silent))
    assert ("exposure/reassign-1", "fault=reassign-1") in not_passed(verdict)


def rehearsed(evidence: Evidence, *, spoken: bool) -> Evidence:
    """Return the run as a rehearsal, with or without a witness that passed."""
    journal = [
        line | {"witness": line["witness"] | {"ok": spoken, "n": 3}} if line.get("witness") else line
        for line in evidence.journal
    ]
    return replace(evidence, run={**evidence.run, "rehearse": True}, journal=tuple(journal))


def test_a_rehearsal_passes_if_no_witness_does(evidence: Evidence, facts: Facts) -> None:
    """No fault was injected, so a witness that passes is named and makes the run INCONCLUSIVE."""
    for spoken, status in ((False, Status.PASS), (True, Status.INCONCLUSIVE)):
        checks = {check.id: check for check in evaluate(rehearsed(evidence, spoken=spoken), facts).checks}
        assert {status} == {check.status for name, check in checks.items() if name.startswith("witness/")}
        assert ("nothing was injected, yet" in checks["witness/kill-1"].why) == spoken


def on_links(evidence: Evidence, fault: str, links: list[str], crossing: dict[str, list[int]]) -> Evidence:
    """Return the run as if the fault had been on these links."""
    targets = {"brokers": [], "links": links, "topics": [], "roles": {"crossing": crossing}}
    journal = [line | {"targets": targets} if line["fault"] == fault else line for line in evidence.journal]
    return replace(evidence, journal=tuple(journal))


def test_replication_faults_are_met_by_replicated_records(evidence: Evidence, facts: Facts) -> None:
    """Only records in the window, of partitions whose replication crosses the slowed link, count."""
    slowed = on_links(evidence, "latency-1", ["replication_a-k2"], {"orders": [1]})
    counts = {
        ("fault/latency-1", "orders", 1): 7,
        ("fault/latency-1", "orders", 2): 9,
        ("fault/kill-1", "orders", 1): 9,
    }
    for produced, status, amount in ((counts, Status.PASS, 7.0), ({}, Status.INCONCLUSIVE, 0.0)):
        checks = {check.id: check for check in evaluate(slowed, replace(facts, produced=produced)).checks}
        met = checks["exposure/latency-1"]
        assert (status, amount, "records") == (met.status, met.observed, met.unit)


@pytest.mark.parametrize(("kind", "before"), [("latency", False), ("refuse", True), ("cut", True)])
def test_severed_links_are_met_by_earlier_traffic(evidence: Evidence, kind: str, before: bool) -> None:
    """A slowed link is met by traffic during the fault, a severed link by traffic right before it."""
    changed = {"kind": kind, "severs": before}
    steps = [step | changed if step["id"] == "latency-1" else step for step in evidence.steps]
    told = replace(evidence, timeline={**evidence.timeline, "steps": steps})
    (passage,) = [each for each in passages(told) if each.fault == "latency-1"]
    assert before == (passage.from_us < 16_000_000)


@pytest.mark.parametrize("kind", ["kill", "pause", "stop", "restart"])
def test_node_faults_are_met_by_client_traffic_to_the_node(evidence: Evidence, kind: str) -> None:
    """This holds for every kind that stops a node."""
    steps = [step | {"kind": kind} if step["id"] == "kill-1" else step for step in evidence.steps]
    told = replace(evidence, timeline={**evidence.timeline, "steps": steps})
    (passage,) = [each for each in passages(told) if each.fault == "kill-1"]
    assert passage.proxies.startswith("client_")


@pytest.mark.parametrize(
    ("hits", "rehearse", "status"),
    [((0, 3, 7), False, Status.PASS), ((0, 0, 0), False, Status.INCONCLUSIVE), ((0,), True, Status.PASS)],
)
def test_a_protocol_fault_is_met_by_the_requests_it_changed(
    evidence: Evidence, facts: Facts, hits: tuple[int, ...], rehearse: bool, status: Status
) -> None:
    """The proxy's count of the witnesses decides; probes do not count, and a rehearsal has no count."""
    probe = {"what": "a probe", "asked": 1, "observed": 1, "unit": "probes", "n": 1, "ok": True}
    witnesses = [probe, *(probe | {"observed": number, "unit": "requests"} for number in hits)]
    lines = [
        {"t_us": 1, "fault": "latency-1", "state": "witnessed", "witness": each, "targets": {}} for each in witnesses
    ]
    steps = [step | {"met_by": "requests"} if step["id"] == "latency-1" else step for step in evidence.steps]
    evidence = replace(
        evidence,
        timeline={**evidence.timeline, "steps": steps},
        journal=(*(line for line in evidence.journal if line["fault"] != "latency-1"), *lines),
        run={**evidence.run, "rehearse": rehearse},
    )
    met = exposure(evidence, facts, next(step for step in evidence.steps if step["id"] == "latency-1"))
    assert status is met.status


def test_controller_links_cannot_be_counted(evidence: Evidence, facts: Facts) -> None:
    """Faults on uncounted links are never exposed; client traffic of that time does not count instead."""
    slowed = on_links(evidence, "latency-1", ["controller_a-k2"], {})
    checks = {check.id: check for check in evaluate(slowed, facts).checks}
    assert Status.INCONCLUSIVE is checks["exposure/latency-1"].status


def test_a_lagging_generator_makes_failures_inconclusive(evidence: Evidence, facts: Facts) -> None:
    """With a p99 of lateness over 50 ms the harness check is INCONCLUSIVE, and so are failures; passing SLOs pass."""
    late = with_distribution(
        facts, ("produce.lateness", BASELINE, "run"), Distribution(2640, 0, 90_000, {0.99: 60_000})
    )
    assert not_passed(evaluate(evidence, late)) == {("harness/generator", "arm=baseline"): Status.INCONCLUSIVE}
    assert slo_check(evidence, late, "produce.latency p95 < 1ms in steady").status is Status.INCONCLUSIVE


@pytest.mark.parametrize("host", [Host(), Host(400, 21, 0.9, 0.0), Host(400, 0, 0.9, 0.2)])
def test_a_starved_host_is_inconclusive(evidence: Evidence, facts: Facts, host: Host) -> None:
    """The host had no ticks, more than 5 % late ticks, or more than 10 % stolen time."""
    verdict = evaluate(evidence, replace(facts, host=host))
    assert not_passed(verdict) == {("harness/host", "host"): Status.INCONCLUSIVE}


def test_an_unsettled_warm_up_or_unfinished_run_is_inconclusive(evidence: Evidence, facts: Facts) -> None:
    """Both are read from run.json and have a check each."""
    drifting = {**evidence.run, "warmup": {"settled": False, "after_ms": 30_000, "why": "still falling"}}
    assert set(not_passed(evaluate(replace(evidence, run=drifting), facts))) == {("harness/warmup", "run")}
    stopped = {**evidence.run, "status": "interrupted", "why": "SIGINT"}
    verdict = evaluate(replace(evidence, run=stopped), facts)
    assert set(not_passed(verdict)) == {("harness/complete", "run")}
    assert "SIGINT" in next(check.why for check in verdict.checks if check.id == "harness/complete")


def test_subjects_name_the_workload_of_arms_with_equal_names(evidence: Evidence, facts: Facts) -> None:
    """The subject includes the workload if two workloads have an arm `baseline`."""
    twin = replace(evidence.clients[0], workload="audit")
    verdict = evaluate(replace(evidence, clients=(*evidence.clients, twin)), facts)
    subjects = {check.subject for check in verdict.checks if check.id == "harness/generator"}
    assert subjects == {"workload=orders arm=baseline", "arm=patient", "workload=audit arm=baseline"}
