"""Integrity checks: an error that the configuration forbids fails, one that it permits is only reported.

=============  =====================================================  ================================================
rule           forbidden                                              permitted, and reported (``permits.py``)
=============  =====================================================  ================================================
lost           acknowledged, and not in the log; in the log, and not  acks=1 or 0, min.insync.replicas below 2, unclean
               delivered to a reader that was due it; a commit        elections; of a commit nothing
               acknowledged, and not in its coordinator's log
duplicate      one record at two offsets, by an idempotent producer;  without idempotence; unclean elections;
               an offset delivered twice to a reader                  after an assignment or a reset
order          the log against an idempotent producer's seq, or       without idempotence; a killed producer; unclean
               against that of a producer with one request in         elections; after an assignment or a reset
               flight; deliveries against offsets
phantom        a record that was never sent, in the log or            nothing
               delivered; a record in the log that its producer
               reported as failed
misplaced      the offset acknowledged is not where the record is     nothing
collision      two records at one offset                              unclean elections
skipped        a reader passed over a record of the log               unclean elections; an assignment or a reset
backward       epochs or high watermarks that go down, old leader     without idempotence; acks=1; a killed producer; in
               hints accepted, a committed position below an          a coordinator's log: no epoch fences a late commit
               earlier one
beyond         a delivery from beyond every high watermark reported   nothing
co_owned       two members of a group read a partition at once        while faults may keep members from a coordinator
commit_ahead   a group committed what it had not read                 nothing
commit_behind  a group resumed before its committed position          nothing
corrupt        a value that differs from what was sent                nothing
immediate      a second retry without back-off in one leader epoch    nothing
replica        replicas that differ after the last heal               nothing
=============  =====================================================  ================================================

A fault may exempt its topics from rules (``roles.permits`` in the journal): if the plan itself deletes records,
truncates a log or recreates a topic, then missing, duplicate or reordered records are only reported.

A record in doubt may be in the log or not: both are reported, neither fails. Before a run has finished, missing records
may not have been read yet, so a loss is INCONCLUSIVE. A rule that can't apply to a client has no check: a client
without a group shares no partitions; a client that doesn't report offsets, epochs or high watermarks can't be judged by
them. (A client without any observation does have its checks, and they are INCONCLUSIVE.)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from aftershock.results.checks.check import Check, Doubts, Status, subject_of
from aftershock.results.checks.findings.groups import REPLICA_SIDE, committers, group_of
from aftershock.results.checks.findings.groups import SIDE as COMMIT
from aftershock.results.checks.findings.records import LOG_READER
from aftershock.results.checks.integrity_events import co_assigned, immediate, regressions
from aftershock.results.checks.permits import permit
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.measure.facts import Facts, Finding

_EXPLAIN = "`aftershock explain RUN --record PRODUCER:SEQ` shows the history of each sample"

ADVICE: Mapping[str, str] = {
    "lost": f"{_EXPLAIN}; then read the logs of its partition's leaders (logs/k*.log) around its acknowledgement",
    "duplicate": f"{_EXPLAIN}; look for a retry of an acknowledged batch, or a position that was read again",
    "order": f"{_EXPLAIN}; look for retries with more than one request in flight, or a position that went back",
    "phantom": "find out which other program writes to the topic, and whether the record's header was damaged in "
    "transit; for a producer's phantoms, whether it sends records that it has reported as failed",
    "misplaced": f"{_EXPLAIN}; compare the offset in its acknowledgement with the one in log/",
    "collision": "compare log/ and outcomes/ at the samples' offsets: was the log truncated and written again?",
    "skipped": f"{_EXPLAIN}; read the consumer's log for a position that moved on without a reset",
    "backward": "compare leader_epoch and high_watermark of the samples' rows with the rows before them in outcomes/, "
    "`hint_accepted` and `committed` with earlier ones in events.jsonl",
    "beyond": "a broker returned records that were not committed: read the log of the samples' broker at that time",
    "co_owned": "compare `assigned` and `revoked` of the group's members in events.jsonl around the samples' times",
    "commit_ahead": "compare the samples' commits with what their group had read: does it commit before it reads?",
    "commit_behind": "compare `committed` before `assigned` in events.jsonl: was the commit lost with its coordinator?",
    "corrupt": f"{_EXPLAIN}; compare its bytes in the log of each replica (kafka-dump-log) with what was sent",
    "immediate": "read `batch_retried` of the samples in events.jsonl: a retry did not back off as KIP-951 requires",
    "replica": "compare the replicas with kafka-dump-log --deep-iteration: one was not truncated, or lost records",
}


_PRODUCER_RULES = ("lost", "duplicate", "order", "misplaced", "backward", "phantom")
_READER_RULES = ("lost", "duplicate", "order", "phantom", "collision", "skipped", "backward", "beyond")
_GROUP_RULES = ("commit_ahead", "commit_behind")
_COMMIT_RULES = ("lost", "backward")
_UNFENCED = "permitted, because no member epoch fences a commit that is still under way on a lost connection"
# rules whose data not every client reports: without it they have no check, provided that the client was seen at all
_OPTIONAL_FOR_READER = ("misplaced", "backward", "beyond")
_OPTIONAL_FOR_PRODUCER = (*_OPTIONAL_FOR_READER, "phantom")
_NAMES_MAX = 3
_UNITS = {
    "co_owned": "assignments",
    "commit_behind": "assignments",
    "commit_ahead": "commits",
    "immediate": "batches",
    "replica": "replicas",
}


@dataclass(frozen=True)
class _Result:
    """Finding of a rule for one subject.

    ``permitted``: the reason why the configuration permits the finding, None if it is forbidden.

    ``partial``: not everything that the rule needs could be read, so that an empty finding proves nothing.
    """

    rule: str
    subject: str
    arm: str | None
    finding: Finding
    permitted: str | None = None
    note: str = ""
    partial: bool = False

    @property
    def unit(self) -> str:
        return "commits" if self.finding.side == COMMIT else _UNITS.get(self.rule, "records")


def integrity_checks(evidence: Evidence, facts: Facts, _: Doubts) -> list[Check]:
    """Return ``integrity/<rule>`` for each client that the rule applies to, for the log and for the replicas.

    Doubts are not needed: an integrity failure stands even if a fault is unproven or the harness is slow.
    """
    checks = [_check(evidence, result) for result in _results(evidence, facts)]
    return sorted(checks, key=lambda check: (check.id, check.subject))


def findings_of(evidence: Evidence, facts: Facts, rule: str, arms: tuple[str, ...]) -> list[Finding]:
    """Return each finding of a rule, permitted or not, of these arms (empty: all arms, the log and the replicas)."""
    results = (result for result in _results(evidence, facts) if result.rule == rule)
    return [result.finding for result in results if not arms or result.arm in arms]


def _results(evidence: Evidence, facts: Facts) -> Iterator[_Result]:
    readers = [client for client in evidence.clients if client.consumes_from]
    if readers or any(client.produces_to for client in evidence.clients):
        yield _Result("phantom", "log", None, facts.finding("phantom", "consume", LOG_READER))
        # two records at one offset of the log are permitted if they are permitted for any of its readers
        permits = (permit(evidence, client, "consume", "collision") for client in readers)
        permitted = next((reason for reason in permits if reason), None)
        yield _Result("collision", "log", None, facts.finding("collision", "consume", LOG_READER), permitted)
        yield from _corrupt(evidence, facts, "log", None, LOG_READER)
    for client in evidence.clients:
        yield from _of_producer(evidence, facts, client) if client.produces_to else ()
        yield from _of_reader(evidence, facts, client) if client.consumes_from else ()
    for client in committers(evidence):
        for rule in _COMMIT_RULES:
            subject = f"{subject_of(client, evidence.clients)} {COMMIT}"
            permitted = _UNFENCED if rule == "backward" else None
            yield _Result(rule, subject, client.arm, facts.finding(rule, COMMIT, client.key), permitted)
    yield from _of_replicas(facts)


def _of_producer(evidence: Evidence, facts: Facts, client: Client) -> Iterator[_Result]:
    subject = f"{subject_of(client, evidence.clients)} produce"
    any_seen = facts.finding("lost", "produce", client.key).examined
    for rule in _PRODUCER_RULES:
        finding, note = facts.finding(rule, "produce", client.key), ""
        if rule == "backward":
            finding, note = _with_events(evidence, client, "produce", finding)
        elif rule == "phantom" and finding.broken:
            note = "their producer had reported them as failed, yet they are in the log"
        elif rule == "lost":
            in_doubt, delivered = (facts.finding(name, "produce", client.key) for name in ("in_doubt", "delivered"))
            notes = []
            if delivered.examined:
                notes.append(f"not in the log, though {delivered.broken} of them were delivered")
            if in_doubt.examined:
                notes.append(f"of {in_doubt.examined} in doubt {in_doubt.broken} are in the log")
            note = "; ".join(notes)
        if finding.examined or not (any_seen and rule in _OPTIONAL_FOR_PRODUCER):
            yield _Result(rule, subject, client.arm, finding, permit(evidence, client, "produce", rule), note)
    retries = immediate(evidence, client)
    if retries.examined:
        yield _Result("immediate", subject, client.arm, retries)


def _with_events(evidence: Evidence, client: Client, side: str, rows: Finding) -> tuple[Finding, str]:
    """Add the decreases in the client's events to the decreases in its rows; the note names the kinds."""
    by_kind = regressions(evidence, client, side)
    combined = replace(
        rows,
        examined=rows.examined + sum(total for total, _ in by_kind.values()),
        broken=rows.broken + sum(back for _, back in by_kind.values()),
    )
    return combined, "; ".join(f"{back} of them are {kind}" for kind, (_, back) in by_kind.items() if back)


