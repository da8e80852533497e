"""SLO checks (``slo/...``, ``compare/...``), one per SLO and client, and requests for the measurements of SLOs.

The following table lists the function that judges each form of SLO.

==========================  ====================================================================================
form                        judged by
==========================  ====================================================================================
``Measure``                 ``measured`` in ``measured.py``, per client, or per pair of arms if it compares arms
``Measure``, two arms with  ``_in_blocks``, block by block, as records of one stall are one event, so the band of a
confidence                  quantile doesn't tell whether one arm is better
``Recovery``                ``_recovered``, from inject to the calm that lasts until the next fault (docs/SLO.md), of
                            each round and block of the fault
``Count``                   ``_counted``, for integrity findings, permitted or not; a record lost to two readers
                            counts twice
==========================  ====================================================================================

An SLO with too few samples is INCONCLUSIVE. A censored value (of a record that never succeeded) is over any threshold.
If a client never recovers, its recovery SLO fails only if the load lasted longer than the limit; of several recoveries
the worst is reported. An SLO that reads the window of an unproven fault is INCONCLUSIVE, except a failed count of lost
or wrong records, which stays a FAIL. A slow harness can only make results worse, so a failed SLO is INCONCLUSIVE if the
harness is slow, and a passed SLO stays a PASS.
"""

from collections.abc import Sequence
from dataclasses import replace

from aftershock.errors import EvidenceError
from aftershock.results.checks.doubts import Doubts, settled
from aftershock.results.checks.integrity import Result, unread_advice
from aftershock.results.checks.slo.measured import LOOK, crosses_clocks, decided_by_clocks, measured
from aftershock.results.checks.slo.readings import cuts
from aftershock.results.compare.blocks import block_cuts
from aftershock.results.compare.comparison import BLOCKS_MIN, confident
from aftershock.results.evidence.evidence import Client, Evidence, Objective
from aftershock.results.evidence.phases import RUN
from aftershock.results.model.check import SAMPLES_MAX, Check, Status, holds
from aftershock.results.model.facts import Cut, Facts, MeasurementRequest, Recovered, RecoveryCriterion
from aftershock.results.model.text import recovery
from aftershock.results.slo import Count, Measure, Multiple, Recovery, Slo, SloSyntaxError

USUAL = 0.95  # confidence of the bands in the report


def slo_checks(evidence: Evidence, facts: Facts, integrity: Sequence[Result], doubts: Doubts) -> list[Check]:
    """Return the checks of all SLOs in the plan's order; if a client has two checks of one id, a number is appended.

    SLOs on a number of records count those of the ``integrity`` results.
    """
    checks = []
    times: dict[tuple[str, str], int] = {}
    for objective in evidence.objectives:
        slo, judged = objective.slo, list[Check]()
        if isinstance(slo, Measure | Recovery):
            latency = isinstance(slo, Recovery) or (slo.of.about.has_aggregate and slo.of.about.unit == "time")
            counts = isinstance(slo, Measure) and slo.of.about.counts
            windows = (None,) if isinstance(slo, Recovery) else slo.windows
            for index, (plain, clients) in enumerate(_of_clients(evidence, facts, objective, slo)):

                def judge_again(
                    again: Facts, objective: Objective = objective, slo: Measure | Recovery = slo, index: int = index
                ) -> Check:
                    return _of_clients(evidence, again, objective, slo)[index][0]

                check = _unproven(plain, slo, evidence, doubts)
                lanes = [(slo.side, client) for client in clients]
                kind = {"of_latency": latency, "of_count": counts}
                judged.append(settled(check, judge_again, evidence, doubts, lanes, windows, **kind))
        else:
            judged.append(_unproven(_counted(evidence, integrity, objective, slo), slo, evidence, doubts))
        for check in judged:
            count = times[check.id, check.subject] = times.get((check.id, check.subject), 0) + 1
            advice = objective.advice if objective.advice and check.status is Status.FAIL else check.next
            checks.append(replace(check, next=advice, id=check.id if count == 1 else f"{check.id}-{count}"))
    return checks


