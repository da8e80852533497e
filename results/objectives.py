"""Judges the plan's SLOs by what was measured.

Rules: too few samples are INCONCLUSIVE, never PASS or FAIL; a censored quantile is over any threshold; an SLO whose
window holds a fault that is unproven is INCONCLUSIVE, whatever was measured (counts of integrity that FAIL stand); and
a lagging harness can only make things look worse, so what would FAIL under it is INCONCLUSIVE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aftershock.results.check import Check, Status, holds, subject_of
from aftershock.results.compare import compare
from aftershock.results.evidence import Client, Evidence, Objective
from aftershock.results.facts import MAX, Facts, Longest
from aftershock.results.judging import blank, clients_of, decided, few, window_name
from aftershock.results.phases import RUN
from aftershock.results.promises import broken
from aftershock.results.slo import Compare, Count, Gap, Quantile, Recovery, Slo, Success, parse, quantile_name


@dataclass(frozen=True)
class Doubts:
    """What keeps measurements from being evidence: faults without proof (id: why), a harness not to be trusted."""

    unproven: Mapping[str, str]
    harness: str | None


def objectives(evidence: Evidence, facts: Facts, doubts: Doubts) -> list[Check]:
    """A check for each SLO and each arm it judges, ids made unique in the plan's order."""
    judged = [(objective, parse(objective.text)) for objective in evidence.objectives]
    checks = [
        _doubted(check, slo, evidence, doubts)
        for objective, slo in judged
        for check in _judge(evidence, facts, objective, slo)
    ]
    return _unique(checks)


def _judge(evidence: Evidence, facts: Facts, objective: Objective, slo: Slo) -> list[Check]:
    if isinstance(slo, Count):
        return [_count(evidence, facts, objective, slo)]
    if isinstance(slo, Compare):
        return [compare(evidence, facts, objective, slo)]
    judged = clients_of(evidence, slo)
    if not judged:
        return [_nobody(objective, slo)]
    return [_of_client(evidence, facts, objective, slo, client) for client in judged]


def _of_client(
    evidence: Evidence, facts: Facts, objective: Objective, slo: Quantile | Success | Gap | Recovery, client: Client
) -> Check:
    empty = replace(blank(objective, slo), subject=subject_of(client, evidence.clients), arm=client.arm)
    if isinstance(slo, Quantile):
        return _quantile(evidence, facts, empty, slo, client)
    if isinstance(slo, Success):
        return _success(evidence, facts, empty, slo, client)
    if isinstance(slo, Gap):
        return _gap(facts, empty, slo, client)
    return _recovery(facts, empty, slo, client)


def _nobody(objective: Objective, slo: Slo) -> Check:
    who = f"arm {slo.arms[0]!r}" if slo.arms else "arm"
    why = f"the plan has no {who} with a {slo.side} side"
    return replace(blank(objective, slo), why=why, next="name an arm of the plan in the SLO")


def _quantile(evidence: Evidence, facts: Facts, empty: Check, slo: Quantile, client: Client) -> Check:
    seen = facts.distribution(slo.metric, client.key, slo.window or RUN)
    check = replace(empty, n=seen.n, censored=seen.censored, threshold=slo.threshold_us / 1e3)
    name = quantile_name(slo.q)
    if seen.n < slo.needs():
        return few(check, evidence, name)
    value_us = seen.at[MAX if slo.q is None else slo.q]
    if value_us is None:
        return decided(check, None, slo.op, f"{name} is censored: {seen.censored} of {seen.n} never succeeded")
    return decided(check, value_us / 1e3, slo.op, f"{name} in {window_name(slo.window)} is {value_us / 1e3:g} ms")


def _success(evidence: Evidence, facts: Facts, empty: Check, slo: Success, client: Client) -> Check:
    seen = facts.distribution(f"{slo.side}.latency", client.key, slo.window or RUN)
    check = replace(empty, n=seen.n, censored=seen.censored, threshold=slo.fraction * 100, unit="%")
    if seen.n < slo.needs():
        return few(check, evidence, f"{slo.fraction:.3%}")
    good = seen.n - seen.censored
    what = "commits" if slo.side == "commit" else "records"
    check = decided(check, 100 * good / seen.n, slo.op, f"{good} of {seen.n} {what} were acknowledged")
    # the quotient is what is judged; percent are for reading, and 100 * x loses the last digit
    return replace(check, status=Status.PASS if holds(good / seen.n, slo.op, slo.fraction) else Status.FAIL)