def _of_reader(evidence: Evidence, facts: Facts, client: Client) -> Iterator[_Result]:
    subject = f"{subject_of(client, evidence.clients)} consume"
    any_seen = facts.finding("phantom", "consume", client.key).examined
    for rule in _READER_RULES:
        finding, note = facts.finding("repeated" if rule == "duplicate" else rule, "consume", client.key), ""
        if rule == "backward":
            finding, note = _with_events(evidence, client, "consume", finding)
        elif rule == "lost" and (unlogged := facts.finding("unlogged", "consume", client.key)).examined:
            in_log = unlogged.examined - unlogged.broken
            note = f"{in_log} in the log and not delivered, {unlogged.broken} not in the log"
        elif rule == "duplicate":
            again = facts.finding("redelivered", "consume", client.key).broken
            note = f"{again} records were delivered more than once in all" if again > finding.broken else ""
        if finding.examined or not (any_seen and rule in _OPTIONAL_FOR_READER):
            yield _Result(rule, subject, client.arm, finding, permit(evidence, client, "consume", rule), note)
    yield from _corrupt(evidence, facts, subject, client.arm, client.key)
    if group_of(evidence, client):
        yield _co_owned(evidence, facts, client, subject)
    for rule in _GROUP_RULES:
        if (finding := facts.finding(rule, "consume", client.key)).examined:
            yield _Result(rule, subject, client.arm, finding, permit(evidence, client, "consume", rule))