def wanted(evidence: Evidence) -> MeasurementRequest:
    """Return the measurements that a run's SLOs need besides the standard ones, such as quantiles and recoveries.

    Raises EvidenceError if an SLO of the run can't be parsed.
    """
    try:
        slos = [objective.slo for objective in evidence.objectives]
    except SloSyntaxError as error:
        where = evidence.home / "timeline.json"
        raise EvidenceError(f"{where}: an SLO can't be parsed: {error}; restore the file") from error
    measures = [slo for slo in slos if isinstance(slo, Measure)]
    selections = [selection for slo in measures for selection in slo.selections]
    qs = {selection.aggregate for selection in selections if isinstance(selection.aggregate, float)}
    confidences = {USUAL} | {float(slo.confidence) for slo in measures if slo.confidence is not None}
    recoveries = dict.fromkeys(calm for slo in slos if isinstance(slo, Recovery) for calm in calms(evidence, slo))
    slo_cuts: list[Cut] = []
    for slo in measures:
        slo_cuts += [cut for selection in slo.selections for cut in cuts(selection, slo.each)]
        if slo.compares_arms and slo.confidence is not None:
            slo_cuts.append(block_cut(slo))
    every_cut = tuple(dict.fromkeys([*slo_cuts, *block_cuts(evidence)]))
    members = any(slo.each == "member" for slo in measures)
    return MeasurementRequest(tuple(sorted(qs)), tuple(sorted(confidences)), every_cut, tuple(recoveries), members)


def _undecided(objective: Objective) -> Check:
    """Return the check of an SLO for which nothing was observed, which the other checks complete."""
    slo = objective.slo
    return Check(
        id=slo.check_id(),
        kind="compare" if isinstance(slo, Measure) and slo.compares_arms else "slo",
        subject="all arms",
        phase=slo.of.window if isinstance(slo, Measure) else None,
        status=Status.INCONCLUSIVE,
        n=0,
        minimum=slo.needs(),
        unit="ms",
        why="",
        at=objective.at,
        gate=objective.gate,
    )


def _of_clients(
    evidence: Evidence, facts: Facts, objective: Objective, slo: Measure | Recovery
) -> list[tuple[Check, tuple[Client, ...]]]:
    """Return the checks of an SLO, each with the clients that it compares or judges, before any doubts."""
    empty, compares_arms = _undecided(objective), isinstance(slo, Measure) and slo.compares_arms
    checks: list[tuple[Check, tuple[Client, ...]]] = []
    for first, second in opponents(evidence, slo):
        own = replace(empty, subject=evidence.subject_of(first), arm=first.arm)
        if compares_arms:
            own = replace(own, subject=_versus(first.arm, second.arm))
        if isinstance(slo, Recovery):
            check = _recovered(evidence, facts, own, slo, first)
            distance_us = None if check.observed is None else abs(check.observed * 1_000_000 - slo.limit_us)
            check = decided_by_clocks(evidence, check, [(check.status, distance_us)])
        elif compares_arms and slo.confidence is not None:
            check = _in_blocks(facts, own, slo, (first, second))
            if crosses_clocks(slo):
                check = decided_by_clocks(evidence, check, [(check.status, 0)])  # what clocks add to each is unknown
        else:
            check = measured(evidence, facts, own, slo, (first, second))
        clients = tuple(dict.fromkeys((first, second)))
        checks.append((_unobserved(evidence, facts, check, slo, clients), clients))
    if checks:
        return checks
    if compares_arms:
        why, advice = "each arm must name exactly one client of the plan", "name two arms of the plan in the SLO"
        return [(replace(empty, subject=_versus(*slo.arms), why=why, next=advice), ())]
    why = f"the plan has no {f'arm {slo.arms[0]!r}' if slo.arms else 'arm'} with a {slo.side} side"
    return [(replace(empty, why=why, next="name an arm of the plan in the SLO"), ())]


def _versus(*arms: str) -> str:
    return " against ".join(f"arm={arm}" for arm in arms)


def opponents(evidence: Evidence, slo: Measure | Recovery) -> list[tuple[Client, Client]]:
    """Return each client that an SLO judges with the client of its limit, which is the client itself in most SLOs.

    If the SLO compares two arms, that is the second arm's client of the same workload, or its only client.
    """
    if isinstance(slo, Recovery) or not slo.compares_arms:
        arm = slo.arm if isinstance(slo, Recovery) else slo.of.arm
        return [(client, client) for client in evidence.clients_of(slo.side, arm)]
    first, second = slo.selections
    candidates = evidence.clients_of(second.about.side, second.arm)
    pairs = []
    for client in evidence.clients_of(first.about.side, first.arm):
        if client.arm != second.arm:
            same_workload = [candidate for candidate in candidates if candidate.workload == client.workload]
            rivals = same_workload or (candidates if len(candidates) == 1 else [])
            pairs += [(client, rival) for rival in rivals]
    return pairs


