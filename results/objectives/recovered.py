"""Judges a recovery: from inject to the first calm, of every round and block of the fault that an SLO names.

Rules: not recovered is a FAIL only if the load went on long enough to tell; of several times the worst is told.
"""

from collections.abc import Sequence
from dataclasses import replace

from aftershock.results.check import Check, Status, holds
from aftershock.results.evidence import Client, Evidence
from aftershock.results.facts import Facts, Recovered
from aftershock.results.objectives.judging import LOOK
from aftershock.results.slo import Recovery, aggregate_name
from aftershock.results.wanted import Calm


def calms(evidence: Evidence, slo: Recovery) -> tuple[Calm, ...]:
    """What has to be measured for it: the calm after each of the faults that it means."""
    faults = evidence.faults_of(slo.after) or (slo.after,)
    return tuple(Calm(fault, slo.q, float(slo.factor), slo.for_us) for fault in faults)


def recovered(evidence: Evidence, facts: Facts, empty: Check, slo: Recovery, client: Client) -> Check:
    """The check of one client."""
    steady = facts.distribution("produce.latency", client.key, "steady").n
    found = [(calm.fault, facts.recovered(calm, client.key)) for calm in calms(evidence, slo)]
    check = replace(empty, n=steady, threshold=slo.limit_us / 1e6, unit="s", phase=f"fault/{slo.after}")
    judged = [_judged(slo, check, fault, seen) for fault, seen in found]
    worst = max(judged, key=_badness)
    return replace(worst, why=_counted(judged) + worst.why)


def _judged(slo: Recovery, check: Check, fault: str, seen: Recovered | None) -> Check:
    if seen is None:
        yardstick = f"{aggregate_name(slo.q)} to compare with ({check.n} of {slo.needs()} records)"
        why = f"steady has no {yardstick}, or {fault} never began"
        return replace(check, why=why, next="lengthen timing.steady, or raise the rate")
    looked_s = f"{seen.observed_us / 1e6:.1f} s"
    if seen.recovered_us is not None:
        taken_s = seen.recovered_us / 1e6
        good = holds(seen.recovered_us, slo.op, slo.limit_us)
        why = f"calm {taken_s:.3f} s after inject{_of(fault, slo)}"
        status = Status.PASS if good else Status.FAIL
        return replace(check, status=status, observed=taken_s, why=why, next=None if good else LOOK)
    if seen.observed_us >= slo.limit_us:
        return replace(check, status=Status.FAIL, why=f"not recovered in {looked_s}{_of(fault, slo)}", next=LOOK)
    why = f"not recovered in the {looked_s} there were to look at{_of(fault, slo)}"
    return replace(check, why=why, next="lengthen timing.recovery")


def _of(fault: str, slo: Recovery) -> str:
    return "" if fault == slo.after else f" of {fault}"


def _counted(judged: Sequence[Check]) -> str:
    if len(judged) == 1:
        return ""
    failed = sum(one.status is Status.FAIL for one in judged)
    return f"{failed or 'none'} of {len(judged)} times it took too long, the worst: "


def _badness(check: Check) -> tuple[int, bool, float]:
    return (check.status.severity, check.observed is None, check.observed or 0.0)