def _corrupt(evidence: Evidence, facts: Facts, subject: str, arm: str | None, key: str) -> Iterator[_Result]:
    """If the reader compares values, each read record counts; otherwise only corrupt records are reported."""
    finding = facts.finding("corrupt", "consume", key)
    read = facts.finding("phantom", "consume", key).examined
    if finding.broken or compares(evidence, key):
        yield _Result("corrupt", subject, arm, replace(finding, examined=max(read, finding.broken)))


def compares(evidence: Evidence, key: str) -> bool:
    """Return whether ``run.json`` says that a reader (or the reader of the log) compared values with the sent ones."""
    return key in evidence.run.get("values_compared", ())


def _co_owned(evidence: Evidence, facts: Facts, client: Client, subject: str) -> _Result:
    """Combine double ownership in rows and in assignments; overlaps that a fault may explain only get a note."""
    by_events, by_events_in_fault = co_assigned(evidence, client)
    by_rows, by_rows_in_fault = (
        facts.finding(rule, "consume", client.key) for rule in ("co_owned", "co_owned_in_fault")
    )
    combined = replace(
        by_rows, examined=by_rows.examined + by_events.examined, broken=by_rows.broken + by_events.broken
    )
    excused = by_rows_in_fault.broken + by_events_in_fault.broken
    note = f"{excused} more while faults kept members from their coordinator, which is permitted" if excused else ""
    return _Result("co_owned", subject, client.arm, combined, None, note)