def _unobserved(
    evidence: Evidence, facts: Facts, check: Check, slo: Measure | Recovery, clients: Sequence[Client]
) -> Check:
    """Add what a check did not see: success that nobody confirms, and records that nobody delivered or read.

    A PASS is INCONCLUSIVE if it depends on a producer with ``acks=0``, whose successes nobody observes, or on a
    consumer that stopped reading before some records. Records that no log has can't be delivered, and are only counted.
    """
    selections = slo.selections if isinstance(slo, Measure) else ()
    sides = [selection.about.side for selection in selections] or [slo.side]
    of_delivery = any(selection.metric == "consume.latency" for selection in selections)
    undeliverable, unreached = (
        sum(facts.finding(rule, "consume", client.key).examined for client in clients) if of_delivery else 0
        for rule in ("undeliverable", "unreached")
    )
    if undeliverable:
        why = f"{check.why}; {undeliverable} acknowledged records are in no log and not counted here"
        check = replace(check, why=why)
    unacknowledged = {client.arm for client in clients if client.acks == "0" and client.produces_to}
    if check.status is Status.PASS and "produce" in sides and unacknowledged:
        arms = ", ".join(sorted(unacknowledged))
        why = f"with acks=0 no record of {arms} was acknowledged, only sent; measured: {check.why}"
        advice = "set `acks: all` or `acks: 1`, or limit consume.latency instead"
        check = replace(check, status=Status.INCONCLUSIVE, why=why, next=advice)
    if check.status is Status.PASS and unreached:
        advice = unread_advice(evidence, next(client for client in clients if client.consumes_from))
        why = (
            f"{unreached} further records were not judged, because the consumer stopped reading before them; "
            f"{check.why}"
        )
        check = replace(check, status=Status.INCONCLUSIVE, why=why, next=advice)
    return check


def block_cut(slo: Measure) -> Cut:
    """Return the measurement that an SLO needs to compare two arms with confidence."""
    return Cut(slo.of.metric, slo.of.window or RUN, each="block")


def _in_blocks(facts: Facts, empty: Check, slo: Measure, pair: tuple[Client, Client]) -> Check:
    """Judge an SLO on two arms with confidence, by the arms' ratio in each block (repetition of the plan's faults)."""
    if not isinstance(slo.limit, Multiple) or slo.confidence is None:
        raise TypeError(f"the SLO is not a comparison of two arms with confidence: {slo}")
    factor, keys = float(slo.limit.factor), (pair[0].key, pair[1].key)
    cut = block_cut(slo)
    result = confident(facts, cut, keys, slo.q, slo.op, factor, float(slo.confidence))
    advice = result.next
    if advice is None and result.status is not Status.PASS:
        advice = "see the comparison of the arms in report.html"
    return replace(
        empty,
        status=result.status,
        n=result.blocks,
        minimum=BLOCKS_MIN,
        unit="ratio",
        threshold=factor,
        observed=result.ratio,
        censored=result.censored,
        why=result.why,
        next=advice,
    )


def _counted(evidence: Evidence, integrity: Sequence[Result], objective: Objective, slo: Count) -> Check:
    """Judge an SLO on the number of lost or wrong records, of the named arm, or of all arms and their log."""
    every = [result for result in integrity if result.rule == slo.rule and (not slo.arms or result.arm in slo.arms)]
    results = [result for result in every if result.judged]
    without = [result for result in every if not result.judged]
    unjudged = "; ".join(f"{result.subject} was not judged: it needs {result.note}" for result in without)
    findings = [result.finding for result in results if not result.unknown]
    count, n = sum(finding.broken for finding in findings), sum(finding.examined for finding in findings)
    empty = _undecided(objective)
    check = replace(
        empty,
        subject=f"arm={slo.arm}" if slo.arm else empty.subject,
        arm=slo.arm,
        n=n,
        threshold=float(slo.limit),
        unit="records",
        samples=tuple(sample for finding in findings for sample in finding.samples)[:SAMPLES_MAX],
    )
    if not n:
        nothing = unjudged or (
            "; ".join(result.note for result in results if result.unknown) or "no record was observed"
        )
        return replace(check, why=nothing, next="add to the plan traffic that the counting SLO applies to")
    passed = holds(count, slo.op, slo.limit)
    # before the run has finished, missing records may not have been read yet
    unfinished = slo.rule == "lost" and not evidence.complete
    status = Status.PASS if passed else Status.INCONCLUSIVE if unfinished else Status.FAIL
    why, advice = f"{count} of {n} records", None if passed else LOOK
    doubtful = [result for result in results if result.partial or result.unknown or not result.finding.examined]
    if passed and doubtful:
        status, names = Status.INCONCLUSIVE, ", ".join(sorted({result.subject for result in doubtful}))
        why = f"{why}; not all was observed of {names}"
        advice = f"fix the cause shown in check `integrity/{slo.rule}`"
    why = f"{why}; {unjudged}" if unjudged else why
    return replace(check, status=status, observed=float(count), why=why, next=advice)


