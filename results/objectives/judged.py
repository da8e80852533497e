"""A check for each SLO and each arm it judges.

Rules: too few samples are INCONCLUSIVE, never PASS or FAIL; a censored value is over any threshold; an SLO that reads
the window of a fault that is unproven is INCONCLUSIVE, whatever was measured (counts of integrity that FAIL stand);
and a lagging harness can only make things look worse, so what would FAIL under it is INCONCLUSIVE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aftershock.results.check import Check, Status, subject_of
from aftershock.results.evidence import Client, Evidence, Objective
from aftershock.results.facts import Facts
from aftershock.results.objectives.arms import in_blocks, opponents
from aftershock.results.objectives.counted import counted
from aftershock.results.objectives.judging import blank, clients_of
from aftershock.results.objectives.measured import measured
from aftershock.results.objectives.recovered import recovered
from aftershock.results.slo import Count, Measure, Recovery, Slo, parse


@dataclass(frozen=True)
class Doubts:
    """What keeps measurements from being evidence: faults without proof (id: why), a harness not to be trusted."""

    unproven: Mapping[str, str]
    harness: str | None


def objectives(evidence: Evidence, facts: Facts, doubts: Doubts) -> list[Check]:
    """The checks in the plan's order, ids made unique."""
    judged = [(objective, parse(objective.text)) for objective in evidence.objectives]
    checks = [
        _doubted(check, slo, evidence, doubts)
        for objective, slo in judged
        for check in _judge(evidence, facts, objective, slo)
    ]
    return _unique(checks)


def _judge(evidence: Evidence, facts: Facts, objective: Objective, slo: Slo) -> list[Check]:
    if isinstance(slo, Count):
        return [counted(evidence, facts, blank(objective, slo), slo)]
    if isinstance(slo, Measure) and slo.compares_arms:
        return _compared(evidence, facts, objective, slo)
    arm = slo.of.arm if isinstance(slo, Measure) else slo.arm
    clients = clients_of(evidence, slo.side, arm)
    if not clients:
        return [_nobody(objective, slo, arm)]
    return [_of_client(evidence, facts, objective, slo, client) for client in clients]


def _of_client(
    evidence: Evidence, facts: Facts, objective: Objective, slo: Measure | Recovery, client: Client
) -> Check:
    empty = replace(blank(objective, slo), subject=subject_of(client, evidence.clients), arm=client.arm)
    if isinstance(slo, Measure):
        return measured(evidence, facts, empty, slo, (client, client))
    return recovered(evidence, facts, empty, slo, client)


def _compared(evidence: Evidence, facts: Facts, objective: Objective, slo: Measure) -> list[Check]:
    pairs = opponents(evidence, slo)
    empty = blank(objective, slo)
    if not pairs:
        why = "each arm must name exactly one client of the plan"
        return [replace(empty, subject=_versus(*slo.arms), why=why, next="name two arms in the SLO")]
    return [
        (measured if slo.confidence is None else in_blocks)(
            evidence, facts, replace(empty, subject=_versus(*whose), arm=pair[0].arm), slo, pair
        )
        for pair in pairs
        for whose in [[one.arm for one in pair]]
    ]


def _versus(*arms: str) -> str:
    return " against ".join(f"arm={arm}" for arm in arms)


def _nobody(objective: Objective, slo: Slo, arm: str | None) -> Check:
    who = f"arm {arm!r}" if arm else "arm"
    why = f"the plan has no {who} with a {slo.side} side"
    return replace(blank(objective, slo), why=why, next="name an arm of the plan in the SLO")


def _doubted(check: Check, slo: Slo, evidence: Evidence, doubts: Doubts) -> Check:
    """The check as it may stand, given what could not be proven."""
    if isinstance(slo, Count) and check.status is Status.FAIL:
        return check
    for fault in _read(slo, evidence):
        if fault in doubts.unproven:
            why = f"{fault} is unproven ({doubts.unproven[fault]}); measured: {check.why}"
            return replace(check, status=Status.INCONCLUSIVE, why=why, next=f"mend what witness/{fault} says")
    if doubts.harness and check.status is Status.FAIL:
        why = f"{doubts.harness}; measured: {check.why}"
        return replace(check, status=Status.INCONCLUSIVE, why=why, next="mend what the harness checks say")
    return check


def _read(slo: Slo, evidence: Evidence) -> Sequence[str]:
    """The faults whose windows the SLO reads: some by name, all (``fault``, or everything after warm-up), or none."""
    if {None, "fault"} & set(slo.windows):
        return tuple(step["id"] for step in evidence.steps)
    return tuple(dict.fromkeys(step for name in slo.faults for step in evidence.faults_of(name) or (name,)))


def _unique(checks: Sequence[Check]) -> list[Check]:
    """Two SLOs may say the same of the same arm with other thresholds: the later ones get a number."""
    seen: dict[tuple[str, str], int] = {}
    named = []
    for check in checks:
        count = seen[check.id, check.subject] = seen.get((check.id, check.subject), 0) + 1
        named.append(check if count == 1 else replace(check, id=f"{check.id}-{count}"))
    return named