def _gap(facts: Facts, empty: Check, slo: Gap, client: Client) -> Check:
    window = slo.window or RUN
    longest = facts.longest.get((slo.metric, client.key, window), Longest())
    due = facts.distribution(f"{slo.side}.latency", client.key, window).n
    check = replace(empty, n=longest.n or due, threshold=slo.threshold_us / 1e6, unit="s")
    if longest.longest_us is None:
        why = f"no record was due in {window_name(slo.window)}, or it did not happen"
        return replace(check, why=why, next="see the clients' logs and the journal")
    longest_s = longest.longest_us / 1e6
    none = "" if longest.n else f": of {due} records none succeeded"
    return decided(check, longest_s, slo.op, f"the longest time without a success was {longest_s:.3f} s{none}")


def _recovery(facts: Facts, empty: Check, slo: Recovery, client: Client) -> Check:
    steady = facts.distribution("produce.latency", client.key, "steady").n
    seen = facts.recoveries.get((slo.after, client.key))
    check = replace(empty, n=steady, threshold=slo.threshold_us / 1e6, unit="s", phase=f"fault/{slo.after}")
    if seen is None:
        why = f"steady has no p95 to compare with ({steady} of {slo.needs()} records), or {slo.after} never began"
        return replace(check, why=why, next="lengthen timing.steady, or raise the rate")
    if seen.recovered_us is not None:
        recovered_s = seen.recovered_us / 1e6
        return decided(check, recovered_s, slo.op, f"calm {recovered_s:.3f} s after inject")
    if seen.observed_us >= slo.threshold_us:
        return decided(check, None, slo.op, f"not recovered in {seen.observed_us / 1e6:.1f} s")
    why = f"not recovered in the {seen.observed_us / 1e6:.1f} s there were to look at"
    return replace(check, why=why, next="lengthen timing.recovery")


def _count(evidence: Evidence, facts: Facts, objective: Objective, slo: Count) -> Check:
    """What the integrity checks counted, permitted or not; a record lost to two readers counts twice."""
    found = broken(evidence, facts, slo.rule, slo.arms)
    counted, n = sum(one.broken for one in found), sum(one.examined for one in found)
    samples = tuple(sample for one in found for sample in one.samples)[:20]
    arm = slo.arms[0] if slo.arms else None
    check = replace(blank(objective, slo), n=n, threshold=float(slo.limit), unit="records", samples=samples, arm=arm)
    check = replace(check, subject=f"arm={arm}" if arm else check.subject)
    if not n:
        return replace(check, why="no record was seen", next="give the plan traffic that this can be judged by")
    check = decided(check, float(counted), slo.op, f"{counted} of {n} records")
    unfinished = check.status is Status.FAIL and slo.rule == "lost" and not evidence.complete
    return replace(check, status=Status.INCONCLUSIVE) if unfinished else check


def _doubted(check: Check, slo: Slo, evidence: Evidence, doubts: Doubts) -> Check:
    """The check as it may stand, given what could not be proven."""
    if isinstance(slo, Count) and check.status is Status.FAIL:
        return check
    for fault in _held(slo, evidence):
        if fault in doubts.unproven:
            why = f"{fault} is unproven ({doubts.unproven[fault]}); measured: {check.why}"
            return replace(check, status=Status.INCONCLUSIVE, why=why, next=f"mend what witness/{fault} says")
    if doubts.harness and check.status is Status.FAIL:
        why = f"{doubts.harness}; measured: {check.why}"
        return replace(check, status=Status.INCONCLUSIVE, why=why, next="mend what the harness checks say")
    return check


def _held(slo: Slo, evidence: Evidence) -> Sequence[str]:
    """The faults whose windows the SLO reads: one, all (``fault``, or no window), or none."""
    if slo.fault is not None:
        return (slo.fault,)
    return tuple(step["id"] for step in evidence.steps) if slo.window in (None, "fault") else ()


def _unique(checks: Sequence[Check]) -> list[Check]:
    """Two SLOs may say the same of the same arm with other thresholds: the later ones get a number."""
    seen: dict[tuple[str, str], int] = {}
    named = []
    for check in checks:
        count = seen[check.id, check.subject] = seen.get((check.id, check.subject), 0) + 1
        named.append(check if count == 1 else replace(check, id=f"{check.id}-{count}"))
    return named