def calms(evidence: Evidence, slo: Recovery) -> tuple[RecoveryCriterion, ...]:
    """Return a recovery criterion for each repetition (round or block of the plan) of the fault that the SLO names."""
    faults = evidence.faults_of(slo.after) or (slo.after,)
    return tuple(RecoveryCriterion(fault, slo.q, float(slo.factor), slo.for_us) for fault in faults)


def _recovered(evidence: Evidence, facts: Facts, empty: Check, slo: Recovery, client: Client) -> Check:
    """Judge each recovery of a client from the fault, and report the worst recovery."""
    steady = facts.distribution("produce.latency", client.key, "steady").n
    blank_check = replace(empty, n=steady, threshold=slo.limit_us / 1e6, unit="s", phase=f"fault/{slo.after}")
    criteria = calms(evidence, slo)
    checks = [_recovery(slo, blank_check, calm.fault, facts.recovered(calm, client.key)) for calm in criteria]
    worst = max(checks, key=lambda check: (check.status.severity, check.observed is None, check.observed or 0.0))
    if len(checks) == 1:
        return worst
    failed = sum(check.status is Status.FAIL for check in checks)
    healed = [check for check in checks if check.finding]
    of_all = f"{len(healed)} of {len(checks)} recoveries came only after the heal; the slowest: "
    return replace(
        worst,
        why=f"{failed or 'none'} of {len(checks)} recoveries after the fault took too long; the slowest: {worst.why}",
        finding=of_all + max(healed, key=lambda check: check.observed or 0.0).finding if healed else "",
    )


def _recovery(slo: Recovery, check: Check, fault: str, result: Recovered | None) -> Check:
    of_fault = "" if fault == slo.after else f" of {fault}"
    if result is None:
        why = (
            f"the steady phase has too few records for a {slo.spread} to compare with ({check.n} of "
            f"{slo.needs()}), or {fault} never began"
        )
        return replace(check, why=why, next="lengthen timing.steady in the plan, or raise the rate of its load")
    why = recovery(result.row, f" after inject{of_fault}")
    why += " (the first calm, as recovery was defined when the run was recorded)" if result.definition == 1 else ""
    if result.recovered_us is not None:
        passed = holds(result.recovered_us, slo.op, slo.limit_us)
        return replace(
            check,
            status=Status.PASS if passed else Status.FAIL,
            observed=result.recovered_us / 1e6,
            why=why,
            next=None if passed else LOOK,
            finding=why if result.before_heal is False else "",
        )
    if result.observed_us >= slo.limit_us:
        return replace(check, status=Status.FAIL, why=why, next=LOOK)
    longer = "lengthen timing.recovery, or the time until the next fault"
    return replace(check, why=f"{why}; that is less than the limit", next=longer)


def _unproven(check: Check, slo: Slo, evidence: Evidence, doubts: Doubts) -> Check:
    """Make the check of an SLO INCONCLUSIVE if an unproven fault makes its result doubtful."""
    if isinstance(slo, Count) and check.status is Status.FAIL:
        return check
    if {None, "fault"} & set(slo.windows):
        faults = [step["id"] for step in evidence.steps]
    else:
        faults = [step for name in slo.faults for step in evidence.faults_of(name) or (name,)]
    for fault in faults:
        if fault in doubts.unproven:
            reason = doubts.unproven[fault]
            why = f"fault {fault} is unproven ({reason}); measured: {check.why}"
            advice = f"fix the cause shown in check `{reason.split(': ', 1)[0]}`"
            return replace(check, status=Status.INCONCLUSIVE, why=why, next=advice)
    return check