def _of_replicas(facts: Facts) -> Iterator[_Result]:
    """Yield one result for all partitions with several replicas; a replica that was not read makes it partial."""
    unread = [
        finding for finding in facts.findings.values() if (finding.rule, finding.side) == ("unread", REPLICA_SIDE)
    ]
    differing = [
        finding for finding in facts.findings.values() if (finding.rule, finding.side) == ("differing", REPLICA_SIDE)
    ]
    missing = sum(finding.broken for finding in unread)
    if differing or missing:
        examined = sum(finding.examined for finding in differing)
        combined = Finding("replica", REPLICA_SIDE, "", examined, sum(finding.broken for finding in differing))
        notes = [_broken_names(differing)]
        notes += [f"{missing} replicas could not be read: {_broken_names(unread)}"] if missing else []
        note = "; ".join(text for text in notes if text)
        yield _Result("replica", "replicas", None, combined, None, note, partial=missing > 0)


def _broken_names(findings: Sequence[Finding]) -> str:
    """Return the names of the first partitions with something broken."""
    names = sorted(finding.client for finding in findings if finding.broken)
    return ", ".join(names[:_NAMES_MAX]) + (f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else "")


def _check(evidence: Evidence, result: _Result) -> Check:
    finding = result.finding
    unread_loss = result.rule == "lost" and finding.broken and not evidence.complete
    if not finding.examined or unread_loss:
        status = Status.INCONCLUSIVE
    elif finding.broken and not result.permitted:
        status = Status.FAIL
    else:
        status = Status.INCONCLUSIVE if result.partial else Status.PASS
    return Check(
        id=f"integrity/{result.rule}",
        kind="integrity",
        subject=result.subject,
        arm=result.arm,
        status=status,
        observed=float(finding.broken) if finding.examined else None,
        threshold=0.0,
        unit=result.unit,
        n=finding.examined,
        minimum=1,
        why=_why(evidence, result, status),
        next=_next(result, status),
        samples=finding.samples,
    )


def _why(evidence: Evidence, result: _Result, status: Status) -> str:
    finding = result.finding
    why = f"{finding.broken or 'none'} of {finding.examined} {result.unit}"
    if not finding.examined:
        why = f"no {result.unit.removesuffix('s')} was observed that this rule applies to"
    if finding.broken and status is Status.PASS:
        why += f", {result.permitted}"
    if finding.broken and status is Status.INCONCLUSIVE and not evidence.complete:
        why += ", but the run did not finish, so they may not have been read yet"
    return f"{why}; {result.note}" if result.note else why


def _next(result: _Result, status: Status) -> str | None:
    if status is Status.PASS:
        return None
    if status is Status.FAIL:
        return ADVICE[result.rule]
    if result.partial:
        return "find out from the brokers' logs why the replicas could not be read, and run the plan again"
    if result.finding.examined:
        return "run the plan again and let it finish"
    return "add traffic that this rule applies to"
