"""Two arms of one run against each other: who is compared with whom, and with confidence, by the plan's blocks.

Records of one stall are one event, so the band of a quantile says nothing of whether one arm is better: with
confidence, arms are compared block by block.

Judges a count: what the integrity checks found, permitted or not; a record lost to two readers counts twice.

Judges a recovery: from inject to the first calm, of every round and block of the fault that an SLO names.

Rules: not recovered is a FAIL only if the load went on long enough to tell; of several times the worst is told.

A check for each SLO and each arm it judges.

Rules: too few samples are INCONCLUSIVE, never PASS or FAIL; a censored value is over any threshold; an SLO that reads
the window of a fault that is unproven is INCONCLUSIVE, whatever was measured (counts of integrity that FAIL stand);
and a lagging harness can only make things look worse, so what would FAIL under it is INCONCLUSIVE.

What a run's SLOs want measured, besides what always is; and what its blocks do, to be compared by.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from aftershock.errors import EvidenceError
from aftershock.results.checks.check import Check, Status, holds, subject_of
from aftershock.results.checks.integrity import broken
from aftershock.results.checks.slo.measured import LOOK, blank, clients_of, decided, measured
from aftershock.results.checks.slo.readings import cuts
from aftershock.results.compare.blocks import block_cuts
from aftershock.results.compare.comparison import BLOCKS_MIN, confident
from aftershock.results.evidence.evidence import Client, Evidence, Objective
from aftershock.results.evidence.phases import RUN
from aftershock.results.measure.facts import Calm, Cut, Facts, Recovered, Wanted
from aftershock.results.slo import Count, Measure, Multiple, Recovery, Slo, SloSyntaxError, aggregate_name, parse


def opponents(evidence: Evidence, slo: Measure) -> list[tuple[Client, Client]]:
    """Each client of the first selection with the one it is held against: of its own workload, else the only one."""
    first, other = slo.selections
    judged = [one for one in clients_of(evidence, first.about.side, first.arm) if one.arm != other.arm]
    against = clients_of(evidence, other.about.side, other.arm)
    return [(one, found) for one in judged for found in _against(one, against)]


def _against(one: Client, others: list[Client]) -> Iterator[Client]:
    beside = [other for other in others if other.workload == one.workload]
    yield from beside or (others if len(others) == 1 else ())


def block_cut(slo: Measure) -> Cut:
    """What has to be measured to compare arms with confidence."""
    return Cut(slo.of.metric, slo.of.window or RUN, each="block")


def in_blocks(evidence: Evidence, facts: Facts, empty: Check, slo: Measure, pair: tuple[Client, Client]) -> Check:  # noqa: ARG001 - like ``measured``
    """The check of two arms with confidence: the interval of their ratio over the blocks, against the factor."""
    if not isinstance(slo.limit, Multiple) or slo.confidence is None:
        raise TypeError(f"no comparison of arms with confidence: {slo}")
    factor, keys = float(slo.limit.factor), (pair[0].key, pair[1].key)
    seen = confident(facts, block_cut(slo), keys, slo.q, slo.op, factor, float(slo.confidence))
    check = replace(empty, status=seen.status, n=seen.blocks, minimum=BLOCKS_MIN, unit="ratio", threshold=factor)
    check = replace(check, observed=seen.ratio, censored=seen.censored, why=seen.why, next=seen.next)
    if check.next is None and check.status is not Status.PASS:
        return replace(check, next="see the comparison of the arms in report.html")
    return check


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


USUAL = 0.95  # the confidence of the bands that the report shows whether or not an SLO asks


def wanted(evidence: Evidence) -> Wanted:
    """Quantiles, confidences, cuts and recoveries. Raises EvidenceError where an SLO of the run can't be read."""
    try:
        slos = [parse(objective.text) for objective in evidence.objectives]
    except SloSyntaxError as broken:
        where = evidence.home / "timeline.json"
        raise EvidenceError(f"{where}: an SLO can't be read: {broken}; restore the file") from broken
    measures = [slo for slo in slos if isinstance(slo, Measure)]
    qs = {one.aggregate for slo in measures for one in slo.selections if isinstance(one.aggregate, float)}
    confidences = {USUAL} | {float(slo.confidence) for slo in measures if slo.confidence is not None}
    recoveries = dict.fromkeys(calm for slo in slos if isinstance(slo, Recovery) for calm in calms(evidence, slo))
    asked = tuple(dict.fromkeys([*_cuts(slos), *block_cuts(evidence)]))
    return Wanted(tuple(sorted(qs)), tuple(sorted(confidences)), asked, tuple(recoveries))


def _cuts(slos: Iterable[Slo]) -> Iterator[Cut]:
    for slo in slos:
        if isinstance(slo, Measure):
            yield from (cut for one in slo.selections for cut in cuts(one, slo.each))
            if slo.compares_arms and slo.confidence is not None:
                yield block_cut(slo)
