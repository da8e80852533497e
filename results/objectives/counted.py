"""Judges a count: what the integrity checks found, permitted or not; a record lost to two readers counts twice."""

from dataclasses import replace

from aftershock.results.check import Check, Status
from aftershock.results.evidence import Evidence
from aftershock.results.facts import Facts
from aftershock.results.objectives.judging import decided
from aftershock.results.promises import broken
from aftershock.results.slo import Count


def counted(evidence: Evidence, facts: Facts, empty: Check, slo: Count) -> Check:
    """The check, of the arm that it names, or of all of them and their log."""
    found = broken(evidence, facts, slo.rule, slo.arms)
    count, n = sum(one.broken for one in found), sum(one.examined for one in found)
    samples = tuple(sample for one in found for sample in one.samples)[:20]
    subject = f"arm={slo.arm}" if slo.arm else empty.subject
    check = replace(empty, subject=subject, arm=slo.arm, n=n, threshold=float(slo.limit), unit="records")
    check = replace(check, samples=samples)
    if not n:
        return replace(check, why="no record was seen", next="give the plan traffic that this can be judged by")
    check = decided(check, float(count), slo.op, f"{count} of {n} records")
    unfinished = check.status is Status.FAIL and slo.rule == "lost" and not evidence.complete
    return replace(check, status=Status.INCONCLUSIVE) if unfinished else check
